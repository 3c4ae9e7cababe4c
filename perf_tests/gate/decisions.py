"""The two stages of the gate on arrays of pair values: screen the whole suite, confirm the suspects on fresh launches.

A run without a change reports SLOWER with probability at most alpha, however the cases depend on each other: given
stage 1, the set of suspects is fixed, and the launches of stage 2 are fresh, so the p-values of a case that is not
slower by more than the margin are valid there. Holm's procedure over all suspects holds each look to its share of
alpha, and the shares add up to alpha. A cleared case stays in Holm's count; a rejected one leaves it, as in the
sequentially rejective procedures of Maurer and Bretz (2013). Stage 1 only selects, so its own level is free.
"""

from dataclasses import dataclass, replace

import numpy as np

from perf_tests.gate.rules import Rules
from perf_tests.gate.statistics import (
    Estimate,
    Flags,
    Floats,
    Prior,
    estimate,
    fit_prior,
    holm,
    moderated,
    sign_flip_p_value,
    trimmed_means,
)

SIGN_FLIP_ALLOWANCE = 5
"""The exact test must agree at this multiple of the level; it catches values far from a t distribution."""

TRIMMED_SHARE = 0.2
"""At either end of the cases of a pair: the usual choice of a trimmed mean."""

FEWEST_CASES_OF_A_SUITE = 5
"""So that trimming leaves out a case at either end."""


@dataclass(frozen=True)
class Screened:
    """The result of stage 1; flags are (..., cases)."""

    estimate: Estimate
    prior: Prior
    slower_suspects: Flags
    faster_suspects: Flags
    too_noisy: Flags
    """Not suspected, but a slowdown that matters is not excluded."""

    @property
    def candidates(self) -> Flags:
        """The cases that stage 2 measures."""
        return self.slower_suspects | self.faster_suspects | self.too_noisy


@dataclass(frozen=True)
class Confirmed:
    """Decisions of stage 2 so far; flags are (..., cases)."""

    slower: Flags
    faster: Flags
    cleared: Flags

    @property
    def decided(self) -> Flags:
        return self.slower | self.faster | self.cleared


def screen_values(values: Floats, rules: Rules, decided: Flags | None = None) -> Screened:
    """Stage 1 on pair values (..., cases, pairs); what its looks have `decided` is no candidate."""
    plain = estimate(values)
    prior = fit_prior(plain)
    found = moderated(plain, prior)
    slower = looks_slower(found, rules)
    faster = found.faster_p_values(0.0) < rules.faster_screen_level
    unclear = ~(found.upper_limits(rules.screen_clearing_level) < rules.log_matters) & (found.count > 0)
    screened = Screened(found, prior, slower, faster, unclear & ~slower)
    return screened if decided is None else without(screened, decided)


def looks_slower(found: Estimate, rules: Rules) -> Flags:
    """Enough for stage 1 to suspect a case, and for an early look of stage 2 not to clear it."""
    return (found.slower_p_values(0.0) < rules.screen_level) & (found.mean > rules.log_screen_above)


def without(screened: Screened, decided: Flags) -> Screened:
    """No candidates among the cases that are `decided`."""
    return replace(
        screened,
        slower_suspects=screened.slower_suspects & ~decided,
        faster_suspects=screened.faster_suspects & ~decided,
        too_noisy=screened.too_noisy & ~decided,
    )


def confirmed_so_far(screened: Screened, slower: Flags | None = None) -> Confirmed:
    """Before the first look of stage 2, with what those of stage 1 called SLOWER."""
    nothing = np.zeros(screened.candidates.shape, dtype=bool)
    return Confirmed(nothing if slower is None else slower, nothing, nothing)


def confirm_values(
    values: Floats, screened: Screened, before: Confirmed, level: float, rules: Rules, is_last: bool
) -> Confirmed:
    """One look at pair values of stage 2 alone, (..., cases, pairs), which spends `level` on either side.

    Before the last look no case is cleared that still looks slower, to detect slowdowns below `matters` too.
    """
    undecided = screened.candidates & ~before.decided
    found = stage_two_estimate(values, screened.prior)
    slower = before.slower | rejected_values(values, found, screened.candidates, before.slower, undecided, level, rules)
    mirrored = replace(found, mean=-found.mean)
    faster = rejected_values(-values, mirrored, screened.candidates, before.faster, undecided & ~slower, level, rules)
    no_slowdown = found.upper_limits(rules.look_clearing_level) < rules.log_matters
    no_speedup = found.lower_limits(rules.look_clearing_level) > -rules.log_matters
    is_calm = is_last | ~looks_slower(found, rules)
    clear = undecided & ~slower & ~faster & is_calm & no_slowdown & (no_speedup | ~screened.faster_suspects)
    return Confirmed(slower, before.faster | faster, before.cleared | clear)


def stage_two_estimate(values: Floats, prior: Prior) -> Estimate:
    return moderated(estimate(values), prior)


def rejected_values(
    values: Floats, found: Estimate, candidates: Flags, rejected: Flags, undecided: Flags, level: float, rules: Rules
) -> Flags:
    """Which undecided cases are slower than the margin, by Holm over all candidates that are not rejected yet.

    The smallest p-value of the exact test is 2 ** -pairs, too large for Holm with many suspects. It is waived where
    every pair shows a slowdown that matters and as many pairs alike are rarer than `level`.
    """
    p_values = np.where(undecided, found.slower_p_values(rules.log_margin), np.nan)
    # The exact test is slow, and can only refuse cases that pass the t test.
    for place in zip(*np.nonzero(p_values <= level), strict=True):
        if 0.5 ** found.count[place] > level or np.nanmin(values[place]) < rules.log_matters:
            exact = sign_flip_p_value(values[place] - rules.log_margin)
            p_values[place] = max(p_values[place], exact / SIGN_FLIP_ALLOWANCE)
    hypotheses = np.sum(candidates & ~rejected, axis=-1)
    return holm(p_values, level, hypotheses) & undecided


def suite_shift(values: Floats) -> Estimate:
    """The shift that all cases share, from pair values of stage 1 (..., cases, pairs): arrays (..., 1).

    A trimmed mean over the cases of each pair, which no single case dominates, then an estimate over the pairs. A pair
    without enough cases, because the first look decided the others, does not count.
    """
    measured = np.sum(~np.isnan(values), axis=-2)
    enough = measured >= min(FEWEST_CASES_OF_A_SUITE, values.shape[-2])
    means = np.where(enough, trimmed_means(values, TRIMMED_SHARE), np.nan)
    return estimate(means[..., None, :])
