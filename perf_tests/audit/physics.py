"""Physics of a figure: no time below that of its arithmetic and traffic, no peak beyond the card or below the weights,
no profile whose calls, averages, totals and shares are not views of one time."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import sqrt
from operator import attrgetter
from statistics import median

from perf_tests.audit import figures as labelled
from perf_tests.audit.figures import IMPOSSIBLE, SUSPICIOUS, Figure, Finding, Kernel, Memory, NotJudged, Timing, found
from perf_tests.hardware.datasheets import GIB, GPUS, Gpu, pieces_named, strongest_named
from perf_tests.hardware.limits import FLOAT32_BYTES, SIZES, AttentionWork, ModelConfig, ModelWork, saved_bytes
from perf_tests.phases import ATTENTION_ALONE, phase_named
from perf_tests.records.record import grouped

NEAR_PEAK = 0.92
"""Share of a datasheet peak above which no eager training pass has been seen: suspicious."""

MEASURED_CEILING_MARGIN = 1.25
"""Factor by which a measured ceiling may be too low, because it carries the same noise as the figure."""

BEYOND_EVERY_CARD = 2.0
"""Times the highest peak of a datasheet here, which no card has: of those that lack one AMD's MI300X has 1.3 times."""

_SEVERAL = re.compile(r"[dh]gx|node|cluster|pod|slice|tpu|gpus|cards|chips|nvl\d\d")
"""Words for more than one card that give no number."""

UPDATE_BYTES = 28
"""Bytes of a parameter that AdamW moves in fp32: it reads weight, gradient and two moments, and writes all but the
gradient."""

OUTLIER_SHARE = 0.25
"""Standard deviation over mean above which one slow round is the simplest explanation."""

MISLED_SHARE = 0.25
"""Share by which one slow round must raise the mean of the others to mislead; below, the stated spread says enough."""

MOST_EXCESS = 1e9
"""Excess of a figure that no factor relates to its limit."""

PRODUCTS = {"inference": 2, "forward": 2, "backward": 4}
"""Products over the T x T square: scores and output; the gradients of values, probabilities, queries and keys."""
TILED_PRODUCTS = {"inference": 2, "forward": 2, "backward": 5}
"""A kernel that never holds the square computes the scores once more (Dao, arXiv:2307.08691, section 3.1.2)."""
SOFTMAX_PASSES = {"inference": 2, "forward": 2, "backward": 3}
"""Passes over the square of a softmax in one kernel."""

Said = Finding | NotJudged


def rule_out(timing: Timing) -> list[Said]:
    """Every way in which the time of one row is impossible, or why it cannot be judged."""
    if timing.seconds is None:
        return [NotJudged(timing.place, "no figure")]
    if timing.seconds <= 0:
        cause = "a wrong sign" if timing.seconds < 0 else "a wrong unit, in which so few digits round it away"
        shown = f"{timing.seconds * 1e3:g} ms"
        return [found(IMPOSSIBLE, "time", [timing], shown, "0 ms", "a pass takes time", cause, MOST_EXCESS)]
    gpu, most_seconds = gpu_of(timing), timing.seconds + timing.rounding_seconds
    if reason := _why_not_judged(timing, gpu):
        is_unknown = gpu is None and reason == _why_no_gpu(timing) and timing.precision is not None
        is_one = is_unknown and pieces_named(timing.gpu) == 1 and not _SEVERAL.search(timing.gpu.casefold())
        beyond = _faster_than_arithmetic(timing, most_seconds, None) if is_one else None
        found_or_not: list[Finding | None] = [beyond]
    else:
        rules = (_faster_than_arithmetic, _faster_than_traffic, _larger_than_card)
        found_or_not = [rule(timing, most_seconds, gpu) for rule in rules[timing.is_update :]]
    findings = [one for one in found_or_not if one]
    if timing.shape_is_by_name:  # it may mean another, so that nothing is impossible by it
        other = "another shape or batch than the course's of that name, or "
        findings = [replace(one, verdict=SUSPICIOUS, likely_cause=f"{other}{one.likely_cause}") for one in findings]
    return [NotJudged(timing.place, reason)] if reason and not findings else [*findings]


