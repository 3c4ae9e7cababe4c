"""Kernel shares of traced cases, and the host and the device side of one attention layer."""

from collections.abc import Sequence
from dataclasses import replace

from perf_tests.views.report.figure import Figure, Point, Series, markers, phase_bars, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.tables.cells import Cell, distinct, finite, last_phases, name_of, phase_order, rows_in
from perf_tests.views.tables.kernels import TRACED_NOTE

SIDES = {"device_seconds": "device", "host_seconds": "host"}


def kernel_shares(run: RecordedRun) -> list[Figure]:
    """Each kind's share of the kernel time, a bar for each phase; a reader picks the configuration."""
    cells = run.passed("kernels")
    rows = [(cell, str(row.get("kind")), row) for cell in cells for row in rows_in(cell.info, "kinds")]
    series = phase_bars(
        (
            (cell, kind, share * 100)
            for cell, kind, row in rows
            if (share := finite(row.get("share_of_kernel_time"))) is not None
        ),
        distinct(kind for _, kind, _ in rows).index,
    )
    phases = distinct(cell.phase for cell in sorted(cells, key=phase_order))
    return run.figures(
        "kernels", "Kernel time by kind", ("phase", "share of kernel time (%)"), series, [TRACED_NOTE],
        x_log=False, y_log=False, picks_one=True, x_values=phases,
    )  # fmt: skip


def attention_layer(run: RecordedRun) -> list[Figure]:
    """Device time beside host time of each part of one attention layer; a reader picks the traced case."""
    series = [one for cell in last_phases(run.passed("kernels")) for one in _sides(cell)]
    parts = distinct(str(point.x) for one in series for point in one.points)
    return run.figures(
        "layer", "One attention layer: the device's time and the host's", ("part", "time (us)"), series, [TRACED_NOTE],
        x_log=False, picks_one=True, x_values=parts,
    )  # fmt: skip


def attention_lanes(run: RecordedRun) -> list[Figure]:
    """When host and device worked on one attention layer, a lane each; a reader picks the traced case."""
    series = [
        Series(part, points, colour=place, look="lane", group=f"{name_of(cell)}, {way}")
        for cell in last_phases(run.passed("kernels"))
        for way in ("forward", "backward")
        for place, (part, points) in enumerate(_lane_points(cell, way).items())
    ]
    note = "host: each part's region, or the calls that launch; device: each kernel; on a CPU both are one"
    return run.figures(
        "lanes", "One attention layer over time", ("time (us)", ""), series, [note, TRACED_NOTE],
        x_log=False, y_log=False, picks_one=True, x_values=("device", "host"),
    )  # fmt: skip


def _lane_points(cell: Cell, way: str) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for row in rows_in(cell.info, "attention", way, "lanes"):
        start, seconds = finite(row.get("start_seconds")), finite(row.get("seconds"))
        if start is not None and seconds is not None and seconds >= 0:
            part, side = str(row.get("part")), str(row.get("side"))
            low, high = start * 1e6, (start + seconds) * 1e6
            points.setdefault(part, []).append(Point(side, high - low, part, tags_of(cell), low, high))
    return points


def _sides(cell: Cell) -> Sequence[Series]:
    points = [
        (side, Point(f"{part.get('part')}, {way}", seconds * 1e6, side, tags_of(cell)))
        for field, side in SIDES.items()
        for way in ("forward", "backward")
        for part in rows_in(cell.info, "attention", way, "parts")
        if (seconds := finite(part.get(field)) or 0.0) > 0
    ]
    return [replace(one, group=name_of(cell)) for one in markers(points)]
