"""`replay SAMPLES`: a run's verdicts again."""

from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.gate.samples import Rules
from tests.support.launch import Verb
from tests.support.simulated_launches import SimulatedCase, gate_run

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