def is_impossible(timing: Timing) -> bool:
    """Whether it is by its own labels."""
    return any(isinstance(one, Finding) and one.verdict == IMPOSSIBLE for one in rule_out(timing))


def gpu_of(row: Figure) -> Gpu | None:
    """The card; None where the row names none with a datasheet here."""
    return _gpu_named(row.gpu)


@lru_cache(maxsize=4096)
def _gpu_named(text: str) -> Gpu | None:
    with suppress(ValueError):
        return strongest_named(text)
    return None


def _why_no_gpu(row: Figure) -> str:
    if pieces_named(row.gpu) > 1:
        return f"{row.gpu!r} are several cards, which share the work"
    return f"GPU {row.gpu!r} has no datasheet here" if row.gpu else "no GPU stated"


def _why_not_judged(timing: Timing, gpu: Gpu | None) -> str:
    if timing.work is None:
        return timing.without_work
    row = phase_named(timing.phase)
    if gpu is not None and timing.is_update:
        return ""
    if row is None or row.forward_multiple is None:
        return f"phase {timing.phase!r} has no known arithmetic"
    if timing.matmul_flops_per_second:
        return ""
    if gpu is None:
        return _why_no_gpu(timing)
    if timing.precision is None:
        is_stated = timing.precision_label != labelled.NO_PRECISION
        return f"precision {timing.precision_label!r} is not certain" if is_stated else labelled.NO_PRECISION
    if timing.precision not in gpu.rates:
        return f"{gpu.name} has no {timing.precision} path, so something else ran"
    return ""


def _faster_than_arithmetic(timing: Timing, seconds: float, gpu: Gpu | None) -> Finding | None:
    """Matrix products above the peak rate of the labelled precision; near it where the peak is a datasheet's."""
    if measured := timing.matmul_flops_per_second:
        peak = MEASURED_CEILING_MARGIN * measured
        limit = f"{peak / 1e12:.4g} TFLOP/s ({MEASURED_CEILING_MARGIN:g} x the best product measured there)"
    else:
        precision = timing.precision
        assert precision is not None
        card = gpu or max(GPUS.values(), key=lambda one: one.rates.get(precision, 0.0))
        rated, times = card.rates[precision], gpu.clock_margin_of(precision) if gpu else BEYOND_EVERY_CARD
        peak = rated * times
        margin = f" x {times:g} for {'its clock' if gpu else 'cards without a datasheet here'}" if times > 1 else ""
        inferred = ", GPU inferred, not stated" if gpu and timing.gpu_is_inferred else ""
        limit = f"{rated / 1e12:.4g} TFLOP/s{margin} ({precision} on {card.name}{inferred})"
    rate = _least_flops(timing) / seconds
    if rate <= NEAR_PEAK * peak:
        return None
    printed = (timing.seconds or seconds) * 1e3
    at_least = "at least " if seconds > 1.001 * printed / 1e3 else ""
    figure = f"{printed:.4g} ms is {at_least}{rate / 1e12:.4g} TFLOP/s"
    cause = _likely_cause(timing, rate, peak, gpu)
    if rate > peak:
        why = "no machine exceeds its peak rate"
        return found(IMPOSSIBLE, "arithmetic", [timing], figure, limit, why, cause, rate / peak)
    why = f"{rate / peak:.0%} of the peak, more than training passes reach"
    return None if measured or gpu is None else found(SUSPICIOUS, "near peak", [timing], figure, limit, why, cause)


