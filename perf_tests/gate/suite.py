"""Results on the run as a whole: shifts of the sentinels, a shift that all cases share, the detectable slowdown."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from perf_tests.gate.course import Course, Screening, looks_due
from perf_tests.gate.decisions import FEWEST_CASES_OF_A_SUITE, SIGN_FLIP_ALLOWANCE, suite_shift
from perf_tests.gate.early_looks import detectable_early
from perf_tests.gate.events import Sentinel
from perf_tests.gate.rules import Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.statistics import FEWEST_PAIRS, Floats

POWER_OF_DETECTION = 0.8
AIMED_POWER = 0.85
"""Computed with Gaussian quantiles, which promise a few points more than t tests reach."""


@dataclass(frozen=True)
class Shift:
    """By how much one side takes longer, as a share of base's time, with its 95 % interval."""

    effect: float
    low: float
    high: float
    p_value: float
    is_significant: bool


def sentinel_shifts(samples: GateSamples, rules: Rules) -> dict[str, Shift]:
    """Each sentinel, head against base, over all launch pairs.

    The work is identical, so a significant difference above `margin`, at `contamination_level` over all sentinels and
    both directions, is the machine's.
    """
    level = rules.contamination_level
    values = _sentinel_values(samples)
    return {name: _shift(ratios, level / len(values), rules, two_sided=True) for name, ratios in values.items()}


def shift_of_the_suite(screening: Screening, rules: Rules) -> Shift | None:
    """The slowdown that all cases share, from stage 1; None with too few cases or launches.

    It is tested against the margin like a single case, with its own part of alpha, which is split between the clocks
    that could have been chosen on these launches.
    """
    enough = np.sum(~np.isnan(screening.values), axis=1) >= FEWEST_PAIRS
    if np.sum(enough) < FEWEST_CASES_OF_A_SUITE:
        return None
    clocks = 2 if rules.clock == "auto" and screening.clock.cpu_spread is not None else 1
    return _shift(screening.values[enough], rules.alpha * rules.suite_share / clocks, rules, two_sided=False)


def _shift(values: Floats, level: float, rules: Rules, two_sided: bool) -> Shift:
    found = suite_shift(values)
    p_value = float(found.slower_p_values(rules.log_margin)[0])
    if two_sided:
        p_value = min(1.0, 2 * min(p_value, float(found.faster_p_values(rules.log_margin)[0])))
    return Shift(*found.interval(0), p_value, p_value < level)


def _sentinel_values(samples: GateSamples) -> dict[str, Floats]:
    """Log ratios (1, pairs) of each sentinel that both sides ran in at least three pairs."""
    medians = {(s.name, s.pair, s.side): float(np.log(np.median(s.seconds))) for s in samples.of(Sentinel)}
    ratios: dict[str, list[float]] = {}
    for name, pair, side in medians:
        if side == "head" and (name, pair, "base") in medians:
            ratios.setdefault(name, []).append(medians[name, pair, "head"] - medians[name, pair, "base"])
    return {name: np.asarray([values]) for name, values in ratios.items() if len(values) >= FEWEST_PAIRS}


def detectable_in(samples: GateSamples, course: Course, rules: Rules) -> float | None:
    """`detectable_slowdown` of the run's typical case; None where nothing scatters, or no look could be taken.

    A finished run would have measured a slower case up to the last look; one that its time ended had its pairs alone.
    """
    found = course.screening.screened.estimate
    known = found.variance[found.variance > 0]
    if not len(known):
        return None
    spread, dof = math.sqrt(float(np.median(known))), float(np.nanmedian(found.dof))
    if samples.end == "finished":
        return detectable_slowdown(spread, len(known), rules, dof)
    early = detectable_early(spread, len(known), len(samples.pairs(1)), rules, dof)
    smallest = [] if early is None else [math.expm1(early)]
    due = looks_due(samples, rules)
    if due and 0.5 ** due[-1][0] <= SIGN_FLIP_ALLOWANCE * rules.alpha * due[-1][1]:
        smallest.append(detectable_slowdown(spread, len(known), rules, dof, due[-1]))
    return min(smallest) if smallest else None


def detectable_slowdown(
    pair_spread: float, cases: int, rules: Rules, dof: float = math.inf, last_look: tuple[int, float] | None = None
) -> float:
    """The slowdown, as a share, that a run detects with 80 % power in a case of this spread.

    `last_look` is its launch pairs and its share of alpha, by default those of a full run.

    It must pass stage 1, whose variance has `dof` degrees of freedom, and be significant in stage 2 beside those of
    the other `cases` that pass by chance. Earlier looks are left out, because they add little to the last.
    """
    last_look = last_look or (rules.confirm_looks[-1], rules.look_shares[-1])
    suspects = 1 + cases * _passes(0.0, pair_spread, rules, dof)
    low, high = rules.log_margin, rules.log_margin + 20 * pair_spread
    for _ in range(40):
        middle = (low + high) / 2
        power = _passes(middle, pair_spread, rules, dof) * _is_significant(
            middle, pair_spread, suspects, rules, dof, *last_look
        )
        low, high = (low, middle) if power >= AIMED_POWER else (middle, high)
    return math.expm1(high)


def _passes(log_ratio: float, pair_spread: float, rules: Rules, dof: float) -> float:
    """The probability that stage 1 suspects a case, or finds it too noisy to clear."""
    error = pair_spread / math.sqrt(rules.screen_pairs)
    suspected = max(float(stats.t.isf(rules.screen_level, dof)) * error, rules.log_screen_above)
    too_noisy = rules.log_matters - float(stats.t.isf(rules.screen_clearing_level, dof)) * error
    return float(stats.norm.cdf((log_ratio - min(suspected, too_noisy)) / error))


def _is_significant(
    log_ratio: float, pair_spread: float, suspects: float, rules: Rules, dof: float, pairs: int, share: float
) -> float:
    """The probability that the last look, at so many launch pairs, calls a case SLOWER."""
    error = pair_spread / math.sqrt(pairs)
    level = rules.stage_two_alpha * share / suspects
    shown = rules.log_margin + float(stats.t.isf(level, pairs - 1 + dof)) * error
    return float(stats.norm.cdf((log_ratio - shown) / error))
