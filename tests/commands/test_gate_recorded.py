"""`python -m perf_tests gate BASE HEAD`: two sets of recorded launches, with a truth that is known."""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from perf_tests.__main__ import main
from perf_tests.gate.recorded import RULES, compared, conclude_recorded, judged, why_incomparable
from perf_tests.gate.samples import Clock
from perf_tests.gate.verdicts import Acceptance, CaseResult, Verdict
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord
from perf_tests.report.gate_screens import case_row, report_lines
from perf_tests.verbs.gate import records_of
from tests.support.synthetic import machine, record, timed, untimed

CASES = [f"perf_tests/test_forward.py::test_forward[tiny-ctx{place}-fp32-naive]" for place in range(10)]


def launches(
    seed: int, count: int, slowdown: float = 0.0, spread: float = 0.01, drift: float = 0.0, machine_slower: float = 0.0
) -> list[Json]:
    """Records of launches; the first case is slower, and `drift` moves all cases and the matrix product together."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        moved = draw.normal() * drift + np.log1p(machine_slower)
        rows = []
        for place, case in enumerate(CASES):
            middle = np.exp(draw.normal() * spread + moved + (np.log1p(slowdown) if place == 0 else 0))
            seconds = (middle * np.exp(draw.normal(size=12) * 0.01)).tolist()
            rows.append(timed(case, seconds, matmul_ceiling_tflops_per_second=float(0.2 / np.exp(moved))))
        found.append(record(rows))
    return found


def stored(data: list[Json], side: str = "base") -> list[StoredRecord]:
    return [StoredRecord(Path(f"{side}/{number}.json"), launch) for number, launch in enumerate(data)]


def first_row(base: list[Json], head: list[Json]) -> CaseResult:
    return conclude_recorded(stored(base), stored(head, "head"), RULES).cases[0]


def test_a_large_slowdown_is_found_and_its_size_told() -> None:
    found = first_row(launches(1, 8), launches(2, 5, slowdown=0.1))
    assert found.verdict == Verdict.SLOWER
    assert found.effect is not None
    assert found.effect.low < 0.1 < found.effect.high
    assert found.effect.effect == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(("slowdown", "verdicts"), [(-0.1, {Verdict.FASTER, Verdict.OK}), (0.0, {Verdict.OK})])
def test_a_large_speedup_is_found_and_unchanged_cases_are_ok(slowdown: float, verdicts: set[Verdict]) -> None:
    result = conclude_recorded(stored(launches(1, 8)), stored(launches(2, 5, slowdown)), RULES)
    assert {row.verdict for row in result.cases} == verdicts


def test_launches_that_differ_decide_nothing() -> None:
    found = first_row(launches(1, 8, spread=0.2), launches(2, 5, spread=0.2))
    assert found.verdict == Verdict.UNDECIDED
    assert found.launches_needed is None or found.launches_needed > 5


def test_drift_that_the_matrix_product_saw_is_taken_out() -> None:
    result = conclude_recorded(stored(launches(1, 8, drift=0.05)), stored(launches(2, 5, 0.1, drift=0.05)), RULES)
    assert result.cases[0].verdict == Verdict.SLOWER
    assert result.slope == pytest.approx(1, abs=0.2)


def test_a_launch_without_timings_changes_no_verdict_of_the_others() -> None:
    sides = launches(1, 8, drift=0.05), launches(2, 5, 0.1, drift=0.05)
    without = conclude_recorded(stored(sides[0]), stored(sides[1]), RULES)
    sides[0].append({**sides[0][0], "benchmarks": [], "outcomes": [untimed(CASES[0])]})
    result = conclude_recorded(stored(sides[0]), stored(sides[1]), RULES)
    assert (result.cases, result.slope, result.contaminated) == (without.cases, without.slope, "")


def test_launches_with_and_without_a_matrix_product_are_compared_without_it() -> None:
    base, head = launches(1, 8), launches(2, 5)
    for row in base[0]["benchmarks"]:
        del row["extra_info"]["matmul_ceiling_tflops_per_second"]
    result = conclude_recorded(stored(base), stored(head), RULES)
    assert (result.slope, result.contaminated) == (0, "")
    assert {row.verdict for row in result.cases} == {Verdict.OK}


@pytest.mark.parametrize(("base", "head"), [(4, 5), (8, 2), (1, 1)])
def test_too_few_launches_decide_nothing_and_say_so(base: int, head: int) -> None:
    found = first_row(launches(1, base), launches(2, head, slowdown=0.5))
    assert found.verdict == Verdict.UNDECIDED
    assert f"measured in {base} launches of base and {head} of head" in found.explanation


def test_a_case_of_one_side_alone_is_gone_or_new() -> None:
    base, head = launches(1, 8), launches(2, 5)
    for launch in head:
        del launch["benchmarks"][:2]
        launch["outcomes"].append(untimed(CASES[1]))
    for launch in base:
        del launch["benchmarks"][9]
    verdicts = {r.id: r.verdict for r in conclude_recorded(stored(base), stored(head), RULES).cases}
    assert [verdicts[case] for case in (CASES[0], CASES[1], CASES[9])] == ["GONE", "NO LONGER FITS", "NEW"]


def test_false_alarms_and_power_over_many_suites() -> None:
    """Ten launches against five of twenty cases that scatter by 2 %, and drift with the machine by as much."""
    suites, draw = 1000, np.random.default_rng(3)
    base_drift, head_drift = 0.02 * draw.normal(size=(suites, 10)), 0.02 * draw.normal(size=(suites, 5))
    base = 0.02 * draw.normal(size=(suites, 20, 10)) + base_drift[:, None]
    head = 0.02 * draw.normal(size=(suites, 20, 5)) + head_drift[:, None]
    head[:, 0] += np.log1p(0.1)
    slower = judged({"wall": compared(base, head, base_drift, head_drift)[0]}, RULES)[0]["wall"]
    alarms = int(slower[:, 1:].any(axis=1).sum())
    assert stats.binomtest(alarms, suites, RULES.alpha, "greater").pvalue > 1e-4
    assert slower[:, 0].mean() > 0.9


def test_cpu_time_decides_where_it_scatters_less_and_wall_time_guards() -> None:
    base, head = launches(1, 8, spread=0.2), launches(2, 5, spread=0.2)
    draw = np.random.default_rng(4)
    for side, waiting in ((base, 1.0), (head, 20.0)):
        for launch in side:
            for place, row in enumerate(launch["benchmarks"]):
                row["extra_info"]["cpu_seconds"] = np.exp(draw.normal() * 0.01 + np.zeros(12)).tolist()
                row["stats"]["data"] = [s * (waiting if place == 0 else 1) for s in row["stats"]["data"]]
    result = conclude_recorded(stored(base), stored(head), RULES)
    assert result.clock == "cpu"
    found = result.cases[0]
    assert (found.verdict, found.clock, found.is_by_guard) == (Verdict.SLOWER, "wall", True)
    assert found.effect is not None
    assert found.effect.low > 5
    assert {row.verdict for row in result.cases[1:]} == {Verdict.OK}
    (sentence, *_), (row,) = report_lines(result, {}, RULES), [*map(case_row, [found])]
    assert "slower by wall time, checked beside CPU time (+" in sentence
    assert row[2] == "wall (guard)"
    for clock in get_args(Clock):
        entry = Acceptance(found.id, 50, "a queue", "abc", clock=clock)
        is_failure = conclude_recorded(stored(base), stored(head), RULES, [entry]).cases[0].is_failure
        assert is_failure == (clock == "cpu")


def test_a_slowdown_by_both_clocks_is_accepted_by_both() -> None:
    base, head = launches(1, 8), launches(2, 5, slowdown=0.5)
    for launch in (*base, *head):
        for row in launch["benchmarks"]:
            median, noise = float(np.median(row["stats"]["data"])), len(row["fullname"]) % 3
            row["extra_info"]["cpu_seconds"] = [median**0.5 * (1 + 1e-4 * noise)] * 12
    limits = [Acceptance(CASES[0], 1.6, "why", "abc", clock=clock) for clock in get_args(Clock)]
    failing = [
        conclude_recorded(stored(base), stored(head), RULES, accepted).cases[0].is_failure
        for accepted in (limits, limits[:1], limits[1:])
    ]
    assert failing == [False, True, True]


def test_two_machines_two_cases_or_two_commits_are_not_compared() -> None:
    base, head = launches(1, 5), launches(2, 3)
    assert why_incomparable(stored(base), stored(head)) == ""
    other_machine = [launch | {"machine_info": machine(threads=2)} for launch in head]
    assert "threads: 2 here, 4 there" in why_incomparable(stored(base), stored(other_machine))
    head[0]["benchmarks"][3]["extra_info"]["batch_size"] = 8
    assert "batch_size was 4, is 8" in why_incomparable(stored(base), stored(head))
    base[0]["commit_info"] = {"id": "fedcba"}
    assert "several versions of the code" in why_incomparable(stored(base), stored(launches(2, 3)))


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


def test_the_verb_finds_the_runs_of_a_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "Some-machine", launches(1, 8))
    assert main(["gate", "abc", "abc", "--storage", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASSED"


def test_runs_with_uncommitted_changes_are_no_launches_of_their_commit(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    written(storage / "machine", launches(1, 8))
    folder = written(tmp_path / "head", head := launches(2, 5, slowdown=0.2))
    for number, launch in enumerate(launches(3, 8, slowdown=0.5)):
        commit = {**launch["commit_info"], "dirty": True}
        path = storage / "machine" / f"1{number:03}_abc123-dirty.json"
        path.write_text(json.dumps({**launch, "commit_info": commit}))
    assert main(["gate", "abc123", folder, "--storage", str(storage)]) == 1
    assert {found.path.stem[4:] for found in records_of(storage, "abc123-dirty")} == {"_abc123-dirty"}
    head[0]["commit_info"] = {**head[0]["commit_info"], "dirty": True}
    assert "several versions of the code" in why_incomparable(stored(launches(1, 8)), stored(head))


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
