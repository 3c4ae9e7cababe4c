"""The physics of one figure: no time below that of its arithmetic and traffic, no memory beyond the card."""

import math
from functools import lru_cache

from perf_tests.audit.figures import COMPILED, NO_PRECISION, TILED, UNFUSED, LabelledFigure, Memory, Timing
from perf_tests.audit.finding import IMPOSSIBLE, NOTICE, SUSPICIOUS, Finding, NotJudged, found
from perf_tests.limits.datasheets import GIB, Gpu, pieces_named, strongest_named
from perf_tests.limits.least_work import AttentionWork, Work
from perf_tests.phases import ATTENTION_ALONE, phase_named

NEAR_PEAK = 0.92
"""Share of a datasheet peak above which no eager training pass has been seen: suspicious."""

MEASURED_CEILING_MARGIN = 1.25
"""By how much a measured ceiling may be too low, because it carries the same noise as the figure."""

OUTLIER_SHARE = 0.25
"""Standard deviation over mean above which one slow round is the simplest explanation."""

MOST_EXCESS = 1e9
"""Of a figure that no factor relates to its limit."""

MISLED_SHARE = 0.25
"""By how much one slow round must raise the mean of the others to mislead; below, the stated spread says enough."""

PRODUCTS = {"inference": 2, "forward": 2, "backward": 4}
"""Over the T x T square: scores and output; the gradients of values, probabilities, queries and keys."""
TILED_PRODUCTS = {"inference": 2, "forward": 2, "backward": 5}
"""A kernel that never holds the square computes the scores once more (Dao, arXiv:2307.08691, section 3.1.2)."""
SOFTMAX_PASSES = {"inference": 2, "forward": 2, "backward": 3}
"""Over the square, of a softmax in one kernel."""


def rule_out(timing: Timing) -> list[Finding | NotJudged]:
    """Every way in which the time of one row is impossible, or why it cannot be judged."""
    if timing.seconds is None:
        return [NotJudged(timing.place, "no figure")]
    if timing.seconds <= 0:
        cause = "a wrong sign" if timing.seconds < 0 else "a wrong unit, in which so few digits round it away"
        shown = f"{timing.seconds * 1e3:g} ms"
        return [found(IMPOSSIBLE, "time", [timing], shown, "0 ms", "a pass takes time", cause, MOST_EXCESS)]
    gpu = gpu_of(timing)
    reason = _why_not_judged(timing, gpu)
    if reason:
        return [NotJudged(timing.place, reason)]
    assert timing.work is not None
    most_seconds = timing.seconds + timing.rounding_seconds
    checks = (
        faster_than_arithmetic(timing, most_seconds, gpu),
        faster_than_kernels(timing, most_seconds, gpu),
        larger_than_card(timing, timing.work, gpu),
    )
    return [finding for finding in checks if finding]


def is_impossible(timing: Timing) -> bool:
    """By its own labels."""
    return any(isinstance(one, Finding) and one.verdict == IMPOSSIBLE for one in rule_out(timing))


@lru_cache(maxsize=4096)
def _gpu_named(text: str) -> Gpu | None:
    try:
        return strongest_named(text)
    except ValueError:
        return None


def gpu_of(row: LabelledFigure) -> Gpu | None:
    """None where the row names no card with a datasheet here."""
    return _gpu_named(row.gpu)


def _why_no_gpu(row: LabelledFigure) -> str:
    if pieces_named(row.gpu) > 1:
        return f"{row.gpu!r} are several cards, which share the work"
    return f"GPU {row.gpu!r} has no datasheet here" if row.gpu else "no GPU stated"


@lru_cache(maxsize=4096)
def _has_products(phase: str) -> bool:
    row = phase_named(phase)
    return row is not None and row.forward_multiple is not None


