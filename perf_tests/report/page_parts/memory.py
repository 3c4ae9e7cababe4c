"""Peak memory by phase and category beside its prediction, and memory over the time of a round."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from perf_tests.phases import FIRST_STEP
from perf_tests.records.columns import (
    Cell,
    case_name,
    inside,
    last_phases,
    name_of,
    phase_order,
    rounds_line,
    rows_in,
    without_phase,
)
from perf_tests.records.format import MIB, distinct, finite
from perf_tests.records.record import Json, thinned
from perf_tests.report.page_parts.axes import tags_of
from perf_tests.report.page_parts.figure import Figure, Point, Series, bars, place_of
from perf_tests.report.page_parts.run import RecordedRun
from perf_tests.report.tables import MEMORY_NOTE

TIMELINE_VALUES = 20_000
"""In all timelines of a page; more would make it slow to open, and no screen is that wide."""
FEWEST_MOMENTS = 30

CATEGORIES = (
    "parameters", "optimizer state", "gradients", "activations", "temporaries", "inputs", "autocast's weight copies",
)  # fmt: skip
"""In stacking order."""

APART = 0.08
"""Share of the width; names of parts that begin closer together share a mark."""

ABOVE = 1.04
"""Height of the parts' names over the highest moment."""

MEASURED, PREDICTED = "peak_allocated_bytes", "predicted_peak_bytes"


def peaks(run: RecordedRun) -> list[Figure]:
    """A marker for each phase by size and context: filled for a measured peak, open for a predicted one."""
    timed, passed = _with_peaks(run.cells), _with_peaks(run.passed("memory"))
    cells = timed if any(cell.number(MEASURED) for cell in timed) or not passed else passed
    series = []
    for place, name in enumerate(distinct(map(_series_name, cells))):
        chosen = [cell for cell in cells if _series_name(cell) == name]
        series += [_of_field(chosen, MEASURED, name, place), _of_field(chosen, PREDICTED, f"{name}, predicted", place)]
    notes = [rounds_line(cells)]
    if any(cell.number(PREDICTED) for cell in cells):
        notes.insert(0, "circle: the predicted peak, around the measured one where there is one")
    is_measured = any(cell.number(MEASURED) for cell in cells)
    title = (
        "Peak of allocated memory, measured" if is_measured else "Peak of allocated memory, predicted: none is measured"
    )
    return run.figures(
        "memory", title, ("size, context", "MiB"), series, notes,
        y_log=True, x_values=distinct(map(place_of, cells)),
    )  # fmt: skip


def _with_peaks(cells: Sequence[Cell]) -> list[Cell]:
    """Of models. On a CPU only the memory pass has peaks, not the timings."""
    models = [cell for cell in cells if not cell.is_attention]
    return [cell for cell in models if cell.number(MEASURED) or cell.number(PREDICTED)]


def _series_name(cell: Cell) -> str:
    return f"{cell.phase}, {cell.label('precision')} {cell.implementation}"


def _of_field(cells: Sequence[Cell], field: str, name: str, place: int) -> Series:
    points = [
        Point(place_of(cell), amount / MIB, f"{case_name(cell.id)}: {name}", tags_of(cell))
        for cell in cells
        if (amount := cell.number(field))
    ]
    is_in_legend = field == MEASURED or not any(cell.number(MEASURED) for cell in cells)
    symbol = "" if field == MEASURED else "circle-open"
    return Series(name, points, colour=place, mode="markers", symbol=symbol, is_in_legend=is_in_legend)


def memory_categories(run: RecordedRun) -> list[Figure]:
    """Peaks by phase, stacked by category, circles at predicted ones; a reader picks the configuration."""
    known = [(cell, held) for cell in run.passed("memory") if (held := inside(cell.info, "peak_by_category_bytes"))]
    groups = distinct(without_phase(cell) for cell, _ in known)
    known.sort(key=lambda row: (groups.index(without_phase(row[0])), phase_order(row[0])))
    names = stacked({name for _, held in known for name in held})
    amounts = [
        (cell, name, amount / MIB) for name in names for cell, held in known if (amount := finite(held.get(name)))
    ]
    predicted = [(cell, "predicted peak", amount / MIB) for cell, _ in known if (amount := cell.number(PREDICTED))]
    circle: Json = {"mode": "markers", "look": "points", "symbol": "circle-open", "is_background": True}
    circles = [replace(one, **circle) for one in bars(predicted, lambda _: 0)]
    titles, notes = ("What is held at the peak, by phase", "MiB"), ["circle: the predicted peak", MEMORY_NOTE]
    return run.phase_bars("memory-categories", titles, amounts, place_in_stack, notes, circles)


