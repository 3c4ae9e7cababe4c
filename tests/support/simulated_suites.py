"""Thousands of gate runs at once on a simulated machine, judged by the very functions that judge a real one.

A pair value is the Hodges-Lehmann centre of quadruples of simulated rounds (`simulated_launches`) and an offset of the
launch pair. All of it is scaled so that the standard deviation of a pair value is what the condition says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perf_tests.gate.samples import Rules
from perf_tests.gate.stages import (
    Confirmed,
    Screened,
    confirm_values,
    confirmed_so_far,
    interim_analyses,
    screen_values,
)
from perf_tests.gate.stages import suite_shift as shift_of_values
from perf_tests.gate.statistics import Flags, Floats
from tests.support.simulated_launches import log_rounds, spread_draws

QUADRUPLES = 8
LAUNCH_SHARE = 0.7
"""Of the variance of a pair value, what the launch itself brings; the rounds within it bring the rest."""

PLACES = np.triu_indices(QUADRUPLES)

PORTION = 500


@dataclass(frozen=True)
class Machine:
    """How a simulated machine scatters."""

    pair_spread: float
    """The standard deviation of a pair value of the median case."""
    case_spread: float = 0.0
    """Cases differ: the standard deviation of the logarithm of their spreads."""
    heavy_tails: bool = False
    common_share: float = 0.0
    """Of the variance of a pair value, what all cases of a launch pair have in common."""


@dataclass(frozen=True)
class JudgedSuites:
    """Runs of the gate: flags (suites, cases), launch pairs and estimates likewise."""

    screened: Screened
    confirmed: Confirmed
    suite_slower: Flags
    """(suites,)"""
    pairs: Floats
    estimates: Floats
    """What would be reported as the effect of a case: a log ratio from the launches that decided."""

    def is_cleared_soon(self, rules: Rules) -> Flags:
        """Which cases are OK by the first look of stage 2, (suites, cases)."""
        soon = self.pairs <= rules.screen_pairs + rules.confirm_looks[0]
        return ~self.confirmed.slower & (~self.screened.candidates | (self.confirmed.cleared & soon))

    @property
    def false_alarms(self) -> Flags:
        """Which runs said SLOWER of anything, (suites,)."""
        return self.confirmed.slower.any(axis=-1) | self.suite_slower


def portions(suites: int) -> list[int]:
    """So many suites in portions, so that memory stays small."""
    return [min(PORTION, suites - start) for start in range(0, suites, PORTION)]


def unit_pair_values(draw: np.random.Generator, count: int, pairs: int, heavy_tails: bool) -> Floats:
    """Pair values of an unchanged case, (count, pairs), with standard deviation 1."""
    rounds = _centres(draw, count * pairs).reshape(count, pairs) / _spread_of_centres()
    launches = spread_draws(draw, (count, pairs), heavy_tails)
    return np.sqrt(LAUNCH_SHARE) * launches + np.sqrt(1 - LAUNCH_SHARE) * rounds


def _centres(draw: np.random.Generator, launches: int) -> Floats:
    """Hodges-Lehmann centres of the quadruples of one launch pair each, (launches,)."""
    turns = log_rounds(draw, launches, 4 * QUADRUPLES).reshape(launches, QUADRUPLES, 4)
    outer_less_inner = (turns[..., 0] + turns[..., 3] - turns[..., 1] - turns[..., 2]) / 2
    differences = outer_less_inner * draw.choice((-1.0, 1.0), (launches, QUADRUPLES))
    return np.median((differences[:, PLACES[0]] + differences[:, PLACES[1]]) / 2, axis=1)


@lru_cache(maxsize=1)
def _spread_of_centres() -> float:
    return float(np.std(_centres(np.random.default_rng(0), 100_000)))


def judged_suites(
    draw: np.random.Generator, machine: Machine, log_ratios: Floats, rules: Rules, suites: int
) -> JudgedSuites:
    """`suites` runs over cases whose true log ratios, head over base, are `log_ratios` (cases,)."""
    cases = len(log_ratios)
    spreads = machine.pair_spread * np.exp(machine.case_spread * draw.normal(size=(suites, cases)))
    everything = np.ones((suites, cases), dtype=bool)
    first = _pair_values(draw, machine, log_ratios, spreads, everything, rules.screen_pairs)
    last = rules.confirm_looks[-1]
    return judged(first, lambda wanted: _pair_values(draw, machine, log_ratios, spreads, wanted, last), rules)


def pair_values_of_stages(
    draw: np.random.Generator, machine: Machine, log_ratios: Floats, rules: Rules, suites: int, pairs: int
) -> tuple[Floats, Floats]:
    """Of at least `pairs` launch pairs in stage 1, and of as many fresh ones: (suites, cases, pairs) each."""
    cases = len(log_ratios)
    spreads = machine.pair_spread * np.exp(machine.case_spread * draw.normal(size=(suites, cases)))
    everything = np.ones((suites, cases), dtype=bool)
    screen_pairs = max(pairs, rules.screen_pairs)
    first, second = (
        _pair_values(draw, machine, log_ratios, spreads, everything, count) for count in (screen_pairs, pairs)
    )
    return first, second


def judged(first: Floats, second_of: Callable[[Flags], Floats], rules: Rules) -> JudgedSuites:
    """Whole runs out of pair values of stage 1, (suites, cases, pairs), and of stage 2 for the cases it wants."""
    first, slower = looked_early(first, rules)
    screened = screen_values(first, rules, slower)
    second = second_of(screened.candidates)
    state = confirmed_so_far(screened, slower)
    used = np.where(screened.candidates, rules.confirm_looks[-1], 0)
    for pairs, share in zip(rules.confirm_looks, rules.look_shares, strict=True):
        level = rules.stage_two_alpha * share
        is_last = pairs == rules.confirm_looks[-1]
        after = confirm_values(second[..., :pairs], screened, state, level, rules, is_last)
        used = np.where(after.decided & ~state.decided, pairs, used)
        state = after
    was_used = np.arange(rules.confirm_looks[-1]) < used[..., None]
    sums = np.sum(np.where(was_used, second, 0.0), axis=-1)
    estimates = np.where(used > 0, sums / np.maximum(used, 1), np.nanmean(first, axis=-1))
    shift = shift_of_values(first).slower_p_values(rules.log_margin)[..., 0]
    pairs = np.sum(~np.isnan(first), axis=-1) + used
    return JudgedSuites(screened, state, shift < rules.alpha * rules.suite_share, pairs, estimates)


def looked_early(first: Floats, rules: Rules) -> tuple[Floats, Flags]:
    """The values of stage 1 that a run measures, NaN where its looks have called a case slower before; these."""
    slower = np.zeros(first.shape[:-1], dtype=bool)
    for look in interim_analyses(rules):
        slower |= look.calls(first[..., : look.pairs], rules)
        is_later = np.arange(first.shape[-1]) >= look.pairs
        first = np.where(slower[..., None] & is_later, np.nan, first)
    return first, slower


def _pair_values(
    draw: np.random.Generator, machine: Machine, log_ratios: Floats, spreads: Floats, wanted: Flags, pairs: int
) -> Floats:
    """Pair values (suites, cases, pairs) of the cases that are `wanted`; NaN for the others, which are not launched."""
    suites, cases = wanted.shape
    common = spread_draws(draw, (suites, pairs), machine.heavy_tails)
    suite, case = np.nonzero(wanted)
    own = unit_pair_values(draw, len(suite), pairs, machine.heavy_tails)
    unit = np.sqrt(1 - machine.common_share) * own + np.sqrt(machine.common_share) * common[suite]
    values = np.full((suites, cases, pairs), np.nan)
    values[suite, case] = log_ratios[case][:, None] + spreads[suite, case][:, None] * unit
    return values
