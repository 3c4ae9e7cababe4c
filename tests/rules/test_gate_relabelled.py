"""Relabelled launches: the truth is known whatever the machine did."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from claims import gate_relabelled
from claims.gate_relabelled import planted, recorded_values, relabelled_runs, runs_at
from perf_tests.gate.samples import GateSamples, Rules
from tests.support.simulated_launches import SimulatedCase, header, line

CASES = [SimulatedCase(f"t.py::test_x[{place}]") for place in range(5)]


def run_of_stage_one(pairs: int, seed: int, leave_out: int | None = None) -> tuple[GateSamples, list[str]]:
    draw, samples = np.random.default_rng(seed), GateSamples(header(CASES, Rules()))
    lines = [json.dumps(samples.header)]
    for pair in range(pairs):
        for place, case in enumerate(CASES):
            if (pair, place) != (leave_out, 0):
                entry = line(draw, case, 1, pair, 3, False)
                samples.add(entry)
                lines.append(json.dumps(entry))
    return samples, lines


def test_whole_pairs_of_all_runs_are_pooled_and_others_left_out() -> None:
    runs = [run_of_stage_one(4, seed=1)[0], run_of_stage_one(5, seed=2, leave_out=3)[0]]
    cases, values = recorded_values(runs, "wall")
    assert cases == [case.id for case in CASES]
    assert values.shape == (4 + 5 - 1, 5)


def test_a_bias_of_the_machine_is_tossed_away_and_a_planted_slowdown_is_not() -> None:
    """Every recorded pair says 5 % slower: with its labels tossed again that is noise."""
    draw = np.random.default_rng(3)
    values = 0.05 + 0.001 * draw.normal(size=(40, 5))
    run = relabelled_runs(draw, values, 50, np.zeros((50, 5)))
    assert run.false_alarms.sum() <= 2
    quiet = 0.01 * draw.normal(size=(40, 5))
    assert planted(draw, quiet, 2, 0.1, 30).count == 30


def test_the_proof_reads_samples_and_gives_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join([*run_of_stage_one(40, seed=4)[1], ""]))
    monkeypatch.setattr(sys, "argv", ["gate_relabelled", str(path), "--suites", "600", "--trials", "5"])
    assert gate_relabelled.main() == 0
    out = capsys.readouterr().out
    assert out.startswith("40 launch pairs of 5 cases in 1 runs, wall time")
    assert "claim: of 600 relabelled runs of the same code at most 1% say SLOWER of anything, " in out
    assert out.endswith(": holds\n")


def test_of_a_folder_of_trials_it_takes_those_without_a_slowdown(tmp_path: Path) -> None:
    lines = [*run_of_stage_one(6, seed=4)[1], '{"event": "end", "reason": "finished"}', ""]
    for name in ("false-alarms", "cost"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        (tmp_path / name / "one.truth.json").write_text('{"change": "same-code"}')
    assert [len(run.measurements) for run in runs_at(tmp_path)] == [6 * len(CASES)]


def test_too_few_pairs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join([*run_of_stage_one(6, seed=4)[1], ""]))
    monkeypatch.setattr(sys, "argv", ["gate_relabelled", str(path)])
    assert gate_relabelled.main() == 2
    assert "6 whole launch pairs are too few" in capsys.readouterr().out
