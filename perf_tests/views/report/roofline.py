"""FLOPs over bytes moved: which cases are compute-bound, and which memory-bound."""

from collections.abc import Sequence

from perf_tests.views.report.figure import Figure, Point, Series, markers, tags_of
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.screens.lines import case_name
from perf_tests.views.tables.cells import Cell
from perf_tests.views.tables.conditions import rounds_line


def roofline(run: RecordedRun) -> list[Figure]:
    """TFLOP/s over FLOP per byte, where a record counts both."""
    chosen = []
    for cell in run.cells:
        flops = cell.number("executed_flops") or cell.number("model_flops")
        moved = cell.number("bytes_touched")
        if cell.is_timed and flops and moved and flops > 0 and moved > 0:
            chosen.append((cell, flops / moved, flops / cell.median_seconds / 1e12))
    series = markers((_name(cell), Point(x, rate, case_name(cell.id), tags_of(cell))) for cell, x, rate in chosen)
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


def _name(cell: Cell) -> str:
    return f"{'attention ' if cell.is_attention else ''}{cell.phase}, {cell.label('precision')}"
