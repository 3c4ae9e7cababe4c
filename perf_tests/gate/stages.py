"""The stages of a gate run, replayed from its samples: screen the suite, then confirm suspects on fresh launches.

A run without a change reports SLOWER with probability at most alpha, however the cases depend on each other: given
stage 1, the set of suspects is fixed, and the launches of stage 2 are fresh, so the p-values of a case that is not
slower by more than the margin are valid there. Holm's procedure over all suspects holds each look (interim analysis)
to its share of alpha, and the shares add up to alpha. A cleared case stays in Holm's count; a rejected one leaves it,
as in the sequentially rejective procedures of Maurer and Bretz (2013).

Stage 1 only selects, so its own level is free, but for two looks, halfway and at its end: what is plainly slower is
SLOWER there and measured no further, so that the rest of the time goes to the other cases. None is called OK so early:
those that stop then would be the ones that by chance scattered least, and the spread that the suite lends to all cases
would become too small.

Three or six launches are too few for the exact test. What replaces it there is that each launch pair shows a slowdown,
one that launches of the same code hardly reach, while base starts first in one half of the pairs and head in the other.
A t test at a share of alpha, with the larger of a case's own spread and the one that the suite lends it, holds too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from perf_tests_suite.perf_tests.gate.samples import (
    FEWEST_PAIRS,
    Clock,
    GateSamples,
    LeftOut,
    Rules,
    Sentinel,
    compiled_in,
)
from perf_tests_suite.perf_tests.gate.statistics import (
    ClockDecision,
    Estimate,
    Flags,
    Floats,
    Prior,
    decide_clock,
    estimate,
    fit_prior,
    holm,
    known_medians,
    moderated,
    pair_values,
    sign_flip_p_value,
    trimmed_means,
)


@dataclass(frozen=True)
class Screened:
    """The result of stage 1; flags are (..., cases)."""

    estimate: Estimate
    prior: Prior
    slower_suspects: Flags
    faster_suspects: Flags
    too_noisy: Flags
    """Cases that are not suspected, but of which a slowdown that matters is not excluded."""

    @property
    def candidates(self) -> Flags:
        """The cases that stage 2 measures."""
        return self.slower_suspects | self.faster_suspects | self.too_noisy

    def without(self, decided: Flags) -> Self:
        """The same with no candidates among the cases that are `decided`."""
        flags = (flags & ~decided for flags in (self.slower_suspects, self.faster_suspects, self.too_noisy))
        return type(self)(self.estimate, self.prior, *flags)


@dataclass(frozen=True)
class Confirmed:
    """Decisions of stage 2 so far; flags are (..., cases)."""

    slower: Flags
    faster: Flags
    cleared: Flags

    @property
    def decided(self) -> Flags:
        return self.slower | self.faster | self.cleared


@dataclass(frozen=True)
class Screening:
    """Stage 1. Flags and estimates are in the order of `cases`; `guard` is the same by wall time, or None."""

    cases: tuple[str, ...]
    clock: ClockDecision
    by_clock: Mapping[Clock, Floats]
    """Pair values, (cases, pairs)."""
    screened: Screened
    guard: Screened | None
    slower_early_by: Mapping[Clock, Flags]
    """What each clock called SLOWER at the looks so far; empty before them, and where there are none."""

    @property
    def values(self) -> Floats:
        """The pair values by the clock that decides."""
        return self.by_clock[self.clock.clock]

    @property
    def candidates(self) -> tuple[str, ...]:
        """The cases that stage 2 measures."""
        return self.names(self.screened.candidates)

    @property
    def slower_early(self) -> Flags:
        return np.logical_or.reduce([np.zeros(len(self.cases), dtype=bool), *self.slower_early_by.values()])

    @property
    def undecided(self) -> tuple[str, ...]:
        """The cases that the rest of stage 1 measures."""
        return self.names(~self.slower_early)

    def names(self, flags: Flags) -> tuple[str, ...]:
        return tuple(case for case, flag in zip(self.cases, flags, strict=True) if flag)


@dataclass(frozen=True)
class InterimState:
    """The state after an interim analysis of stage 2; `undecided` are the candidates to measure further."""

    number: int
    pairs: int
    level: float
    undecided: tuple[str, ...]


@dataclass(frozen=True)
class StageHistory:
    """Screening, and every look that the samples allow."""

    screening: Screening
    confirmed: Confirmed
    slower_by: Mapping[Clock, Flags]
    """The cases that each clock calls SLOWER, the one that decides first, then wall time where it guards."""
    by_clock: Mapping[Clock, Floats]
    """Pair values of stage 2, (cases, pairs)."""
    priors: Mapping[Clock, Prior]
    """The priors from stage 1."""
    pairs_used: NDArray[np.int_]
    """Launch pairs of stage 2 up to a case's verdict, (cases,)."""
    interim: tuple[InterimState, ...]