def _least_flops(timing: Timing) -> float:
    """FLOPs of the matrix products that its kernels cannot skip.

    Op by op, and under torch.compile, which leaves products to the library and knows no mask, they cover the whole
    square. A kernel of blocks skips the masked half, and computes the scores once more in its backward pass.
    """
    work, row = timing.work, phase_named(timing.phase)
    assert work is not None
    assert row is not None
    is_whole = timing.attention in (labelled.UNFUSED, labelled.COMPILED) or not timing.is_causal
    flops = work.least_flops(timing.phase, leaves_masked_half=not is_whole)
    assert flops is not None
    if timing.attention != labelled.TILED or not isinstance(work, AttentionWork):
        return flops
    return flops * sum(map(TILED_PRODUCTS.__getitem__, row.main_parts)) / sum(map(PRODUCTS.__getitem__, row.main_parts))


def _likely_cause(timing: Timing, rate: float, peak: float, gpu: Gpu | None) -> str:
    """The most frequent mistake behind such a figure, as far as one row can tell."""
    if rate > 20 * peak:
        return f"a wrong unit: as seconds it would be {rate / 1e15:.3g} TFLOP/s"
    if timing.precision == "fp32" and gpu is not None:
        if gpu.rates["fp32"] < (tf32 := gpu.rates.get("tf32", 0.0)) and rate <= 0.65 * tf32:
            return "TF32 multiplied under the label fp32, or the clock was read without waiting for the device"
        if rate <= gpu.rates.get("bf16", 0.0):
            return "a row of another precision among the fp32 ones"
    half = "half the batch" if rate <= 2 * peak else "a smaller batch or model"
    return f"{half} of what is stated, or the clock was read without waiting for the device"


def _faster_than_traffic(timing: Timing, seconds: float, gpu: Gpu | None) -> Finding | None:
    """Attention op by op in less than its kernels one after the other, or an AdamW step in less than its bytes take.

    Of a step the cache keeps at most its size of what came before, and of what is written last.
    """
    verdict, rule, least = IMPOSSIBLE, "traffic", least_kernel_seconds(timing, gpu) if timing.is_eager else None
    why = "the scores do not fit into the cache, and products and softmax pass them through memory one after the other"
    cause = "a pass that kept no gradient, a fused kernel under the name of an unfused one, or a wrong unit"
    if timing.is_update and isinstance(timing.work, ModelWork) and gpu is not None and gpu.l2_cache_bytes is not None:
        rule, parameters = "update", timing.work.config.parameters
        least = (UPDATE_BYTES * parameters - 2 * gpu.l2_cache_bytes) / gpu.bytes_per_second
        why = f"AdamW moves {UPDATE_BYTES} bytes of each of {parameters:,} parameters"
        cause = "the clock was read without waiting for the device, or weights and moments in half precision"
        if not timing.optimizer:
            verdict, cause = SUSPICIOUS, f"{cause}, or another optimizer than AdamW"
    if gpu is None or least is None or seconds >= least:
        return None
    limit = f"{least * 1e3:.4g} ms ({gpu.bytes_per_second / 1e9:.4g} GB/s, {gpu.name})"
    return found(verdict, rule, [timing], f"{seconds * 1e3:.4g} ms", limit, why, cause, least / seconds)


def least_kernel_seconds(timing: Timing, gpu: Gpu | None) -> float | None:
    """Least seconds of attention whose products and softmax are kernels of their own: the sum of what each takes.

    Each product reads or writes the square once, and takes the longer of that and of its arithmetic. Softmax reads and
    writes it; its gradient reads two and writes one. Of every pass the cache keeps at most its own size.
    None where that is not known.
    """
    work, row = timing.work, phase_named(timing.phase)
    if not isinstance(work, AttentionWork) or row is None or row.family != ATTENTION_ALONE or gpu is None:
        return None
    if gpu.l2_cache_bytes is None or timing.precision is None or timing.precision not in gpu.rates:
        return None
    square = work.batch_size * work.sequence_length**2
    square_bytes = square * (4 if timing.precision in ("fp32", "tf32") else 2)
    passing = max(square_bytes - gpu.l2_cache_bytes, 0) / gpu.bytes_per_second
    highest = gpu.rates[timing.precision] * gpu.clock_margin_of(timing.precision)
    product = 2 * square * work.head_dim / highest
    products, passes = (sum(map(count.__getitem__, row.main_parts)) for count in (PRODUCTS, SOFTMAX_PASSES))
    return products * max(product, passing) + passes * passing if passing else None


