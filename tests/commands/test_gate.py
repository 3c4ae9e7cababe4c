"""`gate BASE HEAD`, verdicts between recorded launches, and `replay SAMPLES`, a run's verdicts again."""

import json
from pathlib import Path

import numpy as np
import pytest

from perf_tests.__main__ import main
from perf_tests.gate.samples import Rules, SamplesFile
from perf_tests.gate.verdicts import conclude, next_step
from perf_tests.records.record import Json
from perf_tests.report.gate_screens import as_json
from perf_tests.verbs.gate import records_of
from tests.support.recorded_launches import launches
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


# Recorded launches.


def written(folder: Path, data: list[Json]) -> str:
    folder.mkdir(parents=True)
    for number, launch in enumerate(data):
        (folder / f"{number:04}_abc123.json").write_text(json.dumps(launch))
    return str(folder)


def test_the_verb_prints_a_table_and_fails_on_a_slowdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = written(tmp_path / "base", launches(1, 8)), written(tmp_path / "head", launches(2, 5, slowdown=0.2))
    words = ["--summary", str(tmp_path / "summary.md"), "--storage", str(tmp_path)]
    assert main(["gate", base, head, *words]) == 1
    first, *_, verdict, offer = capsys.readouterr().out.splitlines()
    assert first.startswith("SLOWER: forward tiny-ctx0-fp32-naive: head is ")
    assert verdict == "gate: FAILED (1 SLOWER, 9 OK)"
    (path,) = (tmp_path / "gate").glob("*_accept.toml")
    assert str(path) in offer
    assert (tmp_path / "summary.md").read_text().startswith("### gate: FAILED")


def test_the_verb_finds_the_runs_of_a_commit_and_none_with_uncommitted_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = tmp_path / "storage"
    written(storage / "machine", launches(1, 8))
    assert main(["gate", "abc", "abc", "--storage", str(storage), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASSED"
    folder = written(tmp_path / "head", launches(2, 5, slowdown=0.2))
    for number, launch in enumerate(launches(3, 8, slowdown=0.5)):
        path = storage / "machine" / f"1{number:03}_abc123-dirty.json"
        path.write_text(json.dumps({**launch, "commit_info": {**launch["commit_info"], "dirty": True}}))
    assert main(["gate", "abc123", folder, "--storage", str(storage)]) == 1
    assert {found.path.stem[4:] for found in records_of(storage, "abc123-dirty")} == {"_abc123-dirty"}


@pytest.mark.parametrize("words", [["nothing", "nothing"], ["abc", "nothing"]])
def test_what_holds_no_records_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    written(tmp_path / "Some-machine", launches(1, 2))
    assert main(["gate", *words, "--storage", str(tmp_path)]) == 3
    assert "nothing is not a folder with records" in capsys.readouterr().err


def test_a_machine_that_changed_is_incomparable_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = written(tmp_path / "base", launches(1, 8, drift=0.005))
    head = written(tmp_path / "head", launches(2, 5, drift=0.005, machine_slower=0.3))
    assert main(["gate", base, head]) == 3
    out = "".join(capsys.readouterr())
    assert "gate: CONTAMINATED" in out
    assert "the best matrix product takes +" in out
