"""The gate between recorded launches whose truth is known: which launches count, and what they decide."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from perf_tests.bench.session import Run
from perf_tests.gate import recorded as gate
from perf_tests.gate.recorded import RULES
from perf_tests.gate.statistics import Estimate
from perf_tests.gate.verdicts import MOST_NEEDED, Acceptance, Verdict, launches_needed, read_accepted
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord, save_record
from perf_tests.run.after import judge
from tests.support.recorded_launches import BASE, CASES, HEAD, dated, launches, stored
from tests.support.synthetic import FORWARD, machine, record, timed, untimed


def concluded(base: list[Json], head: list[Json], *accepted: Acceptance) -> gate.RecordedResult:
    return gate.conclude_recorded(stored(base), stored(head), RULES, accepted)


CHANGES = [
    # by how much the first case is slower, the drift that the matrix product sees too, and the verdicts
    (0.1, 0.0, {"SLOWER", "OK"}),
    (0.1, 0.05, {"SLOWER", "OK"}),
    (-0.1, 0.0, {"FASTER", "OK"}),
    (0.0, 0.0, {"OK"}),
]


def test_a_large_change_is_found_and_its_size_told() -> None:
    for slowdown, drift, verdicts in CHANGES:
        base, head = launches(1, 8, drift=drift), launches(2, 5, slowdown, drift=drift)
        result = concluded(base, head)
        assert {row.verdict for row in result.cases} == verdicts
        found = result.cases[0].effect
        assert found is not None
        assert found.effect == pytest.approx(slowdown, abs=0.02)
        assert found.pairs == 5
        assert found.low < slowdown < found.high or drift
        assert result.slope == pytest.approx(1, abs=0.2) or not drift
        base.append({**base[0], "benchmarks": [], "outcomes": [untimed(CASES[0])]})
        without_timings = concluded(base, head)
        assert (without_timings.cases, without_timings.slope) == (result.cases, result.slope)


def test_times_follow_the_matrix_product_in_proportion_at_most_unless_a_launch_lacks_it() -> None:
    base = launches(1, 8)
    for row in base[0]["benchmarks"]:
        del row["extra_info"]["matmul_ceiling_tflops_per_second"]
    result = concluded(base, launches(2, 5))
    assert (result.slope, result.contaminated, {row.verdict for row in result.cases}) == (0, "", {Verdict.OK})
    drift = np.array([-0.1, 0.0, 0.1])
    for follows, slope in ((0.5, 0.5), (3.0, 1.2), (-1.0, 0.0)):
        assert gate.compared(follows * drift[None], follows * drift[None], drift, drift)[1] == pytest.approx(slope)


def test_too_few_launches_decide_nothing_and_say_so() -> None:
    for base, head, is_enough in ((4, 5, False), (8, 2, False), (1, 1, False), (5, 3, True)):
        found = concluded(launches(1, base), launches(2, head, slowdown=0.5)).cases[0]
        assert found.verdict == ("SLOWER" if is_enough else "UNDECIDED"), (base, head)
        assert is_enough or f"measured in {base} launches of base and {head} of head" in found.explanation


def test_an_undecided_case_says_how_many_launches_and_minutes_it_lacks() -> None:
    base, head = launches(1, 8, spread=0.2), launches(2, 5, spread=0.2)
    for minutes, launch in zip((1, 2, 2, 2, 600), head, strict=True):  # the last was resumed the next day
        launch["suite"]["started"] = "2030-01-01T00:00:00+00:00"
        launch["datetime"] = f"2030-01-01T{minutes // 60:02}:{minutes % 60:02}:00+00:00"
    found = concluded(base, head)
    most = max(row.launches_needed or MOST_NEEDED for row in found.cases if row.verdict == Verdict.UNDECIDED)
    assert (found.cases[0].verdict, most > 5, found.minutes_needed) == (Verdict.UNDECIDED, True, 2 * (most - 5))
    head[0]["datetime"] = None
    assert concluded(base, head).minutes_needed == 2 * (most - 5)
    assert concluded(launches(1, 8), launches(2, 5)).minutes_needed is None


def test_a_case_of_one_side_alone_is_gone_or_new() -> None:
    base, head = launches(1, 8), launches(2, 5)
    for launch in head:
        del launch["benchmarks"][:2]
        launch["outcomes"].append(untimed(CASES[1]))
    for launch in base:
        del launch["benchmarks"][9]
    verdicts = {row.id: row.verdict for row in concluded(base, head).cases}
    assert [verdicts[case] for case in (CASES[0], CASES[1], CASES[9])] == ["GONE", "NO LONGER FITS", "NEW"]


@pytest.mark.parametrize(("within", "days", "found"), [(0.02, 0.0, 0.9), (0.002, 0.02, 0.75)])
def test_false_alarms_and_power_over_many_suites(within: float, days: float, found: float) -> None:
    """Ten launches against five of twenty cases that scatter by 2 %. They drift with the machine from one launch to the
    next, or it changes between the sides and tells neither how a case follows."""
    suites, draw = 1000, np.random.default_rng(3)
    moved = [within * draw.normal(size=(suites, count)) + days * draw.normal(size=(suites, 1)) for count in (10, 5)]
    follow = np.clip(draw.normal(0.8, 0.2, (suites, 20, 1)), 0, None) if days else 1
    base, head = (0.02 * draw.normal(size=(suites, 20, drift.shape[1])) + follow * drift[:, None] for drift in moved)
    head[:, 0] += np.log1p(0.1)
    slower = gate.judged({"wall": gate.compared(base, head, *moved)[0]}, RULES)[0]["wall"]
    alarms = int(slower[:, 1:].any(axis=1).sum())
    assert stats.binomtest(alarms, suites, RULES.alpha, "greater").pvalue > 1e-4
    assert slower[:, 0].mean() > found


def test_a_machine_that_changed_between_the_sides_leaves_open_what_it_can_explain() -> None:
    base, head = launches(1, 8, spread=0.001, drift=0.0005), launches(2, 5, spread=0.001, machine_slower=0.04)
    for row in (row for launch in head for row in launch["benchmarks"]):
        row["stats"]["data"] = [1.02 * seconds for seconds in row["stats"]["data"]]
    rows = concluded(base, head).cases
    assert {(row.verdict, row.launches_needed) for row in rows} == {(Verdict.UNDECIDED, None)}
    assert "can move a case by" in rows[0].explanation
    assert "record base's launches again" in rows[0].explanation


def test_cpu_time_decides_if_it_scatters_less_and_wall_guards() -> None:
    """The first case takes twenty times as long, in CPU time by this ratio."""
    for spread, cpu_ratio, by in ((0.2, 1.0, ["wall"]), (0.01, 1.2, ["cpu", "wall"])):
        base, head, draw = launches(1, 8, spread=spread), launches(2, 5, spread=spread), np.random.default_rng(4)
        for side in (base, head):
            for row in (row for launch in side for row in launch["benchmarks"]):
                slower, slower_cpu = (20.0, cpu_ratio) if side is head and row["fullname"] == CASES[0] else (1.0, 1.0)
                row["stats"]["data"] = [slower * seconds for seconds in row["stats"]["data"]]
                row["extra_info"]["cpu_seconds"] = [slower_cpu * np.exp(draw.normal() * 0.001)] * 12
        result = concluded(base, head)
        found, *others = result.cases
        assert (result.clock, found.verdict, [*found.slower_by]) == ("cpu", Verdict.SLOWER, by)
        assert (found.clock, found.is_by_guard) == (by[0], by[0] == "wall")
        assert {row.verdict for row in others} == {Verdict.OK}
        for clocks in (["wall"], ["cpu"], ["cpu", "wall"]):
            limits = (Acceptance(CASES[0], 50, "a queue", "abc", clock=clock) for clock in clocks)  # type: ignore[arg-type]
            assert concluded(base, head, *limits).cases[0].is_failure == (not {*by} <= {*clocks})


SHARES: list[tuple[tuple[float, ...], list[int]]] = [
    ((0.89, 1.0), [1, 0]), ((0.91, 1.0), [0, 0]), ((1.0, 0.09), [0, 1]), ((1.0, 0.11), [0, 0]), ((0.99,), [1]),
]  # fmt: skip


def test_where_wall_time_guards_the_clocks_share_the_level() -> None:
    """One case, whose p-value by each clock is so much of the level."""
    one = np.array([1.0])
    for shares, slower in SHARES:
        means = [RULES.log_margin + stats.t.isf(share * RULES.alpha, 10) * one for share in shares]
        found = {by: Estimate(one, mean, one, 10 * one) for by, mean in zip(("cpu", "wall"), means, strict=False)}
        flags, faster = gate.judged(found, RULES)  # type: ignore[arg-type]
        assert ([int(by_clock[0]) for by_clock in flags.values()], faster[0]) == (slower, False), shares


def test_the_launches_that_would_decide_are_the_fewest_that_do() -> None:
    """Scipy's t test of two samples agrees: the estimate is below what matters, or above the margin."""
    of_clearing, of_slower = (RULES.clearing_level, RULES.log_matters, "less"), (0.002, RULES.log_margin, "greater")
    for mean, (level, limit, side) in ((0.0, of_clearing), (0.09, of_slower)):
        needed = launches_needed(mean, 0.05**2, 0.002, RULES.clearing_level, RULES, 3, base=8)
        assert needed is not None
        fewer, enough = (
            stats.ttest_ind_from_stats(mean - limit, 0.05, n, 0, 0.05, 8, alternative=side).pvalue
            for n in (needed - 1, needed)
        )
        assert enough < level <= fewer