def replay_stages(samples: GateSamples, rules: Rules) -> StageHistory:
    """Stage 1 and each look of stage 2; raises ValueError when the rules name a clock that was not read."""
    screening = screening_of(samples, rules)
    screened, guard, pairs = screening.screened, screening.guard, samples.pairs(2)
    by_clock: dict[Clock, Floats] = {clock: pair_values(samples, 2, pairs, clock) for clock in get_args(Clock)}
    nothing = np.zeros(len(screening.cases), dtype=bool)
    state = Confirmed(screening.slower_early, nothing, nothing)
    slower, slower_by_wall = nothing, nothing
    used, taken = np.full(len(screening.cases), len(pairs)), list[InterimState]()

    def rejected(values: Floats, prior: Prior, level: float) -> Flags:
        """The open cases that are SLOWER by these values alone."""
        found, open_cases = moderated(estimate(values), prior), screened.candidates & ~state.decided
        return rejected_values(values, found, screened.candidates, state.slower, open_cases, level, rules)

    due = due_analyses(samples, rules)
    for number, (count, share) in enumerate(due, start=1):
        values, wall = by_clock[screening.clock.clock][:, :count], by_clock["wall"][:, :count]
        level, before = rules.stage_two_alpha * share, state
        if guard is not None:
            # The look's level is split between the clocks.
            by_guard = rejected(wall, guard.prior, level * rules.guard_share)
            level *= 1 - rules.guard_share
            # What wall time decides may be slower by the other clock too.
            slower = slower | rejected(values, screened.prior, level)
            slower_by_wall, before = slower_by_wall | by_guard, replace(before, slower=before.slower | by_guard)
        is_last = number == len(due) and (count == rules.confirm_looks[-1] or samples.ran_out_of_time)
        after = confirm_values(values, screened, before, level, rules, is_last)
        if guard is not None:
            # A case that wall time suspects is neither OK nor FASTER before wall time excludes a slowdown too.
            upper = moderated(estimate(wall), guard.prior).upper_limits(rules.interim_clearing_level)
            free = ~(guard.slower_suspects & ~(upper < rules.log_matters)) | before.decided
            after = Confirmed(after.slower, after.faster & free, after.cleared & free)
        slower = slower | (after.slower & ~before.slower)
        used = np.where(after.decided & ~state.decided, count, used)
        state = after
        taken.append(InterimState(number, count, level, screening.names(screened.candidates & ~state.decided)))
    slower_by: dict[Clock, Flags] = {screening.clock.clock: slower}
    if guard is not None:
        slower_by["wall"] = slower_by_wall
    for clock, flags in screening.slower_early_by.items():
        slower_by[clock] = slower_by.get(clock, nothing) | flags
    priors = {clock: fit_prior(estimate(values)) for clock, values in screening.by_clock.items()}
    return StageHistory(screening, state, slower_by, by_clock, priors, used, tuple(taken))


def due_analyses(samples: GateSamples, rules: Rules) -> list[tuple[int, float]]:
    """Launch pairs and share of alpha of every look of stage 2 that can be taken.

    When the time is up between two looks, a last one spends the rest of alpha, because the stop did not depend on the
    figures. After Ctrl-C there is none, because the user may have read the figures.
    """
    measured = len(samples.pairs(2))
    due = [analysis for analysis in zip(rules.confirm_looks, rules.look_shares, strict=True) if analysis[0] <= measured]
    left = 1 - sum(share for _, share in due)
    analysed = due[-1][0] if due else FEWEST_PAIRS - 1
    # Without a pair since the last look another one would spend level on figures that were judged.
    if samples.ran_out_of_time and measured > analysed and left > 0:
        due.append((measured, left))
    return due


