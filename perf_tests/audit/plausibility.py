"""The physics of one figure: no time below that of its arithmetic and traffic, no memory beyond the card."""

import math

from perf_tests.audit.figures import LabelledFigure, Memory, Timing
from perf_tests.audit.finding import IMPOSSIBLE, SUSPICIOUS, Finding, NotJudged, found
from perf_tests.limits.datasheets import GIB, Gpu, gpu_named
from perf_tests.limits.least_work import Work

NEAR_PEAK = 0.92
"""Share of a datasheet peak above which no eager training pass has been seen: suspicious."""

MEASURED_CEILING_MARGIN = 1.25
"""By how much a measured ceiling may be too low, because it carries the same noise as the figure."""

OUTLIER_SHARE = 0.25
"""Standard deviation over mean above which one slow round is the simplest explanation."""


def rule_out(timing: Timing, gpu_by_hand: Gpu | None = None) -> list[Finding | NotJudged]:
    """Every way in which the time of one row is impossible, or why it cannot be judged."""
    if timing.seconds is None:
        return [NotJudged(timing.place, "no figure")]
    if timing.seconds <= 0:
        why = "a pass takes time" if timing.seconds < 0 else "a pass takes time, and this was rounded away"
        shown = f"{timing.seconds * 1e3:g} ms"
        return [found(IMPOSSIBLE, "time", [timing], shown, "0 ms", why, "a wrong unit or sign")]
    gpu = gpu_by_hand or gpu_of(timing)
    reason = _why_not_judged(timing, gpu)
    if reason:
        return [NotJudged(timing.place, reason)]
    assert timing.work is not None
    checks = (
        faster_than_arithmetic(timing, timing.work, timing.seconds, gpu),
        faster_than_memory(timing, timing.work, timing.seconds, gpu),
        larger_than_card(timing, timing.work, gpu),
    )
    return [finding for finding in checks if finding]


def gpu_of(row: LabelledFigure) -> Gpu | None:
    """None where the row names no card with a datasheet here."""
    try:
        return gpu_named(row.gpu)
    except ValueError:
        return None


def _why_not_judged(timing: Timing, gpu: Gpu | None) -> str:
    if timing.work is None:
        return timing.without_work
    if timing.work.least_flops(timing.phase, False) is None:
        return f"phase {timing.phase!r} has no known arithmetic"
    if timing.matmul_flops_per_second:
        return ""
    if gpu is None:
        return f"GPU {timing.gpu!r} has no datasheet here" if timing.gpu else "no GPU stated"
    if timing.precision is None:
        return f"precision {timing.precision_label!r} is not certain"
    if timing.precision not in gpu.rates:
        return f"{gpu.name} has no {timing.precision} path, so something else ran"
    return ""


def faster_than_arithmetic(timing: Timing, work: Work, seconds: float, gpu: Gpu | None) -> Finding | None:
    """Matrix products above the peak rate of the labelled precision."""
    flops = work.least_flops(timing.phase, leaves_masked_half=not timing.is_eager)
    assert flops is not None
    peak, limit = _peak(timing, gpu)
    rate = flops / seconds
    figure = f"{seconds * 1e3:.4g} ms is {rate / 1e12:.4g} TFLOP/s"
    cause = likely_cause(timing, rate, peak, gpu)
    if rate > peak:
        return found(IMPOSSIBLE, "arithmetic", [timing], figure, limit, "no machine exceeds its peak rate", cause)
    if rate > NEAR_PEAK * peak and gpu is not None and not timing.matmul_flops_per_second:
        why = f"{rate / peak:.0%} of the peak, more than training passes reach"
        return found(SUSPICIOUS, "near peak", [timing], figure, limit, why, cause)
    return None


