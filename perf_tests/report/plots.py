"""Every figure of one recorded run: growth over size and length, ratios, memory, kernels, warm-up, the roofline."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from perf_tests_suite.perf_tests.phases import FIRST_STEP
from perf_tests_suite.perf_tests.records import columns
from perf_tests_suite.perf_tests.records.columns import CaseRow, last_phases, rounds_line, seconds_of
from perf_tests_suite.perf_tests.records.format import MIB, distinct, finite
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json, collected, grouped, thinned
from perf_tests_suite.perf_tests.records.store import StoredRecord, ratio_interval
from perf_tests_suite.perf_tests.report import tables
from perf_tests_suite.perf_tests.report.blocks import (
    AXES,
    SYMBOLS,
    Chart,
    PlotPoint,
    PlotSeries,
    bars,
    markers,
    point,
    tags_of,
)
from perf_tests_suite.perf_tests.report.tables import MEMORY_NOTE, TRACED_NOTE


@dataclass(frozen=True)
class RecordedRun:
    """One record in full, without what no page shows."""

    number: int
    name: str
    record: Json
    """The record without `benchmarks`, `outcomes` and `passes`."""
    cells: list[CaseRow]
    collectives: int
    """Rows of collectives alone."""
    passes: dict[str, list[CaseRow]]

    @classmethod
    def of(cls, stored: StoredRecord, number: int) -> "RecordedRun":
        data = stored.data
        facts = {name: value for name, value in data.items() if name not in ("benchmarks", "outcomes", "passes")}
        passes = {name: columns.pass_cells(data, name) for name in columns.PASSES}
        collectives = len(columns.collectives_of(data))
        return cls(number, stored.name, facts, columns.cells_of(data), collectives, passes)

    @property
    def conditions(self) -> str:
        return columns.machine_line(self.record)

    def figures(
        self,
        name: str,
        title: str,
        axes: tuple[str, str],
        series: Sequence[PlotSeries],
        notes: Sequence[str],
        **more: Any,
    ) -> list[Chart]:
        """One figure above the conditions of this run; none without points."""
        drawn = [one for one in series if one.points]
        if not drawn:
            return []
        return [Chart(f"run{self.number}-{name}", title, *axes, drawn, [*notes, self.conditions], **more)]

    def phase_bars(
        self, name: str, titles: tuple[str, str], found: Iterable[tuple[CaseRow, str, float]],
        colour: Callable[[str], int], notes: Sequence[str], beside: Sequence[PlotSeries] = (),
    ) -> list[Chart]:  # fmt: skip
        """One figure of `bars`, phases in the order of a step; `titles` are its own and the heights'."""
        rows = list(found)
        phases = distinct(cell.phase for cell, _, _ in sorted(rows, key=lambda row: row[0].phase_place))
        series = [*bars(rows, colour), *beside]
        return self.figures(name, titles[0], ("phase", titles[1]), series, notes, picks_one=True, x_values=phases)


def pass_name(cell: CaseRow) -> str:
    """The phase, marked where attention is alone."""
    return f"{'attention ' if cell.is_attention else ''}{cell.phase}"


# Growth: time and memory over context, model size and sequence length, and what bounds the time.

CROSSES = ("x", "x-open", "x-thin-open", "x-open-dot")
"""Marks of cases without a timing, by width and precision."""

CROSSES_ABOVE = 2.0
"""Height of cases without a figure over the largest one."""

Y = Callable[[CaseRow], tuple[float, ...]]
"""A figure, with the ends of its interval where it has one; empty for an unknown one."""
MEDIAN = "median of the rounds (ms)"


@dataclass(frozen=True)
class Axis:
    """What cases grow along, and the two names that tell their lines apart: colour and marker, then dash."""

    field: str
    title: str
    names: Callable[[CaseRow], tuple[str, str]]

    def place(self, cell: CaseRow) -> float:
        return cell.number(self.field) or 0.0


