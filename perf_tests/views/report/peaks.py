"""Peak memory by phase, measured and predicted; and where attention alone runs out of it."""

from collections.abc import Sequence

from perf_tests.views.report.figure import Figure, Point, Series, place_of, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.screens.lines import case_name
from perf_tests.views.tables.cells import Cell, distinct
from perf_tests.views.tables.conditions import rounds_line
from perf_tests.views.tables.digits import MIB

MEASURED, PREDICTED = "peak_allocated_bytes", "predicted_peak_bytes"


def peaks(run: RecordedRun) -> list[Figure]:
    """A marker for each phase by size and context: filled where it was measured, open where it was predicted."""
    timed, passed = _with_peaks(run.cells or []), _with_peaks(run.passes.get("memory", []))
    cells = timed if any(cell.number(MEASURED) for cell in timed) or not passed else passed
    series = []
    for place, name in enumerate(distinct(map(_series_name, cells))):
        chosen = [cell for cell in cells if _series_name(cell) == name]
        series += _of_field(chosen, MEASURED, name, place) + _of_field(chosen, PREDICTED, f"{name}, predicted", place)
    notes = [rounds_line(cells)]
    if any(cell.number(PREDICTED) for cell in cells):
        notes.insert(0, "circle: the peak that was predicted, around the measured one where there is one")
    return run.figures(
        "memory", "Peak of allocated memory", ("size, context", "MiB"), series, notes,
        x_log=False, x_values=distinct(map(place_of, cells)),
    )  # fmt: skip


def _with_peaks(cells: Sequence[Cell]) -> list[Cell]:
    """Of models. On a CPU a timing has no peak, and the memory pass has."""
    models = [cell for cell in cells if not cell.is_attention]
    return [cell for cell in models if cell.number(MEASURED) or cell.number(PREDICTED)]


def _series_name(cell: Cell) -> str:
    return f"{cell.phase}, {cell.label('precision')} {cell.implementation}"


def _of_field(cells: Sequence[Cell], field: str, name: str, place: int) -> list[Series]:
    points = [
        Point(place_of(cell), amount / MIB, f"{case_name(cell.id)}: {name}", tags_of(cell))
        for cell in cells
        if (amount := cell.number(field))
    ]
    if not points:
        return []
    if field == PREDICTED:
        is_alone = not any(cell.number(MEASURED) for cell in cells)
        return [Series(name, points, colour=place, mode="markers", symbol="circle-open", is_in_legend=is_alone)]
    return [Series(name, points, colour=place, mode="markers")]
