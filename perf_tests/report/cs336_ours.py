"""Our own figures in answers to the course's questions, under the names by which `cs336.toml` asks for them.

They are read from records, from the ledger of exact counters, from closed forms, and from what is counted for the page.
A column is a header and the name of a figure: one of this file, else a field, shown in the unit that ends its header.
"""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from operator import attrgetter
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from model.sizes import SIZES as KNOWN_SIZES
from model.sizes import ModelConfig
from perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests.phases import ZERO_GRAD
from perf_tests.records.columns import PASSES, SHORT_OUTCOMES, Cell, inside, seconds_of
from perf_tests.records.format import GIB, MIB, finite, significant, with_spread
from perf_tests.records.published import published_rows
from perf_tests.records.record import Json, grouped
from perf_tests.report import cs336_sources
from perf_tests.report.cs336_sources import ATTENTION_BATCH, BF16, FP32, Figure, Fits, Labels, Sources, in_unit, percent
from perf_tests.report.tables import first_round_parts, milliseconds, part_name, ratio, series_name

if TYPE_CHECKING:
    from perf_tests.cases.language_model import LanguageModelCase

HERE = "here"
CONTEXTS = (128, 256, 512, 1024)
COURSE_SIZE = "2.7B"
"""The size whose memory the course asks for."""
COUNTING = cs336_sources.LEDGER.rpartition("/")[0]
"""The source of figures that are counted for the page."""
COUNTS = ("calls", "launches")
"""Fields that are whole numbers, zero where they are missing."""
MODEL_CASE = "{size}-ctx{context}-{precision}-naive"
ATTENTION_CASE = "d{width}-seq{length}-fp32-{attention}"
DIRECTIONS = ("forward", "backward", "update")
GAPS = {"idle_gaps": "gap between kernels", "api_gaps": "gap between CUDA API calls"}

FAMILIES: dict[str, Fits] = {
    # The model op by op at the course's batch
    "reference": lambda cell: (
        (cell.implementation, cell.label("batch_size"), cell.is_attention) == ("naive", "4", False)
    ),
    "models": lambda cell: not cell.is_attention,
    "attention": attrgetter("is_attention"),
    "all-reduces": lambda cell: cell.label("collective") == "all_reduce",
    "all": bool,
}


# Figures of records


def cases(
    sources: Sources, labels: Labels, of: str, columns: Mapping[str, str], items: str = "",
    most: int | None = None, only: Sequence[str] = (), rows: Labels = (), digits: int = 4, smallest: bool = False,
    or_lost: bool = False, **fitting: Any,
) -> Iterator[Figure]:  # fmt: skip
    """Lay out a row for each case, timed or of an extra pass, or for each of the first `most` items that it lists.

    `only` chooses series by their warm-up rounds; `smallest` chooses the smallest case of each phase.
    """
    fits = _fitting(**fitting)
    found = sources.timed(fits) if of == "timed" else sources.passed(of, fits, or_lost)
    if of == "kernels":
        found.sort(key=lambda cell: (cell.number("d_model") or 0.0, cell.number("context_length") or 0.0))
    if smallest:
        first = {cell.phase: cell for cell in reversed(found)}
        found = [first[phase] for phase in fitting["phase"] if phase in first]
    for cell in found:
        names = _names_of(cell)
        listed = LISTS[items](cell) if items in LISTS else cell.rows(items) if items else [{}]
        for item in islice((item for item in listed if not only or item["rounds"] in only), most):
            row = tuple(str({**item, **names}.get(label.lower())) for label in rows or labels)
            for header, name in columns.items():
                column = header.format(item=item, **names)
                value = item.get(name) if items else cell.number(name)
                if name in MADE:
                    text = MADE[name](item if items else cell)
                elif name.startswith("share"):
                    text = percent(value)
                else:
                    text = f"{finite(value) or 0:g}" if name in COUNTS else in_unit(value, column, digits)
                yield Figure(row, column, text, cell.file)


def _fitting(
    family: str = "reference", phase: Sequence[str] = (), precision: Sequence[str] = (FP32,),
    attention: Sequence[str] = (), ways: Sequence[str] = ("",),
) -> Fits:  # fmt: skip
    """Choose cases with one of the values of each axis; an empty list takes any. `ways` are of ranks."""
    return lambda cell: (
        FAMILIES[family](cell)
        and cell.label("parallel") in ways
        and (not precision or cell.label("precision") in precision)
        and (not phase or cell.phase in phase)
        and (not attention or cell.implementation in attention)
    )


