"""Two machines, builds or settings beside each other: ratios without a verdict."""

from collections.abc import Sequence

from perf_tests.records.columns import case_name
from perf_tests.records.format import DASH, Table, order, shown, significant
from perf_tests.records.record import Json
from perf_tests.records.store import ComparedCase, Status, compare
from perf_tests.report.comparison import why_without_ratio
from perf_tests.report.page_parts.axes import tags_of
from perf_tests.report.page_parts.figure import Figure, Point, markers
from perf_tests.report.page_parts.run import RecordedRun

NO_VERDICT = "two machines, builds or settings: ratios without a verdict"


def rows_of(before: RecordedRun, now: RecordedRun) -> list[ComparedCase]:
    """Cases of either run, the slowest first; devices may differ."""
    rows = compare(_as_record(before), _as_record(now))
    return sorted(rows, key=lambda row: (row.ratio is None, -(row.ratio or 0.0), list(Status).index(row.status)))


def _as_record(run: RecordedRun) -> Json:
    rows: Json = {"benchmarks": [], "outcomes": []}
    for cell in run.cells:
        identity = {**cell.identity, "device": None, "optimizer": None}
        if cell.is_timed:
            rows["benchmarks"].append({"fullname": cell.id, "extra_info": identity, "stats": {"data": cell.rounds}})
        else:
            rows["outcomes"].append({"id": cell.id, **identity, "outcome": cell.outcome, "reason": cell.reason})
    return rows


def side_by_side_table(rows: Sequence[ComparedCase], before: RecordedRun, now: RecordedRun) -> Table:
    """Every case of either run: both medians and the ratio, or why it has none."""
    header = ("Case", f"run {before.number}, median (ms)", f"run {now.number}, median (ms)", "ratio", "why")
    notes = NO_VERDICT, f"run {before.number}: {before.conditions}", f"run {now.number}: {now.conditions}"
    return Table("side-by-side", f"{now.title} over {before.title}", header, 1, tuple(map(_row, rows)), notes)


def _row(row: ComparedCase) -> tuple[str, ...]:
    times = (DASH if s is None else significant(s * 1e3) for s in (row.before_seconds, row.now_seconds))
    return (case_name(row.id), *times, shown(row.ratio, ".3f"), why_without_ratio(row) if row.ratio is None else "")


def side_by_side_figure(rows: Sequence[ComparedCase], before: RecordedRun, now: RecordedRun) -> Figure | None:
    """The ratio over a case's time; None without any."""
    cells = {cell.id: cell for cell in now.cells}
    points = []
    for row in rows:
        if row.ratio is not None and row.before_seconds is not None:
            cell = cells[row.id]
            point = Point(row.before_seconds * 1e3, row.ratio, case_name(row.id), tags_of(cell))
            points.append((f"{'attention ' if cell.is_attention else ''}{cell.phase}", point))
    if not points:
        return None
    points.sort(key=lambda named: (named[0], order(named[1].x)))
    return Figure(
        f"run{before.number}-run{now.number}", f"{now.title} over {before.title}", f"run {before.number} (ms)", "ratio",
        markers(points), [NO_VERDICT, now.conditions], x_log=True, line_at=(1.0, "parity"),
    )  # fmt: skip
