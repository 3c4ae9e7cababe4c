"""How time and memory grow with context, model size and sequence length, and what bounds the time."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from perf_tests.records.compare import median_interval
from perf_tests.records.record import OUTCOMES
from perf_tests.views.report.figure import Figure, Point, Series, markers, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.screens.lines import case_name
from perf_tests.views.tables.cells import Cell, distinct, lost_lines, phase_order
from perf_tests.views.tables.conditions import rounds_line
from perf_tests.views.tables.digits import MIB

FLOORS = {
    "roofline": "minimum time by arithmetic and memory traffic",
    "launch floor": "time of the host to launch its kernels",
    "matmul ceiling": "its products at the best rate measured here",
}
"""Minimum times of a case, as far as its record has them, and their meaning."""

TITLES = {"time": "time", "memory": "peak memory", "before-backward": "memory before the backward pass"}
CROSSES = ("x", "x-open", "x-thin-open", "x-open-dot")
"""For cases without a timing, by width and precision."""

LENGTH = "sequence_length"
ABOVE = 2.0
"""Height of cases without a figure over the largest one."""

Names = Callable[[Cell], tuple[str, str]]
Value = tuple[float, float | None, float | None]
"""A figure and the ends of its interval."""


def context_scaling(run: RecordedRun) -> list[Figure]:
    """Time over context, one figure for each phase, a line for each size, precision and implementation."""
    return _figures(run, "context", "tokens in a sequence", "context_length", lambda cell: cell.label("size"))


def size_scaling(run: RecordedRun) -> list[Figure]:
    """Time over parameters, one figure for each phase, a line for each context, precision and implementation."""
    return _figures(run, "size", "parameters", "parameters", lambda cell: f"context {cell.label('context_length')}")


def _figures(run: RecordedRun, axis: str, x_title: str, field: str, first_name: Callable[[Cell], str]) -> list[Figure]:
    def names(cell: Cell) -> tuple[str, str]:
        return first_name(cell), f"{cell.label('precision')} {cell.implementation}"

    cells = [cell for cell in run.cells if cell.is_timed and not cell.is_attention and _x(cell, field)]
    figures = []
    for phase, found in groupby(sorted(cells, key=phase_order), key=lambda cell: cell.phase):
        chosen = list(found)
        lines = lines_of(chosen, field, milliseconds, names)
        if not any(len({point.x for point in line.points}) > 1 for line in lines):
            continue
        floors = floors_of(chosen, field, names)
        figures += run.figures(
            f"{axis}-{phase}", f"{phase}: time over {x_title}", (x_title, "median of the rounds (ms)"),
            [*floors, *lines], [*floor_notes(floors), rounds_line(chosen)],
            x_values=sorted({int(_x(cell, field)) for cell in chosen}) if axis == "context" else (),
        )  # fmt: skip
    return figures


def _x(cell: Cell, field: str) -> float:
    return cell.number(field) or 0.0


def milliseconds(cell: Cell) -> Value | None:
    if not cell.is_timed:
        return None
    low, high = (end and end * 1e3 for end in median_interval(cell.rounds, 0.95) or (None, None))
    return cell.median_seconds * 1e3, low, high


def looks_of(cells: Sequence[Cell], names: Names) -> dict[tuple[str, str], tuple[int, int]]:
    """Colour and dash of each pair of names: the first chooses colour and marker, the second the dash."""
    firsts, seconds = (distinct(names(cell)[i] for cell in cells) for i in (0, 1))
    return {pair: (firsts.index(pair[0]), seconds.index(pair[1])) for pair in map(names, cells)}


def lines_of(cells: Sequence[Cell], field: str, y: Callable[[Cell], Value | None], names: Names) -> list[Series]:
    """A line for each pair of names through the cells that have a figure."""
    series = []
    for pair, look in looks_of(cells, names).items():
        points = [
            Point(_x(cell, field), found[0], case_name(cell.id), tags_of(cell), *found[1:])
            for cell in sorted(cells, key=lambda cell: _x(cell, field))
            if names(cell) == pair and (found := y(cell))
        ]
        if points:
            series.append(Series(", ".join(pair), points, *look))
    return series


def floors_of(cells: Sequence[Cell], field: str, names: Names) -> list[Series]:
    """Minimum times of each case, as far as its record has them: a thin line behind those of one name."""
    series: list[Series] = []
    for dash, (floor, meaning) in enumerate(FLOORS.items(), 1):
        lines: dict[object, list[Point]] = {}
        for cell in cells:
            if (seconds := floor_seconds(cell)[floor] or 0.0) > 0:
                text = f"{case_name(cell.id)}: {meaning}"
                lines.setdefault(names(cell), []).append(Point(_x(cell, field), seconds * 1e3, text, tags_of(cell)))
        for place, points in enumerate(lines.values()):
            points.sort(key=lambda point: point.x)
            series.append(
                Series(floor, points, dash=dash, symbol="line-ew-open", is_background=True, is_in_legend=not place)
            )
    return series


def floor_notes(floors: Sequence[Series]) -> list[str]:
    return ["; ".join(f"{name}: {FLOORS[name]}" for name in distinct(floor.name for floor in floors))]


def floor_seconds(cell: Cell) -> dict[str, float | None]:
    """Seconds by the names above; None for what the record lacks."""
    # The counted products at the measured rate, where the case does what was counted.
    flops, rate = cell.number("model_flops"), cell.number("matmul_ceiling_tflops_per_second")
    is_known = cell.number("share_of_matmul_ceiling") is not None and flops and rate and rate > 0
    return {
        "roofline": cell.number("roofline_seconds"),
        "launch floor": cell.number("launching_seconds"),
        "matmul ceiling": flops / (rate * 1e12) if is_known and flops and rate else None,
    }


def attention_time(run: RecordedRun) -> list[Figure]:
    return _attention_figures(run, run.cells, "time", "median of the rounds (ms)", milliseconds)


def attention_memory(run: RecordedRun) -> list[Figure]:
    """Peak over sequence length, one figure for each pass; and memory before the backward pass."""
    timed, passed = run.cells, run.passed("memory")
    cells = timed if any(map(_mebibytes, timed)) else passed
    peaks = _attention_figures(run, cells, "memory", "peak of allocated memory (MiB)", _mebibytes)
    backward = [cell for cell in passed if cell.phase == "backward"]
    held = backward or passed  # a forward pass alone ends in the same moment
    before_backward = partial(_mebibytes, field="memory_before_backward_bytes")
    return peaks + _attention_figures(
        run, held, "before-backward", "held before the backward pass (MiB)", before_backward
    )


def _mebibytes(cell: Cell, field: str = "peak_allocated_bytes") -> Value | None:
    amount = cell.number(field)
    return (amount / MIB, None, None) if amount else None


def _attention_figures(
    run: RecordedRun, cells: Sequence[Cell], name: str, y_title: str, figure: Callable[[Cell], Value | None]
) -> list[Figure]:
    figures = []
    alone = [cell for cell in cells if cell.is_attention and _x(cell, LENGTH)]
    alone.sort(key=phase_order)
    for phase in distinct(cell.phase for cell in alone):
        cells = [cell for cell in alone if cell.phase == phase]
        lines = lines_of(cells, LENGTH, figure, _names)
        if not lines:
            continue
        floors = floors_of(cells, LENGTH, _names) if name == "time" else []
        figures += run.figures(
            f"attention-{name}-{phase}", f"Attention alone, {phase}: {TITLES[name]} over length",
            ("sequence length (tokens)", y_title), [*floors, *lines, *_crosses(cells, lines)],
            [*floor_notes(floors), rounds_line(cells)], x_values=sorted({int(_x(cell, LENGTH)) for cell in cells}),
        )  # fmt: skip
    return figures


def _names(cell: Cell) -> tuple[str, str]:
    return cell.implementation, f"d {cell.label('head_dim')} {cell.label('precision')}"


def _crosses(cells: Sequence[Cell], lines: Sequence[Series]) -> list[Series]:
    """The cases without a figure, above all others, in their line's colour."""
    top = max(point.y for line in lines for point in line.points) * ABOVE
    series = []
    for names, (colour, dash) in looks_of(cells, _names).items():
        lost = sorted(
            (cell for cell in cells if _names(cell) == names and cell.outcome), key=lambda cell: _x(cell, LENGTH)
        )
        if lost:
            said = " and ".join(distinct(OUTCOMES[cell.outcome] for cell in lost))
            points = [
                Point(_x(cell, LENGTH), top, why, tags_of(cell))
                for cell, why in zip(lost, lost_lines(lost), strict=True)
            ]
            symbol = CROSSES[dash % len(CROSSES)]
            series.append(Series(f"{', '.join(names)}: {said}", points, colour, dash, mode="markers", symbol=symbol))
    return series