def test_two_machines_two_cases_or_two_commits_are_not_compared() -> None:
    base, head = launches(1, 5), launches(2, 3)
    assert gate.why_incomparable(stored(base), stored(head)) == ""
    other_machine = [launch | {"machine_info": machine(threads=2)} for launch in head]
    assert "threads: here: 2, there: 4" in gate.why_incomparable(stored(base), stored(other_machine))
    head[0]["benchmarks"][3]["extra_info"]["batch_size"] = 8
    assert "batch_size was 4, is 8" in gate.why_incomparable(stored(base), stored(head))
    for commit in ({"id": "fedcba"}, {**base[0]["commit_info"], "dirty": True}):
        base[0]["commit_info"] = commit
        assert "several versions of the code" in gate.why_incomparable(stored(base), stored(launches(2, 3)))


# The launches that a run is judged by.

ZERO = "0" * 40
TWO: list[Any] = [(5, ZERO, 0), (2, BASE, 10), (1, HEAD, 30)]


def recorded(*runs: Any) -> list[Json]:
    """Launches, so many of a commit from a moment on; with a source, of its uncommitted changes."""
    return [
        launch
        for count, commit, first, *source in runs
        for launch in dated(launches(first + 1, count), commit, first, bool(source), *source)
    ]


SIDES: dict[str, tuple[list[Any], int | None, str, tuple[int, int], str]] = {
    "enough": ([(6, BASE, 0), (3, HEAD, 10)], None, BASE, (6, 3), ""),
    "own code": ([(6, HEAD, 0)], None, HEAD, (0, 6), "all earlier records are of the same code"),
    "newest with enough": (TWO, None, ZERO, (5, 1), "and this code 1; at least 5 and 3"),
    "asked for": (TWO, 5, BASE, (2, 1), f"{BASE[:12]} has 2 comparable launches"),
    "one launch": ([(1, ZERO, 0), (1, HEAD, 30)], None, ZERO, (1, 1), "has 1 comparable launch and"),
    "uncommitted changes": ([(2, BASE, 0, "one"), (2, BASE, 10, "two")], None, "one", (2, 2), ""),
}


