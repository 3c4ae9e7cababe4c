"""The statistics of the gate, on plain arrays. The unit is the launch pair: one value for each case in each of them.

Every array ends in (..., cases) or (..., cases, pairs); leading dimensions are a batch, with which the simulation
judges thousands of suites by the code that judges one. NaN is a missing value.

The room names `scipy.stats` in full: scipy loads a submodule, for half a second, when it is first used, and most runs
import a gate without judging anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import scipy
from numpy.typing import NDArray

from perf_tests_suite.perf_tests.gate.samples import FEWEST_PAIRS, Clock, GateSamples, Measurement, Rules

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def hodges_lehmann(values: Floats) -> float:
    """The median of all pairwise means, each value with itself too (Hodges and Lehmann, 1963): (n,) to a number.

    It withstands one wild value in four, and on Gaussian values loses 5 % of efficiency where the median loses 36 %.
    """
    first, second = np.triu_indices(len(values))
    return float(np.median((values[first] + values[second]) / 2))


@dataclass(frozen=True)
class Prior:
    """The variances of all cases as draws from one scaled inverse chi-square; arrays (..., 1)."""

    dof: Floats
    """Degrees of freedom that the suite lends to each case; infinite when the cases do not differ."""
    variance: Floats


@dataclass(frozen=True)
class Estimate:
    """Mean log ratio of each case with the inputs of a t test; arrays (..., cases), NaN with too few values."""

    count: Floats
    mean: Floats
    variance: Floats
    dof: Floats
    own: "Estimate | None" = None
    """Each case alone, where its variance was drawn towards the suite's."""

    @property
    def standard_error(self) -> Floats:
        return cast(Floats, np.sqrt(self.variance / self.count))

    def slower_p_values(self, log_ratio: float) -> Floats:
        """One-sided p-values of the hypothesis that a case is slower by no more than `log_ratio`."""
        return cast(Floats, scipy.stats.t.sf(self._in_errors(self.mean - log_ratio), self.dof))

    def faster_p_values(self, log_ratio: float) -> Floats:
        """One-sided p-values of the hypothesis that a case is faster by no more than `log_ratio`."""
        return cast(Floats, scipy.stats.t.cdf(self._in_errors(self.mean + log_ratio), self.dof))

    def _in_errors(self, distance: Floats) -> Floats:
        """`distance` in standard errors; infinitely many where all values are equal."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return distance / self.standard_error

    def upper_limits(self, level: float) -> Floats:
        """Limits that lie below the true log ratio with probability `level`."""
        return self.mean + scipy.stats.t.isf(level, self.dof) * self.standard_error

    def half_widths(self) -> Floats:
        """Half of each 95 % interval. A case that scatters more than the suite needs its own, wider one: the suite's
        variance would cover its truth less often."""
        half = scipy.stats.t.isf(0.025, self.dof) * self.standard_error
        return cast(Floats, half if self.own is None else np.fmax(half, self.own.half_widths()))

    def interval(self, place: int) -> tuple[float, float, float]:
        """The change of one case as a share of base's time, with both ends of its 95 % interval."""
        mean, half = float(self.mean[place]), float(self.half_widths()[place])
        return math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half)


def estimate(values: Floats) -> Estimate:
    """Mean and variance over the last axis, (..., cases, pairs) to (..., cases), each case alone."""
    count = np.sum(~np.isnan(values), axis=-1).astype(np.float64)
    enough = count >= FEWEST_PAIRS
    safe_count = np.where(enough, count, np.nan)
    mean = np.nansum(values, axis=-1) / safe_count
    squares = np.nansum((values - mean[..., None]) ** 2, axis=-1)
    return Estimate(count, mean, np.where(enough, squares / (safe_count - 1), np.nan), safe_count - 1)


def moderated(plain: Estimate, prior: Prior) -> Estimate:
    """`plain` with each variance drawn towards the suite's: Smyth (2004), "Linear models and empirical Bayes methods
    for assessing differential expression in microarray experiments", section 4."""
    finite = np.isfinite(prior.dof)
    weight = np.where(finite, prior.dof, 1.0)
    pooled = (weight * prior.variance + plain.dof * plain.variance) / (weight + plain.dof)
    variance = np.where(finite, pooled, prior.variance + 0 * plain.variance)
    return Estimate(plain.count, plain.mean, variance, prior.dof + plain.dof, plain)


