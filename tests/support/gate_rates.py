"""Error rates of the gate where the truth is known: simulated suites, and recorded launches with drawn labels.

Which process of a launch pair is base and which is head is random, so permuting the labels of recorded launches of one
code makes another run of an unchanged suite that the machine could as well have produced. Whole launch pairs are drawn,
with all that their cases have in common. Everything is judged by the functions that judge a real run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from claims.statistics import Share
from perf_tests.gate.samples import Clock, GateSamples, Rules
from perf_tests.gate.stages import InterimAnalysis, screen_values, spreads_slower, stage_two_estimate
from perf_tests.gate.statistics import (
    Estimate,
    Flags,
    Floats,
    estimate,
    fit_prior,
    moderated,
    pair_values,
    sign_flip_p_value,
)
from tests.support.simulated_suites import (
    JudgedSuites,
    Machine,
    judged,
    judged_suites,
    pair_values_of_stages,
    portions,
    unit_pair_values,
)

CASES = 20
RULES = Rules()

UNCHANGED = {
    "spread 1 %, Gaussian": (Machine(0.01), 0.0),
    "spread 2 %, Gaussian": (Machine(0.02), 0.0),
    "spread 2 %, cases differ": (Machine(0.02, 0.5), 0.0),
    "spread 2 %, cases differ, t4": (Machine(0.02, 0.5, heavy_tails=True), 0.0),
    "spread 3 %, cases differ, t4, 30 % common": (Machine(0.03, 0.5, heavy_tails=True, common_share=0.3), 0.0),
    "spread 3 %, each slower by the margin": (Machine(0.03, 0.5), RULES.margin),
}
"""Machines, and by how much every case is slower; up to the margin, nothing may be called SLOWER."""

SPREADS = (0.005, 0.01, 0.02, 0.03)
SLOWDOWNS = (0.01, 0.02, 0.03, 0.05, 0.10)
SIMULATED_POWER = {0.02: 0.75, 0.03: 0.95, 0.05: 0.99}
"""Power by slowdown, where launch pairs scatter by the claimed spread at most."""
CLAIMED_SPREAD = 0.02
CLAIMED_BIAS = 0.005
CLAIMED_CLEARED = 0.95
"""Share of unchanged cases that is cleared by the first look of stage 2 where no case scatters by more than this."""
CALM_SPREAD = 0.01


PAIRS_SHOWN = (3, 5, 10, 20)
COVERAGE = 0.95


def unchanged_runs(draw: np.random.Generator, machine: Machine, slowdown: float, suites: int) -> list[JudgedSuites]:
    truth = np.full(CASES, math.log1p(slowdown))
    return [judged_suites(draw, machine, truth, RULES, size) for size in portions(suites)]


def null_p_values(draw: np.random.Generator, suites: int, pairs: int) -> tuple[Floats, Floats, Floats]:
    """One-sided p-values (cases of all suites,): t, moderated t, and exact under heavy tails.

    The spreads of a suite come from the scaled inverse chi-square that the moderation supposes, with 8 degrees of
    freedom; the prior is fitted on other launches, as in a run.
    """
    spreads = 0.02 * np.sqrt(8 / draw.chisquare(8, (suites, CASES, 1)))
    first = spreads * draw.normal(size=(suites, CASES, RULES.screen_pairs))
    second = spreads * draw.normal(size=(suites, CASES, pairs))
    plain = estimate(second).slower_p_values(0.0)
    moderated = stage_two_estimate(second, fit_prior(estimate(first))).slower_p_values(0.0)
    heavy = unit_pair_values(draw, suites * CASES, pairs, heavy_tails=True)
    return plain.ravel(), moderated.ravel(), np.asarray([sign_flip_p_value(values) for values in heavy])


def planted(draw: np.random.Generator, machine: Machine, slowdown: float, trials: int) -> tuple[Share, int, float]:
    """One slow case in each suite: found how often, called OK how often, and the mean error of its estimate."""
    truth = np.zeros(CASES)
    truth[0] = math.log1p(slowdown)
    run = judged_suites(draw, machine, truth, RULES, trials)
    slower, cleared = run.confirmed.slower[:, 0], run.confirmed.cleared[:, 0] | ~run.screened.candidates[:, 0]
    return (
        Share(int(slower.sum()), trials),
        int(np.sum(cleared & ~slower)),
        float(np.mean(run.estimates[:, 0]) - truth[0]),
    )


def coverage(
    draw: np.random.Generator, machine: Machine, slowdown: float, suites: int, pairs: int
) -> tuple[Share, Share]:
    """Intervals that cover the truth: of all cases after so many pairs, and of suspects after as many fresh ones.

    Stage 2 measures the cases that scatter more than the suite, whose variance would make their intervals too narrow.
    """
    truth = np.full(CASES, math.log1p(slowdown))
    first, second = pair_values_of_stages(draw, machine, truth, RULES, suites, pairs)
    alone = estimate(first[..., :pairs])
    screened = screen_values(first[..., : RULES.screen_pairs], RULES)
    everyone = moderated(alone, fit_prior(alone))
    fresh = stage_two_estimate(np.where(screened.candidates[..., None], second, np.nan), screened.prior)
    return _covers(everyone, truth), _covers(fresh, truth)


def _covers(found: Estimate, truth: Floats) -> Share:
    inside = np.abs(found.mean - truth) <= found.half_widths()
    return Share(int(inside.sum()), int(np.sum(~np.isnan(found.mean))))


def recorded_values(runs: Sequence[GateSamples], clock: Clock) -> tuple[list[str], Floats]:
    """The cases that every run measured, and their pair values in stage 1, (pairs, cases), without pairs with holes."""
    cases = [case for case in runs[0].cases if all(case in run.cases for run in runs)]
    found = []
    for run in runs:
        place = [run.cases.index(case) for case in cases]
        found.append(pair_values(run, 1, run.pairs(1), clock)[place].T)
    values = np.concatenate(found)
    measured = ~np.all(np.isnan(values), axis=0)
    values = values[:, measured]
    cases = [case for case, flag in zip(cases, measured, strict=True) if flag]
    return cases, values[~np.any(np.isnan(values), axis=1)]


def relabelled_runs(draw: np.random.Generator, values: Floats, suites: int, shift: Floats) -> JudgedSuites:
    """Runs from recorded pair values (pairs, cases), to which `shift` (suites, cases) is added."""

    def drawn(pairs: int) -> Floats:
        chosen = draw.integers(0, len(values), (suites, pairs))
        coins = draw.choice((-1.0, 1.0), (suites, pairs, 1))
        return np.moveaxis(values[chosen] * coins, 1, 2) + shift[..., None]

    def second_of(wanted: Flags) -> Floats:
        return np.where(wanted[..., None], drawn(RULES.confirm_looks[-1]), np.nan)

    return judged(drawn(RULES.screen_pairs), second_of, RULES)


@dataclass(frozen=True)
class Relabelled:
    """Results of runs with permuted labels."""

    alarms: Share
    """Runs that call anything SLOWER."""
    cleared: float
    """Share of the cases cleared by the first look of stage 2."""
    pairs: float
    """Launch pairs that a case took."""


def relabelled(draw: np.random.Generator, values: Floats, suites: int) -> Relabelled:
    """`suites` runs of unchanged code."""
    runs = [relabelled_runs(draw, values, size, np.zeros((size, values.shape[1]))) for size in portions(suites)]
    alarms = Share(sum(int(run.false_alarms.sum()) for run in runs), suites)
    cleared = float(np.mean([run.is_cleared_soon(RULES).mean() for run in runs]))
    pairs = float(np.mean([run.pairs.mean() for run in runs]))
    return Relabelled(alarms, cleared, pairs)


def looks_taken(runs: Sequence[GateSamples], clock: Clock, look: InterimAnalysis) -> tuple[list[bool], list[float]]:
    """Say which looks call anything slower, and how many spreads the cases above the limit in every pair are slower."""
    called, spreads = [], []
    for run in runs:
        values = pair_values(run, 1, run.pairs(1), clock)
        for start in range(0, values.shape[1] - look.pairs + 1, look.pairs):
            for taken in (values[:, start : start + look.pairs], -values[:, start : start + look.pairs]):
                called.append(bool(look.calls(taken, RULES).any()))
                spreads += spreads_slower(taken)[np.all(taken > look.above, axis=1)].tolist()
    return called, spreads


def recorded_coverage(values: Floats, pairs: int) -> Share:
    """Intervals that cover 0, of so many launch pairs in a row, each used once, from pair values (pairs, cases)."""
    runs = values[: len(values) // pairs * pairs].reshape(-1, pairs, values.shape[1]).swapaxes(1, 2)
    alone = estimate(runs)
    shown = moderated(alone, fit_prior(alone))
    return Share(int(np.sum(np.abs(shown.mean) <= shown.half_widths())), shown.mean.size)