def _names_of(cell: Cell) -> dict[str, str]:
    """Name what a case is, by labels in lower case and by what a header may name besides."""
    size, context = cell.label("size"), cell.label("context_length")
    return {
        "size": size, "context": context, "width": cell.label("head_dim"), "length": cell.label("sequence_length"),
        "phase": cell.phase, "pass": cell.phase, "precision": cell.label("precision"), "case": f"{size} {context}",
        "configuration": cell.configuration, "attention": cell.implementation, "ranks": cell.label("world"),
        "way": cell.label("parallel") + (f", {bucket / MIB:g} MB" if (bucket := cell.number("bucket_bytes")) else ""),
        "message": f"{(cell.number('message_bytes') or 0) / 1e6:g} MB",
    }  # fmt: skip


def _row_of(cell: Cell, labels: Labels) -> tuple[str, ...]:
    return tuple(_names_of(cell)[label.lower()] for label in labels)


def pairs(
    sources: Sources, labels: Labels, axis: str, base: str, other: str, column: str, times: str = "", **fitting: Any
) -> Iterator[Figure]:
    """Divide the times of each pair of one record; `times` heads columns of both before it."""
    found = sources.pairs(axis, base, other, _fitting(**fitting))
    for cell in chain.from_iterable(found) if times else ():
        yield Figure(_row_of(cell, labels), times.format(**_names_of(cell)), milliseconds(cell), cell.file)
    for one, two in found:
        yield Figure(_row_of(one, labels), column, ratio(one, two), one.file)