def screening_of(samples: GateSamples, rules: Rules) -> Screening:
    """Stage 1 so far; raises ValueError when the rules name a clock that was not read."""
    pairs = samples.pairs(1)
    clock = decide_clock(samples, rules, pairs)
    by_clock: dict[Clock, Floats] = {by: pair_values(samples, 1, pairs, by) for by in get_args(Clock)}
    screened, guard = screen_values(by_clock[clock.clock], rules), None
    if clock.guards:
        # As strict as on the faster side: wall time is there for large effects that CPU time misses.
        guard = screen_values(by_clock["wall"], replace(rules, screen_level=rules.faster_screen_level))
        screened = replace(screened, slower_suspects=screened.slower_suspects | guard.slower_suspects)
    slower_early_by: dict[Clock, Flags] = {}
    for analysis in interim_analyses(rules):
        if len(pairs) < analysis.pairs:
            break
        taken = pairs[: analysis.pairs]
        then = decide_clock(samples, rules, taken)
        counting: list[Clock] = [then.clock, "wall"] if then.guards else [then.clock]
        # The clocks share a look's level, because either may have been chosen.
        level = analysis.level / (1 if then.cpu_spread is None else 2)
        for by in counting:
            called = analysis.calls(pair_values(samples, 1, taken, by), rules, level)
            slower_early_by[by] = called | slower_early_by.get(by, np.zeros_like(called))
    left_out = {row.case for row in samples.of(LeftOut)}
    screened = screened.without(np.asarray([case in left_out for case in samples.cases], dtype=bool))
    found = Screening(tuple(samples.cases), clock, by_clock, screened, guard, slower_early_by)
    decided = found.slower_early
    return replace(found, screened=screened.without(decided), guard=guard and guard.without(decided))


SECOND_SPREADS = 1.0
"""What a case that hardly scatters must exceed at the second look, in spreads of the run's median case."""


@dataclass(frozen=True)
class InterimAnalysis:
    """A look at the first `pairs` of stage 1."""

    pairs: int
    level: float
    """Level over all cases."""
    above: float
    """What each pair of a slower case exceeds, a log ratio."""
    spreads: float
    """How many spreads of launch pairs its mean exceeds."""

    def calls(self, values: Floats, rules: Rules, level: float | None = None) -> Flags:
        """Flags of the slower cases, from pair values (..., cases, pairs), by Holm at `level` over all measured."""
        alone = estimate(values)
        found = moderated(alone, fit_prior(alone))
        # The larger variance, alone or as the suite moderates it; the spread of the median case where that is larger.
        found = replace(found, variance=np.fmax(found.variance, alone.variance))
        spread = np.sqrt(found.variance)
        spread = np.fmax(spread, known_medians(spread)[..., None])
        above = np.all(values > self.above, axis=-1)  # which NaN is not
        is_plain = above & (found.mean > self.spreads * spread)
        p_values = np.where(is_plain, found.slower_p_values(rules.log_margin), np.nan)
        return holm(p_values, level or self.level, np.sum(found.count > 0, axis=-1)) & is_plain


def interim_analyses(rules: Rules) -> list[InterimAnalysis]:
    """The looks of stage 1 that a run of these rules takes, in order."""
    analyses = []
    if rules.has_first_analysis and rules.first_look is not None:
        level, far = rules.alpha * rules.first_share, math.log1p(rules.far)
        analyses.append(InterimAnalysis(rules.first_look, level, far, rules.far_spreads))
    if rules.second_share:
        level = rules.alpha * rules.second_share
        analyses.append(InterimAnalysis(rules.screen_pairs, level, rules.log_matters, SECOND_SPREADS))
    return analyses


# The decisions on arrays of pair values.

SIGN_FLIP_ALLOWANCE = 5
"""The exact test must agree at this multiple of the level; it catches values far from a t distribution."""


def screen_values(values: Floats, rules: Rules) -> Screened:
    """Stage 1 on pair values (..., cases, pairs)."""
    plain = estimate(values)
    prior = fit_prior(plain)
    found = moderated(plain, prior)
    slower = seems_slower(found, rules)
    faster = found.faster_p_values(0.0) < rules.faster_screen_level
    unclear = ~(found.upper_limits(rules.clearing_level / 2) < rules.log_matters) & (found.count > 0)
    return Screened(found, prior, slower, faster, unclear & ~slower)