def stacked(names: Iterable[str]) -> list[str]:
    """The categories that stay longest at the bottom, unknown ones on top."""
    return sorted(names, key=lambda name: (place_in_stack(name), name))


def place_in_stack(name: str) -> int:
    """Also the colour, the same in every figure."""
    return CATEGORIES.index(name) if name in CATEGORIES else len(CATEGORIES)


def timelines(run: RecordedRun) -> list[Figure]:
    """Memory after each allocation of a configuration's last phase and of its first step, stacked by category.

    A reader picks the case.
    """
    passed = run.passed("memory")
    later = [cell for cell in passed if cell.phase != FIRST_STEP]
    cells = [*last_phases(later), *(cell for cell in passed if cell.phase == FIRST_STEP)]
    known = [(cell, found) for cell in cells if (found := _categories(cell.info))]
    values = sum(len(found) for _, found in known)
    series = [
        one for cell, found in known for one in _timeline(cell, found, max(FEWEST_MOMENTS, TIMELINE_VALUES // values))
    ]
    notes = ["downsampled, peaks kept; dashed: predicted peak of the whole round", MEMORY_NOTE]
    if any(cell.phase == FIRST_STEP for cell, _ in known):
        notes.insert(0, "first_step: the step that makes the optimizer's state, which every later one finds")
    titles = "Memory over the time of a round", ("blocks that came and went", "MiB")
    return run.figures("timeline", *titles, series, notes, picks_one=True)


def _categories(values: Json) -> dict[str, list[float]]:
    """Bytes by category and moment; empty unless all categories have the same number of moments."""
    found: dict[str, list[float]] = {}
    for name, held in inside(values, "timeline", "category_bytes").items():
        amounts = [finite(amount) for amount in held] if isinstance(held, list) else []
        found[name] = [amount for amount in amounts if amount is not None and amount >= 0]
    lengths = {len(held) for held in found.values()}
    return found if len(lengths) == 1 and max(lengths) > 1 else {}


def _timeline(cell: Cell, categories: dict[str, list[float]], most: int) -> list[Series]:
    totals = list(map(sum, zip(*categories.values(), strict=True)))
    moments = thinned(totals, most)
    group, tags = name_of(cell), tags_of(cell)
    series = [
        Series(
            name, [Point(moment, held[moment] / MIB, name, tags) for moment in moments],
            place_in_stack(name), mode="lines", look="area", group=group,
        )
        for name in stacked(categories)
        if any(held := categories[name])
    ]  # fmt: skip
    predicted = cell.number(PREDICTED)
    if predicted:
        ends = [Point(end, predicted / MIB, "predicted peak", tags) for end in (0, len(totals) - 1)]
        series.append(Series("predicted peak", ends, dash=1, mode="lines", is_background=True, group=group))
    return [*series, _parts(cell, max(totals), len(totals), group)]


def _parts(cell: Cell, highest: float, count: int, group: str) -> Series:
    names: dict[float, list[str]] = {}
    for part in rows_in(cell.info, "timeline", "parts"):
        first, before = finite(part.get("first")), max(names, default=-inf)
        if first is not None and 0 <= first < count:
            place = before if abs(first - before) < APART * count else first
            names.setdefault(place, []).append(str(part.get("name")))
    points = [Point(first, highest * ABOVE / MIB, ", ".join(of), tags_of(cell)) for first, of in names.items()]
    look = "triangle-down-open"
    return Series(
        "parts", points, mode="markers+text", symbol=look, is_background=True, is_in_legend=False, group=group
    )
