"""Flags of a row, from its own rounds and figures alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import sqrt
from statistics import fmean, median, pstdev
from typing import Any

from perf_tests.audit.plausibility import OUTLIER_SHARE, slow_round

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
