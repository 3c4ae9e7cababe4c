"""Kernel shares of traced cases, and the host and the device side of one attention layer."""

from collections.abc import Sequence

from perf_tests.records.cells import Cell, distinct, finite, phase_order
from perf_tests.records.kernel_tables import TRACED_NOTE
from perf_tests.records.pass_cells import name_of, rows_in, without_phase
from perf_tests.records.report.figure import Figure, Point, Series, tags_of
from perf_tests.records.report.run import Run

SIDES = {"device_seconds": "device", "host_seconds": "host"}


def kernel_shares(run: Run) -> list[Figure]:
    """What share of the kernel time each kind of kernel takes, a bar for each phase; a reader picks what was traced."""
    cells = run.passes.get("kernels", [])
    kinds = distinct(str(row.get("kind")) for cell in cells for row in rows_in(cell.info, "kinds"))
    points: dict[tuple[str, str], list[Point]] = {}
    for cell in cells:
        for row in rows_in(cell.info, "kinds"):
            kind, share = str(row.get("kind")), finite(row.get("share_of_kernel_time"))
            if share is not None:
                point = Point(cell.phase, share * 100, kind, tags_of(cell))
                points.setdefault((without_phase(cell), kind), []).append(point)
    if not points:
        return []
    series = [
        Series(kind, found, colour=kinds.index(kind), look="bar", group=group)
        for (group, kind), found in points.items()
    ]
    return [
        Figure(
            f"run{run.number}-kernels",
            "Kernel time by kind",
            "phase",
            "share of kernel time (%)",
            series,
            [TRACED_NOTE, run.conditions],
            x_log=False,
            y_log=False,
            picks_one=True,
            x_values=distinct(cell.phase for cell in sorted(cells, key=phase_order)),
        )
    ]


def attention_layer(run: Run) -> list[Figure]:
    """Device time beside host time of each part of one attention layer; a reader picks the traced case."""
    series = [one for cell in run.passes.get("kernels", []) for one in _sides(cell)]
    if not series:
        return []
    return [
        Figure(
            f"run{run.number}-layer",
            "One attention layer: the device's time and the host's",
            "part",
            "time (us)",
            series,
            [TRACED_NOTE, run.conditions],
            x_log=False,
            picks_one=True,
            x_values=distinct(str(point.x) for one in series for point in one.points),
        )
    ]


def _sides(cell: Cell) -> Sequence[Series]:
    series = []
    for colour, (field, side) in enumerate(SIDES.items()):
        points = []
        for way in ("forward", "backward"):
            for part in rows_in(cell.info, "attention", way, "parts"):
                seconds = finite(part.get(field))
                if seconds is not None and seconds > 0:
                    x = f"{part.get('part')}, {way}"
                    points.append(Point(x, seconds * 1e6, side, tags_of(cell)))
        if points:
            series.append(Series(side, points, colour=colour, mode="markers", group=name_of(cell)))
    return series