CONTEXT = Axis(
    "context_length", "tokens in a sequence",
    lambda cell: (cell.label("size"), f"{cell.label('precision')} {cell.implementation}"),
)  # fmt: skip
PARAMETERS = Axis(
    "parameters", "parameters",
    lambda cell: (f"context {cell.label('context_length')}", f"{cell.label('precision')} {cell.implementation}"),
)  # fmt: skip
LENGTH = Axis(
    "sequence_length", "sequence length (tokens)",
    lambda cell: (cell.implementation, f"d {cell.label('head_dim')} {cell.label('precision')}"),
)  # fmt: skip


def model_growth(run: RecordedRun, name: str, axis: Axis) -> Iterator[Chart]:
    """Time of models over context or parameters, one figure for each phase."""
    cells = [cell for cell in run.cells if cell.is_timed and not cell.is_attention]
    return _growth(run, cells, axis, _milliseconds, name, f"{{}}: time over {axis.title}", MEDIAN, fewest=2)


def attention_growth(run: RecordedRun) -> Iterator[Chart]:
    """Attention's time, peak, and memory before the backward pass over sequence length, one figure for each pass."""
    peak, before = (partial(_mebibytes, field=f"{name}_bytes") for name in ("peak_allocated", "memory_before_backward"))
    passed = run.passes["memory"]
    # A forward pass alone ends in the moment before the backward pass, too.
    backward = [cell for cell in passed if cell.phase == "backward"] or passed
    for cells, y, name, what, y_title in (
        (run.cells, _milliseconds, "time", "time", MEDIAN),
        (run.cells if any(map(peak, run.cells)) else passed, peak, "memory", "peak memory",
         "peak of allocated memory (MiB)"),
        (backward, before, "before-backward", "memory before the backward pass",
         "held before the backward pass (MiB)"),
    ):  # fmt: skip
        alone = [cell for cell in cells if cell.is_attention]
        title = f"Attention alone, {{}}: {what} over length"
        yield from _growth(run, alone, LENGTH, y, f"attention-{name}", title, y_title)


def _milliseconds(cell: CaseRow) -> tuple[float, ...]:
    known = (cell.rounds.median, *(cell.rounds.median_interval(0.95) or ())) if cell.is_timed else ()
    return tuple(seconds * 1e3 for seconds in known)


def _mebibytes(cell: CaseRow, field: str) -> tuple[float, ...]:
    amount = cell.number(field)
    return (amount / MIB,) if amount else ()


def _product_seconds(cell: CaseRow) -> float | None:
    """Time of the counted products at the measured rate, where the case does what was counted."""
    flops, rate = cell.number("model_flops"), cell.number("matmul_ceiling_tflops_per_second")
    return flops / (rate * 1e12) if flops and rate and cell.number("share_of_matmul_ceiling") is not None else None


FLOORS: dict[str, tuple[str, str, Callable[[CaseRow], float | None]]] = {
    "roofline": ("thin dashes", "minimum time by arithmetic and memory traffic",
                 lambda cell: cell.number("roofline_seconds")),
    "launch floor": ("thin dots", "time of the host to launch its kernels",
                     lambda cell: cell.number("launching_seconds")),
    "matmul ceiling": ("thin dashes and dots", "its products at the best rate measured here", _product_seconds),
}  # fmt: skip
"""Minimum times of a case: how each is drawn, in the order of `DASHES` and the colour of the line that it bounds; what
it means; its seconds as far as the case's record has them.
"""