def _larger_than_card(timing: Timing, seconds: float, gpu: Gpu | None) -> Finding | None:
    if gpu is None or timing.work is None or not timing.has_fp32_weights:
        return None
    needed = timing.work.least_resident_bytes(timing.phase)
    if not needed or needed <= gpu.memory_bytes:
        return None
    figure, limit = f"{needed / GIB:.4g} GiB must be resident", f"{gpu.memory_bytes / GIB:.4g} GiB ({gpu.name})"
    why, cause = "weights and gradients in fp32 do not fit", "weights in half precision, or paging to host memory"
    return found(IMPOSSIBLE, "memory", [timing], figure, limit, why, cause, needed / gpu.memory_bytes)


def slow_round(mean: float, std: float, rounds: int) -> tuple[float, float] | None:
    """The usual round and the slow one, if one of `rounds` is slow and the others equal; None if that is impossible.

    One round slower by `gap` adds gap / n to the mean and makes the population's deviation gap x sqrt(n - 1) / n.
    """
    if rounds < 3 or mean <= 0 or std <= 0:
        return None
    gap = std * rounds / sqrt(rounds - 1)
    usual = mean - gap / rounds
    return (usual, usual + gap) if usual > 0 else None


def one_outlier(timing: Timing) -> Finding | None:
    """A spread that one slow round among the rest explains: a mistake where it misleads and nothing announces it."""
    mean, std, rounds = timing.mean_seconds or timing.seconds, timing.std_seconds, timing.rounds
    if not mean or mean < 0 or not std or not rounds or std / mean <= OUTLIER_SHARE:
        return None
    figure, limit = f"{mean * 1e3:.4g} +- {std * 1e3:.4g} ms", f"{OUTLIER_SHARE:.0%} of the mean"
    # A table's deviation may be that of a sample, as libraries give it; few rounds tell the two apart.
    pair = slow_round(mean, std, rounds) or slow_round(mean, std * sqrt((rounds - 1) / rounds), rounds)
    misled = MOST_EXCESS if pair is None else mean / pair[0] - 1
    if pair is None:
        why, cause = "no set of times has this mean and spread with one slow round", "several slow rounds"
    else:
        others = f"{rounds - 1} rounds of {pair[0] * 1e3:.4g} ms"
        why = f"one round of {pair[1] * 1e3:.4g} ms among {others} gives the same mean and spread"
        cause = "a first round that was not warmed up, or code generated inside the timed rounds"
    if timing.warmup_rounds == 0:
        cause, limit = "it was measured without warm-up", "1 warm-up round"
        return found(labelled.NOTICE, "no warm-up", [timing], figure, limit, why, cause)
    if misled < MISLED_SHARE:
        why = f"{why}; the mean is off by {misled:.0%}"
        return found(labelled.NOTICE, "scatter", [timing], figure, limit, why, "a busy machine")
    return found(SUSPICIOUS, "outlier", [timing], figure, limit, why, cause, 1 + misled)


# Amounts of memory: against the card, and against the model whose peak they are.


WEIGHTS_OF_ADAMW = 4
"""Times the bytes of the weights: they, their gradients and two moments."""


LONG_SEQUENCE = 8192
"""Length from which the T x T matrices dominate attention's memory."""


def said_of_memories(memories: Sequence[Memory]) -> Iterator[Said]:
    """Findings rule by rule, and amounts that cannot be held to their card."""
    for rule in (_beyond_card, _below_weights, _flat_over_context):
        yield from filter(None, map(rule, memories))
    yield from _saved_squares(memories)
    yield from _shrinking_peaks(memories)


