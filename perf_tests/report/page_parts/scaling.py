"""How time and memory grow with context, model size and sequence length, and what bounds the time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from perf_tests.records.columns import Cell, case_name, lost_lines, phase_order, rounds_line
from perf_tests.records.format import MIB, distinct
from perf_tests.records.record import OUTCOMES
from perf_tests.report.page_parts.axes import tags_of
from perf_tests.report.page_parts.figure import Figure, Point, Series
from perf_tests.report.page_parts.run import RecordedRun

CROSSES = ("x", "x-open", "x-thin-open", "x-open-dot")
"""For cases without a timing, by width and precision."""

ABOVE = 2.0
"""Height of cases without a figure over the largest one."""

FLOORS: dict[str, tuple[str, Callable[[Cell], float | None]]] = {
    "roofline": ("minimum time by arithmetic and memory traffic", lambda cell: cell.number("roofline_seconds")),
    "launch floor": ("time of the host to launch its kernels", lambda cell: cell.number("launching_seconds")),
    "matmul ceiling": ("its products at the best rate measured here", lambda cell: _product_seconds(cell)),
}
"""Minimum times of a case: their meaning, and their seconds as far as its record has them."""

HOW_DRAWN = dict(zip(FLOORS, ("thin dashes", "thin dots", "thin dashes and dots"), strict=True))
"""In the colour of the line that they bound, by `figure.DASHES`."""

Names = Callable[[Cell], tuple[str, str]]
Y = Callable[[Cell], tuple[float, ...]]
"""A figure, with the ends of its interval where it has one; empty for an unknown one."""
MEDIAN = "median of the rounds (ms)"


@dataclass(frozen=True)
class Axis:
    """What cases grow along, and the two names that tell their lines apart."""

    field: str
    title: str
    names: Names

    def place(self, cell: Cell) -> float:
        return cell.number(self.field) or 0.0


CONTEXT = Axis("context_length", "tokens in a sequence", lambda cell: (cell.label("size"), _kind(cell)))
PARAMETERS = Axis("parameters", "parameters", lambda cell: (f"context {cell.label('context_length')}", _kind(cell)))
LENGTH = Axis(
    "sequence_length", "sequence length (tokens)",
    lambda cell: (cell.implementation, f"d {cell.label('head_dim')} {cell.label('precision')}"),
)  # fmt: skip


def _kind(cell: Cell) -> str:
    return f"{cell.label('precision')} {cell.implementation}"


def milliseconds(cell: Cell) -> tuple[float, ...]:
    known = (cell.median_seconds, *(cell.rounds.median_interval(0.95) or ())) if cell.is_timed else ()
    return tuple(seconds * 1e3 for seconds in known)


def _mebibytes(cell: Cell, field: str) -> tuple[float, ...]:
    amount = cell.number(field)
    return (amount / MIB,) if amount else ()


def _product_seconds(cell: Cell) -> float | None:
    """Of the counted products at the measured rate, where the case does what was counted."""
    names = ("model_flops", "matmul_ceiling_tflops_per_second", "share_of_matmul_ceiling")
    flops, rate, share = map(cell.number, names)
    return flops / (rate * 1e12) if flops and rate and share is not None else None


def context_scaling(run: RecordedRun) -> list[Figure]:
    """Time over context, one figure for each phase, a line for each size, precision and implementation."""
    return _model_figures(run, "context", CONTEXT)


def size_scaling(run: RecordedRun) -> list[Figure]:
    """Time over parameters, one figure for each phase, a line for each context, precision and implementation."""
    return _model_figures(run, "size", PARAMETERS)


def _model_figures(run: RecordedRun, name: str, axis: Axis) -> list[Figure]:
    cells = [cell for cell in run.cells if cell.is_timed and not cell.is_attention]
    return _figures(run, cells, axis, milliseconds, (name, f"{{}}: time over {axis.title}", MEDIAN), fewest=2)


def attention_time(run: RecordedRun) -> list[Figure]:
    return _attention_figures(run, run.cells, milliseconds, "time", "time", MEDIAN)


def attention_memory(run: RecordedRun) -> list[Figure]:
    """Peak over sequence length, one figure for each pass; and memory before the backward pass."""
    peak, before_backward = (
        partial(_mebibytes, field=field) for field in ("peak_allocated_bytes", "memory_before_backward_bytes")
    )
    timed, passed = run.cells, run.passed("memory")
    cells = timed if any(map(peak, timed)) else passed
    backward = [cell for cell in passed if cell.phase == "backward"]
    held = backward or passed  # a forward pass alone ends in the same moment
    return [
        *_attention_figures(run, cells, peak, "memory", "peak memory", "peak of allocated memory (MiB)"),
        *_attention_figures(
            run, held, before_backward, "before-backward", "memory before the backward pass",
            "held before the backward pass (MiB)",
        ),
    ]  # fmt: skip


def _attention_figures(
    run: RecordedRun, cells: Sequence[Cell], y: Y, name: str, what: str, y_title: str
) -> list[Figure]:
    alone = [cell for cell in cells if cell.is_attention]
    return _figures(run, alone, LENGTH, y, (f"attention-{name}", f"Attention alone, {{}}: {what} over length", y_title))


def _figures(
    run: RecordedRun, cells: Sequence[Cell], axis: Axis, y: Y, names: tuple[str, str, str], fewest: int = 1
) -> list[Figure]:
    """One for each phase, which goes into its title; none where no line has `fewest` places."""
    figures = []
    name, title, y_title = names
    for phase, found in groupby(sorted(filter(axis.place, cells), key=phase_order), key=lambda cell: cell.phase):
        chosen = list(found)
        lines = _lines(chosen, axis, y)
        if max(len({point.x for point in line.points}) for line in lines) < fewest:
            continue
        floors = _floors(chosen, axis) if y is milliseconds else []
        drawn = {series.name.partition(" of ")[0] for series in floors}
        meanings = "; ".join(f"{HOW_DRAWN[floor]}: {FLOORS[floor][0]} ({floor})" for floor in FLOORS if floor in drawn)
        figures += run.figures(
            f"{name}-{phase}", title.format(phase), (axis.title, y_title),
            [*floors, *lines, *_crosses(chosen, axis, lines)], [meanings, rounds_line(chosen)], x_log=True, y_log=True,
            x_values=() if axis is PARAMETERS else sorted({int(axis.place(cell)) for cell in chosen}),
        )  # fmt: skip
    return figures


def _looks(cells: Sequence[Cell], names: Names) -> dict[tuple[str, str], tuple[int, int]]:
    """Colour and dash of each pair of names: the first chooses colour and marker, the second the dash."""
    firsts, seconds = (distinct(names(cell)[i] for cell in cells) for i in (0, 1))
    return {pair: (firsts.index(pair[0]), seconds.index(pair[1])) for pair in map(names, cells)}


def _lines(cells: Sequence[Cell], axis: Axis, y: Y) -> list[Series]:
    """A line for each pair of names through the cells that have a figure."""
    series = []
    for pair, look in _looks(cells, axis.names).items():
        points = [
            Point(axis.place(cell), found[0], case_name(cell.id), tags_of(cell), *found[1:])
            for cell in sorted(cells, key=axis.place)
            if axis.names(cell) == pair and (found := y(cell))
        ]
        series.append(Series(", ".join(pair), points, *look, tied_to=", ".join(pair)))
    return series


def _floors(cells: Sequence[Cell], axis: Axis) -> list[Series]:
    """Minimum times of each case, as far as its record has them: a thin line in the colour of the line it bounds."""
    series: list[Series] = []
    looks = _looks(cells, axis.names)
    for dash, (floor, (meaning, seconds_of)) in enumerate(FLOORS.items(), 1):
        lines: dict[tuple[str, str], list[Point]] = {}
        for cell in sorted(cells, key=axis.place):
            if (seconds := seconds_of(cell) or 0.0) > 0:
                point = Point(axis.place(cell), seconds * 1e3, f"{case_name(cell.id)}: {meaning}", tags_of(cell))
                lines.setdefault(axis.names(cell), []).append(point)
        series += [
            Series(f"{floor} of {', '.join(names)}", points, colour=looks[names][0], dash=dash, symbol="line-ew-open",
                   is_background=True, is_in_legend=False, tied_to=", ".join(names))
            for names, points in lines.items()
        ]  # fmt: skip
    return series


def _crosses(cells: Sequence[Cell], axis: Axis, lines: Sequence[Series]) -> list[Series]:
    """The cases without a figure, above all others, in their line's colour."""
    top = max(point.y for line in lines for point in line.points) * ABOVE
    series = []
    for names, (colour, dash) in _looks(cells, axis.names).items():
        lost = sorted((cell for cell in cells if axis.names(cell) == names and cell.outcome), key=axis.place)
        if lost:
            said = " and ".join(distinct(OUTCOMES[cell.outcome] for cell in lost))
            reasons = zip(lost, lost_lines(lost), strict=True)
            points = [Point(axis.place(cell), top, reason, tags_of(cell)) for cell, reason in reasons]
            symbol = CROSSES[dash % len(CROSSES)]
            series.append(Series(f"{', '.join(names)}: {said}", points, colour, dash, mode="markers", symbol=symbol))
    return series
