"""The stages of a run, replayed from its samples: the screening, then each look at the fresh launches of stage 2."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perf_tests.gate.clock import ClockDecision, decide_clock, pair_values
from perf_tests.gate.decisions import (
    Confirmed,
    Screened,
    confirm_values,
    confirmed_so_far,
    rejected_values,
    screen_values,
    stage_two_estimate,
    without,
)
from perf_tests.gate.early_looks import early_looks
from perf_tests.gate.events import LeftOut
from perf_tests.gate.rules import Clock, Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.statistics import FEWEST_PAIRS, Flags, Floats, Prior, estimate, fit_prior


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
        """By the clock that decides."""
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
class Look:
    """The state after a look; `undecided` are the candidates to measure further."""

    number: int
    pairs: int
    level: float
    undecided: tuple[str, ...]


@dataclass(frozen=True)
class Course:
    """Screening, and every look that the samples allow."""

    screening: Screening
    confirmed: Confirmed
    slower_by: Mapping[Clock, Flags]
    """The cases that each clock calls SLOWER, the one that decides first, then wall time where it guards."""
    by_clock: Mapping[Clock, Floats]
    """Pair values of stage 2, (cases, pairs)."""
    priors: Mapping[Clock, Prior]
    """From stage 1."""
    pairs_used: NDArray[np.int_]
    """Launch pairs of stage 2 up to a case's verdict, (cases,)."""
    looks: tuple[Look, ...]


def screening_of(samples: GateSamples, rules: Rules) -> Screening:
    """Stage 1 so far; raises ValueError when the rules name a clock that was not read."""
    pairs = samples.pairs(1)
    clock = decide_clock(samples, rules, pairs)
    by_clock = _by_clock(samples, 1, pairs)
    screened, guard = _screened(by_clock, clock, rules)
    left_out = {row.case for row in samples.of(LeftOut)}
    screened = without(screened, np.asarray([case in left_out for case in samples.cases], dtype=bool))
    slower_early_by = _slower_early_by(samples, rules, pairs)
    found = Screening(tuple(samples.cases), clock, by_clock, screened, guard, slower_early_by)
    decided = found.slower_early
    return replace(found, screened=without(screened, decided), guard=guard and without(guard, decided))


def _by_clock(samples: GateSamples, stage: int, pairs: Sequence[int]) -> dict[Clock, Floats]:
    return {clock: pair_values(samples, stage, pairs, clock) for clock in get_args(Clock)}


def _screened(by_clock: Mapping[Clock, Floats], clock: ClockDecision, rules: Rules) -> tuple[Screened, Screened | None]:
    """By the clock that decides and, where wall time guards, by it too."""
    screened = screen_values(by_clock[clock.clock], rules)
    if not clock.guards:
        return screened, None
    # As strict as on the faster side: wall time is there for large effects that CPU time misses.
    guard = screen_values(by_clock["wall"], replace(rules, screen_level=rules.faster_screen_level))
    return replace(screened, slower_suspects=screened.slower_suspects | guard.slower_suspects), guard


def _slower_early_by(samples: GateSamples, rules: Rules, pairs: Sequence[int]) -> dict[Clock, Flags]:
    """The early looks, by each clock that counts; these share a look's level, because either may have been chosen."""
    found: dict[Clock, Flags] = {}
    for look in early_looks(rules):
        if len(pairs) < look.pairs:
            break
        taken = pairs[: look.pairs]
        clock = decide_clock(samples, rules, taken)
        counting: list[Clock] = [clock.clock, "wall"] if clock.guards else [clock.clock]
        level = look.level / (1 if clock.cpu_spread is None else 2)
        for by in counting:
            called = look.calls(pair_values(samples, 1, taken, by), rules, level)
            found[by] = called | found.get(by, np.zeros_like(called))
    return found


def looks_due(samples: GateSamples, rules: Rules) -> list[tuple[int, float]]:
    """Launch pairs and share of alpha of every look that can be taken.

    When the time is up between two looks, a last one spends the rest of alpha, because the stop did not depend on the
    figures. After Ctrl-C there is none, because the user may have read the figures.
    """
    measured = len(samples.pairs(2))
    due = [look for look in zip(rules.confirm_looks, rules.look_shares, strict=True) if look[0] <= measured]
    left = 1 - sum(share for _, share in due)
    looked_at = due[-1][0] if due else FEWEST_PAIRS - 1
    if samples.ran_out_of_time and measured > looked_at and left > 0:
        due.append((measured, left))
    return due


def course_of(samples: GateSamples, rules: Rules) -> Course:
    screening = screening_of(samples, rules)
    pairs = samples.pairs(2)
    by_clock = _by_clock(samples, 2, pairs)
    values, wall_values = by_clock[screening.clock.clock], by_clock["wall"]
    state = confirmed_so_far(screening.screened, screening.slower_early)
    nothing = np.zeros(len(screening.cases), dtype=bool)
    slower, slower_by_wall = nothing, nothing
    used = np.full(len(screening.cases), len(pairs))
    taken: list[Look] = []
    due = looks_due(samples, rules)
    for number, (count, share) in enumerate(due, start=1):
        level = rules.stage_two_alpha * share
        before = state
        if screening.guard is not None:
            guarded = level * rules.guard_share
            found = _slower(wall_values[:, :count], screening, screening.guard.prior, state, guarded, rules)
            level *= 1 - rules.guard_share
            # What wall time decides may be slower by the other clock too.
            slower = slower | _slower(values[:, :count], screening, screening.screened.prior, state, level, rules)
            slower_by_wall, before = slower_by_wall | found, replace(before, slower=before.slower | found)
        is_last = number == len(due) and (count == rules.confirm_looks[-1] or samples.ran_out_of_time)
        after = confirm_values(values[:, :count], screening.screened, before, level, rules, is_last)
        after = _held_back(after, before, wall_values[:, :count], screening, rules)
        slower = slower | (after.slower & ~before.slower)
        used = np.where(after.decided & ~state.decided, count, used)
        state = after
        undecided = screening.names(screening.screened.candidates & ~state.decided)
        taken.append(Look(number, count, level, undecided))
    slower_by: dict[Clock, Flags] = {screening.clock.clock: slower}
    if screening.guard is not None:
        slower_by["wall"] = slower_by_wall
    for clock, flags in screening.slower_early_by.items():
        slower_by[clock] = slower_by.get(clock, nothing) | flags
    priors = {clock: fit_prior(estimate(values)) for clock, values in screening.by_clock.items()}
    return Course(screening, state, slower_by, by_clock, priors, used, tuple(taken))


def _slower(values: Floats, screening: Screening, prior: Prior, state: Confirmed, level: float, rules: Rules) -> Flags:
    """The open cases that are SLOWER by these values alone."""
    candidates = screening.screened.candidates
    found = stage_two_estimate(values, prior)
    return rejected_values(values, found, candidates, state.slower, candidates & ~state.decided, level, rules)


def _held_back(after: Confirmed, before: Confirmed, wall: Floats, screening: Screening, rules: Rules) -> Confirmed:
    """A case that wall time suspects is neither OK nor FASTER before wall time excludes a slowdown too."""
    if screening.guard is None:
        return after
    found = stage_two_estimate(wall, screening.guard.prior)
    held = screening.guard.slower_suspects & ~(found.upper_limits(rules.look_clearing_level) < rules.log_matters)
    free = ~held | before.decided
    return Confirmed(after.slower, after.faster & free, after.cleared & free)