def _growth(
    run: RecordedRun, cells: Sequence[CaseRow], axis: Axis, y: Y, name: str, title: str, y_title: str, fewest: int = 1
) -> Iterator[Chart]:
    """One figure for each phase, which goes into its title; none where no line has `fewest` places."""
    placed = sorted(filter(axis.place, cells), key=attrgetter("phase_place"))
    for phase, chosen in grouped(placed, attrgetter("phase")).items():
        grown = sorted(chosen, key=axis.place)
        firsts, seconds = (distinct(axis.names(cell)[i] for cell in chosen) for i in (0, 1))
        looks = {pair: (firsts.index(pair[0]), seconds.index(pair[1])) for pair in map(axis.names, chosen)}
        lines = []
        for pair, look in looks.items():
            known = ((cell, y(cell)) for cell in grown if axis.names(cell) == pair)
            points = [point(cell, axis.place(cell), found[0], "", *found[1:]) for cell, found in known if found]
            lines.append(PlotSeries(", ".join(pair), points, *look, tied_to=", ".join(pair)))
        if max(len({one.x for one in line.points}) for line in lines) < fewest:
            continue
        floors = _floors(grown, axis, looks) if y is _milliseconds else []
        drawn = {series.name.partition(" of ")[0] for series in floors}
        meanings = (f"{how}: {meaning} ({floor})" for floor, (how, meaning, _) in FLOORS.items() if floor in drawn)
        top = CROSSES_ABOVE * max(one.y for line in lines for one in line.points)
        yield from run.figures(
            f"{name}-{phase}", title.format(phase), (axis.title, y_title),
            [*floors, *lines, *_crosses(grown, axis, looks, top)], ["; ".join(meanings), rounds_line(chosen)],
            x_log=True, y_log=True,
            x_values=() if axis is PARAMETERS else sorted({int(axis.place(cell)) for cell in chosen}),
        )  # fmt: skip


Looks = dict[tuple[str, str], tuple[int, int]]
"""Colour and dash of each pair of names."""


def _floors(grown: Sequence[CaseRow], axis: Axis, looks: Looks) -> list[PlotSeries]:
    """Minimum times of each case, as far as its record has them: a thin line in the colour of the line it bounds."""
    series: list[PlotSeries] = []
    for dash, (floor, (_, meaning, seconds_of_cell)) in enumerate(FLOORS.items(), 1):
        lines = collected(
            (axis.names(cell), point(cell, axis.place(cell), seconds * 1e3, f"{cell.case}: {meaning}"))
            for cell in grown
            if (seconds := seconds_of_cell(cell) or 0.0) > 0
        )
        series += [
            PlotSeries(
                f"{floor} of {', '.join(names)}", points, colour=looks[names][0], dash=dash, symbol="line-ew-open",
                is_background=True, is_in_legend=False, tied_to=", ".join(names),
            )
            for names, points in lines.items()
        ]  # fmt: skip
    return series


def _crosses(grown: Sequence[CaseRow], axis: Axis, looks: Looks, top: float) -> Iterator[PlotSeries]:
    """The cases without a figure, above all others, in their line's colour."""
    for names, (colour, dash) in looks.items():
        lost = [cell for cell in grown if axis.names(cell) == names and cell.outcome]
        said = " and ".join(distinct(OUTCOMES[cell.outcome] for cell in lost))
        points = [point(cell, axis.place(cell), top, columns.lost_lines([cell])[0]) for cell in lost]
        symbol = CROSSES[dash % len(CROSSES)]
        yield PlotSeries(f"{', '.join(names)}: {said}", points, colour, dash, mode="markers", symbol=symbol)


# Ratios of two cases of one run: lower precisions over fp32.

RATIO_NOTE = "ratio of medians with its 95 % interval within this launch"


def speed_up(run: RecordedRun) -> list[Chart]:
    """The speed of each other precision as fp32 over it, by size and context; parity is drawn."""
    models = (cell for cell in run.cells if cell.is_timed and not cell.is_attention)
    pairs = columns.pairs_along(models, "precision", tables.BASE_PRECISION)
    named = [(f"{other.label('precision')}, {other.phase}", (base, other)) for base, other in pairs]
    axes = "size, context", "fp32 / other"
    return _ratios(run, "precision", "Speed-up over fp32", axes, named, (1.0, "parity"))