def _why_not_judged(timing: Timing, gpu: Gpu | None) -> str:
    if timing.work is None:
        return timing.without_work
    if not _has_products(timing.phase):
        return f"phase {timing.phase!r} has no known arithmetic"
    if timing.matmul_flops_per_second:
        return ""
    if gpu is None:
        return _why_no_gpu(timing)
    if timing.precision is None:
        is_stated = timing.precision_label != NO_PRECISION
        return f"precision {timing.precision_label!r} is not certain" if is_stated else NO_PRECISION
    if timing.precision not in gpu.rates:
        return f"{gpu.name} has no {timing.precision} path, so something else ran"
    return ""


def least_flops(timing: Timing) -> float | None:
    """Of the matrix products that its kernels cannot skip; None for a phase without known ones.

    Op by op, and under torch.compile, which leaves products to the library and knows no mask, they cover the whole
    square. A kernel of blocks skips the masked half, and computes the scores once more in its backward pass.
    """
    assert timing.work is not None
    whole = timing.work.least_flops(timing.phase, leaves_masked_half=False)
    is_whole = timing.attention in (UNFUSED, COMPILED) or not timing.is_causal
    flops = whole if whole is None or is_whole else timing.work.least_flops(timing.phase, leaves_masked_half=True)
    if flops is None or timing.attention != TILED or not isinstance(timing.work, AttentionWork):
        return flops
    row = phase_named(timing.phase)
    assert row is not None
    return flops * sum(map(TILED_PRODUCTS.__getitem__, row.main_parts)) / sum(map(PRODUCTS.__getitem__, row.main_parts))


def faster_than_arithmetic(timing: Timing, seconds: float, gpu: Gpu | None) -> Finding | None:
    """Matrix products above the peak rate of the labelled precision."""
    flops = least_flops(timing)
    assert flops is not None
    peak = _peak(timing, gpu)
    rate = flops / seconds
    if rate <= NEAR_PEAK * peak:
        return None
    printed = (timing.seconds or seconds) * 1e3
    at_least = "at least " if seconds > 1.001 * printed / 1e3 else ""
    figure, limit = f"{printed:.4g} ms is {at_least}{rate / 1e12:.4g} TFLOP/s", _peak_in_words(timing, peak, gpu)
    cause = likely_cause(timing, rate, peak, gpu)
    if rate > peak:
        why = "no machine exceeds its peak rate"
        return found(IMPOSSIBLE, "arithmetic", [timing], figure, limit, why, cause, rate / peak)
    if gpu is not None and not timing.matmul_flops_per_second:
        why = f"{rate / peak:.0%} of the peak, more than training passes reach"
        return found(SUSPICIOUS, "near peak", [timing], figure, limit, why, cause)
    return None


def _peak(timing: Timing, gpu: Gpu | None) -> float:
    """FLOP/s of a timing that can be judged."""
    if timing.matmul_flops_per_second:
        return MEASURED_CEILING_MARGIN * timing.matmul_flops_per_second
    assert gpu is not None
    assert timing.precision is not None
    return gpu.rates[timing.precision] * gpu.clock_margin


def _peak_in_words(timing: Timing, peak: float, gpu: Gpu | None) -> str:
    if timing.matmul_flops_per_second:
        return f"{peak / 1e12:.4g} TFLOP/s ({MEASURED_CEILING_MARGIN:g} x the best product measured there)"
    assert gpu is not None
    inferred = ", GPU inferred, not stated" if timing.gpu_is_inferred else ""
    margin = f" x {gpu.clock_margin:g} for its clock" if gpu.clock_margin > 1 else ""
    rated = peak / gpu.clock_margin / 1e12
    return f"{rated:.4g} TFLOP/s{margin} ({timing.precision} on {gpu.name}{inferred})"


def likely_cause(timing: Timing, rate: float, peak: float, gpu: Gpu | None) -> str:
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


