"""Runs beside each other: each case over the runs of one machine, two runs, and verdicts between two commits."""

from collections.abc import Sequence
from itertools import combinations

from perf_tests.gate.recorded_sides import FEWEST_BASE_LAUNCHES, FEWEST_HEAD_LAUNCHES
from perf_tests.phases import label_of
from perf_tests.records.compare import ComparedCase, Status, compare
from perf_tests.records.record import Json
from perf_tests.views.report.figure import Figure, Point, Series, markers, tags_of
from perf_tests.views.report.run import MachineRuns, RecordedRun
from perf_tests.views.screens.comparison import Reading, interval_words, reading, why_without_ratio
from perf_tests.views.screens.lines import DASH, case_name, shown
from perf_tests.views.tables.cells import order
from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.table import Table

HISTORY_NOTE = "one launch per run: launches of the same code differ by more than their rounds do"

MOST_TICKS = 20
"""Up to this many runs, each has a tick."""


def histories(machine: MachineRuns) -> list[Series]:
    """Of every case with at least two figures; cases that only older runs have come last."""
    ids = dict.fromkeys(case_id for run in reversed(machine.runs) for case_id in run.medians)
    return [series for case_id in ids if len((series := _history(case_id, machine)).points) > 1]


def _history(case_id: str, machine: MachineRuns) -> Series:
    """The medians in ms of one case over the runs of a machine, while it has its newest run's identity."""
    found = [(run.number, *run.medians[case_id]) for run in machine.runs if case_id in run.medians]
    name, identity = case_name(case_id), found[-1][2]
    of = dict(identity)
    tags = of.get("size", ""), of.get("context_length", ""), of["precision"], label_of(of["phase"])
    return Series(name, [Point(number, seconds * 1e3, name, tags) for number, seconds, its in found if its == identity])


def history_figure(found: Sequence[Series], machine: MachineRuns, name: str) -> Figure:
    return Figure(
        name, f"Medians over runs: {machine.name}", "number of the run", "median of the rounds (ms)", found,
        [HISTORY_NOTE, machine.newest.conditions], picks_one=True,
        x_values=[run.number for run in machine.runs] if len(machine.runs) <= MOST_TICKS else (),
    )  # fmt: skip


def history_table(found: Sequence[Series], machine: MachineRuns) -> Table:
    header = ("Case", "runs", "first (ms)", "lowest (ms)", "highest (ms)", "previous (ms)", "newest (ms)",
              "newest / previous")  # fmt: skip
    return Table(
        "history", f"Medians over runs: {machine.name}", header, 1, tuple(map(_history_row, found)), (HISTORY_NOTE,)
    )


def _history_row(history: Series) -> tuple[str, ...]:
    values = [point.y for point in history.points]
    chosen = (values[0], min(values), max(values), values[-2], values[-1])
    ratio = f"{values[-1] / values[-2]:.3f}" if values[-2] else DASH
    return (history.name, str(len(values)), *map(significant, chosen), ratio)


ONE_MACHINE = "one launch of each: launches differ by more than their rounds do, so this is not a verdict"
TWO_MACHINES = "two machines, builds or settings: ratios without a verdict"


def rows_of(before: RecordedRun, now: RecordedRun, is_one_machine: bool) -> list[ComparedCase]:
    """Cases of either run, the slowest first; between two machines, devices may differ."""
    rows = compare(_as_record(before, is_one_machine), _as_record(now, is_one_machine))
    return sorted(rows, key=lambda row: (row.ratio is None, -(row.ratio or 0.0), list(Status).index(row.status)))


def _as_record(run: RecordedRun, with_device: bool) -> Json:
    rows: Json = {"benchmarks": [], "outcomes": []}
    for cell in run.cells:
        identity = cell.identity if with_device else {**cell.identity, "device": None, "optimizer": None}
        if cell.is_timed:
            rows["benchmarks"].append({"fullname": cell.id, "extra_info": identity, "stats": {"data": cell.rounds}})
        else:
            rows["outcomes"].append({"id": cell.id, **identity, "outcome": cell.outcome, "reason": cell.reason})
    return rows