def _ratios(
    run: RecordedRun, name: str, title: str, axes: tuple[str, str],
    named: Sequence[tuple[str, tuple[CaseRow, CaseRow]]], line: tuple[float, str] | None,
) -> list[Chart]:  # fmt: skip
    """A marker for each (name, (over, under)), with the interval of the ratio of both medians."""
    points = []
    for own, (over, under) in named:
        ends = ratio_interval(over.rounds, under.rounds) or ()
        whose, ratio = under if over.phase == under.phase else over, over.rounds.median / under.rounds.median
        points.append((own, point(whose, over.place, ratio, under.case, *ends)))
    notes = [RATIO_NOTE, rounds_line([cell for _, pair in named for cell in pair])]
    places = distinct(over.place for _, (over, _) in named)
    return run.figures(name, title, axes, markers(points), notes, line_at=line, x_values=places)


# Peak memory by phase and category beside its prediction, and memory over the time of a round.

TIMELINE_VALUES = 20_000
"""Values in all timelines of a page; more would make it slow to open, and no screen is that wide."""
FEWEST_MOMENTS = 30

CATEGORIES = (
    "parameters", "optimizer state", "gradients", "activations", "temporaries", "inputs", "autocast's weight copies",
)  # fmt: skip
"""Parts of memory in stacking order."""

PARTS_APART = 0.08
"""Share of the width; names of parts that begin closer together share a mark."""

PARTS_ABOVE = 1.04
"""Height of the parts' names over the highest moment."""

MEASURED, PREDICTED = "peak_allocated_bytes", "predicted_peak_bytes"


def peaks(run: RecordedRun) -> list[Chart]:
    """A marker for each phase by size and context: filled for a measured peak, open for a predicted one."""
    timed, passed = (
        [cell for cell in cells if not cell.is_attention and (cell.number(MEASURED) or cell.number(PREDICTED))]
        for cells in (run.cells, run.passes["memory"])
    )
    # On a CPU only the memory pass has measured peaks, not the timings.
    cells = timed if any(cell.number(MEASURED) for cell in timed) or not passed else passed
    is_measured, is_predicted = (any(cell.number(field) for cell in cells) for field in (MEASURED, PREDICTED))
    names = [f"{cell.phase}, {cell.label('precision')} {cell.implementation}" for cell in cells]
    series = []
    for colour, name in enumerate(distinct(names)):
        chosen = [cell for cell, own in zip(cells, names, strict=True) if own == name]
        for field, own, symbol in ((MEASURED, name, ""), (PREDICTED, f"{name}, predicted", "circle-open")):
            known = ((cell, cell.number(field)) for cell in chosen)
            points = [point(cell, cell.place, amount / MIB, f"{cell.case}: {own}") for cell, amount in known if amount]
            is_listed = field == MEASURED or not any(cell.number(MEASURED) for cell in chosen)
            series.append(PlotSeries(own, points, colour, mode="markers", symbol=symbol, is_in_legend=is_listed))
    circle = ["circle: the predicted peak, around the measured one where there is one"] if is_predicted else []
    title = f"Peak of allocated memory, {'measured' if is_measured else 'predicted: none is measured'}"
    return run.figures(
        "memory", title, ("size, context", "MiB"), series, [*circle, rounds_line(cells)],
        y_log=True, x_values=distinct(cell.place for cell in cells),
    )  # fmt: skip


def memory_categories(run: RecordedRun) -> list[Chart]:
    """Peaks by phase, stacked by category, circles at predicted ones; a reader picks the configuration."""
    known = [(cell, held) for cell in run.passes["memory"] if (held := cell.inside("peak_by_category_bytes"))]
    groups = distinct(cell.configuration for cell, _ in known)
    known.sort(key=lambda row: (groups.index(row[0].configuration), row[0].phase_place))
    names = sorted({name for _, held in known for name in held}, key=_place_in_stack)
    held_by = ((cell, name, finite(held.get(name))) for name in names for cell, held in known)
    amounts = [(cell, name, amount / MIB) for cell, name, amount in held_by if amount]
    predicted = [(cell, "predicted peak", amount / MIB) for cell, _ in known if (amount := cell.number(PREDICTED))]
    circle: Json = {"mode": "markers", "look": "points", "symbol": "circle-open", "is_background": True}
    circles = [replace(one, **circle) for one in bars(predicted, lambda _: 0)]
    titles, notes = ("What is held at the peak, by phase", "MiB"), ["circle: the predicted peak", MEMORY_NOTE]
    return run.phase_bars("memory-categories", titles, amounts, lambda name: _place_in_stack(name)[0], notes, circles)


