"""The times of what was measured again and again: each statistic is computed once, however often it is shown."""

from collections.abc import Sequence
from functools import cache, cached_property
from math import fsum, sqrt
from statistics import NormalDist, median, quantiles
from typing import Self

PERCENTILES = (50, 95, 99)
FEWEST_FOR_PERCENTILES = 100
"""Times, so that one of them is above the 99th percentile."""

MOST_EXACT = 10_000
"""Times; the exact sum takes a time that grows with their square."""


class Times(tuple[float, ...]):
    """Seconds in the order of measurement. A record may hold millions, so a page must not pass over them each time.

    `median` and `mean` need one, at least.
    """

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """What is known of `seconds` already stays known."""
        return seconds if isinstance(seconds, cls) else cls(seconds)

    @cached_property
    def ordered(self) -> list[float]:
        return sorted(self)

    @cached_property
    def median(self) -> float:
        return median(self.ordered)

    @cached_property
    def mean(self) -> float:
        return fsum(self) / len(self)

    @cached_property
    def deviation(self) -> float | None:
        """Standard deviation with n - 1; None for a single one."""
        if len(self) < 2:
            return None
        return sqrt(fsum((seconds - self.mean) ** 2 for seconds in self) / (len(self) - 1))

    @cached_property
    def percentiles(self) -> dict[int, float]:
        """By percent, interpolated as by numpy's default; empty for fewer than 100 times."""
        if len(self) < FEWEST_FOR_PERCENTILES:
            return {}
        cuts = quantiles(self.ordered, n=100, method="inclusive")
        return {percent: cuts[percent - 1] for percent in PERCENTILES}

    def median_interval(self, confidence: float) -> tuple[float, float] | None:
        """The narrowest symmetric pair of order statistics around the median at `confidence`; None if there is none."""
        skipped = _skipped_on_each_side(len(self), confidence)
        return None if skipped is None else (self.ordered[skipped], self.ordered[-1 - skipped])


@cache
def _skipped_on_each_side(count: int, confidence: float) -> int | None:
    if count > MOST_EXACT:  # by the binomial distribution's normal limit
        return int(count / 2 - NormalDist().inv_cdf((1 + confidence) / 2) * sqrt(count) / 2) - 1
    chosen, below, ways = None, 0, 1
    for skipped in range(count // 2):
        below += ways  # in so many of 2^count cases the median lies below the order statistic number skipped + 1
        if 1 - 2 * (below / 2**count) < confidence:
            break
        chosen = skipped
        ways = ways * (count - skipped) // (skipped + 1)
    return chosen
