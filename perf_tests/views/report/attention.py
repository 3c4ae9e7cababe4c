"""Attention alone over its length, by implementation; a case without a timing is a cross above the others."""

from collections.abc import Callable, Sequence

from perf_tests.records.record import OUTCOMES
from perf_tests.views.report.figure import Figure, Point, Series, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.report.scaling import Value, floor_notes, floors_of, lines_of, looks_of, milliseconds
from perf_tests.views.tables.cells import Cell, distinct, phase_order
from perf_tests.views.tables.conditions import rounds_line
from perf_tests.views.tables.digits import MIB
from perf_tests.views.tables.pass_cells import lost_lines

TITLES = {"time": "time", "memory": "peak memory", "before-backward": "memory before the backward pass"}
CROSSES = ("x", "x-open", "x-thin-open", "x-open-dot")
"""Of cases without a timing, by width and precision."""

ABOVE = 2.0
"""How far above the largest figure the cases without one stand."""


def attention_time(run: RecordedRun) -> list[Figure]:
    """Time over sequence length, one figure for each pass."""
    return _figures(run, run.cells or [], "time", "median of the rounds (ms)", milliseconds)


def attention_memory(run: RecordedRun) -> list[Figure]:
    """Peak over sequence length, one figure for each pass; and what is held before the backward pass."""
    timed, passed = run.cells or [], run.passes.get("memory", [])
    cells = timed if any(map(_mebibytes, timed)) else passed
    peaks = _figures(run, cells, "memory", "peak of allocated memory (MiB)", _mebibytes)
    backward = [cell for cell in passed if cell.phase == "backward"]
    held = backward or passed  # a forward pass alone ends in the same moment
    return peaks + _figures(run, held, "before-backward", "held before the backward pass (MiB)", _before_backward)


def _mebibytes(cell: Cell, field: str = "peak_allocated_bytes") -> Value | None:
    amount = cell.number(field)
    return (amount / MIB, None, None) if amount else None


def _before_backward(cell: Cell) -> Value | None:
    return _mebibytes(cell, "memory_before_backward_bytes")


def _figures(
    run: RecordedRun, cells: Sequence[Cell], name: str, y_title: str, figure: Callable[[Cell], Value | None]
) -> list[Figure]:
    figures = []
    alone = [cell for cell in cells if cell.is_attention and cell.number("sequence_length")]
    alone.sort(key=phase_order)
    for phase in distinct(cell.phase for cell in alone):
        cells = [cell for cell in alone if cell.phase == phase]
        lines = lines_of(cells, _length, figure, _names)
        if not lines:
            continue
        floors = floors_of(cells, _length, _names) if name == "time" else []
        figures += run.figures(
            f"attention-{name}-{phase}", f"Attention alone, {phase}: {TITLES[name]} over length",
            ("sequence length (tokens)", y_title), [*floors, *lines, *_crosses(cells, lines)],
            [*floor_notes(floors), rounds_line(cells)], x_values=sorted({int(_length(cell)) for cell in cells}),
        )  # fmt: skip
    return figures


def _length(cell: Cell) -> float:
    return cell.number("sequence_length") or 0.0


def _names(cell: Cell) -> tuple[str, str]:
    return cell.implementation, f"d {cell.label('head_dim')} {cell.label('precision')}"


def _crosses(cells: Sequence[Cell], lines: Sequence[Series]) -> list[Series]:
    """The cases without a figure, above all others, in the look of their line."""
    top = max(point.y for line in lines for point in line.points) * ABOVE
    series = []
    for names, (colour, dash) in looks_of(cells, _names).items():
        lost = sorted((cell for cell in cells if _names(cell) == names and cell.outcome), key=_length)
        if lost:
            said = " and ".join(distinct(OUTCOMES[cell.outcome] for cell in lost))
            points = [
                Point(_length(cell), top, why, tags_of(cell)) for cell, why in zip(lost, lost_lines(lost), strict=True)
            ]
            symbol = CROSSES[dash % len(CROSSES)]
            series.append(Series(f"{', '.join(names)}: {said}", points, colour, dash, mode="markers", symbol=symbol))
    return series