def _beyond_card(memory: Memory) -> Said | None:
    """A finding on an amount that is negative or beyond the card, or why that is not known."""
    if memory.value_bytes is None:
        return NotJudged(memory.place, "no figure")
    if memory.value_bytes < 0:
        shown, why = f"{memory.value_bytes / GIB:.4g} GiB", "an amount of memory is not negative"
        return found(IMPOSSIBLE, "amount", [memory], shown, "0", why, "a wrong sign")
    gpu = gpu_of(memory)
    if gpu is None:
        return NotJudged(memory.place, _why_no_gpu(memory))
    if memory.value_bytes <= gpu.memory_bytes:
        return None
    why, cause = "no more is allocated than the card has", "paging to host memory, or a wrong unit"
    return _found_amount(IMPOSSIBLE, "card memory", memory, gpu.memory_bytes, why, cause, f" ({gpu.name})")


def _found_amount(
    verdict: str, rule: str, memory: Memory, limit_bytes: float, why: str, cause: str, whose: str = ""
) -> Finding:
    """A finding on one amount; `whose` limit it is in words."""
    figure, limit = f"{(memory.value_bytes or 0) / GIB:.4g} GiB", f"{limit_bytes / GIB:.4g} GiB{whose}"
    return found(verdict, rule, [memory], figure, limit, why, cause)


def _below_weights(memory: Memory) -> Finding | None:
    """A peak below the weights alone, or a training step's below AdamW's state."""
    config, per_weight, most = _config(memory), _weight_bytes(memory), memory.most_bytes
    if config is None or per_weight is None or "peak" not in memory.mode or most is None or most < 0:
        return None
    weights = per_weight * config.parameters
    trained = WEIGHTS_OF_ADAMW * weights
    if most + memory.rounding_bytes < weights:
        why = f"the weights in {'fp32' if per_weight == FLOAT32_BYTES else '16 bits'} are larger"
        cause = "another model, a wrong unit, or half weights"
        # A name alone may mean another shape than the course's.
        verdict = SUSPICIOUS if memory.width is None else IMPOSSIBLE
        return _found_amount(verdict, "weights", memory, weights, why, cause)
    if memory.mode.startswith("full_step_peak") and memory.optimizer in labelled.OF_ADAMW and most < 0.98 * trained:
        why = "weights, gradients and AdamW's two moments are larger"
        cause = "no optimizer state was ever made, as when gradients are cleared before the update"
        return _found_amount(SUSPICIOUS, "optimizer state", memory, trained, why, cause)
    return None


def _flat_over_context(memory: Memory) -> Finding | None:
    """A step's peak below weights, moments and the tensors that its forward pass saves."""
    config, most = _config(memory), memory.most_bytes
    is_step = memory.mode == "full_step_peak" and memory.optimizer in labelled.OF_ADAMW
    is_eager = memory.precision_label.startswith(("fp32", "tf32")) and not memory.is_compiled
    if config is None or not is_step or not is_eager or memory.checkpoint != "none":
        return None
    if most is None or not memory.batch_size or not memory.length:
        return None
    weights = FLOAT32_BYTES * config.parameters
    # Without the gradients, which the backward pass makes as it lets saved tensors go.
    needed = (WEIGHTS_OF_ADAMW - 1) * weights + saved_bytes(config, memory.batch_size, memory.length)
    if not 0.98 * WEIGHTS_OF_ADAMW * weights <= most < 0.95 * needed:
        return None
    why = "weights, moments and what autograd keeps of an eager pass are larger at this context"
    cause = "a figure of another context, or one read off a plot"
    return _found_amount(SUSPICIOUS, "saved tensors", memory, needed, why, cause)


