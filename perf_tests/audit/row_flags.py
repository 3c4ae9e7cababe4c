"""What the rounds and figures of one row say of its own measurement: the flags that need no other row."""

from collections.abc import Mapping, Sequence
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
block of scores (PyTorch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: 256 x 512 numbers at the most, twice going
back), and repacked factors."""


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


def waits_for_host(rounds: Sequence[float], device_seconds: Sequence[float] | None, bound: str | None) -> bool:
    """The wall clock saw more than the device's own although the device has work enough to be the slower."""
    if not device_seconds or bound == "launch":
        return False
    return median(rounds) > HOST_SHARE * median(device_seconds)


def parts_do_not_add_up(rounds: Sequence[float], part_seconds: Mapping[str, Sequence[float]]) -> bool:
    """A step and the parts that were timed inside it."""
    if not part_seconds or not all(part_seconds.values()):
        return False
    sums = [sum(parts) for parts in zip(*part_seconds.values(), strict=True)]
    if len(sums) != len(rounds):
        return True
    shares = [parts / whole for parts, whole in zip(sums, rounds, strict=True)]
    return abs(median(shares) - 1) > PARTS_TOLERANCE


def may_page(rounds: Sequence[float], peak_bytes: int | None, available_bytes: int | None) -> bool:
    """Rounds that scatter where memory is nearly full."""
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
