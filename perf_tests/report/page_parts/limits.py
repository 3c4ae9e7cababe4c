"""How close each case came to what this machine can do: rates under their roof, times over their least."""

import math
from collections.abc import Sequence

from perf_tests.records.columns import Cell, case_name, rounds_line
from perf_tests.records.format import MIB, distinct, significant
from perf_tests.report.page_parts.axes import tags_of, tags_with
from perf_tests.report.page_parts.cases import LABELS, Column, case_rows, number
from perf_tests.report.page_parts.figure import SYMBOLS, Figure, Point, Series
from perf_tests.report.page_parts.run import RecordedRun

LIMIT_NOTE = (
    "least time, computed: arithmetic and memory traffic of a case's kernels at rates measured on this machine, "
    "above the median where caches serve what it counts as memory traffic; "
    "product ceiling: the best square product measured here"
)


def _mebibytes(name: str) -> Column:
    return lambda cell: None if (amount := cell.number(name)) is None else significant(amount / MIB)


def _least(cell: Cell) -> str | None:
    seconds = cell.number("roofline_seconds")
    return None if seconds is None else significant(seconds * 1e3)


LIMITS: dict[str, Column] = {
    "median, measured (ms)": lambda cell: significant(cell.median_seconds * 1e3),
    "least time, computed (ms)": _least,
    "least / median": number("roofline_fraction", ".0%"),
    "of product ceiling": number("share_of_matmul_ceiling", ".0%"),
    "MFU": number("mfu", ".1%"),
    "bound by": lambda cell: str(cell.info.get("bound") or "") or None,
    "peak, measured (MiB)": _mebibytes("peak_allocated_bytes"),
    "peak, predicted (MiB)": _mebibytes("predicted_peak_bytes"),
}


def limit_tables(run: RecordedRun) -> str:
    """Of models and of attention alone, as far as the record knows a limit."""
    timed = [cell for cell in run.cells if cell.is_timed]
    known = [cell for cell in timed if any(cell.number(name) is not None for name in KNOWN)]
    return "".join(
        case_rows(f"run{run.number}-limits-{name}", title, found, LABELS[alone], LIMITS, [LIMIT_NOTE, run.conditions])
        for alone, name, title in ((False, "models", "Language models"), (True, "attention", "Attention alone"))
        if (found := [cell for cell in known if cell.is_attention == alone])
    )


KNOWN = ("roofline_fraction", "share_of_matmul_ceiling", "mfu")


def roofline(run: RecordedRun) -> list[Figure]:
    """TFLOP/s over FLOP per byte, where a record counts both; a precision's points have the colour of its roof."""
    known = [(cell, *found) for cell in run.cells if cell.is_timed and (found := _place(cell))]
    precisions = distinct(cell.label("precision") for cell, *_ in known)
    kinds = distinct(_kind(cell) for cell, *_ in known)
    points: dict[tuple[str, str], list[Point]] = {}
    for cell, intensity, flops in known:
        low, high = cell.rounds.median_interval(0.95) or (None, None)
        ends = (flops / high / 1e12, flops / low / 1e12) if low and high else (None, None)
        point = Point(intensity, flops / cell.median_seconds / 1e12, case_name(cell.id), tags_of(cell), *ends)
        points.setdefault((_kind(cell), cell.label("precision")), []).append(point)
    marks = [
        Series(f"{kind}, {precision}", found, precisions.index(precision), mode="markers",
               symbol=SYMBOLS[kinds.index(kind) % len(SYMBOLS)])
        for (kind, precision), found in points.items()
    ]  # fmt: skip
    cells = [cell for cell, *_ in known]
    roofs = _roofs(cells, precisions, [intensity for _, intensity, _ in known]) if known else []
    notes = ["lines: the best square product and the best memory traffic measured here"] if roofs else []
    return run.figures(
        "roofline", "Roofline: rate over arithmetic intensity", ("FLOP per byte", "TFLOP/s"),
        [*roofs, *marks], [*notes, rounds_line(cells)], x_log=True, y_log=True,
    )  # fmt: skip


def _kind(cell: Cell) -> str:
    return f"{'attention ' if cell.is_attention else ''}{cell.phase}"


def _place(cell: Cell) -> tuple[float, float] | None:
    """FLOP per byte, and FLOP."""
    flops = cell.number("executed_flops") or cell.number("model_flops") or 0.0
    moved = cell.number("bytes_touched") or 0.0
    return (flops / moved, flops) if flops > 0 and moved > 0 else None


def _roofs(cells: Sequence[Cell], precisions: Sequence[str], intensities: Sequence[float]) -> list[Series]:
    """For each precision whose products were timed: the memory's slope up to their best rate.

    Only the level part where the record lacks this machine's memory bandwidth.
    """
    best: dict[str, float] = {}
    for cell in cells:
        precision, rate = cell.label("precision"), cell.number("matmul_ceiling_tflops_per_second") or 0.0
        if rate > 0:
            best[precision] = max(rate, best.get(precision, 0.0))
    bandwidth = max((cell.number("memory_ceiling_gigabytes_per_second") or 0.0 for cell in cells), default=0.0)
    traffic = bandwidth / 1e3 if bandwidth > 0 else math.inf
    low, high = min(intensities), max(intensities)
    series = []
    for place, (precision, rate) in enumerate(best.items(), 1):
        corners = sorted({low, high, *([rate / traffic] if low < rate / traffic < high else [])})
        name = f"best here, {precision}"
        points = [Point(x, min(rate, x * traffic), name, tags_with(precision=precision)) for x in corners]
        series.append(
            Series(
                name, points, precisions.index(precision), dash=place, mode="lines", is_background=True, tied_to=name
            )
        )
    return series
