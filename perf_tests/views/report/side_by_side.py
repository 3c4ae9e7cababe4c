"""Two runs, case by case. Of one machine with a reading of the interval, of two machines as ratios alone."""

from collections.abc import Sequence

from perf_tests.records.compare import ComparedCase, Status, compare
from perf_tests.records.record import Json
from perf_tests.views.report.figure import Figure, Point, markers, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.screens.comparison import Reading, reading
from perf_tests.views.screens.lines import DASH, case_name
from perf_tests.views.tables.cells import Cell, order
from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.table import Table

ONE_MACHINE = "one launch of each: launches differ by more than their rounds do, so a reading of them is no verdict"
TWO_MACHINES = "two machines, builds or settings: ratios without a verdict"


def rows_of(before: RecordedRun, now: RecordedRun, is_one_machine: bool) -> list[ComparedCase]:
    """Cases of either run, the slowest first; of two machines, the device is no part of what a case is."""
    rows = compare(_as_record(before, is_one_machine), _as_record(now, is_one_machine))
    return sorted(rows, key=lambda row: (row.ratio is None, -(row.ratio or 0.0), list(Status).index(row.status)))


def _as_record(run: RecordedRun, with_device: bool) -> Json:
    cells = run.cells or []

    def identity(cell: Cell) -> Json:
        return cell.identity if with_device else {**cell.identity, "device": None, "optimizer": None}

    return {
        "benchmarks": [
            {"fullname": cell.id, "extra_info": identity(cell), "stats": {"data": cell.rounds}}
            for cell in cells
            if cell.is_timed
        ],
        "outcomes": [
            {"id": cell.id, **identity(cell), "outcome": cell.outcome, "reason": cell.reason}
            for cell in cells
            if not cell.is_timed
        ],
    }


def side_by_side_table(
    rows: Sequence[ComparedCase], before: RecordedRun, now: RecordedRun, is_one_machine: bool
) -> Table:
    """Every case of either run: both medians, the ratio, or in words why there is none."""
    interval = ("95 % within these launches",) if is_one_machine else ()
    header = ("Case", f"run {before.number} (ms)", f"run {now.number} (ms)", "ratio", *interval, "reading")
    title = f"{now.title} over {before.title}"
    notes = (ONE_MACHINE if is_one_machine else TWO_MACHINES, f"run {before.number}: {before.conditions}",
             f"run {now.number}: {now.conditions}")  # fmt: skip
    return Table("side-by-side", title, header, 1, tuple(_row(row, is_one_machine) for row in rows), notes)


def _row(row: ComparedCase, is_one_machine: bool) -> tuple[str, ...]:
    times = tuple(DASH if s is None else significant(s * 1e3) for s in (row.before_seconds, row.now_seconds))
    ratio = DASH if row.ratio is None else f"{row.ratio:.3f}"
    interval = DASH if row.interval is None else f"{row.interval[0]:.3f} to {row.interval[1]:.3f}"
    if row.ratio is None:
        said = f"{row.status}{': ' if row.explanation else ''}{row.explanation}"
    else:
        said = READINGS[reading(row)] if is_one_machine else ""
    cells = (case_name(row.id), *times, ratio)
    return (*cells, interval, said) if is_one_machine else (*cells, said)


READINGS = {
    Reading.SLOWER: "slower in these launches",
    Reading.FASTER: "faster in these launches",
    Reading.SAME: "no difference seen",
    Reading.TOO_FEW: "too few rounds",
}


def side_by_side_figure(
    rows: Sequence[ComparedCase], before: RecordedRun, now: RecordedRun, is_one_machine: bool
) -> Figure | None:
    """The ratio over the time that a case takes, with its interval within one machine."""
    cells = {cell.id: cell for cell in now.cells or []}
    points = []
    for row in rows:
        if row.ratio is not None and row.before_seconds is not None:
            cell, ends = cells[row.id], row.interval if is_one_machine and row.interval else (None, None)
            point = Point(row.before_seconds * 1e3, row.ratio, case_name(row.id), tags_of(cell), *ends)
            points.append((f"{'attention ' if cell.is_attention else ''}{cell.phase}", point))
    if not points:
        return None
    points.sort(key=lambda named: (named[0], order(named[1].x)))
    notes = [ONE_MACHINE if is_one_machine else TWO_MACHINES, now.conditions]
    return Figure(
        f"run{before.number}-run{now.number}", f"{now.title} over {before.title}", f"run {before.number} (ms)", "ratio",
        markers(points), notes, y_log=False, line_at=(1.0, "parity"),
    )  # fmt: skip