def faster_than_kernels(timing: Timing, seconds: float, gpu: Gpu | None) -> Finding | None:
    """Attention op by op in less than its kernels one after the other."""
    if not timing.is_eager:
        return None
    least = least_kernel_seconds(timing, gpu)
    if least is None or seconds >= least:
        return None
    assert gpu is not None
    figure, limit = (
        f"{seconds * 1e3:.4g} ms",
        f"{least * 1e3:.4g} ms ({gpu.bytes_per_second / 1e9:.4g} GB/s, {gpu.name})",
    )
    why = "the scores do not fit into the cache, and products and softmax pass them through memory one after the other"
    cause = "a pass that kept no gradient, a fused kernel under the name of an unfused one, or a wrong unit"
    return found(IMPOSSIBLE, "traffic", [timing], figure, limit, why, cause, least / seconds)


def least_kernel_seconds(timing: Timing, gpu: Gpu | None) -> float | None:
    """Of attention whose products and softmax are kernels of their own: the sum of what each takes at least.

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
    product = 2 * square * work.head_dim / (gpu.rates[timing.precision] * gpu.clock_margin)
    parts = row.main_parts
    products, passes = (sum(map(count.__getitem__, parts)) for count in (PRODUCTS, SOFTMAX_PASSES))
    return products * max(product, passing) + passes * passing if passing else None


def larger_than_card(timing: Timing, work: Work, gpu: Gpu | None) -> Finding | None:
    if gpu is None or not timing.has_fp32_weights:
        return None
    needed = work.least_resident_bytes(timing.phase)
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
    gap = std * rounds / math.sqrt(rounds - 1)
    usual = mean - gap / rounds
    return (usual, usual + gap) if usual > 0 else None


def one_outlier(timing: Timing) -> Finding | None:
    """A spread that one slow round among the rest explains: a mistake where it misleads and nothing announces it."""
    if not timing.seconds or timing.seconds < 0 or not timing.std_seconds or not timing.rounds:
        return None
    if timing.std_seconds / timing.seconds <= OUTLIER_SHARE:
        return None
    figure = f"{timing.seconds * 1e3:.4g} +- {timing.std_seconds * 1e3:.4g} ms"
    pair = slow_round(timing.seconds, timing.std_seconds, timing.rounds)
    misled = MOST_EXCESS if pair is None else timing.seconds / pair[0] - 1
    if pair is None:
        why, cause = "no set of times has this mean and spread with one slow round", "several slow rounds"
    else:
        others = f"{timing.rounds - 1} rounds of {pair[0] * 1e3:.4g} ms"
        why = f"one round of {pair[1] * 1e3:.4g} ms among {others} gives the same mean and spread"
        cause = "a first round that was not warmed up, or code generated inside the timed rounds"
    if timing.warmup_rounds == 0:
        return found(NOTICE, "no warm-up", [timing], figure, "1 warm-up round", why, "it was measured without warm-up")
    if misled < MISLED_SHARE:
        why = f"{why}; the mean is off by {misled:.0%}"
        return found(NOTICE, "scatter", [timing], figure, f"{OUTLIER_SHARE:.0%} of the mean", why, "a busy machine")
    return found(SUSPICIOUS, "outlier", [timing], figure, f"{OUTLIER_SHARE:.0%} of the mean", why, cause, 1 + misled)


def memory_beyond_card(memory: Memory) -> Finding | NotJudged | None:
    """An amount that is negative or beyond the card."""
    if memory.value_bytes is None:
        return NotJudged(memory.place, "no figure")
    figure = f"{memory.value_bytes / GIB:.4g} GiB"
    if memory.value_bytes < 0:
        why = "an amount of memory is not negative"
        return found(IMPOSSIBLE, "amount", [memory], figure, "0", why, "a wrong sign")
    gpu = gpu_of(memory)
    if gpu is None:
        return NotJudged(memory.place, _why_no_gpu(memory))
    if memory.value_bytes <= gpu.memory_bytes:
        return None
    limit, why = f"{gpu.memory_bytes / GIB:.4g} GiB ({gpu.name})", "no more is allocated than the card has"
    cause = "paging to host memory, or a wrong unit"
    return found(IMPOSSIBLE, "card memory", [memory], figure, limit, why, cause)
