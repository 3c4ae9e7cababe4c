"""How time grows with the context and with the model, on logarithmic axes."""

from collections.abc import Callable, Sequence
from itertools import groupby

from perf_tests.records.compare import median_interval
from perf_tests.views.report.figure import Figure, Point, Series, case_text, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.tables.cells import Cell, distinct, phase_order
from perf_tests.views.tables.conditions import rounds_line

FLOORS = {
    "roofline": "no faster by arithmetic and memory traffic",
    "launch floor": "what the host takes to launch its kernels",
    "matmul ceiling": "its products at the best rate seen here",
}
"""How fast a case could be at best, as far as its record tells, and what that means."""


def context_scaling(run: RecordedRun) -> list[Figure]:
    """Time over context, one figure for each phase, a line for each size, precision and implementation."""
    return _figures(
        run, "context", "tokens in a sequence", lambda cell: cell.number("context_length"), _without_context
    )


def size_scaling(run: RecordedRun) -> list[Figure]:
    """Time over parameters, one figure for each phase, a line for each context, precision and implementation."""
    return _figures(run, "size", "parameters", lambda cell: cell.number("parameters"), _without_size)


def _without_context(cell: Cell) -> tuple[str, str]:
    return cell.label("size"), f"{cell.label('precision')} {cell.implementation}, batch {cell.label('batch_size')}"


def _without_size(cell: Cell) -> tuple[str, str]:
    return (
        f"context {cell.label('context_length')}",
        f"{cell.label('precision')} {cell.implementation}, batch {cell.label('batch_size')}",
    )


def _figures(
    run: RecordedRun,
    axis: str,
    x_title: str,
    x: Callable[[Cell], float | None],
    names: Callable[[Cell], tuple[str, str]],
) -> list[Figure]:
    cells = [cell for cell in run.cells or [] if cell.is_timed and not cell.is_attention and x(cell)]
    figures = []
    for phase, found in groupby(sorted(cells, key=phase_order), key=lambda cell: cell.phase):
        chosen = list(found)
        lines = lines_of(chosen, x, names)
        if not any(len({point.x for point in line.points}) > 1 for line in lines):
            continue
        floors = floors_of(chosen, x, names)
        figures.append(
            Figure(
                f"run{run.number}-{axis}-{phase}",
                f"{phase}: time over {x_title}",
                x_title,
                "median of the rounds (ms)",
                [*floors, *lines],
                [*floor_notes(floors), rounds_line(chosen), run.conditions],
                x_values=sorted({int(x(cell) or 0) for cell in chosen}) if axis == "context" else (),
            )
        )
    return figures


def lines_of(
    cells: Sequence[Cell], x: Callable[[Cell], float | None], names: Callable[[Cell], tuple[str, str]]
) -> list[Series]:
    """A line for each pair of names: the first chooses colour and marker, the second the dash."""
    firsts, seconds = (distinct(names(cell)[i] for cell in cells) for i in (0, 1))
    series = []
    for first in firsts:
        for second in seconds:
            points = [_point(cell, x) for cell in cells if names(cell) == (first, second)]
            if points:
                name = first if len(seconds) == 1 else f"{first}, {_short(second, seconds)}"
                points.sort(key=lambda point: point.x)
                series.append(Series(name, points, colour=firsts.index(first), dash=seconds.index(second)))
    return series


def _short(name: str, names: Sequence[str]) -> str:
    """Without the batch where that is all the same."""
    if len({other.rpartition(", batch")[2] for other in names}) == 1:
        return name.rpartition(", batch")[0]
    return name


def _point(cell: Cell, x: Callable[[Cell], float | None]) -> Point:
    interval = median_interval(cell.rounds, 0.95) or (None, None)
    low, high = (None if end is None else end * 1e3 for end in interval)
    return Point(x(cell) or 0.0, cell.median_seconds * 1e3, case_text(cell), tags_of(cell), low, high)


def floors_of(
    cells: Sequence[Cell], x: Callable[[Cell], float | None], names: Callable[[Cell], object]
) -> list[Series]:
    """What each case could not beat, as far as its record says: a thin line behind those of one name."""
    series: list[Series] = []
    for dash, (floor, meaning) in enumerate(FLOORS.items(), 1):
        lines: dict[object, list[Point]] = {}
        for cell in cells:
            seconds = floor_seconds(cell)[floor]
            if seconds and seconds > 0:
                text = f"{case_text(cell)}: {meaning}"
                lines.setdefault(names(cell), []).append(Point(x(cell) or 0.0, seconds * 1e3, text, tags_of(cell)))
        for place, points in enumerate(lines.values()):
            points.sort(key=lambda point: point.x)
            series.append(
                Series(floor, points, dash=dash, symbol="line-ew-open", is_background=True, is_in_legend=not place)
            )
    return series


def floor_notes(floors: Sequence[Series]) -> list[str]:
    """What the marks behind the points mean."""
    return ["; ".join(f"{name}: {FLOORS[name]}" for name in distinct(floor.name for floor in floors))]


def floor_seconds(cell: Cell) -> dict[str, float | None]:
    """Seconds by the names above; None for what the record does not tell."""
    return {
        "roofline": cell.number("roofline_seconds"),
        "launch floor": cell.number("launching_seconds"),
        "matmul ceiling": ceiling_seconds(cell),
    }


def ceiling_seconds(cell: Cell) -> float | None:
    """The time of the counted products at the measured rate, where what is done is what was counted."""
    if cell.number("share_of_matmul_ceiling") is None:
        return None
    flops, rate = cell.number("model_flops"), cell.number("matmul_ceiling_tflops_per_second")
    return flops / (rate * 1e12) if flops and rate and rate > 0 else None
