"""What timings answer: how sure they are, warm-up, precision, backward against forward, fused attention, depth."""

import math
from collections.abc import Sequence
from statistics import median

from perf_tests.views.screens.lines import case_name, duration
from perf_tests.views.tables.cells import Cell, finite, inside, name_of, pairs_along, rows_in
from perf_tests.views.tables.warmup import first_round_parts, part_name, seconds_of, series_name
from perf_tests.views.writeup.sources import Answer, Sources, question

Pair = tuple[Cell, Cell]


@question("How much do the rounds of a case vary?", "pytest perf_tests")
def how_sure(sources: Sources) -> Answer | None:
    found = sources.timed()
    spreads = [(cell.std_seconds / cell.mean_seconds, cell) for cell in found.cells if cell.std_seconds]
    if not spreads:
        return None
    most, cell = max(spreads, key=lambda pair: pair[0])
    middle = median(spread for spread, _ in spreads)
    return found.says(
        f"Of {len(spreads)} cases, the standard deviation of the rounds has median {middle:.1%} and maximum {most:.0%} "
        f"of the mean ({case_name(cell.id)}). It describes the scatter within one launch, not between launches.",
    )


@question("What changes without a warm-up?", "pytest perf_tests --warmup-study")
def warm_up(sources: Sources) -> Answer | None:
    return _warm_up_study(sources) or _first_rounds(sources)


def _warm_up_study(sources: Sources) -> Answer | None:
    found = sources.passed("warmup")
    cells = found.cells
    first = [(ratio, cell) for cell in cells if (ratio := _first_over_others(cell, "0")) is not None]
    needed = [rounds for cell in cells if (rounds := finite(cell.info.get("recommended_warmup_rounds"))) is not None]
    if not first or not needed:
        return None
    most, cell = max(first, key=lambda pair: pair[0])
    return found.says(
        f"Without a warm-up the first round takes {median(ratio for ratio, _ in first):.2f} x those after it (median "
        f"of {len(first)} cases; maximum {most:.2f} x, {name_of(cell)}){_mostly(cells)}. A warm-up of "
        f"{max(needed):.0f} rounds is enough for all of them{_left_out(cells)}.",
    )


def _first_over_others(cell: Cell, name: str) -> float | None:
    series = {series_name(row): row for row in rows_in(cell.info, "series")}
    rounds = seconds_of(series.get(name, {}), "seconds")
    return rounds[0] / median(rounds[1:]) if len(rounds) > 1 else None


def _mostly(cells: Sequence[Cell]) -> str:
    """The largest part of first rounds' extra time over steady ones, all cases together."""
    grown: dict[str, float] = {}
    for cell in cells:
        for name, seconds in first_round_parts(cell.info).items():
            if not name.startswith("steady"):
                grown[name] = grown.get(name, 0.0) + max(seconds, 0.0)
    whole = sum(grown.values())
    if not whole:
        return ""
    name = max(grown, key=lambda part: grown[part])
    return f"; {grown[name] / whole:.0%} of the extra time is {part_name(name)}"


def _left_out(cells: Sequence[Cell]) -> str:
    """The first round after a warm-up that leaves out the timed phase."""
    names = {series_name(row) for cell in cells for row in rows_in(cell.info, "series")}
    without = [_first_over_others(cell, name) for name in names if "without" in name for cell in cells]
    ratios = [ratio for ratio in without if ratio is not None]
    if not ratios:
        return ""
    return (
        f"; after one that leaves out the timed phase the first measured round still takes {median(ratios):.2f} x the "
        f"others (median; maximum {max(ratios):.2f} x)"
    )


def _first_rounds(sources: Sources) -> Answer | None:
    found = sources.timed()
    ratios = [
        (first / cell.median_seconds, cell)
        for cell in found.cells
        if cell.implementation == "naive" and (first := cell.number("first_round_seconds"))
    ]
    if not ratios:
        return None
    most, cell = max(ratios, key=lambda pair: pair[0])
    return found.says(
        f"The first warm-up round takes {median(ratio for ratio, _ in ratios):.2f} x the median of the measured ones "
        f"(median of {len(ratios)} eager cases; maximum {most:.1f} x, {case_name(cell.id)}). Earlier cases in the same "
        "process have warmed up part of it; `--warmup-study` gives each a process of its own.",
    )


@question("How much faster is mixed precision?", "pytest perf_tests --precision fp32,bf16")
def mixed_precision(sources: Sources) -> Answer | None:
    found = sources.timed(_precision_pairs)
    said = [
        f"{base.phase} {base.median_seconds / other.median_seconds:.2f} x ({_place(base)})"
        for base, other in _precision_pairs(found.cells)
    ]
    return found.says(f"fp32 over bf16, medians: {', '.join(said)}.", said)


@question("Does a backward pass take twice its forward pass?", "pytest perf_tests --phase forward,backward")
def backward_over_forward(sources: Sources) -> Answer | None:
    def pairs(cells: Sequence[Cell]) -> list[Pair]:
        return _pairs(cells, "phase", "forward", "backward")

    found = sources.timed(pairs)
    said = [
        f"{backward.median_seconds / forward.median_seconds:.2f} in {forward.label('precision')} ({_place(forward)})"
        for forward, backward in pairs(found.cells)
    ]
    return found.says(
        f"{', '.join(said)}. Its matrix products are twice those of the forward pass; what launches or memory bound "
        "need not double.",
        said,
    )


