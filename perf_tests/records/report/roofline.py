"""Work done over bytes moved: which cases arithmetic bounds, and which memory."""

from perf_tests.records.cells import distinct
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
    return [Figure(f"run{run.number}-roofline", title, "FLOP per byte", "TFLOP/s", series, conditions)]


def _name(phase: str, precision: str, is_attention: bool) -> str:
    return f"{'attention ' if is_attention else ''}{phase}, {precision}"
