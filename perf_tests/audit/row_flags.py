"""What the rounds and figures of one row say of its own measurement: the flags that need no other row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import sqrt
from statistics import fmean, median, pstdev

from perf_tests.audit.plausibility import OUTLIER_SHARE, slow_round

OUTLIER_AGREEMENT = 0.1
TREND_DEVIATIONS = 2.58
"""Two-sided 1 % of Mann and Kendall's test, in standard deviations."""
TREND_LEAST_CHANGE = 0.05
HOST_SHARE = 1.05
PARTS_TOLERANCE = 0.05
PAGING_SPREAD = 0.3
MEMORY_NEARLY_FULL = 0.9
PEAK_TOLERANCE = 0.01
WORKSPACE_BYTES = 4 * 32 * 2**20
"""cuBLAS takes up to 32 MiB for each of a few handles out of the same allocator, and no model asks for it."""
CPU_WORKSPACE_BYTES_PER_THREAD = 2 * 2**20
"""What the CPU's fused attention and its 16-bit products take for themselves out of the same allocator: each thread a
block of scores (PyTorch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: 256 x 512 numbers at most, twice going
back), and repacked factors."""


@dataclass(frozen=True)
class RowFacts:
    """What the rules ask of one row, by the names of `extra_info` where it holds them; None where it is not known."""

    rounds_seconds: Sequence[float] = ()
    device_seconds: Sequence[float] | None = None
    part_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    bound: str | None = None
    peak_allocated_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    workspace_bytes: int = WORKSPACE_BYTES
    available_bytes: int | None = None
    sdpa_backend: str | None = None
    recompiles: int | None = None
    skipped_steps: int | None = None
    suggested_warmup_rounds: int | None = None
    throttled_rounds: Sequence[int] | None = None
    is_over_ceiling: bool = False


def has_outlier(rounds: Sequence[float]) -> bool:
    """One round so slow that it alone makes the spread: the formula's slow round is the slowest there is."""
    if len(rounds) < 4 or pstdev(rounds) <= OUTLIER_SHARE * fmean(rounds):
        return False
    pair = slow_round(fmean(rounds), pstdev(rounds), len(rounds))
    return pair is not None and abs(max(rounds) / pair[1] - 1) <= OUTLIER_AGREEMENT


def has_trend(rounds: Sequence[float]) -> bool:
    """Later rounds are slower, or faster, than earlier ones (Mann, Econometrica 13, 1945), by 5 % or more."""
    count = len(rounds)
    if count < 8:
        return False
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(rounds, 2))
    deviation = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    third = count // 3
    change = median(rounds[-third:]) / median(rounds[:third]) - 1
    return abs(score) - 1 > TREND_DEVIATIONS * deviation and abs(change) >= TREND_LEAST_CHANGE


def waits_for_host(facts: RowFacts) -> bool:
    """The wall clock saw more than the device's own although the device has work enough to be the slower."""
    if not facts.device_seconds or facts.bound == "launch":
        return False
    return median(facts.rounds_seconds) > HOST_SHARE * median(facts.device_seconds)


def parts_do_not_add_up(facts: RowFacts) -> bool:
    """A step and the parts that were timed inside it, round by round."""
    if not facts.part_seconds or not all(facts.part_seconds.values()):
        return False
    sums = [sum(parts) for parts in zip(*facts.part_seconds.values(), strict=True)]
    if len(sums) != len(facts.rounds_seconds):
        return True
    shares = [parts / whole for parts, whole in zip(sums, facts.rounds_seconds, strict=True)]
    return abs(median(shares) - 1) > PARTS_TOLERANCE


def may_page(facts: RowFacts) -> bool:
    """Rounds that scatter where memory is nearly full."""
    rounds, peak_bytes, available_bytes = facts.rounds_seconds, facts.predicted_peak_bytes, facts.available_bytes
    if peak_bytes is None or not available_bytes or len(rounds) < 2:
        return False
    return peak_bytes > MEMORY_NEARLY_FULL * available_bytes and pstdev(rounds) > PAGING_SPREAD * fmean(rounds)


def peak_is_off(
    peak_allocated_bytes: int | None, predicted_peak_bytes: int | None, workspace_bytes: int = WORKSPACE_BYTES
) -> bool:
    """An allocator's peak that the counters do not explain, `workspace_bytes` of libraries apart."""
    if peak_allocated_bytes is None or predicted_peak_bytes is None:
        return False
    above = peak_allocated_bytes - predicted_peak_bytes
    tolerance = PEAK_TOLERANCE * predicted_peak_bytes
    return not -tolerance <= above <= tolerance + workspace_bytes


@dataclass(frozen=True)
class Flag:
    """When a row carries it, and what it tells a person."""

    rule: Callable[[RowFacts], bool]
    sentence: str


FLAGS = {
    "math_attention": Flag(lambda facts: facts.sdpa_backend == "math",
        "scaled_dot_product_attention took the unfused math path"),
    "recompiled": Flag(lambda facts: bool(facts.recompiles),
        "torch.compile generated code inside the measured rounds"),
    "skipped_steps": Flag(lambda facts: bool(facts.skipped_steps),
        "the gradient scaler skipped optimizer steps in the measured rounds"),
    "outlier": Flag(lambda facts: has_outlier(facts.rounds_seconds),
        "one round was so much slower that it alone makes the spread"),
    "short_warmup": Flag(lambda facts: facts.suggested_warmup_rounds is not None,
        "its first rounds were slower than the rest, or its rounds got faster: the warm-up was too short"),
    "trend": Flag(lambda facts: has_trend(facts.rounds_seconds),
        "later rounds took another time than earlier ones, by 5 % or more"),
    "throttled": Flag(lambda facts: bool(facts.throttled_rounds),
        "power or heat held the GPU's clocks down at the end of measured rounds (throttled_rounds)"),
    "over_ceiling": Flag(lambda facts: facts.is_over_ceiling,
        "its products ran faster than the best square one measured here, which was taken in the same noise"),
    "waits_for_host": Flag(waits_for_host,
        "the wall clock saw over 5 % more than the device's own although launches do not bound it"),
    "parts_do_not_add_up": Flag(parts_do_not_add_up,
        "the parts timed inside the step and the step itself are over 5 % apart"),
    "paging": Flag(may_page,
        "rounds scatter while memory is nearly full, as if it were paged to the host"),
    "peak_off": Flag(
        lambda facts: peak_is_off(facts.peak_allocated_bytes, facts.predicted_peak_bytes, facts.workspace_bytes),
        "the allocator's peak is not the predicted one within 1 % and what libraries take for themselves"),
}  # fmt: skip
"""Every flag that a row may carry in `flags`, in the order in which they are written."""


def raised(facts: RowFacts) -> list[str]:
    """Names of the flags whose rule the facts meet."""
    return [name for name, flag in FLAGS.items() if flag.rule(facts)]
