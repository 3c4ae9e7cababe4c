"""The looks of stage 1, halfway and at its end: what is plainly slower is SLOWER, and measured no further.

So the rest of the time goes to the other cases. None is called OK so early: those that stop then would be the ones that
by chance scattered least, and the spread that the suite lends to all cases would become too small.

Three or six launches are too few for the exact test. What replaces it is that each launch pair shows a slowdown, one
that launches of the same code hardly reach, while base starts first in one half of the pairs and head in the other. A t
test at a share of alpha, with the larger of a case's own spread and the one that the suite lends it, holds too.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from perf_tests.gate.rules import Rules
from perf_tests.gate.statistics import Estimate, Flags, Floats, estimate, fit_prior, holm, known_medians, moderated

SECOND_SPREADS = 1.0
"""What a case that hardly scatters must exceed at the second look, in spreads of the run's median case."""

WIDER = {3: 1.4, 6: 1.3}
"""By launch pairs: a spread, as estimated, is smaller than this many times the true one in four of five cases."""
ABOVE_ALL = {3: 1.6, 6: 1.9}
"""Standard deviations by which a mean must exceed a limit, for all values to exceed it in four of five cases."""
ABOVE_ONE = 1.0
"""The same of one mean, in its own standard errors, somewhat more than a Gaussian's because its spread is estimated."""


@dataclass(frozen=True)
class EarlyLook:
    """At the first `pairs` of stage 1."""

    pairs: int
    level: float
    """Over all cases."""
    above: float
    """What each pair of a slower case exceeds, a log ratio."""
    spreads: float
    """How many spreads of launch pairs its mean exceeds."""

    def calls(self, values: Floats, rules: Rules, level: float | None = None) -> Flags:
        """Which cases are slower, from pair values (..., cases, pairs), by Holm at `level` over all measured ones."""
        found = _widely_estimated(values)
        above = np.all(values > self.above, axis=-1)  # which NaN is not
        is_plain = above & (found.mean > self.spreads * _at_least_that_of_the_run(found))
        p_values = np.where(is_plain, found.slower_p_values(rules.log_margin), np.nan)
        return holm(p_values, level or self.level, np.sum(found.count > 0, axis=-1)) & is_plain


def early_looks(rules: Rules) -> list[EarlyLook]:
    """Those that a run of these rules takes, in order."""
    looks = []
    if rules.has_first_look and rules.first_look is not None:
        looks.append(EarlyLook(rules.first_look, rules.first_level, rules.log_far, rules.far_spreads))
    if rules.second_level:
        looks.append(EarlyLook(rules.screen_pairs, rules.second_level, rules.log_matters, SECOND_SPREADS))
    return looks


def spreads_slower(values: Floats) -> Floats:
    """How many spreads of launch pairs each case is slower, (..., cases)."""
    found = _widely_estimated(values)
    return found.mean / _at_least_that_of_the_run(found)


def _widely_estimated(values: Floats) -> Estimate:
    """With the larger variance of each case: alone, or as the suite moderates it."""
    alone = estimate(values)
    found = moderated(alone, fit_prior(alone))
    return replace(found, variance=np.fmax(found.variance, alone.variance))


def _at_least_that_of_the_run(found: Estimate) -> Floats:
    """The spread of each case, or of the median case where that is larger."""
    spread = np.sqrt(found.variance)
    return np.fmax(spread, known_medians(spread)[..., None])


def detectable_early(pair_spread: float, cases: int, pairs: int, rules: Rules, dof: float = math.inf) -> float | None:
    """The log ratio that the looks at so many pairs of stage 1 detect with 80 % power in a case of this spread.

    None where none was due.
    """
    due = [look for look in early_looks(rules) if look.pairs <= pairs]
    return min((_detectable_at(look, pair_spread, cases, rules, dof) for look in due), default=None)


def _detectable_at(look: EarlyLook, pair_spread: float, cases: int, rules: Rules, dof: float) -> float:
    wider, above_all = (float(np.interp(look.pairs, [*of], [*of.values()])) for of in (WIDER, ABOVE_ALL))
    errors = float(stats.t.isf(look.level / cases, dof)) * wider + ABOVE_ONE
    return max(
        look.above + above_all * pair_spread,
        look.spreads * wider * pair_spread,
        rules.log_margin + errors * pair_spread / math.sqrt(look.pairs),
    )