def test_the_base_of_a_run_is_the_code_asked_for_or_the_newest_with_launches_enough() -> None:
    for name, (runs, asked, base_name, counts, words) in SIDES.items():
        *earlier, now = stored(recorded(*runs))
        found = gate.sides_of(now, earlier, earlier[-1 if asked is None else asked], asked is not None)
        assert (found.base_name, (len(found.base), len(found.head))) == (base_name[:12], counts), name
        assert words in found.why_no_verdict
        assert (found.why_no_verdict == "") == (counts >= (5, 3) and counts[1] >= 3)


def test_launches_of_another_machine_run_or_meaning_do_not_count() -> None:
    data = recorded((3, BASE, 0), (3, BASE, 10), (3, BASE, 20), (1, HEAD, 30))
    for machines, meanings, dates in zip(data[:3], data[3:6], data[6:9], strict=True):
        machines["machine_info"] = machine(threads=2)
        for row in meanings["benchmarks"]:
            row["extra_info"]["batch_size"] = 64
        del dates["datetime"]
    del data[-1]["benchmarks"][3:]
    *earlier, now = stored(data)
    found = gate.sides_of(now, [*earlier, now], earlier[-1], False)
    assert (len(found.base), len(found.head)) == (3, 1)
    assert {len(launch.data["benchmarks"]) for launch in (*found.base, *found.head)} == {3}


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
    assert re.match(r"forward tiny-ctx0-fp32-naive +SLOWER +wall .* \+20\.5% ", run.verdict_lines[1])
    assert run.failures == ["gate: FAILED (1 SLOWER, 9 OK)"]
    (offered,) = (tmp_path / "gate").glob("*_accept.toml")
    assert str(offered) in run.notes[-1]
    again = replace(run, failures=[], verdict_lines=[], accepted=read_accepted(offered))
    judge(again, tmp_path, is_asked=False)
    assert again.failures == []
    assert any("accepted: WHY IT IS WORTH IT" in line for line in again.verdict_lines)


def test_a_run_with_too_few_launches_or_no_baseline_or_on_a_machine_that_changed_is_not_judged(tmp_path: Path) -> None:
    few = judged_run(tmp_path / "few", launches(1, 3), launches(2, 1, slowdown=0.5))
    assert (few.failures, few.verdict_lines, "at least 5 and 3 are needed" in few.notes[0]) == ([], [], True)
    slow = launches(2, 5, slowdown=0.5, drift=0.005, machine_slower=0.3)
    moved = judged_run(tmp_path / "moved", launches(1, 8, drift=0.005), slow)
    assert (moved.is_contaminated, moved.failures) == (True, [])
    assert moved.verdict_lines[-1].startswith("gate: CONTAMINATED")
    judge(alone := Run(gone_counts=True, record=record([timed(FORWARD)])), tmp_path, is_asked=False)
    assert (alone.notes, alone.failures) == ([], [])
