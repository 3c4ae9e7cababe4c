"""Two figures with a 95 % interval: a relative frequency, and how many times as long one side takes as the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Share:
    """`count` of `of`, with the exact limits of Clopper and Pearson (1934)."""

    count: int
    of: int

    @property
    def limits(self) -> tuple[float, float]:
        """The two-sided interval at 95 %."""
        tail = (1 - CONFIDENCE) / 2
        low = float(beta.ppf(tail, self.count, self.of - self.count + 1)) if self.count else 0.0
        high = float(beta.isf(tail, self.count + 1, self.of - self.count)) if self.count < self.of else 1.0
        return low, high

    @property
    def upper_limit(self) -> float:
        """The one-sided upper limit of the rate at 95 %."""
        missed = self.of - self.count
        return float(beta.isf(1 - CONFIDENCE, self.count + 1, missed)) if missed else 1.0

    def __str__(self) -> str:
        """`8 of 20, 40% (19% to 64%)`."""
        low, high = self.limits
        return (
            f"{self.count} of {self.of}, {self.count / self.of:.0%} ({low:.0%} to {high:.0%})" if self.of else "0 of 0"
        )


FEWEST_PAIRS = 6
"""Even pairs that all agree leave 2 / 2 ** n > 5 % to chance where there are fewer: no 95 % interval exists."""


@dataclass(frozen=True)
class PairedRatio:
    """The ratio and its interval; 1.05 takes 5 % longer."""

    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def paired_ratio(seconds: Sequence[float], reference_seconds: Sequence[float]) -> PairedRatio:
    """`seconds` over `reference_seconds`, whose values at one place were measured next to each other.

    The Hodges-Lehmann estimate of the logarithms' differences, which is the median of all their pairwise means, and
    Tukey's interval out of the signed-rank distribution: Hollander, Wolfe and Chicken, "Nonparametric Statistical
    Methods", 3rd edition, 2014, equations 3.23 and 3.27. It asks for independent differences that scatter alike to
    both sides, which is what taking turns in both orders gives. Raises ValueError for fewer than six pairs.
    """
    differences = np.log(np.asarray(seconds, dtype=float)) - np.log(np.asarray(reference_seconds, dtype=float))
    pairs = len(differences)
    if pairs < FEWEST_PAIRS:
        raise ValueError(f"{pairs} pairs are too few for a {CONFIDENCE:.0%} interval; take at least {FEWEST_PAIRS}.")
    first, second = np.triu_indices(pairs)
    means = np.sort((differences[first] + differences[second]) / 2)
    outside = means_outside(pairs, (1 - CONFIDENCE) / 2)
    return PairedRatio(
        ratio=math.exp(float(np.median(means))),
        low=math.exp(float(means[outside])),
        high=math.exp(float(means[-1 - outside])),
        pairs=pairs,
    )


def paired_ratio_of_turns(seconds: Sequence[float], reference_seconds: Sequence[float]) -> PairedRatio:
    """The same for turns taken as reference, side, side, reference: every two values of a side are one of a pair.

    The mean of the outer two stands at the same moment as that of the inner two, so a steady drift cancels.
    """
    return paired_ratio(_geometric_means_of_two(seconds), _geometric_means_of_two(reference_seconds))


def means_outside(count: int, probability: float) -> int:
    """How many of the sorted pairwise means lie beyond either limit: the largest k with P(T <= k) <= `probability`.

    T is Wilcoxon's signed-rank statistic of `count` differences about zero: each rank is in the sum or not, evenly.
    """
    probabilities = np.zeros(count * (count + 1) // 2 + 1)
    probabilities[0] = 1.0
    for rank in range(1, count + 1):
        with_rank = np.concatenate((np.zeros(rank), probabilities[:-rank]))
        probabilities = (probabilities + with_rank) / 2
    return int(np.searchsorted(np.cumsum(probabilities), probability, side="right")) - 1


def _geometric_means_of_two(seconds: Sequence[float]) -> list[float]:
    return [math.sqrt(first * second) for first, second in zip(seconds[::2], seconds[1::2], strict=True)]