def seems_slower(found: Estimate, rules: Rules) -> Flags:
    """Whether it is enough for stage 1 to suspect a case, and for an early look of stage 2 not to clear it."""
    return (found.slower_p_values(0.0) < rules.screen_level) & (found.mean > math.log1p(rules.screen_above))


def confirm_values(
    values: Floats, screened: Screened, before: Confirmed, level: float, rules: Rules, is_last: bool
) -> Confirmed:
    """Take one look at pair values of stage 2 alone, (..., cases, pairs), which spends `level` on either side.

    Before the last look no case is cleared that still looks slower, to detect slowdowns below `matters` too.
    """
    undecided = screened.candidates & ~before.decided
    found = moderated(estimate(values), screened.prior)
    slower = before.slower | rejected_values(values, found, screened.candidates, before.slower, undecided, level, rules)
    mirrored = replace(found, mean=-found.mean)
    faster = rejected_values(-values, mirrored, screened.candidates, before.faster, undecided & ~slower, level, rules)
    no_slowdown = found.upper_limits(rules.interim_clearing_level) < rules.log_matters
    no_speedup = mirrored.upper_limits(rules.interim_clearing_level) < rules.log_matters
    is_calm = is_last | ~seems_slower(found, rules)
    clear = undecided & ~slower & ~faster & is_calm & no_slowdown & (no_speedup | ~screened.faster_suspects)
    return Confirmed(slower, before.faster | faster, before.cleared | clear)


def rejected_values(
    values: Floats, found: Estimate, candidates: Flags, rejected: Flags, undecided: Flags, level: float, rules: Rules
) -> Flags:
    """Flags of the undecided cases that are slower than the margin, by Holm over all candidates not rejected yet.

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


# Results on the run as a whole: shifts of the sentinels, a shift that all cases share, the detectable slowdown.

TRIMMED_SHARE = 0.2
"""Share of the cases left out at either end of a pair: the usual choice of a trimmed mean."""

FEWEST_CASES_OF_A_SUITE = 5
"""So few that trimming leaves out a case at either end."""


@dataclass(frozen=True)
class Shift:
    """The share of base's time that one side takes longer, with its 95 % interval."""

    effect: float
    low: float
    high: float
    p_value: float
    is_significant: bool


def sentinel_shifts(samples: GateSamples, rules: Rules) -> dict[str, Shift]:
    """Each sentinel, head against base, over all launch pairs; those that ran in fewer than three tell nothing.

    The work is identical, so a significant difference above `margin`, at `contamination_level` over all sentinels and
    both directions, is the machine's.
    """
    medians = {(s.name, s.pair, s.side): float(np.log(np.median(s.seconds))) for s in samples.of(Sentinel)}
    ratios: dict[str, list[float]] = {}
    for name, pair, side in medians:
        if side == "head" and (name, pair, "base") in medians:
            ratios.setdefault(name, []).append(medians[name, pair, "head"] - medians[name, pair, "base"])
    known = {name: np.asarray([values]) for name, values in ratios.items() if len(values) >= FEWEST_PAIRS}
    level = rules.contamination_level
    return {name: _shift(values, level / len(known), rules, two_sided=True) for name, values in known.items()}


def shift_of_the_suite(screening: Screening, rules: Rules) -> Shift | None:
    """The slowdown that all cases share, from stage 1, without what compiling takes; None with too few of them.

    It is tested against the margin like a single case, with its own part of alpha, which is split between the clocks
    that could have been chosen on these launches.
    """
    enough = np.sum(~np.isnan(screening.values), axis=1) >= FEWEST_PAIRS
    enough &= np.asarray([compiled_in(case) is None for case in screening.cases], dtype=bool)
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


def suite_shift(values: Floats) -> Estimate:
    """The shift that all cases share, from pair values of stage 1 (..., cases, pairs): arrays (..., 1).

    A trimmed mean over the cases of each pair, which no single case dominates, then an estimate over the pairs. A pair
    without enough cases, because the first look decided the others, does not count.
    """
    measured = np.sum(~np.isnan(values), axis=-2)
    enough = measured >= min(FEWEST_CASES_OF_A_SUITE, values.shape[-2])
    means = np.where(enough, trimmed_means(values, TRIMMED_SHARE), np.nan)
    return estimate(means[..., None, :])


