"""The round from which the times of one process are steady: a rule with a known false-alarm rate.

In: seconds of rounds in order. Out: counts and places of rounds.
"""

from collections.abc import Sequence
from math import atan, cos, inf, pi, sin, sqrt
from statistics import fmean, median, stdev

from perf_tests.audit.row_flags import has_outlier, has_trend

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
