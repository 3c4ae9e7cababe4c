"""Work done over bytes moved: which cases arithmetic bounds, and which memory."""

from collections.abc import Sequence

from perf_tests.records.cells import Cell, distinct
from perf_tests.records.conditions import rounds_line
from perf_tests.records.report.figure import Figure, Point, Series, case_text, tags_of
from perf_tests.records.report.run import Run


def roofline(run: Run) -> list[Figure]:
    """TFLOP/s over FLOP per byte, where a record counts both."""
    chosen = []
    for cell in run.cells or []:
        flops = cell.number("executed_flops") or cell.number("model_flops")
        moved = cell.number("bytes_touched")
        if cell.is_timed and flops and moved and flops > 0 and moved > 0:
            chosen.append((cell, flops / moved, flops / cell.median_seconds / 1e12))
    if not chosen:
        return []
    names = distinct(_name(cell.phase, cell.label("precision"), cell.is_attention) for cell, _, _ in chosen)
    series = [
        Series(
            name,
            [
                Point(intensity, rate, case_text(cell), tags_of(cell))
                for cell, intensity, rate in chosen
                if _name(cell.phase, cell.label("precision"), cell.is_attention) == name
            ],
            colour=place,
            mode="markers",
        )
        for place, name in enumerate(names)
    ]
    conditions = [rounds_line([cell for cell, _, _ in chosen]), run.conditions]
    title = "Roofline: rate over arithmetic intensity"
    roofs = _roofs([cell for cell, _, _ in chosen], [intensity for _, intensity, _ in chosen])
    if roofs:
        conditions.insert(0, "grey: the best square product measured here")
    return [Figure(f"run{run.number}-roofline", title, "FLOP per byte", "TFLOP/s", [*roofs, *series], conditions)]


def _roofs(cells: Sequence[Cell], intensities: Sequence[float]) -> list[Series]:
    """A level line for each precision whose products were timed in this run."""
    best: dict[str, float] = {}
    for cell in cells:
        rate = cell.number("matmul_ceiling_tflops_per_second")
        if rate and rate > 0:
            best[cell.label("precision")] = max(rate, best.get(cell.label("precision"), 0.0))
    ends = min(intensities), max(intensities)
    return [
        Series(
            f"best product, {precision}",
            [Point(end, rate, f"best product, {precision}", ("", "", precision, "")) for end in ends],
            dash=place,
            mode="lines",
            is_background=True,
        )
        for place, (precision, rate) in enumerate(best.items(), 1)
    ]


def _name(phase: str, precision: str, is_attention: bool) -> str:
    return f"{'attention ' if is_attention else ''}{phase}, {precision}"
