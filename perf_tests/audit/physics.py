"""The physics of one figure: no time below that of its arithmetic and traffic, no memory beyond the card."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from math import atan, cos, inf, isclose, pi, sin, sqrt
from statistics import fmean, median, pstdev, stdev
from typing import Any

from perf_tests.audit.figures import (
    COMPILED,
    IMPOSSIBLE,
    NO_PRECISION,
    NOTICE,
    SUSPICIOUS,
    TILED,
    UNFUSED,
    Finding,
    LabelledFigure,
    Memory,
    NotJudged,
    Timing,
    found,
)
from perf_tests.hardware.datasheets import GIB, Gpu, pieces_named, strongest_named
from perf_tests.hardware.limits import AttentionWork, Work
from perf_tests.phases import ATTENTION_ALONE, OF_A_PHASE, PHASES, phase_named
from perf_tests.records.record import Json

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


# Flags of a row, from its own rounds and figures alone.


OUTLIER_AGREEMENT = 0.1
TREND_DEVIATIONS = 2.58
"""Two-sided 1 % of Mann and Kendall's test, in standard deviations."""
TREND_LEAST_CHANGE = 0.05
CLOCK_STEP_SECONDS = 0.1
CPU_WORKSPACE_BYTES_PER_THREAD = 2 * 2**20
"""Of the CPU's fused attention and 16-bit products, from the same allocator: repacked factors, and a block of scores
(PyTorch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: at most 256 x 512 numbers, twice in the backward pass)."""


@dataclass(frozen=True)
class RowFacts:
    """The rules' input, by the names of `extra_info` where it has them; None where unknown."""

    rounds_seconds: Sequence[float] = ()
    device_busy_seconds: float | None = None
    part_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    bound: str | None = None
    peak_allocated_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    workspace_bytes: int = 0
    """Of libraries, as far as the prediction leaves them out."""
    available_bytes: int | None = None
    sdpa_backend: str | None = None
    recompiles: int | None = None
    cudagraph_skips: int | None = None
    skipped_steps: int | None = None
    suggested_warmup_rounds: int | None = None
    throttled_rounds: Sequence[int] | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    """The state of the machine before the measured rounds."""
    after: Mapping[str, Any] = field(default_factory=dict)
    is_over_ceiling: bool = False


def has_outlier(rounds: Sequence[float]) -> bool:
    """One slow round causes the spread: the slowest round agrees with the one that `slow_round` expects."""
    if len(rounds) < 4 or pstdev(rounds) <= OUTLIER_SHARE * fmean(rounds):
        return False
    pair = slow_round(fmean(rounds), pstdev(rounds), len(rounds))
    return pair is not None and abs(max(rounds) / pair[1] - 1) <= OUTLIER_AGREEMENT


def has_trend(rounds: Sequence[float]) -> bool:
    """Later rounds are slower or faster than earlier ones by 5 % or more (Mann, Econometrica 13, 1945)."""
    count = len(rounds)
    if count < 8:
        return False
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(rounds, 2))
    deviation = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    third = count // 3
    change = median(rounds[-third:]) / median(rounds[:third]) - 1
    return abs(score) - 1 > TREND_DEVIATIONS * deviation and abs(change) >= TREND_LEAST_CHANGE


def waits_for_host(facts: RowFacts) -> bool:
    """Wall time exceeds the device's own although the device has enough work to be the slower."""
    if facts.device_busy_seconds is None or facts.bound == "launch":
        return False
    return median(facts.rounds_seconds) > 1.05 * facts.device_busy_seconds


def parts_do_not_add_up(facts: RowFacts) -> bool:
    if not facts.part_seconds or not all(facts.part_seconds.values()):
        return False
    sums = [sum(parts) for parts in zip(*facts.part_seconds.values(), strict=True)]
    if len(sums) != len(facts.rounds_seconds):
        return True
    shares = [parts / whole for parts, whole in zip(sums, facts.rounds_seconds, strict=True)]
    return abs(median(shares) - 1) > 0.05


def may_page(facts: RowFacts) -> bool:
    rounds, peak_bytes, available_bytes = facts.rounds_seconds, facts.predicted_peak_bytes, facts.available_bytes
    if peak_bytes is None or not available_bytes or len(rounds) < 2:
        return False
    return peak_bytes > 0.9 * available_bytes and pstdev(rounds) > 0.3 * fmean(rounds)


def peak_is_off(facts: RowFacts) -> bool:
    """An allocator's peak that neither the counters nor `workspace_bytes` of libraries explain."""
    if facts.peak_allocated_bytes is None or facts.predicted_peak_bytes is None:
        return False
    above, tolerance = facts.peak_allocated_bytes - facts.predicted_peak_bytes, 0.01 * facts.predicted_peak_bytes
    return not -tolerance <= above <= tolerance + facts.workspace_bytes


