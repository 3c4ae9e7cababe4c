"""The commits at which the level of a series moved, found by the library ruptures and tested one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, expm1, log1p
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LEAST_LAUNCHES = 3
"""The fewest launches on either side of a step: one may be disturbed, and two cannot say which of them is."""
SMALLEST_STEP = 0.02
"""The smallest change that is named a step: launches of one code differ by as much between days."""
FALSE_RATE = 3e-4
"""False alarms of the test of one step between two levels; how often it errs as a whole is measured, not derived."""

PENALTY = 2.5
"""Cost of one change point in units of the kernel, where an outlier costs at most 1: two outliers never make one."""
KERNEL_GAMMA = 0.2
"""Width of the kernel for a signal in units of its own scatter: beyond about three of them, all is equally far."""
FREEDOM = 0.41, 0.5
"""Degrees of freedom of `scatter`: so many a difference, and so many more; simulated for 4 to 400 normal values."""
FEWEST_COMMITS, FEWEST_CASES = 4, 6
"""Fewer commits have no scatter of their own; fewer cases do not show what all share, which a step would move."""
DAYS_FREEDOM = 10
"""The freedom lent to the assumption that days differ by `SMALLEST_STEP`: until they differ by more."""
MEDIAN_LOSS = 1.5708
"""The variance of a median over that of a mean, for many normal values: pi / 2; of one value they are the same."""
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


Floats = NDArray[np.float64]
Level = Callable[[int, int], float]
"""The median logarithm of the values from one place to before another."""


def scatter(values: Sequence[float] | Floats) -> float:
    """The standard deviation of one value, from successive differences, so that steps and outliers hardly count.

    By their median distance or by the third quartile, whichever is larger: of launches that fall into two modes the
    median may see only what one of them scatters by.
    """
    differences = np.diff(np.asarray(values, dtype=float))
    if len(differences) == 0:
        return 0.0
    # Of four differences, the one with a step would be half of the quartile.
    method: Literal["lower", "linear"] = "lower" if len(differences) < 5 else "linear"
    distances = np.quantile(np.abs(differences), (0.5, 0.75), method=method)
    return float(max(distances / NORMAL_DISTANCES) / 2**0.5)


def noise_of(logs: Floats, within: Floats) -> tuple[Floats, Floats]:
    """How a commit's figure scatters in each row of `logs`, (cases, commits), NaN where one did not measure a case.

    These are the deviation in logarithms, and the freedom of its estimate, both (cases,).

    A young history's cases lend each other freedom, as far as they scatter alike (Smyth 2004; see `moderated`). What
    moves all of them from one commit to the next, a day of the machine, is no case's own scatter: it is estimated apart
    with the freedom of one series, and both are added (Satterthwaite 1946). Where there are few cases or commits, days
    are taken to differ by `SMALLEST_STEP` until they show otherwise, beside what launches do: `within`, (cases,), is
    the variance of a commit's figure by its launches, NaN where no commit has two.
    """
    from scipy.stats import t as student

    from perf_tests.gate.statistics import Estimate, fit_prior, moderated

    counts = np.sum(~np.isnan(logs), axis=1)
    freedoms = np.where(counts >= FEWEST_COMMITS, FREEDOM[0] * (counts - 1) + FREEDOM[1], np.nan)
    is_shared = np.sum(counts >= FEWEST_COMMITS) >= FEWEST_CASES
    together = np.zeros(logs.shape[1])
    if is_shared:
        moves = np.diff(logs)
        known = np.sum(~np.isnan(moves), axis=0) >= FEWEST_CASES
        together[1:][known] = np.nanmedian(moves[:, known], axis=0)
        together = np.cumsum(together)
    own = np.array([max(scatter(row[~np.isnan(row)]), FINEST) ** 2 for row in logs - together])
    own[np.isnan(freedoms)] = np.nan
    found = own**0.5, freedoms
    if is_shared:
        plain = Estimate(np.ones(len(own)), np.zeros(len(own)), own, freedoms)
        lent = moderated(plain, fit_prior(plain))
        day, day_freedom = scatter(together) ** 2, FREEDOM[0] * (logs.shape[1] - 1) + FREEDOM[1]
        freedom = np.minimum(lent.dof, np.nansum(freedoms) * (1 - 1 / len(own)))
        total = lent.variance + day
        found = total**0.5, total**2 / (lent.variance**2 / freedom + day**2 / day_freedom)
    # Those that are left to themselves: by what days are taken to do, where that shows smaller steps.
    known_freedoms = np.nan_to_num(freedoms)
    taken = DAYS_FREEDOM * (SMALLEST_STEP**2 + within) + known_freedoms * np.nan_to_num(own)
    taken_freedoms = DAYS_FREEDOM + known_freedoms
    alone = (taken / taken_freedoms) ** 0.5, taken_freedoms
    limits = [deviations * student.isf(FALSE_RATE / 2, freedom) for deviations, freedom in (alone, found)]
    uses = np.isnan(limits[1]) | ((not is_shared) & (limits[0] < limits[1]))
    return np.where(uses, alone[0], found[0]), np.where(uses, alone[1], found[1])


def steps_of(
    seconds: Floats, launches: NDArray[np.int_], within: Floats | None = None
) -> tuple[list[list[Step]], float | None]:
    """The steps of each case, and the least slowdown of a usual case's newest commit that is found in 4 of 5 histories.

    `seconds` are the medians of commits, (cases, commits), NaN where one did not measure a case; `launches` are as
    many, and `within` is that of `noise_of`. None where no case has launches enough for a step.
    """
    if seconds.shape[1] < 2:
        return [[] for _ in seconds], None
    from scipy.stats import norm  # takes most of a second
    from scipy.stats import t as student

    logs = np.log(seconds)
    noise = noise_of(logs, np.full(len(logs), np.nan) if within is None else within)
    found: list[list[Step]] = []
    least: list[float] = []
    for row, counts, deviation, freedom in zip(logs, launches, *noise, strict=True):
        if np.isnan(freedom):
            found.append([])
            continue
        values, counts = row[~np.isnan(row)], counts[~np.isnan(row)]
        limit, around = (float(student.isf(rate / 2, freedom)) for rate in (FALSE_RATE, 0.05))
        found.append(_steps(values, counts, float(deviation), limit, around))
        newest = ceil(LEAST_LAUNCHES / np.median(counts))
        if newest < len(counts):
            least.append(deviation * _error(len(counts) - newest, newest) * (limit + norm.ppf(0.8)))
    return found, max(SMALLEST_STEP, expm1(np.median(least))) if least else None


def _steps(values: Floats, launches: NDArray[np.int_], noise: float, limit: float, around: float) -> list[Step]:
    """The borders between levels that are `limit` standard errors apart; intervals reach `around` to either side."""
    starts = _segmentation(values, launches, noise)
    level = cache(lambda first, end: float(np.median(values[first:end])))
    while len(starts) > 2:
        weights = [_weight(level, launches, starts, place, noise) for place in range(1, len(starts) - 1)]
        if min(weights) >= (True, limit):
            break
        del starts[weights.index(min(weights)) + 1]
    return [_step(level, launches, starts, place, noise * around) for place in range(1, len(starts) - 1)]


def _segmentation(values: Floats, launches: NDArray[np.int_], noise: float) -> list[int]:
    """Places at which segments begin, with both ends: generous, because each border is tested afterwards.

    A commit has as many points as launches, so that the search weighs them; all have the commit's figure.
    """
    ends = np.cumsum(launches)
    if ends[-1] < 2 * LEAST_LAUNCHES:
        return [0, len(values)]
    from ruptures import KernelCPD  # loads scipy

    signal = np.repeat((values - np.median(values)) / noise, launches)
    search = KernelCPD(kernel="rbf", min_size=LEAST_LAUNCHES, params={"gamma": KERNEL_GAMMA})
    borders = search.fit(signal[:, None]).predict(pen=PENALTY)[:-1]
    nearest = {int(np.argmin(np.abs(ends - border))) + 1 for border in borders}
    return sorted({0, *nearest, len(values)})


def _weight(
    level: Level, launches: NDArray[np.int_], starts: Sequence[int], place: int, noise: float
) -> tuple[bool, float]:
    """Whether a step may be named between two neighbouring levels, and how many standard errors they are apart."""
    first, start, last = starts[place - 1], starts[place], starts[place + 1]
    difference = abs(level(start, last) - level(first, start))
    too_few = min(sum(launches[first:start]), sum(launches[start:last])) < LEAST_LAUNCHES
    # A commit alone may be a day on which the machine was disturbed; the newest one cannot wait for another, nor can
    # the first of two.
    is_alone = (start - first == 1 and len(launches) > 2) or (last - start == 1 and last < len(launches))
    may_be = not (too_few or is_alone or difference < log1p(SMALLEST_STEP))
    return may_be, difference / (noise * _error(start - first, last - start))


def _error(before: int, after: int) -> float:
    """The standard error of the difference of two medians, in units of one value's."""
    return float((median_loss(before) + median_loss(after)) ** 0.5)


def median_loss(count: float) -> float:
    """The variance of the median of so many normal values, in units of one value's; exact within 4 % but of two."""
    return MEDIAN_LOSS / (count + MEDIAN_LOSS - 1)


def _step(level: Level, launches: NDArray[np.int_], starts: Sequence[int], place: int, noise: float) -> Step:
    first, start, last = starts[place - 1], starts[place], starts[place + 1]
    difference = level(start, last) - level(first, start)
    half = noise * _error(start - first, last - start)
    low, middle, high = (expm1(value) for value in (difference - half, difference, difference + half))
    return Step(start, middle, (low, high), int(sum(launches[first:start])), int(sum(launches[start:last])))
