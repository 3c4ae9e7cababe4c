"""The gate between recorded launches whose truth is known: which launches count, and what they decide."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from perf_tests.bench.session import Run
from perf_tests.gate.recorded import (
    RULES,
    RecordedResult,
    RecordedSides,
    compared,
    conclude_recorded,
    judged,
    sides_of,
    why_incomparable,
)
from perf_tests.gate.samples import Clock
from perf_tests.gate.verdicts import Acceptance, CaseResult, Verdict, read_accepted
from perf_tests.records.record import Json, code_of
from perf_tests.records.store import StoredRecord, save_record
from perf_tests.report.gate_screens import case_row, report_lines
from perf_tests.run.after import judge
from tests.support.recorded_launches import BASE, CASES, HEAD, dated, launches, stored
from tests.support.synthetic import FORWARD, machine, record, timed, untimed


def concluded(base: list[Json], head: list[Json], *accepted: Acceptance) -> RecordedResult:
    return conclude_recorded(stored(base), stored(head, "head"), RULES, accepted)


def first_row(base: list[Json], head: list[Json]) -> CaseResult:
    return concluded(base, head).cases[0]


@pytest.mark.parametrize(
    ("slowdown", "drift", "verdicts"),
    [
        (0.1, 0.0, {Verdict.SLOWER, Verdict.OK}),
        (0.1, 0.05, {Verdict.SLOWER, Verdict.OK}),
        (-0.1, 0.0, {Verdict.FASTER, Verdict.OK}),
        (0.0, 0.0, {Verdict.OK}),
    ],
    ids=["slower", "slower, in a drift that the matrix product saw", "faster", "unchanged"],
)
def test_a_large_change_is_found_and_its_size_told(slowdown: float, drift: float, verdicts: set[Verdict]) -> None:
    result = concluded(launches(1, 8, drift=drift), launches(2, 5, slowdown, drift=drift))
    assert {row.verdict for row in result.cases} == verdicts
    found = result.cases[0].effect
    assert found is not None
    assert found.effect == pytest.approx(slowdown, abs=0.02)
    if drift:
        assert result.slope == pytest.approx(1, abs=0.2)
    elif slowdown > 0:
        assert found.low < slowdown < found.high


def test_launches_that_differ_decide_nothing() -> None:
    found = first_row(launches(1, 8, spread=0.2), launches(2, 5, spread=0.2))
    assert found.verdict == Verdict.UNDECIDED
    assert found.launches_needed is None or found.launches_needed > 5


def test_a_launch_without_timings_changes_no_verdict_of_the_others() -> None:
    base, head = launches(1, 8, drift=0.05), launches(2, 5, 0.1, drift=0.05)
    without = concluded(base, head)
    base.append({**base[0], "benchmarks": [], "outcomes": [untimed(CASES[0])]})
    result = concluded(base, head)
    assert (result.cases, result.slope, result.contaminated) == (without.cases, without.slope, "")


def test_launches_with_and_without_a_matrix_product_are_compared_without_it() -> None:
    base, head = launches(1, 8), launches(2, 5)
    for row in base[0]["benchmarks"]:
        del row["extra_info"]["matmul_ceiling_tflops_per_second"]
    result = concluded(base, head)
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
    verdicts = {row.id: row.verdict for row in concluded(base, head).cases}
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
    result = concluded(base, head)
    assert result.clock == "cpu"
    found = result.cases[0]
    assert (found.verdict, found.clock, found.is_by_guard) == (Verdict.SLOWER, "wall", True)
    assert found.effect is not None
    assert found.effect.low > 5
    assert {row.verdict for row in result.cases[1:]} == {Verdict.OK}
    assert "slower by wall time, checked beside CPU time (+" in report_lines(result, {}, RULES)[0]
    assert case_row(found)[2] == "wall (guard)"
    for clock in get_args(Clock):
        entry = Acceptance(found.id, 50, "a queue", "abc", clock=clock)
        assert concluded(base, head, entry).cases[0].is_failure == (clock == "cpu")


def test_a_slowdown_by_both_clocks_is_accepted_by_both() -> None:
    base, head = launches(1, 8), launches(2, 5, slowdown=0.5)
    for launch in (*base, *head):
        for row in launch["benchmarks"]:
            median, noise = float(np.median(row["stats"]["data"])), len(row["fullname"]) % 3
            row["extra_info"]["cpu_seconds"] = [median**0.5 * (1 + 1e-4 * noise)] * 12
    limits = [Acceptance(CASES[0], 1.6, "why", "abc", clock=clock) for clock in get_args(Clock)]
    failing = [concluded(base, head, *accepted).cases[0].is_failure for accepted in (limits, limits[:1], limits[1:])]
    assert failing == [False, True, True]


def test_two_machines_two_cases_or_two_commits_are_not_compared() -> None:
    base, head = launches(1, 5), launches(2, 3)
    assert why_incomparable(stored(base), stored(head)) == ""
    other_machine = [launch | {"machine_info": machine(threads=2)} for launch in head]
    assert "threads: 2 here, 4 there" in why_incomparable(stored(base), stored(other_machine))
    head[0]["benchmarks"][3]["extra_info"]["batch_size"] = 8
    assert "batch_size was 4, is 8" in why_incomparable(stored(base), stored(head))
    for commit in ({"id": "fedcba"}, {**base[0]["commit_info"], "dirty": True}):
        base[0]["commit_info"] = commit
        assert "several versions of the code" in why_incomparable(stored(base), stored(launches(2, 3)))


# The launches that a run is judged by.


def sides(data: list[Json], asked: int | None = None) -> RecordedSides:
    """The sides of the last launch; baseline is the one asked for, or the one before it."""
    *earlier, now = stored(data)
    return sides_of(now, earlier, earlier[-1 if asked is None else asked], asked is not None)


def counts(found: RecordedSides) -> tuple[str, int, int]:
    return found.base_name, len(found.base), len(found.head)


def test_launches_of_the_baselines_commit_stand_against_those_of_this_one_with_a_date_or_without() -> None:
    data = [*dated(launches(1, 6), BASE, 0), *dated(launches(2, 3), HEAD, 10)]
    del data[2]["datetime"]
    assert counts(sides(data)) == (BASE[:12], 6, 3)
    assert sides(data).why_no_verdict == ""
    alone = sides(dated(launches(1, 6), HEAD, 0))
    assert "every comparable record is of this run's own code" in alone.why_no_verdict


def test_the_commit_asked_for_is_the_base_and_unasked_the_newest_with_launches_enough() -> None:
    old, few = dated(launches(1, 5), "0" * 40, 0), dated(launches(2, 2), BASE, 10)
    data = [*old, *few, *dated(launches(3, 1), HEAD, 20)]
    assert counts(sides(data)) == ("0" * 12, 5, 1)
    found = sides(data, asked=5)
    assert counts(found) == (BASE[:12], 2, 1)
    assert f"{BASE[:12]} has 2 comparable launches and this code 1" in found.why_no_verdict
    assert "has 1 comparable launch and" in sides([data[0], data[-1]]).why_no_verdict


def test_launches_of_another_machine_and_cases_of_another_meaning_or_not_of_this_run_do_not_count() -> None:
    elsewhere = [launch | {"machine_info": machine(threads=2)} for launch in launches(1, 3)]
    other = launches(2, 3)
    for launch in other:
        for row in launch["benchmarks"]:
            row["extra_info"]["batch_size"] = 64
    now = dated(launches(4, 1), HEAD, 30)
    del now[0]["benchmarks"][3:]
    data = [*dated(elsewhere, BASE, 0), *dated(other, BASE, 10), *dated(launches(3, 4), BASE, 20), *now]
    found = sides(data)
    assert counts(found) == (BASE[:12], 4, 1)
    assert {len(launch.data["benchmarks"]) for launch in (*found.base, *found.head)} == {3}


def test_uncommitted_changes_are_told_apart_by_what_ran() -> None:
    dirty = [*dated(launches(1, 2), BASE, 0, True, "one"), *dated(launches(2, 2), BASE, 10, True, "two")]
    assert counts(sides(dirty)) == ("one", 2, 2)
    clean = dated(launches(1, 1), BASE, 0)[0]
    assert code_of(clean) == BASE
    assert code_of(clean | {"commit_info": {}}) == "digest"
    assert code_of(clean | {"commit_info": {}, "suite": {}}) == "the run of 2030-01-01T00:00:00+00:00"


def judged_run(storage: Path, base: list[Json], head: list[Json]) -> Run:
    """A finished run whose record is the last of `head`, after the others were saved."""
    *earlier, now = [*dated(base, BASE, 0), *dated(head, HEAD, 10)]
    for launch in earlier:
        save_record(launch, storage / "machine", "x")
    run = Run(gone_counts=True, baseline=StoredRecord(storage / "machine/0001_x.json", earlier[0]), record=now)
    judge(run, storage, is_asked=False)
    return run


def test_what_is_accepted_against_the_base_fails_nothing(tmp_path: Path) -> None:
    run = judged_run(tmp_path, launches(1, 8), launches(2, 5, slowdown=0.2))
    assert run.verdict_lines[0].startswith("SLOWER: forward tiny-ctx0-fp32-naive: head is 20.5% slower by wall time (+")
    assert run.failures == ["gate: FAILED (1 SLOWER, 9 OK)"]
    (offered,) = (tmp_path / "gate").glob("*_accept.toml")
    assert str(offered) in run.notes[-1]
    again = replace(run, failures=[], verdict_lines=[], accepted=read_accepted(offered))
    judge(again, tmp_path, is_asked=False)
    assert again.failures == []
    assert "SLOWER" in again.verdict_lines[-1]
    assert any("accepted: WHY IT IS WORTH IT" in line for line in again.verdict_lines)


def test_a_run_with_too_few_launches_without_a_baseline_or_on_a_machine_that_changed_is_not_judged(
    tmp_path: Path,
) -> None:
    few = judged_run(tmp_path / "few", launches(1, 3), launches(2, 1, slowdown=0.5))
    assert (few.failures, few.verdict_lines) == ([], [])
    assert "at least 5 and 3 are needed" in few.notes[0]
    slow = launches(2, 5, slowdown=0.5, drift=0.005, machine_slower=0.3)
    moved = judged_run(tmp_path / "moved", launches(1, 8, drift=0.005), slow)
    assert (moved.is_contaminated, moved.failures) == (True, [])
    assert moved.verdict_lines[-1].startswith("gate: CONTAMINATED")
    judge(alone := Run(gone_counts=True, record=record([timed(FORWARD)])), tmp_path, is_asked=False)
    assert (alone.notes, alone.failures) == ([], [])