def growth_with_context(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Divide a forward pass by that of the shortest context of the same record and size."""
    found = [cell for cell in sources.timed(_fitting(phase=["forward"])) if cell.is_timed]
    found.sort(key=lambda cell: (cell.label("size"), cell.file, int(cell.label("context_length"))))
    for first, *others in grouped(found, lambda cell: (cell.label("size"), cell.file)).values():
        column = f"here: over context {first.label('context_length')}"
        yield from (Figure(_row_of(cell, labels), column, ratio(cell, first), cell.file) for cell in others)


def forward_alone_and_inside(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Set a forward pass beside that of the full step of the same record."""
    whole = sources.timed(_fitting(phase=["full_step"]))
    steps = {(*_row_of(cell, labels), cell.file): _part_seconds(cell, "forward") for cell in whole}
    for cell in sources.timed(_fitting(phase=["forward"])):
        row = _row_of(cell, labels)
        if cell.is_timed and (rounds := steps.get((*row, cell.file))):
            alone, within = cell.rounds.median, median(rounds)
            times = {"alone": alone, "inside the step": within}
            yield from _beside(row, times, "inside / alone", within / alone, cell.file)


def optimizer_by_precision(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Return medians inside of full steps of one record, and their ratio."""
    fits = _fitting(phase=["full_step"], precision=[FP32, BF16])
    for pair in sources.pairs("precision", FP32, BF16, fits):
        rounds = [_part_seconds(cell, "optimizer") for cell in pair]
        if all(rounds):
            times = dict(zip((FP32, BF16), map(median, rounds), strict=True))
            row, ratio = _row_of(pair[0], labels), times[FP32] / times[BF16]
            yield from _beside(row, times, "fp32 / bf16", ratio, pair[0].file)


def _beside(row: tuple[str, ...], times: Mapping[str, float], over: str, ratio: float, file: str) -> Iterator[Figure]:
    for name, seconds in times.items():
        yield Figure(row, f"here: {name} (ms)", significant(seconds * 1e3), file)
    yield Figure(row, f"here: {over}", significant(ratio, 3), file)


def first_round_extra(sources: Sources, _: Labels) -> list[Figure]:
    """Return the extra time of a first round by what it is spent on, without parts that no case has."""
    found = []
    for cell in sources.passed("warmup"):
        row = cell.configuration, cell.phase
        for name, seconds in first_round_parts(cell).items():
            if not name.startswith("steady"):
                column = f"here: {part_name(name)} (ms)"
                found.append(Figure(row, column, significant(seconds * 1e3, 3), cell.file))
    shown = {figure.column for figure in found if figure.text not in ("0", "-0")}
    return [figure for figure in found if figure.column in shown]


def attention_exponents(sources: Sources, _: Labels) -> Iterator[Figure]:
    """Return the power of the length with which times grow."""
    return cs336_sources.exponents(
        (f"here: {cell.implementation} {cell.phase}", int(cell.label("head_dim")), int(cell.label("sequence_length")),
         cell.rounds.mean, cell.file)
        for cell in sources.timed(_fitting("attention")) if cell.is_timed
    )  # fmt: skip


def _part_seconds(cell: Cell, *names: str) -> list[float]:
    """Seconds of those parts in each round of a full step; empty where one is missing."""
    parts = [seconds_of(cell.inside("part_seconds"), name) for name in names]
    return [sum(of) for of in zip(*parts, strict=False)] if all(parts) else []


def _part_median(*names: str) -> Callable[[Cell], str]:
    return lambda cell: in_unit(median(rounds), unit="ms") if (rounds := _part_seconds(cell, *names)) else ""


def _over(above: str, below: str, text: Callable[[float], str]) -> Callable[[Cell], str]:
    """Format one number of a case over another; nothing where either is missing or zero."""
    return lambda cell: text(over / under) if (over := cell.number(above)) and (under := cell.number(below)) else ""


def _exposed(cell: Cell) -> str:
    """What an exchange adds in ms, `37.3 (22.5 to 56.3)` with its 95 % interval where there are rounds enough."""
    interval = cell.field("exposed_communication_interval")
    ends = [in_unit(one, digits=3, unit="ms") for one in (interval if isinstance(interval, list) else ())]
    said = in_unit(cell.number("exposed_communication_seconds"), digits=3, unit="ms")
    return f"{said} ({' to '.join(ends)})" if said and len(ends) == 2 and all(ends) else said


def _saved_bytes(cell: Cell) -> dict[str, float]:
    """Bytes that the first block saves, by part."""
    rows = (row for row in cell.rows("saved_bytes_by_part") if row.get("block") == "block 0")
    return {str(row.get("part")): finite(row.get("saved_bytes")) or 0.0 for row in rows}


def _first_over_others(series: Json) -> str:
    rounds = seconds_of(series, "seconds")
    return significant(rounds[0] / median(rounds[1:]), 3) if len(rounds) > 1 else ""


def _series(cell: Cell) -> list[Json]:
    """Series of rounds; `rounds` names how many warmed it up, and whether they left out the timed phase."""
    return [{**row, "rounds": series_name(row)} for row in cell.rows("series")]


def _kernels(cell: Cell) -> list[Json]:
    return [{**row, "kernel": cs336_sources.kernel_name(row), "whose": HERE} for row in cell.rows("kernels")]


def _regions(cell: Cell) -> list[Json]:
    """Regions of the model with their direction, in the order of a step."""
    found = []
    for row in cell.rows("regions"):
        direction = "backward" if row.get("is_backward") is True else "forward"
        is_update = str(row.get("region")).startswith("optimizer")
        found.append({**row, "direction": "update" if is_update else direction})
    return sorted(found, key=lambda row: DIRECTIONS.index(row["direction"]))


def _kinds_of_regions(cell: Cell) -> Iterator[Json]:
    """List kinds of kernels in each region, with the share of the region's own kernel time."""
    for row in _regions(cell):
        whole = finite(row.get("seconds"))
        for kind, seconds in inside(row, "seconds_by_kind").items():
            known = finite(seconds)
            if whole and known is not None:
                yield {**row, "kind": kind, "share": known / whole}


def _saved_parts(cell: Cell) -> Iterator[Json]:
    """List parts of the first block, those that save most first."""
    parts = sorted(_saved_bytes(cell).items(), key=lambda part: part[1], reverse=True)
    whole = sum(amount for _, amount in parts) or math.inf
    return ({"part": name, "bytes": amount, "share": amount / whole} for name, amount in parts)


MADE: dict[str, Callable[[Any], str]] = {
    "milliseconds": milliseconds,
    "exposed_milliseconds": _exposed,
    "median_milliseconds": lambda cell: (
        significant(cell.rounds.median * 1e3) if cell.number("first_round_seconds") else ""
    ),
    "layer_milliseconds": lambda cell: (
        significant(cell.rounds.mean * 1e3 / layers, 3)
        if cell.is_timed and (layers := cell.number("num_layers"))
        else ""
    ),
    "optimizer_milliseconds": _part_median("optimizer"),
    "backward_and_optimizer_milliseconds": _part_median("backward", "optimizer"),
    "scatter": lambda cell: percent(cell.rounds.deviation / cell.rounds.mean) if cell.rounds.deviation else "",
    "share_of_best_product": lambda cell: percent(cell.number("share_of_matmul_ceiling"), 0),
    "first_round_over_others": lambda cell: next(
        (_first_over_others(series) for series in _series(cell) if series["rounds"] == "0"), ""
    ),
    "profiled_over_timed": _over("wall_seconds", "plain_wall_seconds", lambda over: significant(over, 3)),
    "measured_over_predicted": _over("peak_allocated_bytes", "predicted_peak_bytes", "{:.5f}".format),
    "top_kernel": lambda cell: next((row["kernel"] for row in _kernels(cell)), ""),
    "share_of_copies": lambda cell: percent(
        sum(finite(row.get("share_of_wall")) or 0.0 for row in cell.rows("memory_operations"))
    ),
    "softmax_over_products_time": lambda cell: in_unit(
        cell.inside("attention", "forward").get("softmax_over_products_time"), digits=3
    ),
    "softmax_over_products_flops": lambda cell: percent(
        cell.inside("attention", "forward").get("softmax_over_products_flops")
    ),
    # In as many digits as tell a measured from a predicted peak, or the outcome that the case has instead
    "measured_peak": lambda cell: (
        SHORT_OUTCOMES[cell.outcome] if cell.outcome else in_unit(cell.number("peak_allocated_bytes"), "(MiB)", 5)
    ),
    "residual_tensor": lambda cell: "" if (size := cell.number("residual_tensor_bytes")) is None else f"{size / MIB:g}",
    "saved_by_block": lambda cell: in_unit(sum(saved.values()), unit="MiB") if (saved := _saved_bytes(cell)) else "",
    # Of a series of the warm-up study, which its case lists
    "mean_of_series": lambda series: (
        with_spread(fmean(rounds) * 1e3, stdev(rounds) * 1e3)
        if len(rounds := seconds_of(series, "seconds")) > 1
        else ""
    ),
    "first_over_others": _first_over_others,
}
"""Figures of a case, beside the fields of its identity and its row, and of what it lists."""

LISTS: dict[str, Callable[[Cell], Iterable[Json]]] = {
    "series": _series,
    "series_without_timed_phase": lambda cell: (row for row in _series(cell) if "without" in row["rounds"]),
    "kernels": _kernels,
    "kernels_besides_products": lambda cell: (
        row for row in _kernels(cell) if row.get("kind") != "matrix product" and "gemm" not in row["kernel"]
    ),
    "gaps": lambda cell: ({"gap": name, **cell.inside(field)} for field, name in GAPS.items()),
    "matrix_products": lambda cell: [cell.inside("matrix_products")],
    "attention_parts": lambda cell: cell.rows("attention", "forward", "parts"),
    "outer_regions": lambda cell: (row for row in _regions(cell) if " / " not in str(row.get("region"))),
    "update_regions": lambda cell: (row for row in _regions(cell) if row["direction"] == "update"),
    "kinds_of_regions": _kinds_of_regions,
    "kinds_of_pass": lambda cell: (
        {**row, "direction": cell.phase, "region": "whole pass"} for row in cell.rows("kinds")
    ),
    "categories_at_peak": lambda cell: (
        {"name": name, "bytes": held} for name, held in cell.inside("peak_by_category_bytes").items()
    ),
    "saved_parts": _saved_parts,
}
"""What a case lists, beside the lists of its pass under their own names."""


# Exact counters, closed forms, and what is counted for the page


def ledger(
    sources: Sources, labels: Labels, counter: str, column: str, case: str = MODEL_CASE, of: str = "{phase}",
    unit: str = "", digits: int = 0, **axes: Sequence[object],
) -> Iterator[Figure]:  # fmt: skip
    """Read a counter for each combination of the axes, whose names stand in braces; `of` is the phase counted.

    A counter without a unit is whole, its thousands apart, unless `digits` are asked for.
    """
    axes = {"size": cs336_sources.SIZES, "context": (128,), "precision": (FP32,), **axes}
    is_whole = not (digits or unit or column.endswith(")"))
    for values in product(*axes.values()):
        names = dict(zip(axes, map(str, values), strict=True))
        value = sources.counter(of.format(**names), case.format(**names), counter)
        row = tuple(names["phase" if label == "Pass" else label.lower()] for label in labels)
        text = f"{value:,}" if is_whole else in_unit(value, column, digits or 4, unit)
        yield Figure(row, column.format(**names), text, sources.ledger_name)


def launches_of_casts(sources: Sources, _: Labels) -> Iterator[Figure]:
    """Launches of a forward pass in both precisions: each cast that autocast adds is one."""
    for size in sources.shapes:
        fp32, bf16 = _by_precision(sources, "forward", size, 128, "kernel_launches")
        texts = {"launches, fp32": f"{fp32:,}", "launches, bf16": f"{bf16:,}", "added": f"{bf16 / fp32 - 1:+.0%}"}
        yield from (Figure((size,), f"here: {head}", text, sources.ledger_name) for head, text in texts.items())


def memory_added_by_mixed(sources: Sources, _: Labels) -> Iterator[Figure]:
    """Peaks in mixed precision less those in fp32, by context."""
    for context, phase in product(CONTEXTS, ("inference", "forward")):
        full, mixed = _by_precision(sources, phase, COURSE_SIZE, context, "peak_bytes")
        column = f"here: added, {'without' if phase == 'inference' else 'with'} gradients (GiB)"
        yield Figure((COURSE_SIZE, str(context)), column, f"{(mixed - full) / GIB:+.2f}", sources.ledger_name)


def _by_precision(sources: Sources, phase: str, size: str, context: int, counter: str) -> list[int]:
    """Read a counter in fp32 and in bf16."""
    ids = (MODEL_CASE.format(size=size, context=context, precision=name) for name in (FP32, BF16))
    return [sources.counter(phase, one, counter) for one in ids]


def scores_saved(sources: Sources, _: Labels) -> Iterator[Figure]:
    """Matrices of scores among the k L^2 + c L d numbers that attention saves, k from two lengths, and the growth."""
    short, long = 8192, 16384
    for name in ("naive", "sdpa"):
        ids = [ATTENTION_CASE.format(width=64, length=length, attention=name) for length in (short, long)]
        saved = (sources.counter("attention_backward", case, "saved_bytes") for case in ids)
        small, large = (count / (ATTENTION_BATCH * FLOAT32_BYTES) for count in saved)
        # Subtracting twice the short one removes the linear part.
        squares = abs(large - 2 * small) / (long**2 - 2 * short**2)
        yield Figure((name,), "here: matrices of scores saved", f"{squares:.2f}", sources.ledger_name)
        yield Figure((name,), "here: growth at twice the length", f"{large / small:.2f}", sources.ledger_name)


def closed_forms(
    sources: Sources, labels: Labels, columns: Mapping[str, str], size: Sequence[str] = cs336_sources.SIZES
) -> Iterator[Figure]:
    """Figures of each size, and at each context where that is a label."""
    for (name, shape), context in product(sources.shapes.items(), CONTEXTS if "Context" in labels else (0,)):
        for column, form in columns.items() if name in size else ():
            text = CLOSED_FORMS[form](shape, context)
            yield Figure((name, str(context))[: len(labels)], column, text, "model/sizes.py")


def _mib(numbers: int, batch: int = 4) -> float:
    """MiB of so many float32 numbers for each of a batch."""
    return batch * numbers * FLOAT32_BYTES / MIB


CLOSED_FORMS: dict[str, Callable[[ModelConfig, int], str]] = {
    "layers": lambda shape, _: str(shape.num_layers),
    "residual_stream": lambda shape, context: f"{_mib(context * shape.d_model):g}",
    "scores": lambda shape, context: f"{_mib(shape.num_heads * context**2):g}",
    "feed_forward": lambda shape, context: f"{_mib(context * shape.d_ff):g}",
    # The context at which one layer's scores are as large as its feed-forward tensor
    "crossover": lambda shape, _: f"{shape.d_ff / shape.num_heads:g}",
    "block_gradients": lambda shape, _: significant(
        _mib(4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff + 2 * shape.d_model, batch=1)
    ),
}


def one_matrix_of_scores(_: Sources, __: Labels, length: Sequence[int]) -> Iterator[Figure]:
    for one in length:
        size = significant(ATTENTION_BATCH * one**2 * FLOAT32_BYTES / GIB, 3)
        yield Figure((str(one),), "here: one matrix of scores (GiB)", size)


def counted(sources: Sources, _: Labels, name: str) -> Sequence[Figure]:
    """Figures that are counted or computed for the page; none where that was not done."""
    return sources.counted.figures.get(name, ())


def peaks(
    sources: Sources, labels: Labels, mode: str, precision: str = "", digits: int = 1, as_printed: bool = False
) -> Iterator[Figure]:
    """Show what is predicted under the conditions of each published code, in the unit of the source, or what it prints.

    They are peaks of the course's size, fp32 or mixed where asked for.
    """
    for peak in sources.counted.peaks:
        name, _, value = peak.mode.partition("=")
        is_asked = not precision or (peak.precision == FP32) == (precision == FP32)
        if (name, peak.size) != (mode, COURSE_SIZE) or not is_asked:
            continue
        row = (peak.size, str(peak.context), value or precision)[: len(labels)]
        if as_printed:
            column = f"{peak.source}{', fp16' * (peak.precision == 'fp16_amp')} ({peak.unit})"
            yield Figure(row, column, peak.published or "not reported", f"published/{cs336_sources.MEMORY}")
        else:
            files = f"{COUNTING}, published/memory_conditions.csv"
            column = f"here: predicted for {peak.source} ({peak.unit})"
            yield Figure(row, column, f"{peak.predicted:.{digits}f}", files)


OURS: dict[str, Callable[..., Iterable[Figure]]] = {
    **{of: partial(cases, of=of) for of in ("timed", *PASSES)},
    **{reader.__name__: reader
    for reader in (
        pairs, growth_with_context, forward_alone_and_inside, optimizer_by_precision, first_round_extra,
        attention_exponents, ledger, launches_of_casts, memory_added_by_mixed, scores_saved, closed_forms,
        one_matrix_of_scores, counted,
    )},
    "predicted_peaks": peaks, "printed_peaks": partial(peaks, as_printed=True),
}  # fmt: skip
"""What `from` names: figures from the sources, the labels of a row, and further options."""


# What is counted for the page: steps on fake tensors, and exercises. What loads torch is imported where it is used,
# since the page's other figures come from files alone.

COUNTED_CONTEXTS = CONTEXTS[:3]
FIRST_STEP_SIZE = "medium"
BATCHES = (2, 4)
"""What one write-up configures, and what it states."""
STEPS = {"first": "first_step", "later": "full_step"}
"""Phases in which AdamW's state is born, and in which it is there."""
LARGEST = 5
"""Blocks of memory of each context that are listed."""


def counted_figures() -> cs336_sources.Counted:
    """Count every step in about ten seconds, and compute the exercises of the numerics suite.

    Peaks are of the five write-ups, and of every single-level checkpoint, whose code's conditions are known.
    """
    from numerics_tests.harness.exercises import tables
    from perf_tests.predict.published import CHECKPOINT, predicted_bytes, published_peaks

    exercises = {
        name: [
            Figure((label,), f"here: {head}", text, "numerics_tests/harness/exercises.py")
            for label, *texts in rows
            for head, text in zip(header[1:], texts, strict=True)
        ]
        for name, (header, *rows) in tables().items()
    }
    rows = map(cs336_sources.Printed, published_rows(cs336_sources.MEMORY))
    printed = {(row["source"], row["mode"], row["context"], row["precision"]): row for row in rows}
    beside = []
    for cell in published_peaks():
        row = printed[cell.source, cell.mode, str(cell.case.context_length), cell.precision]
        if cs336_sources.is_write_up(row) or cell.mode.startswith(CHECKPOINT):
            unit_bytes = int(cell.conditions["unit_bytes"])
            unit = "GB, meaning GiB" if (row["unit"], unit_bytes) == ("GB", GIB) else row["unit"]
            labels = row["source_name"], cell.case.size, cell.case.context_length, cell.precision, cell.mode
            beside.append(cs336_sources.PeakBeside(*labels, row["value"], unit, predicted_bytes(cell) / unit_bytes))
    return cs336_sources.Counted({**exercises, **_steps()}, beside)


def _steps() -> dict[str, list[Figure]]:
    """Count peaks by the order of clearing and in first steps, and equal blocks of memory of a line's forward pass.

    Predict what a rank of two holds and sends in a step of xl, and the step of the leaderboard.
    """
    from model.transformer import Block
    from perf_tests.cases.sharing import Sharing
    from perf_tests.predict.counters import counters_of
    from perf_tests.predict.fake_run import passes
    from perf_tests.predict.ranks import predict_ranks
    from perf_tests.predict.request import requested_machine

    found: dict[str, list[Figure]] = defaultdict(list)
    source, first = inspect.getsourcelines(Block)
    lines_of_block = {f"model/transformer.py:{line}" for line in range(first, first + len(source))}
    for context in COUNTED_CONTEXTS:
        step, row = _step(COURSE_SIZE, context), (COURSE_SIZE, str(context))
        for order in ZERO_GRAD:
            peak_bytes = counters_of(replace(step, zero_grad=order)).peak_bytes
            for unit, size in (("GB", 1e9), ("GiB", GIB)):
                figure = Figure(row, f"here: {order} ({unit})", f"{peak_bytes / size:.1f}", COUNTING)
                found["orders_of_clearing"].append(figure)
        forward = replace(step, phase="forward", optimizer=None)
        residual = forward.tokens * forward.config.d_model * FLOAT32_BYTES, "aten.add"
        blocks = [
            ("lines_of_the_residual_stream", line, size_bytes, count)
            for (size_bytes, operator, line), count in sorted(passes(forward)["forward"].allocations.items())
            if (size_bytes, operator) == residual and line in lines_of_block
        ]
        largest = counters_of(forward).largest_allocations[:LARGEST]
        blocks += [("lines_of_the_largest", one.place, one.bytes, one.count) for one in largest]
        for name, line, size_bytes, count in blocks:
            texts = {"here: one (MiB)": significant(size_bytes / MIB), "here: made": str(count)}
            found[name] += [Figure((*row, line), column, text, COUNTING) for column, text in texts.items()]
    for batch_size, context, (which, phase) in product(BATCHES, COUNTED_CONTEXTS, STEPS.items()):
        case = replace(_step(FIRST_STEP_SIZE, context), batch_size=batch_size, phase=phase)
        place, column = (case.size, str(context), case.precision), f"here: batch {batch_size}, {which} (GB)"
        found["first_steps"].append(Figure(place, column, f"{counters_of(case).peak_bytes / 1e9:.1f}", COUNTING))
    for way in ("ddp", "zero1", "fsdp2"):
        rank = predict_ranks(_step("xl", 128), requested_machine("H100"), Sharing(way, 2))
        for name, bytes_of in (("peaks_of_ranks", rank.peak_bytes), ("sent_by_ranks", rank.sent_bytes)):
            found[name].append(Figure((way,), "here (GB)", f"{bytes_of / 1e9:.2f}", COUNTING))
    config = ModelConfig(4096, 11008, 34, 32, vocab_size=151936).at_context(32768)
    step = replace(
        _step("xl", 32768), size="l8", config=config, batch_size=1, precision="bf16", attention="sdpa",
        checkpoint="block", optimizer="default",
    )  # fmt: skip
    rank = predict_ranks(step, requested_machine("B200"), Sharing("fsdp2", 2), 900e9)
    low, high = rank.seconds or (0.0, 0.0)
    text = f"{rank.peak_bytes / 1e9:.1f} GB, {low:.2f} to {high:.2f} s"
    found["leaderboard"].append(Figure(("2 x B200",), "here", text, COUNTING))
    return found


def _step(size: str, context: int) -> "LanguageModelCase":
    """Return a full step of the course's model and its AdamW on a GPU."""
    from perf_tests.cases.language_model import LanguageModelCase

    return LanguageModelCase(
        phase="full_step", size=size, config=KNOWN_SIZES[size].at_context(context), context_length=context,
        batch_size=4, precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer="loop",
        device="cuda", model="ours",
    )  # fmt: skip
