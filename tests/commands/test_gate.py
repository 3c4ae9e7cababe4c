"""`replay SAMPLES`, a run's verdicts again, and what a search for a commit is told."""

from pathlib import Path

import pytest

from perf_tests import bisect
from perf_tests.gate.samples import Rules
from tests.support.launch import Verb
from tests.support.simulated_launches import SimulatedCase, gate_run

AXES = "small-ctx128-fp32-naive"
RULES = Rules(screen_pairs=5, confirm_looks=(8, 12), look_shares=(0.4, 0.6))
CASES = [SimulatedCase(f"t.py::test_x[{place}]", slowdown=0.08 if place == 6 else 0.0) for place in range(7)]


@pytest.mark.parametrize("old, new, code, last", [
    ("", "", 1, "gate: FAILED (1 SLOWER, 6 OK)"),
    ('"reason": "finished"', '"reason": "interrupted"', 3, "gate: INTERRUPTED: the run did not finish"),
    ('"alpha": 0.01', '"alpha": 7', 3, "cannot be judged: The gate's alpha is 7"),
])  # fmt: skip
def test_a_replay_judges_as_the_run_did_and_an_unfinished_one_not_at_all(
    tmp_path: Path, verb: Verb, old: str, new: str, code: int, last: str
) -> None:
    path, summary = tmp_path / "samples.jsonl", tmp_path / "summary.md"
    gate_run(CASES, RULES, path=path)
    path.write_text(path.read_text().replace(old, new))
    ended, *said = verb("replay", path, "--summary", summary)
    assert (ended, last in "".join(said).splitlines()[-1]) == (code, True)
    assert "alpha" in last or summary.read_text().startswith(f"### {last}")


def test_a_case_is_named_for_a_search_as_pytest_the_page_or_a_screen_does() -> None:
    typed = {
        f"forward {AXES}": f"perf_tests/test_forward.py::test_forward[{AXES}]",
        "test_attention_backward[d64]": "perf_tests/test_attention.py::test_attention_backward[d64]",
        "perf_tests/test_new.py::test_new[a]": "perf_tests/test_new.py::test_new[a]",
        "nothing small": None,
    }
    assert {words: bisect._case_id(words) for words in typed} == typed


def test_a_search_without_minutes_is_one_sentence_and_a_usage_error(verb: Verb) -> None:
    code, _, said = verb("bisect", "HEAD", "HEAD", "--case", f"perf_tests/test_a.py::t[{AXES}]", "--gate-minutes", 0)
    assert (code, len(said.splitlines())) == (2, 1)