def _saved_squares(figures: Sequence[Memory]) -> Iterator[Finding]:
    """Eager attention that holds, before its backward pass, no whole number of T x T matrices beside its inputs."""
    labels = attrgetter("series", "gpu", "width", "length", "batch_size", "is_compiled")
    inputs = {labels(m): m.value_bytes for m in figures if m.mode == "after_inputs" and m.value_bytes is not None}
    for memory in figures:
        batch, length, width, value = memory.batch_size, memory.length, memory.width, memory.value_bytes
        is_eager = not memory.is_compiled and memory.checkpoint == "none"
        if memory.kind != "attention" or memory.mode != "before_backward" or not is_eager or value is None:
            continue
        if not batch or not width or not length or length < LONG_SEQUENCE:
            continue
        tensor, square = batch * length * width * FLOAT32_BYTES, batch * length**2 * FLOAT32_BYTES
        count = (value - inputs.get(labels(memory), 4 * tensor)) / square
        if abs(count - round(count)) > 0.1 + 4 * tensor / square or round(count) not in (1, 2, 3):
            why = f"{count:.2f} matrices of {square / GIB:.3g} GiB are held, not 1, 2 or 3"
            cause = "another batch than stated, inputs that require no gradient, or a fused kernel"
            yield _found_amount(SUSPICIOUS, "saved squares", memory, square, why, cause)


def _shrinking_peaks(figures: Sequence[Memory]) -> Iterator[Finding]:
    """More memory for less context, all else alike."""
    peaks = [m for m in figures if m.kind == "model" and "peak" in m.mode and m.length and m.value_bytes]
    of_a_set_up = ("precision_label", "is_compiled", "checkpoint", "optimizer")
    for group in grouped(peaks, attrgetter("series", "gpu", "size", "batch_size", "mode", *of_a_set_up)).values():
        for shorter, longer in pairwise(sorted(group, key=attrgetter("length"))):
            most, least = longer.most_bytes or 0, shorter.value_bytes or 0
            if longer.length != shorter.length and most < 0.97 * least:
                why, cause = f"context {shorter.length} has more", "two cells exchanged, or two set-ups"
                yield _found_amount(labelled.INCONSISTENT, "shrinking peak", longer, least, why, cause)


def _config(memory: Memory) -> ModelConfig | None:
    """The known shape with this width and depth; None for a block alone or a shard of the state."""
    if memory.kind != "model" or "block" in memory.size or labelled.is_another_model(memory.size):
        return None
    if pieces_named(memory.gpu) > 1:
        return None
    if (memory.width, memory.layers, memory.d_ff) == (None, None, None):
        return SIZES.get(memory.size)
    shapes = (config for config in SIZES.values() if memory.d_ff in (None, config.d_ff))
    return next((c for c in shapes if (c.d_model, c.num_layers) == (memory.width, memory.layers)), None)


def _weight_bytes(memory: Memory) -> int | None:
    """Least bytes of one parameter: half-precision weights unless the label says autocast. None for other formats."""
    if memory.precision_label in ("", labelled.NO_PRECISION):
        return FLOAT32_BYTES
    precision = labelled.labelled_precision(memory.precision_label)
    is_mixed = re.search("amp|autocast|mixed", memory.precision_label.casefold())
    return None if precision is None else FLOAT32_BYTES if is_mixed or precision in ("fp32", "tf32") else 2


# A profiler's kernel table: calls, averages, totals and shares are four views of one time.


SHARE_TOLERANCE_POINTS = 1.0

USUAL_BATCH_SIZE = 4
"""The batch of tables that have no column for it."""


def said_of_kernels(kernels: Sequence[Kernel]) -> Iterator[Said]:
    """Findings rule by rule, then the rows that have nothing to check them against."""
    by_profile = grouped(kernels, attrgetter("series", "gpu", "size", "context_length", "scope"))
    profiles = [
        (group, {one.place: total / one.percent * 100 for one in group if one.percent and (total := _total(one))})
        for group in by_profile.values()
    ]
    for rule in (_not_positive, _calls_times_average):
        yield from filter(None, map(rule, kernels))
    for among in (_copied_cells, _shares_of_one_time, _shares_add_up, _missing_products):
        for group, implied in profiles:
            yield from among(group, implied)
    yield from filter(None, map(_products_beyond_peak, kernels))
    partial = "has neither a share nor both calls and average, so nothing to check it against"
    for kernel in kernels:
        if kernel.percent is None and (_total(kernel) is None or kernel.average_seconds is None):
            yield NotJudged(kernel.place, partial)


