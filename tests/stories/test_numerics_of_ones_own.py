"""`pytest numerics_tests` with its options: what is given is judged by the claims that apply to it, and those alone."""

from pathlib import Path

import pytest

from examples.averaging import __file__ as AVERAGING
from tests.support.launch import launch_all
from tests.support.wrong_attention import EXAMPLE, FAULTS

PEEKING = """
from examples.averaging import Averaging

class Peeking(Averaging):
    def forward(self, tokens_BT):
        return super().forward(tokens_BT.flip(1)).flip(1)

def build(config):
    return Peeking(config.vocab_size, 4)
"""
RUNS: dict[tuple[str, ...], tuple[int, tuple[str, ...]]] = {
    (f"--attention={EXAMPLE}:flash_attention", "--collect-only", "-q"):
        (0, ("test_every_attention_gives_the_same_model",)),
    ("--attention={}/wrong.py:flash_attention", "-k", "future or within_its_bound"):
        (1, ("failed", "numerics: --attention {}/wrong.py:flash_attention; tests of anything else are not selected")),
    ("--model={}/peeking.py:build", "-k", "later_tokens"): (1, ("1 failed",)),
    (f"--model={AVERAGING}:build", "-k", "later_tokens"): (0, ("1 passed",)),
    ("-k", "stored"): (0, ("numerics: torch", "threads: 1", "1 passed")),
    ("--hypothesis-profile=night",): (4, ("profile 'night' is not known; choose quick, ci, deep.",)),
    ("--device=cuda:99",): (4, ("device 'cuda:99'",)),
    ("--threads=0",): (4, ("--threads is 0",)),
    ("--hypothesis-profile=ci", "--hypothesis-seed=3"): (4, ("--hypothesis-seed has no effect under profile ci",)),
    ("--attention=naive", f"--model={AVERAGING}:build"): (4, ("takes --attention or --model, not both",)),
    (f"--attention={EXAMPLE}:nowhere",): (4, ("nowhere cannot be imported",)),
    (f"--model={AVERAGING}:nowhere",): (4, ("nowhere cannot be imported",)),
}  # fmt: skip
"""What is typed in one launch each of one process: the exit code, and what is said."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "wrong.py").write_text(FAULTS["mask off by one"].source)
    (folder / "peeking.py").write_text(PEEKING)
    return folder


def test_what_is_given_is_judged_by_the_tests_that_take_it_and_by_no_other(folder: Path) -> None:
    always = ("numerics_tests", "-p", "no:cacheprovider", "--device=cpu")
    ends = launch_all([[*always, *(word.format(folder) for word in typed)] for typed in RUNS])
    for (code, output, errors), (wanted, words) in zip(ends, RUNS.values(), strict=True):
        assert code == wanted, output + errors
        assert all(text.format(folder) in output + errors for text in words), output + errors
        assert "Traceback" not in errors
    tests = [line for line in ends[0][1].splitlines() if "::" in line]
    assert len(tests) > 10
    assert all("[flash_attention.flash_attention]" in line for line in tests)
