"""`python -m perf_tests replay`: the samples of a run give its verdicts and its figures again."""

import json
from pathlib import Path

import numpy as np
import pytest

from perf_tests.__main__ import main
from perf_tests.gate.samples import Rules, SamplesFile
from perf_tests.gate.verdicts import conclude, next_step
from perf_tests.report.gate_screens import as_json
from tests.support.simulated_launches import SimulatedCase, header, line

RULES = Rules(screen_pairs=5, confirm_looks=(8, 12), look_shares=(0.4, 0.6))
QUIET = [SimulatedCase(f"t.py::test_quiet[{place}]") for place in range(6)]
SLOW = SimulatedCase("t.py::test_slow[1]", slowdown=0.08)


def recorded(folder: Path, cases: list[SimulatedCase], end: str | None = "finished") -> tuple[Path, str]:
    """Samples written as the engine writes them, and what the run itself concluded."""
    draw, by_id = np.random.default_rng(1), {case.id: case for case in cases}
    file = SamplesFile(folder / "samples.jsonl", header(cases, RULES))
    pair = 0
    while (step := next_step(file.samples, RULES)) is not None:
        for case in step.cases:
            file.append(line(draw, by_id[case], step.stage, pair, 6, False))
        pair += 1
    if end is not None:
        file.append({"event": "end", "reason": end})
    file.close()
    return folder / "samples.jsonl", as_json(conclude(file.samples, RULES), file.samples.header, RULES)


def test_a_replay_says_what_the_run_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, said = recorded(tmp_path, [*QUIET, SLOW])
    assert main(["replay", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(said)


def test_an_unchanged_suite_is_fine_and_its_summary_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = recorded(tmp_path, QUIET)
    assert main(["replay", str(path), "--summary", str(tmp_path / "summary.md")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "gate: PASSED (6 OK)"
    assert (tmp_path / "summary.md").read_text().startswith("### gate: PASSED")
    assert main(["replay", str(path), "--summary", str(tmp_path / "none/summary.md")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("end", [None, "interrupted"])
def test_an_interrupted_run_is_no_base_for_a_verdict(tmp_path: Path, end: str | None) -> None:
    path, _ = recorded(tmp_path, [*QUIET, SLOW], end)
    assert main(["replay", str(path)]) == 3


def test_settings_that_make_no_sense_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = recorded(tmp_path, QUIET)
    path.write_text(path.read_text().replace('"alpha": 0.01', '"alpha": 7'))
    assert main(["replay", str(path)]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{path} cannot be judged: ")
    assert "alpha is 7" in said
