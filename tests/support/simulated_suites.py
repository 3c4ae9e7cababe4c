"""Thousands of gate runs at once whose truth is known, judged by the very functions that judge a real one.

On a simulated machine a pair value is the Hodges-Lehmann centre of quadruples of simulated rounds
(`simulated_launches`) and an offset of the launch pair (from a Gaussian, or Student's t with four degrees of freedom),
scaled so that its standard deviation is what the machine says. Recorded launches are relabelled: which process of a
pair is base and which is head is random, so permuting labels makes another run of an unchanged suite that the machine
could as well have produced. Whole launch pairs are drawn, with all that their cases have in common.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from claims.statistics import Share
from perf_tests_suite.perf_tests.gate import stages
from perf_tests_suite.perf_tests.gate.samples import Clock, GateSamples, Rules
from perf_tests_suite.perf_tests.gate.statistics import (
    Estimate,
    Flags,
    Floats,
    estimate,
    fit_prior,
    moderated,
    pair_values,
)
from tests.support.simulated_launches import RULES, log_rounds

CASES, QUADRUPLES = 20, 8
LAUNCH_SHARE = 0.7
"""The share of a pair value's variance that the launch itself brings; the rounds within it bring the rest."""
PLACES = np.triu_indices(QUADRUPLES)
PORTION = 500
"""Suites at once, so that memory stays small."""

SIMULATED_POWER = {0.02: 0.75, 0.03: 0.95, 0.05: 0.99}
"""Power by slowdown, where launch pairs scatter by the claimed spread at most."""
PAIRS_SHOWN = (3, 5, 10, 20)
COVERAGE = 0.95


