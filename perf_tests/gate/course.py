"""The stages of a run, replayed from its samples: the screening, then each look at the fresh launches of stage 2."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perf_tests.gate.clock import ClockDecision, decide_clock, pair_values
from perf_tests.gate.decisions import (
    Confirmed,
    Screened,
    confirm_values,
    nothing_confirmed,
    rejected_values,
    screen_values,
    stage_two_estimate,
)
from perf_tests.gate.rules import Clock, Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.statistics import FEWEST_PAIRS, Flags, Floats, Prior


@dataclass(frozen=True)
class Screening:
    """Stage 1. Flags and estimates are in the order of `cases`; `guard` is the same by wall time, or None."""

    cases: tuple[str, ...]
    clock: ClockDecision
    values: Floats
    """Pair values, (cases, pairs), by the clock that decides."""
    wall_values: Floats
    screened: Screened
    guard: Screened | None

    @property
    def candidates(self) -> tuple[str, ...]:
        """The cases that stage 2 measures."""
        return self.names(self.screened.candidates)

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
    values: Floats
    """Pair values of stage 2, (cases, pairs), by the clock that decides."""
    wall_values: Floats
    pairs_used: NDArray[np.int_]
    """Launch pairs of stage 2 up to a case's verdict, (cases,)."""
    looks: tuple[Look, ...]


def screening_of(samples: GateSamples, rules: Rules) -> Screening:
    """Stage 1 so far; raises ValueError when the rules name a clock that was not read."""
    clock = decide_clock(samples, rules)
    pairs = samples.pairs(1)
    values = pair_values(samples, 1, pairs, clock.clock)
    wall_values = pair_values(samples, 1, pairs, "wall")
    screened, guard = screen_values(values, rules), None
    if clock.guards:
        # As strict as on the faster side: wall time is there for large effects that CPU time misses.
        guard = screen_values(wall_values, replace(rules, screen_level=rules.faster_screen_level))
        screened = replace(screened, slower_suspects=screened.slower_suspects | guard.slower_suspects)
    return Screening(tuple(samples.cases), clock, values, wall_values, screened, guard)


def looks_due(samples: GateSamples, rules: Rules) -> list[tuple[int, float]]:
    """Launch pairs and share of alpha of every look that can be taken.

    When the time is up between two looks, a last one spends the rest of alpha, because the stop did not depend on the
    figures. After Ctrl-C there is none, because the user may have read the figures.
    """
    measured = len(samples.pairs(2))
    due = [look for look in zip(rules.confirm_looks, rules.look_shares, strict=True) if look[0] <= measured]
    left = 1 - sum(share for _, share in due)
    looked_at = due[-1][0] if due else FEWEST_PAIRS - 1
    if samples.end == "budget" and measured > looked_at and left > 0:
        due.append((measured, left))
    return due


def course_of(samples: GateSamples, rules: Rules) -> Course:
    screening = screening_of(samples, rules)
    pairs = samples.pairs(2)
    values = pair_values(samples, 2, pairs, screening.clock.clock)
    wall_values = pair_values(samples, 2, pairs, "wall")
    state = nothing_confirmed(screening.screened)
    slower, slower_by_wall = state.slower, state.slower
    used = np.full(len(screening.cases), len(pairs))
    taken: list[Look] = []
    due = looks_due(samples, rules)
    for number, (count, share) in enumerate(due, start=1):
        level = rules.alpha * (1 - rules.suite_share) * share
        before = state
        if screening.guard is not None:
            guarded = level * rules.guard_share
            found = _slower(wall_values[:, :count], screening, screening.guard.prior, state, guarded, rules)
            level *= 1 - rules.guard_share
            # What wall time decides may be slower by the other clock too.
            slower = slower | _slower(values[:, :count], screening, screening.screened.prior, state, level, rules)
            slower_by_wall, before = slower_by_wall | found, replace(before, slower=before.slower | found)
        is_last = number == len(due) and (count == rules.confirm_looks[-1] or samples.end == "budget")
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
    return Course(screening, state, slower_by, values, wall_values, used, tuple(taken))


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
