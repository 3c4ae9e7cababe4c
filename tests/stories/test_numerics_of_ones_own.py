"""`pytest numerics_tests` with --attention or --model runs the claims that apply to what is given, and those alone."""

from pathlib import Path

import pytest

from examples.averaging import __file__ as AVERAGING
from tests.support.forked_python import forked_python
from tests.support.launch import start_command
from tests.support.wrong_attention import EXAMPLE, FAULTS

PEEKING = """
from examples.averaging import Averaging

class Peeking(Averaging):
    def forward(self, tokens_BT):
        return super().forward(tokens_BT.flip(1)).flip(1)

def build(config):
    return Peeking(config.vocab_size, 4)
"""


def numerics(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a run of its own."""
    options = ("-p", "no:cacheprovider", "--device=cpu", *arguments)
    process = start_command((forked_python(), "-m", "pytest", "numerics_tests", *options))
    output, errors = process.communicate(timeout=300)
    return process.returncode, output + errors


def test_an_attention_gets_every_test_that_takes_one_and_no_other() -> None:
    code, output = numerics(f"--attention={EXAMPLE}:flash_attention", "--collect-only", "-q")
    tests = [line for line in output.splitlines() if "::" in line]
    assert code == 0
    assert len(tests) > 10
    assert all("[flash_attention.flash_attention]" in line for line in tests)
    assert any("test_every_attention_gives_the_same_model" in line for line in tests)


def test_a_wrong_attention_fails(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(FAULTS["mask off by one"].source)
    code, output = numerics(f"--attention={planted}:flash_attention", "-k", "future or first_token")
    assert code == 1
    assert "2 failed" in output
    assert f"numerics: --attention {planted}:flash_attention; tests of anything else are not selected" in output


def test_a_model_that_peeks_fails_and_one_that_does_not_passes(tmp_path: Path) -> None:
    planted = tmp_path / "peeking.py"
    planted.write_text(PEEKING)
    for model, result in ((str(planted), "1 failed"), (AVERAGING, "1 passed")):
        _, output = numerics(f"--model={model}:build", "-k", "later_tokens")
        assert result in output


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--attention=naive", f"--model={AVERAGING}:build"), "takes --attention or --model, not both"),
        ((f"--attention={EXAMPLE}:nowhere",), "nowhere cannot be imported"),
        ((f"--model={AVERAGING}:nowhere",), "nowhere cannot be imported"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    code, output = numerics(*arguments)
    assert code == 4
    assert words in output
    assert "Traceback" not in output