AIMED_POWER = 0.85
"""More than the 80 % that is printed: Gaussian quantiles promise a few points more than t tests reach."""

WIDER = {3: 1.4, 6: 1.3}
"""Factor by launch pairs: an estimated spread is smaller than this many true ones in four of five cases."""
ABOVE_ALL = {3: 1.6, 6: 1.9}
"""Standard deviations by which a mean must exceed a limit, for all values to exceed it in four of five cases."""
ABOVE_ONE = 1.0
"""The same of one mean, in its own standard errors, somewhat more than a Gaussian's because its spread is estimated."""


def detectable_in(samples: GateSamples, history: StageHistory, rules: Rules) -> float | None:
    """`detectable_slowdown` of the run's typical case; None where nothing scatters, or no look could be taken.

    A finished run would have measured a slower case up to the last look; one that its time ended had its pairs alone.
    """
    found = history.screening.screened.estimate
    known = found.variance[found.variance > 0]
    if not len(known):
        return None
    spread, dof = math.sqrt(float(np.median(known))), float(np.nanmedian(found.dof))
    if samples.end == "finished":
        return detectable_slowdown(spread, len(known), rules, dof)
    early = detectable_early(spread, len(known), len(samples.pairs(1)), rules, dof)
    smallest = [] if early is None else [math.expm1(early)]
    due = due_analyses(samples, rules)
    if due and 0.5 ** due[-1][0] <= SIGN_FLIP_ALLOWANCE * rules.alpha * due[-1][1]:
        smallest.append(detectable_slowdown(spread, len(known), rules, dof, due[-1]))
    return min(smallest) if smallest else None


def detectable_early(pair_spread: float, cases: int, pairs: int, rules: Rules, dof: float = math.inf) -> float | None:
    """The log ratio that the looks at so many pairs of stage 1 detect with 80 % power in a case of this spread.

    None where none was due.
    """
    detected = []
    for analysis in interim_analyses(rules):
        if analysis.pairs <= pairs:
            wider, above_all = (float(np.interp(analysis.pairs, [*of], [*of.values()])) for of in (WIDER, ABOVE_ALL))
            errors = float(scipy.stats.t.isf(analysis.level / cases, dof)) * wider + ABOVE_ONE
            detected.append(
                max(
                    analysis.above + above_all * pair_spread,
                    analysis.spreads * wider * pair_spread,
                    rules.log_margin + errors * pair_spread / math.sqrt(analysis.pairs),
                )
            )
    return min(detected, default=None)


def detectable_slowdown(
    pair_spread: float, cases: int, rules: Rules, dof: float = math.inf, last_analysis: tuple[int, float] | None = None
) -> float:
    """The slowdown, as a share, that a run detects with 80 % power in a case of this spread.

    `last_analysis` is its launch pairs and its share of alpha, by default those of a full run.

    It must pass stage 1, whose variance has `dof` degrees of freedom, and be significant in stage 2 beside those of
    the other `cases` that pass by chance. Earlier looks are left out, because they add little to the last.
    """
    pairs, share = last_analysis or (rules.confirm_looks[-1], rules.look_shares[-1])

    def passes(log_ratio: float) -> float:
        """The probability that stage 1 suspects a case, or finds it too noisy to clear."""
        error = pair_spread / math.sqrt(rules.screen_pairs)
        suspected = max(float(scipy.stats.t.isf(rules.screen_level, dof)) * error, math.log1p(rules.screen_above))
        too_noisy = rules.log_matters - float(scipy.stats.t.isf(rules.clearing_level / 2, dof)) * error
        return float(scipy.stats.norm.cdf((log_ratio - min(suspected, too_noisy)) / error))

    error = pair_spread / math.sqrt(pairs)
    level = rules.stage_two_alpha * share / (1 + cases * passes(0.0))
    # From here on the last look calls it.
    shown = rules.log_margin + float(scipy.stats.t.isf(level, pairs - 1 + dof)) * error
    low, high = rules.log_margin, rules.log_margin + 20 * pair_spread
    for _ in range(40):
        middle = (low + high) / 2
        power = passes(middle) * float(scipy.stats.norm.cdf((middle - shown) / error))
        low, high = (low, middle) if power >= AIMED_POWER else (middle, high)
    return math.expm1(high)
