"""The first look, halfway through stage 1: what is far slower is SLOWER, and measured no further.

So the rest of the time goes to the other cases. None is called OK so early: those that stop then would be the ones that
by chance scattered least, and the spread that the suite lends to all cases would become too small.

A case is far slower where each launch pair shows a slowdown that launches of the same code hardly reach, and their mean
is many times what launch pairs scatter by. Three launches are too few for the exact test, which this replaces; a t test
at a share of alpha holds too.
"""

import numpy as np

from perf_tests.gate.rules import Rules
from perf_tests.gate.statistics import Estimate, Flags, Floats, estimate, fit_prior, holm, moderated

WIDER = 1.4
"""The spread of three values, as estimated, is smaller than this many times the true one in four of five cases."""
ABOVE_ALL = 1.6
"""Standard deviations by which a mean must exceed a limit, for three values to exceed it in four of five cases."""


def far_slower(values: Floats, level: float, rules: Rules) -> Flags:
    """Which cases are slower by far: at `level` by Holm over all of them, beside the limits of `rules`."""
    found, spread = _estimate_and_spread(values)
    above = np.all(values > rules.log_far, axis=-1)  # which NaN is not
    is_far = above & (found.mean > rules.far_spreads * spread)
    p_values = np.where(is_far, found.slower_p_values(rules.log_margin), np.nan)
    return holm(p_values, level, np.sum(found.count > 0, axis=-1)) & is_far


def spreads_slower(values: Floats) -> Floats:
    """How many spreads of launch pairs each case is slower, (..., cases)."""
    found, spread = _estimate_and_spread(values)
    return found.mean / spread


def _estimate_and_spread(values: Floats) -> tuple[Estimate, Floats]:
    """With the largest of three spreads: of the case alone, as the suite moderates it, and that of the run."""
    alone = estimate(values)
    found = moderated(alone, fit_prior(alone))
    spread = np.sqrt(np.fmax(found.variance, alone.variance))
    of_the_run = np.nanmedian(np.where(np.isnan(spread), np.inf, spread), axis=-1, keepdims=True)
    return found, np.fmax(spread, of_the_run)


def far_slowdown(pair_spread: float, rules: Rules) -> float:
    """The log ratio that `far_slower` detects with 80 % power in a case of this spread."""
    return max(rules.log_far + ABOVE_ALL * pair_spread, WIDER * rules.far_spreads * pair_spread)