def _place_in_stack(name: str) -> tuple[int, str]:
    """The category's place from the bottom on; its number is its colour too, the same in every figure.

    Those that stay longest lie at the bottom, unknown ones on top.
    """
    return (CATEGORIES.index(name) if name in CATEGORIES else len(CATEGORIES)), name


def timelines(run: RecordedRun) -> list[Chart]:
    """Memory after each allocation of a configuration's last phase and of its first step, stacked by category.

    A reader picks the case.
    """
    passed = run.passes["memory"]
    firsts = [cell for cell in passed if cell.phase == FIRST_STEP]
    cells = [*last_phases([cell for cell in passed if cell.phase != FIRST_STEP]), *firsts]
    known = []
    for cell in cells:
        found: dict[str, list[float]] = {}
        for name, held in cell.inside("timeline", "category_bytes").items():
            amounts = [finite(amount) for amount in held] if isinstance(held, list) else []
            found[name] = [amount for amount in amounts if amount is not None and amount >= 0]
        lengths = {len(held) for held in found.values()}
        if len(lengths) == 1 and max(lengths) > 1:  # else a damaged row
            known.append((cell, found))
    moments = max(FEWEST_MOMENTS, TIMELINE_VALUES // max(sum(len(found) for _, found in known), 1))
    series = [one for cell, found in known for one in _timeline(cell, found, moments)]
    notes = ["downsampled, peaks kept; dashed: predicted peak of the whole round", MEMORY_NOTE]
    if any(cell.phase == FIRST_STEP for cell, _ in known):
        notes.insert(0, "first_step: the step that makes the optimizer's state, which every later one finds")
    titles = "Memory over the time of a round", ("blocks that came and went", "MiB")
    return run.figures("timeline", *titles, series, notes, picks_one=True)


def _timeline(cell: CaseRow, categories: dict[str, list[float]], most: int) -> list[PlotSeries]:
    """One case: an area for each category, the predicted peak, and the names of the parts where they begin."""
    totals = list(map(sum, zip(*categories.values(), strict=True)))
    moments = thinned(totals, most)
    series, tags = [], tags_of(cell)
    for name in sorted(categories, key=_place_in_stack):
        if any(held := categories[name]):
            points = [PlotPoint(moment, held[moment] / MIB, name, tags) for moment in moments]
            series.append(
                PlotSeries(name, points, _place_in_stack(name)[0], mode="lines", look="area", group=cell.name)
            )
    if predicted := cell.number(PREDICTED):
        ends = [point(cell, end, predicted / MIB, "predicted peak") for end in (0, len(totals) - 1)]
        series.append(PlotSeries("predicted peak", ends, dash=1, mode="lines", is_background=True, group=cell.name))
    names: dict[float, list[str]] = {}
    for part in cell.rows("timeline", "parts"):
        first, before = finite(part.get("first")), max(names, default=-math.inf)
        if first is not None and 0 <= first < len(totals):
            place = before if abs(first - before) < PARTS_APART * len(totals) else first
            names.setdefault(place, []).append(str(part.get("name")))
    parts = [point(cell, first, max(totals) * PARTS_ABOVE / MIB, ", ".join(of)) for first, of in names.items()]
    shown: Json = {"mode": "markers+text", "symbol": "triangle-down-open", "is_background": True}
    return [*series, PlotSeries("parts", parts, is_in_legend=False, group=cell.name, **shown)]


# Kernel and warm-up passes: kernel shares, the rounds of fresh processes.


def kernel_shares(run: RecordedRun) -> list[Chart]:
    """Each kind's share of the kernel time, a bar for each phase; a reader picks the configuration."""
    shares = [
        (cell, str(row.get("kind")), share * 100)
        for cell in run.passes["kernels"]
        for row in cell.rows("kinds")
        if (share := finite(row.get("share_of_kernel_time"))) is not None
    ]
    titles, kinds = ("Kernel time by kind", "share of kernel time (%)"), distinct(kind for _, kind, _ in shares)
    return run.phase_bars("kernels", titles, shares, kinds.index, [TRACED_NOTE])


def warmup_series(run: RecordedRun) -> list[Chart]:
    """Time of each round since its process began, a line for each process; a reader picks the case."""
    series = []
    for cell in run.passes["warmup"]:
        for place, row in enumerate(cell.rows("series")):
            warm, measured = seconds_of(row, "warmup_seconds"), seconds_of(row, "seconds")
            name = f"after {tables.series_name(row)}"
            # Warm-up rounds that leave out the timed phase are counted but not drawn: they are of another kind.
            drawn = measured if row.get("leaves_out_timed_phase") is True else [*warm, *measured]
            first = len(warm) + len(measured) - len(drawn) + 1
            points = [point(cell, number, value * 1e3, name) for number, value in enumerate(drawn, first)]
            series.append(PlotSeries(name, points, colour=place, dash=place, group=cell.name))
    notes = ["the first rounds of a line are its warm-up, as many as its name says", tables.WARMUP_NOTE]
    titles = "Rounds of fresh processes", ("round of the process", "time (ms)")
    return run.figures("warmup", *titles, series, notes, y_log=True, picks_one=True)


# How close each case came to what this machine can do.


def roofline(run: RecordedRun) -> list[Chart]:
    """TFLOP/s over FLOP per byte, where a record counts both; a precision's points have the colour of its roof."""
    known = []
    for cell in run.cells:
        flops = cell.number("executed_flops") or cell.number("model_flops") or 0.0
        moved = cell.number("bytes_touched") or 0.0
        if cell.is_timed and flops > 0 and moved > 0:
            known.append((cell, flops / moved, flops))
    if not known:
        return []
    cells = [cell for cell, *_ in known]
    precisions, kinds = distinct(cell.label("precision") for cell in cells), distinct(map(pass_name, cells))
    points = []
    for cell, intensity, flops in known:
        ends = [flops / end / 1e12 for end in reversed(cell.rounds.median_interval(0.95) or ())]
        rate = point(cell, intensity, flops / cell.rounds.median / 1e12, "", *ends)
        points.append(((pass_name(cell), cell.label("precision")), rate))
    marks = [
        PlotSeries(f"{kind}, {precision}", found, precisions.index(precision), mode="markers",
               symbol=SYMBOLS[kinds.index(kind) % len(SYMBOLS)])
        for (kind, precision), found in collected(points).items()
    ]  # fmt: skip
    roofs = _roofs(cells, precisions, [intensity for _, intensity, _ in known])
    notes = ["lines: the best square product and the best memory traffic measured here"] if roofs else []
    return run.figures(
        "roofline", "Roofline: rate over arithmetic intensity", ("FLOP per byte", "TFLOP/s"),
        [*roofs, *marks], [*notes, rounds_line(cells)], x_log=True, y_log=True,
    )  # fmt: skip


def _roofs(cells: Sequence[CaseRow], precisions: Sequence[str], intensities: Sequence[float]) -> list[PlotSeries]:
    """A roof for each precision whose products were timed: the memory's slope up to their best rate.

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
    for dash, (precision, rate) in enumerate(best.items(), 1):
        corners = sorted({low, high, *([rate / traffic] if low < rate / traffic < high else [])})
        name = f"best here, {precision}"
        own = tuple(precision if axis is tables.PRECISION else "" for axis in AXES)
        points = [PlotPoint(x, min(rate, x * traffic), name, own) for x in corners]
        colour = precisions.index(precision)
        series.append(PlotSeries(name, points, colour, dash, mode="lines", is_background=True, tied_to=name))
    return series