def _total(kernel: Kernel) -> float | None:
    """Seconds of all calls, as the table gives them or as calls x average."""
    if kernel.total_seconds is not None or kernel.calls is None or kernel.average_seconds is None:
        return kernel.total_seconds
    return kernel.calls * kernel.average_seconds


Implied = dict[str, float]
"""The GPU time of the whole profile by each row's time and share, where it has both, by the row's place."""


def _not_positive(kernel: Kernel) -> Finding | None:
    times = [time for time in (kernel.total_seconds, kernel.average_seconds) if time is not None]
    if all(time > 0 for time in times) and 0 <= (kernel.percent or 0) <= 100:
        return None
    why = "a kernel takes time, and a share lies between 0 and 100 %"
    return found(IMPOSSIBLE, "amount", [kernel], "a time or share out of range", "0", why, "a wrong sign or unit")


def _calls_times_average(kernel: Kernel) -> Finding | None:
    if not kernel.total_seconds or not kernel.average_seconds or not kernel.calls:
        return None
    product = kernel.calls * kernel.average_seconds
    if abs(product / kernel.total_seconds - 1) <= 0.02:
        return None
    shown = f"{kernel.calls} x {kernel.average_seconds * 1e6:.4g} us is {product * 1e3:.4g} ms"
    limit, why = f"{kernel.total_seconds * 1e3:.4g} ms", "calls times their average is the total"
    return found(labelled.INCONSISTENT, "calls x average", [kernel], shown, limit, why, "a cell of another row")


def _copied_cells(profile: Sequence[Kernel], implied: Implied) -> Iterator[Finding]:
    """Two rows with the same share whose times differ; where a third row tells which is wrong, only that one."""
    timed = [kernel for kernel in profile if (kernel.percent or 0) >= 5 and (_total(kernel) or 0) > 0]
    for same in grouped(timed, attrgetter("percent")).values():
        one, other = (pick(same, key=lambda kernel: _total(kernel) or 0) for pick in (min, max))
        first, second = _total(one) or 0, _total(other) or 0
        if second > 1.1 * first:
            shown = f"{one.percent:g} % for {first * 1e3:.4g} ms and for {second * 1e3:.4g} ms"
            why, cause = "equal shares of one total are equal times", "a cell copied from the row above"
            pair = sorted((one, other), key=same.index)
            usual = median(implied[kernel.place] for kernel in timed)
            accused = [kernel for kernel in pair if abs(implied[kernel.place] - usual) > 0.1 * usual] or pair
            yield found(labelled.INCONSISTENT, "copied cell", accused, shown, "1.1", why, cause, second / first)


def _shares_of_one_time(profile: Sequence[Kernel], implied: Implied) -> Iterator[Finding]:
    """Find rows that imply another GPU time of the profile, by their total over their share, than the others."""
    large = [kernel for kernel in profile if (kernel.percent or 0) >= 1 and kernel.place in implied]
    usual = median(implied[kernel.place] for kernel in large) if large else 0.0  # of a single one, its own
    for kernel in large:
        percent = kernel.percent or 1
        # A share is rounded to a tenth of a point, so small ones tell less about the whole.
        slack = 0.15 + SHARE_TOLERANCE_POINTS / percent / 10
        if usual > 0 and abs(implied[kernel.place] / usual - 1) > slack:
            shown = f"{(_total(kernel) or 0) * 1e3:.4g} ms called {percent:g} %"
            limit = f"{percent:g} % of {usual * 1e3:.4g} ms, which the other rows imply"
            why = "the rows of one profile share one GPU time"
            yield found(labelled.INCONSISTENT, "share", [kernel], shown, limit, why, "a cell copied from another row")


