"""Warm-up: the rounds of fresh processes one by one, after each number of rounds that were not measured."""

from perf_tests.views.report.figure import Figure, Point, Series, phase_bars, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.tables.cells import Cell, distinct, name_of, phase_order, rows_in
from perf_tests.views.tables.warmup import (
    FIRST_ROUND_NOTE,
    WARMUP_NOTE,
    first_round_parts,
    part_name,
    seconds_of,
    series_name,
)


def warmup_series(run: RecordedRun) -> list[Figure]:
    """Time of each round since its process began; a reader picks the case."""
    series = [one for cell in run.passed("warmup") for one in _lines(cell)]
    note = "the first rounds of a line are its warm-up, as many as its name says"
    return run.figures(
        "warmup", "Rounds of fresh processes", ("round of the process", "time (ms)"), series, [note, WARMUP_NOTE],
        x_log=False, picks_one=True,
    )  # fmt: skip


def _lines(cell: Cell) -> list[Series]:
    """A line for each process: its warm-up rounds, as many as its name says, then the measured ones.

    Warm-up rounds that leave out the timed phase are counted but not drawn.
    """
    series = []
    for place, row in enumerate(rows_in(cell.info, "series")):
        warm, measured = seconds_of(row, "warmup_seconds"), seconds_of(row, "seconds")
        name = f"after {series_name(row)}"
        drawn = measured if row.get("leaves_out_timed_phase") is True else [*warm, *measured]
        first = len(warm) + len(measured) - len(drawn) + 1
        points = [Point(number, value * 1e3, name, tags_of(cell)) for number, value in enumerate(drawn, first)]
        if points:
            series.append(Series(name, points, colour=place, dash=place, group=name_of(cell)))
    return series


def first_rounds(run: RecordedRun) -> list[Figure]:
    """The parts of a process' first round, a stacked bar for each phase; a reader picks the configuration."""
    cells = sorted(run.passed("warmup"), key=phase_order)
    known = [
        (cell, part_name(name), seconds) for cell in cells for name, seconds in first_round_parts(cell.info).items()
    ]
    series = phase_bars(
        ((cell, name, seconds * 1e3) for cell, name, seconds in known if seconds > 0),
        distinct(name for _, name, _ in known).index,
    )
    return run.figures(
        "first-rounds", "What the first round of a process is spent on", ("phase", "time (ms)"), series,
        [FIRST_ROUND_NOTE], x_log=False, y_log=False, picks_one=True,
        x_values=distinct(cell.phase for cell, _, _ in known),
    )  # fmt: skip