def has_changed(*names: str) -> Callable[[RowFacts], bool]:
    return lambda facts: any(facts.before.get(name) != facts.after.get(name) for name in names)


def has_jumped(name: str) -> Callable[[RowFacts], bool]:
    """Seconds of the host that moved by more than reading two clocks one after the other explains."""

    def rule(facts: RowFacts) -> bool:
        before, after = facts.before.get(name), facts.after.get(name)
        return before is not None and after is not None and abs(after - before) > CLOCK_STEP_SECONDS

    return rule


@dataclass(frozen=True)
class Flag:
    """When a row carries it, and its sentence for the reader."""

    rule: Callable[[RowFacts], bool]
    sentence: str


FLAGS = {
    "math_attention": Flag(lambda facts: facts.sdpa_backend == "math",
        "scaled_dot_product_attention took the unfused math path"),
    "recompiled": Flag(lambda facts: bool(facts.recompiles),
        "torch.compile generated code inside the measured rounds"),
    "no_cuda_graph": Flag(lambda facts: bool(facts.cudagraph_skips),
        "torch.compile could not put all of it into CUDA graphs"),
    "skipped_steps": Flag(lambda facts: bool(facts.skipped_steps),
        "the gradient scaler skipped optimizer steps in the measured rounds"),
    "outlier": Flag(lambda facts: has_outlier(facts.rounds_seconds),
        "one slow round causes most of the spread"),
    "short_warmup": Flag(lambda facts: facts.suggested_warmup_rounds is not None,
        "its first rounds were slower than the rest, or its rounds got faster: the warm-up was too short"),
    "trend": Flag(lambda facts: has_trend(facts.rounds_seconds),
        "later rounds differ from earlier ones by 5 % or more"),
    "throttled": Flag(lambda facts: bool(facts.throttled_rounds),
        "power or heat held the GPU's clocks down at the end of measured rounds (throttled_rounds)"),
    "processors_changed": Flag(has_changed("usable_processors", "processor_quota"),
        "the processors that the process may use, or its share of their time, changed while it ran (before, after)"),
    "memory_limit_changed": Flag(has_changed("memory_limit_bytes"),
        "the memory that the control group may use changed while it ran (before, after)"),
    "suspended": Flag(has_jumped("suspended_seconds"),
        "the machine was suspended while it ran; times leave that out, caches and clock rates do not (before, after)"),
    "date_set": Flag(has_jumped("booted_unix_seconds"),
        "the date was set while it ran: no time depends on it, the order of records does (before, after)"),
    "over_ceiling": Flag(lambda facts: facts.is_over_ceiling,
        "its products ran faster than the best square product measured here, which carries the same noise"),
    "waits_for_host": Flag(waits_for_host,
        "wall time exceeds the time that the device is busy by over 5 % although launches do not bound it"),
    "parts_do_not_add_up": Flag(parts_do_not_add_up,
        "the step and the sum of its parts differ by over 5 %"),
    "paging": Flag(may_page,
        "rounds scatter while memory is nearly full: possible paging to the host"),
    "peak_off": Flag(peak_is_off,
        "the allocator's peak differs from the prediction by more than 1 % and the libraries' workspaces"),
}  # fmt: skip
"""Every flag that a row may carry in `flags`, in the order in which they are written."""


def raised(facts: RowFacts) -> list[str]:
    return [name for name, flag in FLAGS.items() if flag.rule(facts)]


# The round from which the times of one process are steady: a rule with a known false-alarm rate.
#
# In: seconds of rounds in order. Out: counts and places of rounds.


LEVEL = 0.01
"""Highest rate at which steady rounds with normal noise are taken for slow first ones."""

LEAST_EXCESS = 0.05
"""A first round slower by less shifts the mean by less than launches differ."""

FEWEST_REST = 4
"""With which the first ones are compared."""

MOST_SLOW = 20
"""First rounds that are tried; a longer change is a trend, not a warm-up."""