def side_by_side_table(
    rows: Sequence[ComparedCase], before: RecordedRun, now: RecordedRun, is_one_machine: bool
) -> Table:
    """Every case of either run: both medians and the ratio, or why it has none."""
    interval = ("95 % within these launches",) if is_one_machine else ()
    header = ("Case", f"run {before.number} (ms)", f"run {now.number} (ms)", "ratio", *interval, "reading")
    title = f"{now.title} over {before.title}"
    notes = (ONE_MACHINE if is_one_machine else TWO_MACHINES, f"run {before.number}: {before.conditions}",
             f"run {now.number}: {now.conditions}")  # fmt: skip
    return Table("side-by-side", title, header, 1, tuple(_row(row, is_one_machine) for row in rows), notes)


def _row(row: ComparedCase, is_one_machine: bool) -> tuple[str, ...]:
    times = (DASH if s is None else significant(s * 1e3) for s in (row.before_seconds, row.now_seconds))
    said = why_without_ratio(row) if row.ratio is None else READINGS[reading(row)] if is_one_machine else ""
    interval = (interval_words(row),) if is_one_machine else ()
    return (case_name(row.id), *times, shown(row.ratio, ".3f"), *interval, said)


READINGS = {
    Reading.DIFFERS: "differs in these launches",
    Reading.SAME: "no difference seen",
    Reading.TOO_FEW: "too few rounds",
}


def side_by_side_figure(
    rows: Sequence[ComparedCase], before: RecordedRun, now: RecordedRun, is_one_machine: bool
) -> Figure | None:
    """The ratio over a case's time, with its interval within one machine."""
    cells = {cell.id: cell for cell in now.cells}
    points = []
    for row in rows:
        if row.ratio is not None and row.before_seconds is not None:
            cell, ends = cells[row.id], (is_one_machine and row.interval) or (None, None)
            point = Point(row.before_seconds * 1e3, row.ratio, case_name(row.id), tags_of(cell), *ends)
            points.append((f"{'attention ' if cell.is_attention else ''}{cell.phase}", point))
    if not points:
        return None
    points.sort(key=lambda named: (named[0], order(named[1].x)))
    notes = [ONE_MACHINE if is_one_machine else TWO_MACHINES, now.conditions]
    return Figure(
        f"run{before.number}-run{now.number}", f"{now.title} over {before.title}", f"run {before.number} (ms)", "ratio",
        markers(points), notes, x_log=True, line_at=(1.0, "parity"),
    )  # fmt: skip


def verdict_table(machine: MachineRuns) -> Table | None:
    """The newest commit with enough launches against the one before it; None without two such commits."""
    found = two_commits(machine)
    if found is None:
        return None
    # The gate's statistics import scipy, which takes a second that a page without verdicts can save.
    from perf_tests.gate.recorded import RULES, conclude_recorded
    from perf_tests.gate.recorded_launches import why_incomparable
    from perf_tests.views.screens.gate import verdict_table as rows_of_verdicts
    from perf_tests.views.screens.recorded_gate import RECORDED_HEADER, recorded_conditions, recorded_verdict

    base, head = ([run.launch for run in runs if run.launch is not None] for runs in found)
    first, second = (f"{runs[-1].commit} (runs {', '.join(str(run.number) for run in runs)})" for runs in found)
    title = f"Verdicts: {second} against {first}"
    reason = why_incomparable(base, head)
    if reason:
        return Table("verdicts", title, ("Case", "verdict"), 1, (), (reason,))
    result = conclude_recorded(base, head, RULES)
    header, cells = rows_of_verdicts(result.cases, RECORDED_HEADER)
    notes = (recorded_verdict(result), *recorded_conditions(result, RULES), machine.newest.conditions)
    return Table("verdicts", title, ("Case", *header[1:]), 1, tuple(map(tuple, cells)), notes)


def two_commits(machine: MachineRuns) -> tuple[list[RecordedRun], list[RecordedRun]] | None:
    """(base, head): runs of the newest commit with enough launches, and of the nearest such commit before it."""
    by_commit: dict[str, list[RecordedRun]] = {}
    for run in machine.runs:
        if run.launch is not None:
            by_commit.setdefault(run.launch.data["commit_info"]["id"], []).append(run)
    newest_first = sorted(by_commit.values(), key=lambda runs: runs[-1].number, reverse=True)
    for head, base in combinations(newest_first, 2):
        if len(head) >= FEWEST_HEAD_LAUNCHES and len(base) >= FEWEST_BASE_LAUNCHES:
            return base, head
    return None
