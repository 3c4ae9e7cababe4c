"""Kernel and warm-up passes: kernel shares, one attention layer on host and device, the rounds of fresh processes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perf_tests.records.columns import Cell, last_phases, name_of, phase_order, rows_in, seconds_of
from perf_tests.records.format import distinct, finite
from perf_tests.report.page_parts.axes import tags_of
from perf_tests.report.page_parts.figure import Figure, Point, Series, markers
from perf_tests.report.page_parts.run import RecordedRun
from perf_tests.report.tables import (
    FIRST_ROUND_NOTE,
    TRACED_NOTE,
    WARMUP_NOTE,
    first_round_parts,
    part_name,
    series_name,
)

SIDES = {"device_seconds": "device", "host_seconds": "host"}


def kernel_shares(run: RecordedRun) -> list[Figure]:
    """Each kind's share of the kernel time, a bar for each phase; a reader picks the configuration."""
    shares = [
        (cell, str(row.get("kind")), share * 100)
        for cell in run.passed("kernels")
        for row in rows_in(cell.info, "kinds")
        if (share := finite(row.get("share_of_kernel_time"))) is not None
    ]
    titles, kinds = ("Kernel time by kind", "share of kernel time (%)"), distinct(kind for _, kind, _ in shares)
    return run.phase_bars("kernels", titles, shares, kinds.index, [TRACED_NOTE])


def attention_layer(run: RecordedRun) -> list[Figure]:
    """Device time beside host time of each part of one attention layer; a reader picks the traced case."""
    series = [one for cell in last_phases(run.passed("kernels")) for one in _sides(cell)]
    parts = distinct(str(point.x) for one in series for point in one.points)
    return run.figures(
        "layer", "One attention layer: the device's time and the host's", ("part", "time (us)"), series, [TRACED_NOTE],
        y_log=True, picks_one=True, x_values=parts,
    )  # fmt: skip


def attention_lanes(run: RecordedRun) -> list[Figure]:
    """When host and device worked on one attention layer, a lane each; a reader picks the traced case."""
    series = [
        replace(part, look="lane", group=f"{name_of(cell)}, {way}")
        for cell in last_phases(run.passed("kernels"))
        for way in ("forward", "backward")
        for part in markers(_lane_points(cell, way))
    ]
    note = "host: each part's region, or the calls that launch; device: each kernel; on a CPU both are one"
    return run.figures(
        "lanes", "One attention layer over time", ("time (us)", ""), series, [note, TRACED_NOTE],
        picks_one=True, x_values=("device", "host"),
    )  # fmt: skip


def _lane_points(cell: Cell, way: str) -> Iterator[tuple[str, Point]]:
    for row in rows_in(cell.info, "attention", way, "lanes"):
        start, seconds = finite(row.get("start_seconds")), finite(row.get("seconds"))
        if start is not None and seconds is not None and seconds >= 0:
            part, side = str(row.get("part")), str(row.get("side"))
            low, high = start * 1e6, (start + seconds) * 1e6
            yield part, Point(side, high - low, part, tags_of(cell), low, high)


def _sides(cell: Cell) -> Sequence[Series]:
    points = [
        (side, Point(f"{part.get('part')}, {way}", seconds * 1e6, side, tags_of(cell)))
        for field, side in SIDES.items()
        for way in ("forward", "backward")
        for part in rows_in(cell.info, "attention", way, "parts")
        if (seconds := finite(part.get(field)) or 0.0) > 0
    ]
    return [replace(one, group=name_of(cell)) for one in markers(points)]


def warmup_series(run: RecordedRun) -> list[Figure]:
    """Time of each round since its process began; a reader picks the case."""
    series = [one for cell in run.passed("warmup") for one in _lines(cell)]
    note = "the first rounds of a line are its warm-up, as many as its name says"
    return run.figures(
        "warmup", "Rounds of fresh processes", ("round of the process", "time (ms)"), series, [note, WARMUP_NOTE],
        y_log=True, picks_one=True,
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
        series.append(Series(name, points, colour=place, dash=place, group=name_of(cell)))
    return series


def first_rounds(run: RecordedRun) -> list[Figure]:
    """The parts of a process' first round, a stacked bar for each phase; a reader picks the configuration."""
    cells = sorted(run.passed("warmup"), key=phase_order)
    parts = [
        (cell, part_name(name), seconds * 1e3)
        for cell in cells
        for name, seconds in first_round_parts(cell.info).items()
    ]
    titles = "What the first round of a process is spent on", "time (ms)"
    names, drawn = distinct(name for _, name, _ in parts), (row for row in parts if row[2] > 0)
    return run.phase_bars("first-rounds", titles, drawn, names.index, [FIRST_ROUND_NOTE])