@dataclass(frozen=True)
class Machine:
    """How a simulated machine scatters."""

    pair_spread: float
    """The standard deviation of a pair value of the median case."""
    case_spread: float = 0.0
    """Cases differ: the standard deviation of the logarithm of their spreads."""
    heavy_tails: bool = False
    common_share: float = 0.0
    """The share of a pair value's variance that all cases of a launch pair have in common."""

    def spreads(self, draw: np.random.Generator, suites: int, cases: int) -> Floats:
        return self.pair_spread * np.exp(self.case_spread * draw.normal(size=(suites, cases)))

    def offsets(self, draw: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Draws of mean 0 and standard deviation 1."""
        return draw.standard_t(4, shape) / np.sqrt(2) if self.heavy_tails else draw.normal(size=shape)

    def pair_values(
        self, draw: np.random.Generator, log_ratios: Floats, spreads: Floats, wanted: Flags, pairs: int
    ) -> Floats:
        """Pair values (suites, cases, pairs) of the `wanted` cases; NaN for the others, which are not launched."""
        common = self.offsets(draw, (len(wanted), pairs))
        suite, case = np.nonzero(wanted)
        rounds = _centres(draw, len(suite) * pairs).reshape(len(suite), pairs) / _spread_of_centres()
        own = np.sqrt(LAUNCH_SHARE) * self.offsets(draw, rounds.shape) + np.sqrt(1 - LAUNCH_SHARE) * rounds
        unit = np.sqrt(1 - self.common_share) * own + np.sqrt(self.common_share) * common[suite]
        values = np.full((*wanted.shape, pairs), np.nan)
        values[suite, case] = log_ratios[case][:, None] + spreads[suite, case][:, None] * unit
        return values


def _centres(draw: np.random.Generator, launches: int) -> Floats:
    """Hodges-Lehmann centres of the quadruples of one launch pair each, (launches,)."""
    turns = log_rounds(draw, launches, 4 * QUADRUPLES).reshape(launches, QUADRUPLES, 4)
    outer_less_inner = (turns[..., 0] + turns[..., 3] - turns[..., 1] - turns[..., 2]) / 2
    differences = outer_less_inner * draw.choice((-1.0, 1.0), (launches, QUADRUPLES))
    return np.median((differences[:, PLACES[0]] + differences[:, PLACES[1]]) / 2, axis=1)


@cache
def _spread_of_centres() -> float:
    return float(np.std(_centres(np.random.default_rng(0), 100_000)))


@dataclass(frozen=True)
class JudgedSuites:
    """Runs of the gate: flags and launch pairs (suites, cases)."""

    screened: stages.Screened
    confirmed: stages.Confirmed
    pairs: Floats
    estimates: Floats
    """What would be reported as the effect of a case: a log ratio from the launches that decided."""
    false_alarms: Flags
    """Return which runs said SLOWER of anything, (suites,)."""

    @property
    def cleared_soon(self) -> Flags:
        """Return which cases are OK by the first look of stage 2."""
        soon = self.pairs <= RULES.screen_pairs + RULES.confirm_looks[0]
        return ~self.confirmed.slower & (~self.screened.candidates | (self.confirmed.cleared & soon))


def nothing_confirmed(screened: stages.Screened) -> stages.Confirmed:
    """The state before the first look of stage 2, where those of stage 1 called nothing SLOWER."""
    return stages.Confirmed(*3 * [np.zeros_like(screened.candidates)])


def judged(first: Floats, second_of: Callable[[Flags], Floats], rules: Rules = RULES) -> JudgedSuites:
    """Whole runs out of pair values of stage 1, (suites, cases, pairs), and of stage 2 for the cases it wants."""
    first, slower = looked_early(first, rules)
    screened = stages.screen_values(first, rules).without(slower)
    second, state = second_of(screened.candidates), replace(nothing_confirmed(screened), slower=slower)
    used = np.where(screened.candidates, rules.confirm_looks[-1], 0)
    for pairs, share in zip(rules.confirm_looks, rules.look_shares, strict=True):
        is_last = pairs == rules.confirm_looks[-1]
        after = stages.confirm_values(
            second[..., :pairs], screened, state, rules.stage_two_alpha * share, rules, is_last
        )
        used = np.where(after.decided & ~state.decided, pairs, used)
        state = after
    sums = np.sum(np.where(np.arange(second.shape[-1]) < used[..., None], second, 0.0), axis=-1)
    estimates = np.where(used > 0, sums / np.maximum(used, 1), np.nanmean(first, axis=-1))
    shifted = stages.suite_shift(first).slower_p_values(rules.log_margin)[..., 0] < rules.alpha * rules.suite_share
    alarms = state.slower.any(axis=-1) | shifted
    return JudgedSuites(screened, state, np.sum(~np.isnan(first), axis=-1) + used, estimates, alarms)


def looked_early(first: Floats, rules: Rules = RULES) -> tuple[Floats, Flags]:
    """The values of stage 1 that a run measures, NaN where its looks have called a case slower before; these."""
    slower = np.zeros(first.shape[:-1], dtype=bool)
    for look in stages.interim_analyses(rules):
        slower |= look.calls(first[..., : look.pairs], rules)
        first = np.where(slower[..., None] & (np.arange(first.shape[-1]) >= look.pairs), np.nan, first)
    return first, slower


def judged_suites(draw: np.random.Generator, machine: Machine, log_ratios: Floats, suites: int) -> JudgedSuites:
    """`suites` runs over cases whose true log ratios, head over base, are `log_ratios` (cases,)."""
    spreads = machine.spreads(draw, suites, len(log_ratios))
    first = machine.pair_values(draw, log_ratios, spreads, spreads > 0, RULES.screen_pairs)
    last = RULES.confirm_looks[-1]
    return judged(first, lambda wanted: machine.pair_values(draw, log_ratios, spreads, wanted, last))


def alarms_of_unchanged(draw: np.random.Generator, machine: Machine, slower: float, suites: int) -> tuple[Share, float]:
    """Runs that call anything SLOWER though every case is slower by `slower` alone; the share cleared soon."""
    truth = np.full(CASES, math.log1p(slower))
    sizes = [min(PORTION, suites - start) for start in range(0, suites, PORTION)]
    runs = [judged_suites(draw, machine, truth, size) for size in sizes]
    cleared = float(np.mean([run.cleared_soon.mean() for run in runs]))
    return Share(sum(int(run.false_alarms.sum()) for run in runs), suites), cleared


def planted(draw: np.random.Generator, machine: Machine, slowdown: float, trials: int) -> tuple[Share, int, float]:
    """One slow case in each suite: found how often, called OK how often, and the mean error of its estimate."""
    truth = np.zeros(CASES)
    truth[0] = math.log1p(slowdown)
    run = judged_suites(draw, machine, truth, trials)
    slower, cleared = run.confirmed.slower[:, 0], run.confirmed.cleared[:, 0] | ~run.screened.candidates[:, 0]
    bias = float(np.mean(run.estimates[:, 0]) - truth[0])
    return Share(int(slower.sum()), trials), int(np.sum(cleared & ~slower)), bias


def coverage(
    draw: np.random.Generator, machine: Machine, slower: float, suites: int, pairs: int
) -> tuple[Share, Share]:
    """Intervals that cover the truth: of all cases after so many pairs, and of suspects after as many fresh ones.

    Stage 2 measures the cases that scatter more than the suite, whose variance would make their intervals too narrow.
    """
    truth, spreads = np.full(CASES, math.log1p(slower)), machine.spreads(draw, suites, CASES)
    counts = max(pairs, RULES.screen_pairs), pairs
    first, second = (machine.pair_values(draw, truth, spreads, spreads > 0, count) for count in counts)
    alone = estimate(first[..., :pairs])
    screened = stages.screen_values(first[..., : RULES.screen_pairs], RULES)
    fresh = moderated(estimate(np.where(screened.candidates[..., None], second, np.nan)), screened.prior)
    return covers(moderated(alone, fit_prior(alone)), truth), covers(fresh, truth)


def covers(found: Estimate, truth: Floats | float) -> Share:
    inside = np.abs(found.mean - truth) <= found.half_widths()
    return Share(int(inside.sum()), int(np.sum(~np.isnan(found.mean))))


def recorded_values(runs: Sequence[GateSamples], clock: Clock) -> Floats:
    """Pair values in stage 1 of the cases that every run measured, (pairs, cases), without pairs with holes."""
    cases = [case for case in runs[0].cases if all(case in run.cases for run in runs)]
    places = [[run.cases.index(case) for case in cases] for run in runs]
    values = np.concatenate(
        [pair_values(run, 1, run.pairs(1), clock)[at].T for run, at in zip(runs, places, strict=True)]
    )
    values = values[:, ~np.all(np.isnan(values), axis=0)]
    return values[~np.any(np.isnan(values), axis=1)]


def relabelled(draw: np.random.Generator, values: Floats, suites: int, shift: float = 0.0) -> Share:
    """Runs that call anything SLOWER, of `suites` from recorded pair values (pairs, cases), each slower by `shift`."""

    def drawn(pairs: int) -> Floats:
        chosen = values[draw.integers(0, len(values), (PORTION, pairs))]
        return np.moveaxis(chosen * draw.choice((-1.0, 1.0), (PORTION, pairs, 1)), 1, 2) + shift

    def second_of(wanted: Flags) -> Floats:
        return np.where(wanted[..., None], drawn(RULES.confirm_looks[-1]), np.nan)

    runs = [judged(drawn(RULES.screen_pairs), second_of) for _ in range(suites // PORTION)]
    return Share(sum(int(run.false_alarms.sum()) for run in runs), suites)