def _peak(timing: Timing, gpu: Gpu | None) -> tuple[float, str]:
    """FLOP/s, and the same in words, of a timing that can be judged."""
    if timing.matmul_flops_per_second:
        peak = MEASURED_CEILING_MARGIN * timing.matmul_flops_per_second
        return peak, f"{peak / 1e12:.4g} TFLOP/s ({MEASURED_CEILING_MARGIN:g} x the best product measured there)"
    assert gpu is not None
    assert timing.precision is not None
    rated = gpu.rates[timing.precision]
    inferred = ", GPU inferred, not stated" if timing.gpu_is_inferred else ""
    margin = f" x {gpu.clock_margin:g} for its clock" if gpu.clock_margin > 1 else ""
    return rated * gpu.clock_margin, f"{rated / 1e12:.4g} TFLOP/s{margin} ({timing.precision} on {gpu.name}{inferred})"


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


def faster_than_memory(timing: Timing, work: Work, seconds: float, gpu: Gpu | None) -> Finding | None:
    """More traffic than the card's bandwidth, counting only what an unfused pass must move past the cache."""
    if gpu is None or gpu.l2_cache_bytes is None or not timing.is_eager or timing.precision is None:
        return None
    element_bytes = 4 if timing.precision in ("fp32", "tf32") else 2
    traffic = work.least_traffic_bytes(timing.phase, element_bytes, gpu.l2_cache_bytes)
    if not traffic or traffic / seconds <= gpu.bytes_per_second:
        return None
    figure = f"{seconds * 1e3:.4g} ms moves {traffic / seconds / 1e9:.4g} GB/s"
    limit = f"{gpu.bytes_per_second / 1e9:.4g} GB/s ({gpu.name})"
    why = "the scores do not fit into the cache and must go through memory"
    cause = "a pass that kept no gradient, a fused kernel under the name of an unfused one, or a wrong unit"
    return found(IMPOSSIBLE, "traffic", [timing], figure, limit, why, cause)


def larger_than_card(timing: Timing, work: Work, gpu: Gpu | None) -> Finding | None:
    if gpu is None or not timing.has_fp32_weights:
        return None
    needed = work.least_resident_bytes(timing.phase)
    if not needed or needed <= gpu.memory_bytes:
        return None
    figure, limit = f"{needed / GIB:.4g} GiB must be resident", f"{gpu.memory_bytes / GIB:.4g} GiB ({gpu.name})"
    why, cause = "weights and gradients in fp32 do not fit", "weights in half precision, or paging to host memory"
    return found(IMPOSSIBLE, "memory", [timing], figure, limit, why, cause)


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
    """A spread that one slow round among the rest explains."""
    if not timing.seconds or timing.seconds < 0 or not timing.std_seconds or not timing.rounds:
        return None
    if timing.std_seconds / timing.seconds <= OUTLIER_SHARE:
        return None
    figure = f"{timing.seconds * 1e3:.4g} +- {timing.std_seconds * 1e3:.4g} ms"
    pair = slow_round(timing.seconds, timing.std_seconds, timing.rounds)
    if pair is None:
        why, cause = "no set of times has this mean and spread with one slow round", "several slow rounds"
    else:
        others = f"{timing.rounds - 1} rounds of {pair[0] * 1e3:.4g} ms"
        why = f"one round of {pair[1] * 1e3:.4g} ms among {others} gives the same mean and spread"
        cause = "a first round that was not warmed up, or code generated inside the timed rounds"
    limit = f"{OUTLIER_SHARE:.0%} of the mean"
    return found(SUSPICIOUS, "outlier", [timing], figure, limit, why, cause)


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
        return NotJudged(memory.place, f"GPU {memory.gpu!r} has no datasheet here" if memory.gpu else "no GPU stated")
    if memory.value_bytes <= gpu.memory_bytes:
        return None
    limit, why = f"{gpu.memory_bytes / GIB:.4g} GiB ({gpu.name})", "no more is allocated than the card has"
    cause = "paging to host memory, or a wrong unit"
    return found(IMPOSSIBLE, "card memory", [memory], figure, limit, why, cause)