def fit_prior(plain: Estimate) -> Prior:
    """The prior of the variances by the moments of their logarithms: Smyth (2004), section 6.2.

    Fewer than three cases lend no degrees of freedom.
    """
    dof = np.where(plain.variance > 0, plain.dof, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(plain.variance) - scipy.special.digamma(dof / 2) + np.log(dof / 2)
    known = np.sum(~np.isnan(logs), axis=-1, keepdims=True)
    enough = known >= 3
    mean = np.nansum(logs, axis=-1, keepdims=True) / np.maximum(known, 1)
    squares = np.nansum((logs - mean) ** 2, axis=-1, keepdims=True) / np.maximum(known - 1, 1)
    sampling = np.nansum(scipy.special.polygamma(1, dof / 2), axis=-1, keepdims=True) / np.maximum(known, 1)
    excess = squares - sampling
    differ = enough & (excess > 0)
    half = inverse_trigamma(np.where(differ, excess, 1.0))
    variance = np.where(differ, np.exp(mean + scipy.special.digamma(half) - np.log(half)), np.exp(mean))
    return Prior(np.where(enough, np.where(differ, 2 * half, np.inf), 0.0), np.where(enough, variance, 0.0))


def inverse_trigamma(values: Floats) -> Floats:
    """Solve trigamma(x) = value, by Newton's method on the reciprocal, which is convex: Smyth (2004), appendix.

    `values` are positive. Near 0 and infinity, where a step would lose its digits, the leading term of the series.
    """
    inner = np.clip(values, 1e-6, 1e7)
    root = 0.5 + 1 / inner
    for _ in range(50):
        trigamma = scipy.special.polygamma(1, root)
        step = trigamma * (1 - trigamma / inner) / scipy.special.polygamma(2, root)
        root = root + step
        if np.max(-step / root, initial=0.0) < 1e-8:
            break
    return cast(Floats, np.where(values > 1e7, 1 / np.sqrt(values), np.where(values < 1e-6, 1 / values, root)))


def holm(p_values: Floats, level: float | Floats, hypotheses: NDArray[np.int_]) -> Flags:
    """Flags of the p-values that Holm's step-down procedure rejects, (..., cases): Holm (1979).

    `hypotheses` (...) counts the open ones; it may exceed the number of p-values that are not NaN, because a case that
    was cleared early stays in the count.
    """
    filled = np.where(np.isnan(p_values), np.inf, p_values)
    order = np.argsort(filled, axis=-1, kind="stable")
    rank = np.arange(filled.shape[-1])
    left = np.maximum(np.asarray(hypotheses)[..., None] - rank, 1)
    passes = np.take_along_axis(filled, order, axis=-1) <= np.asarray(level)[..., None] / left
    rejected = np.zeros(filled.shape, dtype=bool)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(passes, axis=-1), axis=-1)
    return rejected