def _shares_add_up(profile: Sequence[Kernel], implied: Implied) -> Iterator[Finding]:
    # Copies run beside kernels; profilers give their share of another total.
    shares = [kernel for kernel in profile if kernel.percent is not None and "memory op" not in kernel.name]
    total = sum(kernel.percent or 0 for kernel in shares)
    if total > 100 + SHARE_TOLERANCE_POINTS:
        why, cause = "shares of one total cannot exceed 100 %", "rows of two profiles in one"
        yield found(labelled.INCONSISTENT, "sum of shares", shares, f"{total:.4g} %", "100 %", why, cause)


def _missing_products(profile: Sequence[Kernel], implied: Implied) -> Iterator[Finding]:
    """Find profiles without time for products that are not listed: seven a layer, and the head's.

    A list of the largest kernels leaves out others. What it leaves out must fit into the share of the time that it
    leaves out, at the card's peak and if only the smallest products, those of attention, are missing.
    """
    config, gpu, length = SIZES.get(profile[0].size), gpu_of(profile[0]), profile[0].context_length
    products = [kernel for kernel in profile if re.search("gemm|xmma|cutlass", kernel.name) and kernel.calls]
    if config is None or gpu is None or not length or not implied or not products or profile[0].scope != "forward":
        return
    missing = 7 * config.num_layers + 1 - sum(kernel.calls or 0 for kernel in products)
    shared = [kernel for kernel in profile if kernel.place in implied]
    rounding = 0.05 * len(shared)  # of shares to a tenth of a point
    rest = median(implied.values()) * (100 + rounding - sum(kernel.percent or 0 for kernel in shared)) / 100
    is_fp32 = all(re.search("sgemm|simt|ffma", kernel.name) for kernel in products)
    precision = "fp32" if is_fp32 else max(gpu.rates, key=gpu.rates.__getitem__)
    peak = gpu.rates[precision] * gpu.clock_margin_of(precision)
    tokens = (profile[0].batch_size or USUAL_BATCH_SIZE) * length
    needed = missing * 2 * tokens * config.d_model**2 / peak
    if missing > 0 and needed > rest:
        why = f"{missing} of {7 * config.num_layers + 1} products are not listed, and need {needed * 1e3:.4g} ms"
        cause = "a capture that ended early, or another model"
        shown, limit = f"{rest * 1e3:.4g} ms for all that is not listed", f"{needed * 1e3:.4g} ms"
        excess = needed / rest if rest > 0 else needed / (_total(products[0]) or needed)
        yield found(SUSPICIOUS, "missing products", products, shown, limit, why, cause, excess)


def _products_beyond_peak(kernel: Kernel) -> Finding | None:
    """A kernel with exactly the products of a forward pass, above the card's fp32 peak."""
    config, total, gpu, length = SIZES.get(kernel.size), _total(kernel), gpu_of(kernel), kernel.context_length
    if config is None or not total or gpu is None or not length or "sgemm" not in kernel.name:
        return None
    if kernel.scope != "forward" or kernel.calls != 7 * config.num_layers + 1:
        return None
    batch_size = kernel.batch_size or USUAL_BATCH_SIZE
    flops = config.forward_flops(batch_size, length) - config.forward_attention_flops(batch_size, length)
    if flops / total <= gpu.rates["fp32"]:
        return None
    shown = f"{kernel.calls} products in {total * 1e3:.4g} ms are {flops / total / 1e12:.3g} TFLOP/s"
    limit, why = f"{gpu.rates['fp32'] / 1e12:.4g} TFLOP/s", f"beyond the peak at a batch of {batch_size}"
    return found(SUSPICIOUS, "matrix products", [kernel], shown, limit, why, "a smaller batch than stated")