def roofline(run: RecordedRun) -> list[Figure]:
    """TFLOP/s over FLOP per byte, where a record counts both."""
    chosen = []
    for cell in run.cells:
        flops = cell.number("executed_flops") or cell.number("model_flops")
        moved = cell.number("bytes_touched")
        if cell.is_timed and flops and moved and flops > 0 and moved > 0:
            chosen.append((cell, flops / moved, flops / cell.median_seconds / 1e12))
    series = markers((_phase_name(cell), Point(x, rate, case_name(cell.id), tags_of(cell))) for cell, x, rate in chosen)
    cells = [cell for cell, _, _ in chosen]
    roofs = _roofs(cells, [intensity for _, intensity, _ in chosen]) if cells else []
    notes = ["grey: the best square product and the best memory traffic measured here"] if roofs else []
    title, axes = "Roofline: rate over arithmetic intensity", ("FLOP per byte", "TFLOP/s")
    return run.figures("roofline", title, axes, [*roofs, *series], [*notes, rounds_line(cells)])


def _roofs(cells: Sequence[Cell], intensities: Sequence[float]) -> list[Series]:
    """For each precision whose products were timed: the memory's slope up to their best rate.

    Only the level part where the record lacks this machine's memory bandwidth.
    """
    best: dict[str, float] = {}
    for cell in cells:
        rate = cell.number("matmul_ceiling_tflops_per_second")
        if rate and rate > 0:
            best[cell.label("precision")] = max(rate, best.get(cell.label("precision"), 0.0))
    known = (cell.number("memory_ceiling_gigabytes_per_second") for cell in cells)
    traffic = max((rate for rate in known if rate and rate > 0), default=None)
    low, high = min(intensities), max(intensities)
    series = []
    for place, (precision, rate) in enumerate(best.items(), 1):
        ridge = None if traffic is None else rate * 1e3 / traffic
        corners = sorted({low, high, *([ridge] if ridge is not None and low < ridge < high else [])})
        name = f"best here, {precision}"
        points = [
            Point(x, rate if traffic is None else min(rate, x * traffic / 1e3), name, ("", "", precision, ""))
            for x in corners
        ]
        series.append(Series(name, points, dash=place, mode="lines", is_background=True))
    return series


def _phase_name(cell: Cell) -> str:
    return f"{'attention ' if cell.is_attention else ''}{cell.phase}, {cell.label('precision')}"