def slow_first_rounds(seconds: Sequence[float]) -> int:
    """How many rounds at the start are slower than every later one, beyond noise: 0 for a steady series.

    The first k rounds are slow if each is slower than all later rounds, by 5 % of their median, and if the fastest of
    the k lies beyond the prediction interval of one more round like the later ones (Hahn, "Factors for Calculating
    Two-Sided Prediction Intervals for Samples from a Normal Distribution", JASA 64, 1969) at level 1 % / 2^k. The
    levels sum to 1 %, which bounds false alarms on normal noise; for noise whose
    orders are equally likely, the sum of (k + 1) / C(n, k) over k does. One outlier among the later rounds is left out;
    it has its own flag.
    """
    most = min(len(seconds) // 2, len(seconds) - FEWEST_REST, MOST_SLOW)
    return max((count for count in range(1, most + 1) if _are_slow(seconds[:count], seconds[count:])), default=0)


def _are_slow(first: Sequence[float], rest: Sequence[float]) -> bool:
    rest = sorted(rest)[:-1] if has_outlier(rest) else rest
    fastest = min(first)
    if fastest <= max(rest) or fastest < (1 + LEAST_EXCESS) * median(rest):
        return False
    scatter = stdev(rest) * sqrt(1 + 1 / len(rest))
    deviations = (fastest - fmean(rest)) / scatter if scatter else inf
    return student_tail(deviations, len(rest) - 1) <= LEVEL / 2 ** len(first)


def student_tail(deviations: float, degrees: int) -> float:
    """P(T > deviations) of Student's t, by Abramowitz and Stegun, 26.7.3 and 26.7.4; deviations >= 0."""
    angle = pi / 2 if deviations == inf else atan(deviations / sqrt(degrees))
    term, total, squared = 1.0, 0.0, cos(angle) ** 2
    odd = degrees % 2
    if odd:
        term = cos(angle)
    for step in range(degrees // 2):
        total += term
        term *= squared * (2 * step + 1 + odd) / (2 * step + 2 + odd)
    within = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return (1 - within) / 2


def steady_from(seconds: Sequence[float]) -> int | None:
    """The round, counted from 1, from which a series is steady; None with a trend or too few rounds."""
    if len(seconds) < FEWEST_REST:
        return None
    slow = slow_first_rounds(seconds)
    return None if has_trend(seconds[slow:]) else slow + 1


def outlier_places(seconds: Sequence[float]) -> list[int]:
    """The round, counted from 1, that causes the spread of those after slow first ones; [] without one."""
    slow = slow_first_rounds(seconds)
    rest = list(seconds[slow:])
    return [slow + 1 + rest.index(max(rest))] if has_outlier(rest) else []


def suggested_warmup_rounds(seconds: Sequence[float], configured: int) -> int | None:
    """As many more as were slow, or twice as many where rounds got faster to the end; None if that is not needed."""
    slow = slow_first_rounds(seconds)
    third = max(1, len(seconds) // 3)
    if not slow and has_trend(seconds) and median(seconds[-third:]) < median(seconds[:third]):
        return 2 * max(1, configured)
    return configured + slow if slow else None


# The results of a warm-up study, as the record holds them: its processes, and how many warm-up rounds are enough.


STUDIED_WARMUP_ROUNDS = (0, 1, 2, 5, 10)
"""Each in its own process."""

LEAVING_OUT_ROUNDS = 5
"""Warm-up rounds of the process whose warm-up omits the timed phase: the suite's default."""


def study_rounds(phase: str, rounds: int) -> int:
    """Rounds of a case's study over all processes except the traced one."""
    leaving_out = (LEAVING_OUT_ROUNDS + rounds) if PHASES[phase].setup_computes else 0
    return sum(STUDIED_WARMUP_ROUNDS) + len(STUDIED_WARMUP_ROUNDS) * rounds + leaving_out


def warmup_values(series: Sequence[Json], first_round: Json, configured_rounds: int) -> Json:
    """The values of the pass. Rounds are numbered from 1 through a whole process, its warm-up included.

    Each of `series` has `warmup_rounds`, `leaves_out_timed_phase`, `warmup_seconds`, `seconds` and `compile_cache`
    (`cold` or `warm` where code was generated: one process may find what another compiled); `first_round` has
    `first_round`, and `first_round_parts`, which go to the process without a warm-up.
    """
    rows = [_row(one, first_round["first_round_parts"] if one["warmup_rounds"] == 0 else {}) for one in series]
    recommended, recommendation = _recommendation(rows, configured_rounds)
    return {
        "series": rows,
        "first_round": first_round["first_round"],
        "configured_warmup_rounds": configured_rounds,
        "recommended_warmup_rounds": recommended,
        "recommendation": recommendation,
        "flags": ["short_warmup"] if recommended > configured_rounds else [],
    }


def _row(series: Json, first_round_parts: Json) -> Json:
    measured = series["seconds"]
    earlier, rounds = _judged(series)
    steady = steady_from(rounds)
    return {
        **series,
        "first_round_parts": first_round_parts,
        "mean_seconds": fmean(measured),
        "std_seconds": stdev(measured) if len(measured) > 1 else 0.0,
        "steady_from_round": None if steady is None else earlier + steady,
        "outliers": [earlier + place for place in outlier_places(rounds)],
    }


def _judged(series: Json) -> tuple[int, list[float]]:
    """The comparable rounds, and how many came before them."""
    if series["leaves_out_timed_phase"]:
        return len(series["warmup_seconds"]), series["seconds"]
    return 0, [*series["warmup_seconds"], *series["seconds"]]


def _recommendation(rows: Sequence[Json], configured: int) -> tuple[int, str]:
    """As many warm-up rounds as the slowest process needed to become steady."""
    whole = [row for row in rows if not row["leaves_out_timed_phase"] and len(_judged(row)[1]) > FEWEST_REST]
    needed = [row["steady_from_round"] - 1 for row in whole if row["steady_from_round"] is not None]
    if not whole:
        return configured, f"Too few rounds to tell; give at least --rounds {FEWEST_REST + 1}."
    if not needed:
        most = max(len(_judged(row)[1]) for row in whole)
        return max(configured, *STUDIED_WARMUP_ROUNDS), (
            f"No process became steady within {most} rounds: the machine's speed drifts, which warm-up cannot fix. "
            "Measure on an idle machine."
        )
    recommended = max(needed)
    return recommended, f"{_enough(recommended, len(needed), len(whole), configured)}{_without_timed_phase(rows)}"


def _enough(recommended: int, steady: int, processes: int, configured: int) -> str:
    is_covered = recommended <= configured
    next_step = f"--warmup-rounds {configured} covers that" if is_covered else f"set --warmup-rounds {recommended}"
    of = (
        f"all {processes} processes"
        if steady == processes
        else f"{steady} of {processes} processes, those that became steady"
    )
    rounds = "1 warm-up round is" if recommended == 1 else f"{recommended or 'no'} warm-up rounds are"
    return f"{rounds} enough in {of}; {next_step}."


def _without_timed_phase(rows: Sequence[Json]) -> str:
    slow = max((slow_first_rounds(row["seconds"]) for row in rows if row["leaves_out_timed_phase"]), default=0)
    if not slow:
        return ""
    return f" After a warm-up without the timed phase, {slow} measured round{'s were' if slow > 1 else ' was'} slow."


# Properties of every kernel table: one sentence for each that is violated.


TOLERANCE = 1e-6
"""Of two computations of one number: rounding alone."""


def inconsistencies(values: Json) -> list[str]:
    found = []
    counts = values.get("launches_of_rounds") or []
    if len(set(counts)) > 1:
        found.append(f"two rounds of the same work launch {' and '.join(map(str, counts))} kernels")
    products = values["matrix_products"]
    if products.get("expected_count") is not None and products["count"] != products["expected_count"]:
        found.append(f"{products['count']} matrix products ran, and the model has {products['expected_count']}")
    for kernel in values["kernels"]:
        if not isclose(kernel["calls"] * kernel["mean_seconds"], kernel["total_seconds"], rel_tol=TOLERANCE):
            calls, mean, total = kernel["calls"], kernel["mean_seconds"], kernel["total_seconds"]
            found.append(f"{kernel['name']}: {calls} calls x mean is {calls * mean:.4g} s, its total {total:.4g} s")
    of_kernels = sum(kernel["share"] for kernel in values["kernels"]) + values["other_kernels"]["share"]
    of_kinds = sum(row["share_of_kernel_time"] for row in values["kinds"])
    for what, share in (("kernels", of_kernels), ("kinds", of_kinds)):
        if not isclose(share, 1.0, rel_tol=TOLERANCE):
            found.append(f"the shares of all {what} add up to {share:.4f}")
    if values["busy_share"] is not None and values["busy_share"] > 1 + TOLERANCE:
        found.append(f"the device is busy for {values['busy_share']:.1%} of the time")
    counts = [row["count"] for row in values["memory_operations"] if row["kind"] == "host-to-device" and row["count"]]
    return found + [f"{n:g} copies from the host to the device ran inside a round, and none should" for n in counts]


def product_shares_that_do_not_fall(passes: Sequence[Json]) -> list[str]:
    """Matrix products take a smaller share of a full step, which includes the optimizer, than of a forward pass."""
    shares: dict[tuple[object, ...], dict[str, float]] = {}
    for row in passes:
        identity = row["identity"]
        cell = tuple(value for name, value in identity.items() if name not in OF_A_PHASE)
        share = row["values"]["matrix_products"]["share_of_kernel_time"]
        shares.setdefault(cell, {})[identity["phase"]] = share
        if identity["phase"] == "full_step":
            shares[cell]["id"] = row["id"]
    return [
        f"{of_phase['id']}: matrix products take {of_phase['full_step']:.1%} of a full step and "
        f"{of_phase['forward']:.1%} of a forward pass; the share should fall"
        for of_phase in shares.values()
        if {"forward", "full_step"} <= of_phase.keys() and of_phase["full_step"] >= of_phase["forward"]
    ]
