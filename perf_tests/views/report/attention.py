"""Attention alone over its length, by implementation; a case without a timing is a cross above the others."""

from collections.abc import Callable, Sequence

from perf_tests.records.compare import median_interval
from perf_tests.records.record import OUTCOMES
from perf_tests.views.report.figure import Figure, Point, Series, case_text, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.report.scaling import floor_notes, floors_of
from perf_tests.views.tables.cells import Cell, distinct, phase_order
from perf_tests.views.tables.conditions import rounds_line
from perf_tests.views.tables.timing import MIB

TITLES = {"time": "time", "memory": "peak memory", "before-backward": "memory before the backward pass"}
CROSSES = ("x", "x-open", "x-thin-open", "x-open-dot")
"""Of cases without a timing, by width and precision."""

Value = tuple[float, float | None, float | None]
"""A figure and the ends of its interval."""

ABOVE = 2.0
"""How far above the largest figure the cases without one stand."""


def attention_time(run: RecordedRun) -> list[Figure]:
    """Time over sequence length, one figure for each pass."""
    return _figures(run, run.cells or [], "time", "median of the rounds (ms)", _milliseconds)


def attention_memory(run: RecordedRun) -> list[Figure]:
    """Peak over sequence length, one figure for each pass; and what is held before the backward pass."""
    timed, passed = run.cells or [], run.passes.get("memory", [])
    cells = timed if any(map(_mebibytes, timed)) else passed
    peaks = _figures(run, cells, "memory", "peak of allocated memory (MiB)", _mebibytes)
    backward = [cell for cell in passed if cell.phase == "backward"]
    held = backward or passed  # a forward pass alone ends in the same moment
    return peaks + _figures(run, held, "before-backward", "held before the backward pass (MiB)", _before_backward)


def _milliseconds(cell: Cell) -> Value | None:
    if not cell.is_timed:
        return None
    low, high = median_interval(cell.rounds, 0.95) or (None, None)
    return cell.median_seconds * 1e3, None if low is None else low * 1e3, None if high is None else high * 1e3


def _mebibytes(cell: Cell) -> Value | None:
    amount = cell.number("peak_allocated_bytes")
    return (amount / MIB, None, None) if amount else None


def _before_backward(cell: Cell) -> Value | None:
    amount = cell.number("memory_before_backward_bytes")
    return (amount / MIB, None, None) if amount else None


def _figures(
    run: RecordedRun, cells: Sequence[Cell], name: str, y_title: str, figure: Callable[[Cell], Value | None]
) -> list[Figure]:
    figures = []
    alone = [cell for cell in cells if cell.is_attention and cell.number("sequence_length")]
    alone.sort(key=phase_order)
    for phase in distinct(cell.phase for cell in alone):
        cells = [cell for cell in alone if cell.phase == phase]
        if not any(figure(cell) for cell in cells):
            continue
        floors = floors_of(cells, _length, _names) if name == "time" else []
        figures.append(
            Figure(
                f"run{run.number}-attention-{name}-{phase}",
                f"Attention alone, {phase}: {TITLES[name]} over length",
                "sequence length (tokens)",
                y_title,
                [*floors, *_lines(cells, figure)],
                [*floor_notes(floors), rounds_line(cells), run.conditions],
                x_values=sorted({int(_length(cell)) for cell in cells}),
            )
        )
    return figures


def _length(cell: Cell) -> float:
    return cell.number("sequence_length") or 0.0


def _names(cell: Cell) -> tuple[str, str]:
    return cell.implementation, f"d {cell.label('head_dim')} {cell.label('precision')}"


def _lines(cells: Sequence[Cell], figure: Callable[[Cell], Value | None]) -> list[Series]:
    """A colour and marker for each implementation, a dash for each width and precision."""
    firsts, seconds = (distinct(_names(cell)[i] for cell in cells) for i in (0, 1))
    top = max(found[0] for cell in cells if (found := figure(cell))) * ABOVE
    series = []
    for names in distinct_pairs(cells):
        chosen = sorted((cell for cell in cells if _names(cell) == names), key=_length)
        colour, dash = firsts.index(names[0]), seconds.index(names[1])
        name = ", ".join(names)
        points = [
            Point(_length(cell), found[0], case_text(cell), tags_of(cell), found[1], found[2])
            for cell in chosen
            if (found := figure(cell))
        ]
        if points:
            series.append(Series(name, points, colour, dash))
        lost = [Point(_length(cell), top, _why(cell), tags_of(cell)) for cell in chosen if cell.outcome]
        if lost:
            said = " and ".join(distinct(OUTCOMES[cell.outcome] for cell in chosen if cell.outcome))
            series.append(
                Series(f"{name}: {said}", lost, colour, dash, mode="markers", symbol=CROSSES[dash % len(CROSSES)])
            )
    return series


def distinct_pairs(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(map(_names, cells)))


def _why(cell: Cell) -> str:
    return f"{case_text(cell)}: {OUTCOMES[cell.outcome]}: {cell.reason}"