def sign_flip_p_value(values: Floats) -> float:
    """One-sided and exact: the share of all 2 ** n choices of signs whose sum is at least that of `values` (n,).

    Valid for any distribution symmetric about zero, which taking turns in random roles ensures. The sums of each half
    are listed and matched, so 30 values take 2 ** 15 sums, not 2 ** 30.
    """
    values = values[~np.isnan(values)]
    total = values.sum()
    rounding = 1e-12 * np.abs(values).sum()
    left, right = _signed_sums(values[: len(values) // 2]), _signed_sums(values[len(values) // 2 :])
    right.sort()
    at_least = len(right) - np.searchsorted(right, total - rounding - left, side="left")
    return float(at_least.sum() / 2.0 ** len(values))


def _signed_sums(values: Floats) -> Floats:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    return sums


def trimmed_means(values: Floats, share: float) -> Floats:
    """Means over the cases, (..., cases, pairs) to (..., pairs), without NaN and the `share` at either end."""
    ordered = np.sort(values, axis=-2)
    count = np.sum(~np.isnan(values), axis=-2, keepdims=True)
    cut = np.floor(share * count)
    place = np.arange(values.shape[-2])[:, None]
    kept = (place >= cut) & (place < count - cut)
    return cast(Floats, np.sum(np.where(kept, ordered, 0.0), axis=-2) / np.maximum(np.sum(kept, axis=-2), 1))


def robust_spread(values: Floats) -> Floats:
    """Median distance from the median over the last axis, times 1.4826, which estimates a Gaussian's deviation."""
    return 1.4826 * known_medians(np.abs(values - known_medians(values)[..., None]))


def known_medians(values: Floats) -> Floats:
    """Medians over the last axis without NaN; NaN where nothing is known. `np.nanmedian` takes a dozen times as long
    on the few pairs of a run, and the engine asks after each of them."""
    ordered = np.sort(values, axis=-1)  # NaN come last
    count = np.sum(~np.isnan(values), axis=-1, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(ordered, np.minimum(count // 2, ordered.shape[-1] - 1), axis=-1)
    return ((low + high) / 2)[..., 0]


# Pair values, and their clock: wall time, or the CPU time of the process, which a busy neighbour hardly affects.

CPU_TIME_ADVANTAGE = 0.8
"""CPU time decides only where its spread is below this fraction of wall time's, because users wait in wall time."""


@dataclass(frozen=True)
class ClockDecision:
    """The clock that decides, with the typical spread of a case's pair values by each clock."""

    clock: Clock
    wall_spread: float
    cpu_spread: float | None
    """None where CPU time was not read on both sides of every case."""

    @property
    def guards(self) -> bool:
        """Whether wall time is checked too, because CPU time misses waiting and lost parallelism."""
        return self.clock == "cpu"


@lru_cache(maxsize=2**16)  # the engine asks again after each launch pair
def pair_value(line: Measurement, clock: Clock) -> float:
    """The log ratio, head over base, of one case in one launch pair: the unit of all inference.

    The Hodges-Lehmann centre over the quadruples of 1/2 [(ln h1 + ln h2) - (ln b1 + ln b2)], in which a steady drift
    cancels; ln h - ln b of two processes that compile. NaN where the clock was not read.
    """
    base, head = line.seconds_by(clock)
    if base is None or head is None:
        return math.nan
    return hodges_lehmann((np.log(head).sum(axis=1) - np.log(base).sum(axis=1)) / base.shape[1])


def pair_values(samples: GateSamples, stage: int, pairs: Sequence[int], clock: Clock) -> Floats:
    """Pair values (cases, pairs) of these launch pairs; NaN where a case was not measured in a pair."""
    row = {case: place for place, case in enumerate(samples.cases)}
    column = {pair: place for place, pair in enumerate(pairs)}
    values = np.full((len(row), len(column)), np.nan)
    for line in samples.measurements:
        if line.stage == stage and line.pair in column:
            values[row[line.case], column[line.pair]] = pair_value(line, clock)
    return values


def decide_clock(samples: GateSamples, rules: Rules, pairs: Sequence[int] | None = None) -> ClockDecision:
    """The clock by which the suite scatters less in these pairs of stage 1, by default all, unless the rules name one.

    The choice biases no test: those of single cases use the fresh launches of stage 2; the first look and the
    suite-wide test split their level between the clocks. Raises ValueError when the rules name CPU time and it was not
    read.
    """
    pairs = samples.pairs(1) if pairs is None else pairs
    wall, cpu = (_typical_spread(pair_values(samples, 1, pairs, clock)) for clock in ("wall", "cpu"))
    screening = [line for line in samples.measurements if line.stage == 1 and line.pair in pairs]
    has_cpu = bool(screening) and all(seconds is not None for line in screening for seconds in line.seconds_by("cpu"))
    if rules.clock == "cpu" and screening and not has_cpu:
        raise ValueError("The gate's clock is cpu, but some cases have no CPU time: choose wall or auto.")
    better = has_cpu and cpu < CPU_TIME_ADVANTAGE * wall
    clock: Clock = "cpu" if rules.clock == "cpu" or (rules.clock == "auto" and better) else "wall"
    return ClockDecision(clock, wall, cpu if has_cpu else None)


def _typical_spread(values: Floats) -> float:
    """The median of the cases' spreads; NaN when no case has two values."""
    values = values[np.sum(~np.isnan(values), axis=1) >= 2]
    return float(np.median(robust_spread(values))) if len(values) else math.nan
