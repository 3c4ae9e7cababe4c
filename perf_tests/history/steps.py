"""The commits at which the level of a series moved, found by the library ruptures and tested one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log1p

import numpy as np

LEAST_LAUNCHES = 3
"""The fewest launches on either side of a step: one may be disturbed, and two cannot say which of them is."""
SMALLEST_STEP = 0.02
"""The smallest change that is named a step: launches of one code differ by as much between days."""
FALSE_RATE = 1e-3
"""False alarms of the test of one step between two levels; how often it errs as a whole is measured, not derived."""

PENALTY = 2.5
"""Cost of one change point in units of the kernel, where an outlier costs at most 1: two outliers never make one."""
KERNEL_GAMMA = 0.2
"""Width of the kernel for a signal in units of its own scatter: beyond about three of them, all is equally far."""
FEWEST_PAIRS = 0.37
"""The efficiency of the median absolute deviation (Rousseeuw and Croux 1993): degrees of freedom a point."""
MEDIAN_ERROR = 1.2533
"""The standard error of a median over that of a mean, for normal values: sqrt(pi / 2)."""
NORMAL_DISTANCES = np.array([0.6745, 1.1503])
"""Distances from the middle of normal values to half and to three quarters of them, in standard deviations."""
FINEST = 1e-4
"""The least scatter, in logarithms: clocks resolve no less."""


@dataclass(frozen=True)
class Step:
    """The level changes at place `start` of the series; effects are later / earlier - 1, the interval 95 %."""

    start: int
    effect: float
    interval: tuple[float, float]
    launches_before: int
    launches_after: int


Level = Callable[[int, int], float]
"""The median logarithm of the values from one place to before another."""


def scatter(values: Sequence[float] | np.ndarray) -> float:
    """The standard deviation of one value, from successive differences, so that steps and outliers hardly count.

    By their median distance or by the third quartile, whichever is larger: of launches that fall into two modes the
    median may see only what one of them scatters by.
    """
    differences = np.diff(np.asarray(values, dtype=float))
    if len(differences) == 0:
        return 0.0
    distances = np.quantile(np.abs(differences - np.median(differences)), (0.5, 0.75))
    return float(max(distances / NORMAL_DISTANCES) / 2**0.5)


def steps_of(seconds: Sequence[float], launches: Sequence[int]) -> list[Step]:
    """The steps of a series with one figure a commit, each the median of that commit's launches."""
    values = np.log(np.asarray(seconds, dtype=float))
    starts = _segmentation(values, launches)
    if len(starts) == 2:
        return []
    from scipy.stats import t as student  # takes most of a second

    noise = max(scatter(values), FINEST)
    freedom = max(1.0, FEWEST_PAIRS * (len(values) - 1))
    limit = float(student.isf(FALSE_RATE / 2, freedom))
    level = cache(lambda first, end: float(np.median(values[first:end])))
    while len(starts) > 2:
        weights = [_weight(level, launches, starts, place, noise) for place in range(1, len(starts) - 1)]
        weakest = int(np.argmin(weights))
        if weights[weakest] >= limit:
            break
        del starts[weakest + 1]
    around = float(student.isf(0.025, freedom))
    return [_step(level, launches, starts, place, noise * around) for place in range(1, len(starts) - 1)]


def _segmentation(values: np.ndarray, launches: Sequence[int]) -> list[int]:
    """Places at which segments begin, with both ends: generous, because each border is tested afterwards.

    A commit has as many points as launches, so that the search weighs them; all have the commit's figure.
    """
    ends = np.cumsum(launches)
    if len(ends) < 2 or ends[-1] < 2 * LEAST_LAUNCHES:
        return [0, len(values)]
    from ruptures import KernelCPD  # loads scipy

    signal = np.repeat((values - np.median(values)) / max(scatter(values), FINEST), launches)
    search = KernelCPD(kernel="rbf", min_size=LEAST_LAUNCHES, params={"gamma": KERNEL_GAMMA})
    borders = search.fit(signal[:, None]).predict(pen=PENALTY)[:-1]
    nearest = {int(np.argmin(np.abs(ends - border))) + 1 for border in borders}
    return sorted({0, *nearest, len(values)})


def _weight(level: Level, launches: Sequence[int], starts: Sequence[int], place: int, noise: float) -> float:
    """How many standard errors two neighbouring levels are apart; 0 where no step may be named."""
    first, start, last = starts[place - 1], starts[place], starts[place + 1]
    difference = abs(level(start, last) - level(first, start))
    too_few = min(sum(launches[first:start]), sum(launches[start:last])) < LEAST_LAUNCHES
    if too_few or difference < log1p(SMALLEST_STEP):
        return 0.0
    return difference / (noise * _error(start - first, last - start))


def _error(before: int, after: int) -> float:
    """The standard error of the difference of two medians, in units of one value's."""
    return MEDIAN_ERROR * (1 / before + 1 / after) ** 0.5


def _step(level: Level, launches: Sequence[int], starts: Sequence[int], place: int, noise: float) -> Step:
    first, start, last = starts[place - 1], starts[place], starts[place + 1]
    difference = level(start, last) - level(first, start)
    half = noise * _error(start - first, last - start)
    low, middle, high = (float(np.expm1(value)) for value in (difference - half, difference, difference + half))
    return Step(start, middle, (low, high), sum(launches[first:start]), sum(launches[start:last]))