@question("Does precision change the optimizer's time?", "pytest perf_tests --phase full_step --precision fp32,bf16")
def optimizer_and_precision(sources: Sources) -> Answer | None:
    found = sources.timed(_optimizer_seconds)
    said = [
        f"{duration(fp32)} in fp32 and {duration(bf16)} in bf16, {fp32 / bf16:.2f} x ({_place(base)})"
        for base, fp32, bf16 in _optimizer_seconds(found.cells)
    ]
    return found.says(
        f"The optimizer's part of a full step: {', '.join(said)}. Weights, gradients and AdamW's state are fp32 in "
        "both, so its work is the same.",
        said,
    )


def _optimizer_seconds(cells: Sequence[Cell]) -> list[tuple[Cell, float, float]]:
    """Medians of the optimizer's part in fp32 and bf16, where both have one."""
    found = []
    for pair in _precision_pairs(cells):
        known = [seconds_of(inside(cell.info, "part_seconds"), "optimizer") for cell in pair]
        fp32, bf16 = (median(values) if values else 0.0 for values in known)
        if fp32 and bf16:
            found.append((pair[0], fp32, bf16))
    return found


@question("What do compiling and fusing save in attention alone?", "pytest perf_tests --attention naive,compiled,sdpa")
def fused_attention(sources: Sources) -> Answer | None:
    found = sources.timed(lambda cells: _pairs(cells, "attention", "naive", "sdpa", alone=True))
    parts = []
    for name in ("compiled", "sdpa"):
        pairs = _pairs(found.cells, "attention", "naive", name, alone=True)
        for phase in ("forward", "backward"):
            ratios = [base.median_seconds / other.median_seconds for base, other in pairs if base.phase == phase]
            if ratios:
                parts.append(f"{name} {phase} {min(ratios):.1f} to {max(ratios):.1f} x")
    return found.says(f"Naive over the other, over widths and lengths: {', '.join(parts)}.", parts)


@question("Why was the deeper model slower?", "pytest perf_tests --size xl,2.7B --context 512 --kernels")
def depth(sources: Sources) -> Answer | None:
    deep, wide = ("xl", "2.7B")
    shapes = sources.shapes
    launches = [sources.counted("forward", f"{size}-ctx512-bf16-naive", "kernel_launches") for size in (deep, wide)]
    flops = [sources.counted("forward", f"{size}-ctx512-bf16-naive", "model_flops") for size in (deep, wide)]
    pairs = _slower_though_smaller(sources, deep, wide)
    if not pairs:
        return None
    (source, gpu, context, precision, _), *times = pairs[0]
    return Answer(
        f"It has more layers to launch. `{deep}` ({shapes[deep].num_layers} layers) has {flops[0] / flops[1]:.2f} x "
        f"the FLOPs of `{wide}` ({shapes[wide].num_layers} layers) and {launches[0] / launches[1]:.2f} x the launches: "
        f"{launches[0]:,} against {launches[1]:,} in a bf16 forward pass. Where the host cannot launch fast enough, "
        f"launches are the time. {len(pairs)} published pairs of forward passes show it; in one, on {gpu} at context "
        f"{context} in {precision}, {times[0]:.1f} ms against {times[1]:.1f} ms ({source}).",
        f"{sources.ledger_name}, published/e2e_timing.csv",
    )


def _slower_though_smaller(sources: Sources, deep: str, wide: str) -> list[tuple[tuple[str, ...], float, float]]:
    """Correctly labelled eager forward passes of one source, measured after a warm-up: their labels and times in ms."""
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    for row in sources.published("e2e_timing.csv"):
        if _is_plain_forward(row):
            key = row["source"], row["gpu"], row["context"], row["precision"], row["batch"]
            cells.setdefault(key, {}).setdefault(row["size"], float(row["mean_ms"]))
    found = ((key, times.get(deep, 0.0), times.get(wide, math.inf)) for key, times in sorted(cells.items()))
    return [pair for pair in found if pair[1] > pair[2]]


def _is_plain_forward(row: dict[str, str]) -> bool:
    is_forward = (row["edition"], row["phase"], row["compiled"]) == ("2025", "forward", "no")
    is_sound = (row["sync"], row["status"], row["precision_that_ran"]) == ("yes", "ok", row["precision"])
    return is_forward and is_sound and bool(row["mean_ms"]) and row["warmup"].isdigit() and int(row["warmup"]) >= 3


def _precision_pairs(cells: Sequence[Cell]) -> list[Pair]:
    return _pairs(cells, "precision", "fp32", "bf16")


def _pairs(cells: Sequence[Cell], axis: str, base: str, other: str, alone: bool = False) -> list[Pair]:
    """(cell at `base`, cell at `other`) of models, or of attention alone."""
    return pairs_along((cell for cell in cells if cell.is_attention == alone), axis, base, other)


def _place(cell: Cell) -> str:
    return f"{cell.label('size')}, context {cell.label('context_length')}"
