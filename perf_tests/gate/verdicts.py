"""One verdict for each case and each exact counter, with the effect and the interval behind it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

import numpy as np
from scipy import stats

from perf_tests.gate.accepted import Acceptance
from perf_tests.gate.course import Course
from perf_tests.gate.events import ABSENT, ExactFinding, Measurement, NoTiming
from perf_tests.gate.rules import Clock, Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.statistics import FEWEST_PAIRS, Estimate, estimate, moderated
from perf_tests.records.record import OUTCOMES


class Verdict(StrEnum):
    SLOWER = "SLOWER"
    FASTER = "FASTER"
    OK = "OK"
    UNDECIDED = "UNDECIDED"
    NEW = "NEW"
    GONE = "GONE"
    NO_LONGER_FITS = "NO LONGER FITS"
    IMPOSSIBLE = "IMPOSSIBLE"
    FAILED = "FAILED"
    NO_LONGER_SUPPORTED = "NO LONGER SUPPORTED"
    NOT_MEASURED = "NOT MEASURED"
    MORE = "MORE"
    """A counter rose."""
    LESS = "LESS"
    SAME = "SAME"


LOST = {
    "out_of_memory": Verdict.NO_LONGER_FITS,
    "would_not_fit": Verdict.NO_LONGER_FITS,
    "unsupported": Verdict.NO_LONGER_SUPPORTED,
    "error": Verdict.FAILED,
    "timed_out": Verdict.FAILED,
    "process_died": Verdict.FAILED,
    "impossible": Verdict.IMPOSSIBLE,
    ABSENT: Verdict.GONE,
}
"""The verdict where head has this outcome and base a timing."""

FAILING = frozenset({Verdict.SLOWER, Verdict.MORE, *LOST.values()})


@dataclass(frozen=True)
class Effect:
    """The slowdown of head as a share of base's time, with its 95 % interval."""

    effect: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class CaseResult:
    """One row of the table."""

    id: str
    verdict: Verdict
    effect: Effect | None = None
    """From the launches that decided: of a suspect stage 2 alone, because selection in stage 1 biases its launches."""
    all_launches: Effect | None = None
    """From both stages, which exaggerates the effect of a suspect."""
    base_seconds: float | None = None
    """Median time of a round by `clock`, the one behind the verdict."""
    head_seconds: float | None = None
    clock: Clock | None = None
    launches_needed: int | None = None
    """Of an undecided case: fresh launch pairs until a verdict, if the estimate is right."""
    explanation: str = ""
    accepted: str | None = None
    """The reason, where this regression is accepted."""

    @property
    def is_failure(self) -> bool:
        return self.verdict in FAILING and self.accepted is None


@dataclass(frozen=True)
class ExactResult:
    id: str
    counter: str
    old: float
    new: float
    verdict: Verdict
    accepted: str | None = None

    @property
    def is_failure(self) -> bool:
        return self.verdict in FAILING and self.accepted is None


def case_results(samples: GateSamples, course: Course, rules: Rules, accepted: list[Acceptance]) -> list[CaseResult]:
    """A row for each case, in the order of the run."""
    lost = {(row.case, row.side): row for row in samples.of(NoTiming)}
    rows = []
    for place, case in enumerate(samples.cases):
        base, head = lost.get((case, "base")), lost.get((case, "head"))
        is_timed = base is None and head is None
        rows.append(_timed(samples, course, rules, place) if is_timed else _untimed(case, base, head))
    return [with_acceptance(row, accepted) for row in rows]


def exact_result(finding: ExactFinding, accepted: list[Acceptance]) -> ExactResult:
    """The row of a counter: any increase fails, unless its new value is accepted."""
    rise = finding.new - finding.old
    verdict = Verdict.MORE if rise > 0 else Verdict.LESS if rise < 0 else Verdict.SAME
    reason = _reason(finding.case, finding.counter, finding.new, accepted) if rise > 0 else None
    return ExactResult(finding.case, finding.counter, finding.old, finding.new, verdict, reason)


def with_acceptance(row: CaseResult, accepted: Sequence[Acceptance]) -> CaseResult:
    """The row, with the reason if its slowdown is accepted."""
    if row.verdict != Verdict.SLOWER or row.effect is None:
        return row
    reason = accepted_slowdown(row.id, row.effect.effect, accepted)
    return row if reason is None else replace(row, accepted=reason)


def accepted_slowdown(case: str, effect: float, accepted: Sequence[Acceptance]) -> str | None:
    """Why a slowdown of this size is accepted, or None."""
    return _reason(case, None, 1 + effect, accepted)


def _reason(case: str, counter: str | None, amount: float, accepted: Sequence[Acceptance]) -> str | None:
    reasons = (row.reason for row in accepted if (row.id, row.counter) == (case, counter) and amount <= row.limit)
    return next(reasons, None)


def _untimed(case: str, base: NoTiming | None, head: NoTiming | None) -> CaseResult:
    words = {
        row.side: f"{'does not have it' if row.outcome == ABSENT else OUTCOMES[row.outcome]}: {row.reason.rstrip('.')}"
        for row in (base, head)
        if row is not None
    }
    if base is None or head is None:
        verdict = Verdict.NEW if head is None else LOST[head.outcome]
        return CaseResult(case, verdict, explanation="; ".join(f"{side} {reason}" for side, reason in words.items()))
    same = len(set(words.values())) == 1
    explanation = f"on both sides {words['base']}" if same else f"base {words['base']}; head {words['head']}"
    return CaseResult(case, Verdict.NOT_MEASURED, explanation=explanation)


def _timed(samples: GateSamples, course: Course, rules: Rules, place: int) -> CaseResult:
    case = samples.cases[place]
    verdict = _verdict(course, place)
    lines = [line for line in samples.measurements if line.case == case]
    if not lines:
        return CaseResult(case, verdict, explanation="not measured in any launch pair")
    wall = bool(course.by_wall_time[place])
    found, everything = _estimates(course, place, wall)
    needed = None
    if verdict == Verdict.UNDECIDED:
        level = rules.alpha * (1 - rules.suite_share) * rules.look_shares[-1]
        level /= max(1, len(course.screening.candidates))
        mean, variance = float(found.mean[0]), float(found.variance[0])
        needed = launches_needed(mean, variance, level, rules.look_clearing_level, rules, FEWEST_PAIRS)
    clock: Clock = "wall" if wall else course.screening.clock.clock
    effects = _effect(found), None if everything is None else _effect(everything)
    return CaseResult(case, verdict, *effects, *median_seconds(lines, clock), clock, needed)


def median_seconds(lines: Sequence[Measurement], clock: Clock) -> tuple[float | None, float | None]:
    """The median over launch pairs of base's and head's median round by this clock; None where it was not read."""
    read = [line.seconds_by(clock) for line in lines]
    sides = [[float(np.median(turns)) for pair in read if (turns := pair[side]) is not None] for side in (0, 1)]
    base, head = (median(side) if side else None for side in sides)
    return base, head


def _verdict(course: Course, place: int) -> Verdict:
    screened, confirmed = course.screening.screened, course.confirmed
    if confirmed.slower[place]:
        return Verdict.SLOWER
    if confirmed.faster[place]:
        return Verdict.FASTER
    if confirmed.cleared[place]:
        return Verdict.OK
    # A case suspected only of being faster is cleared of being slower.
    unclear = screened.slower_suspects[place] or screened.too_noisy[place]
    return Verdict.UNDECIDED if unclear or screened.estimate.count[place] < FEWEST_PAIRS else Verdict.OK


def _estimates(course: Course, place: int, wall: bool) -> tuple[Estimate, Estimate | None]:
    """The estimate behind the verdict, and that of all launches if those are more; arrays of one case."""
    screening = course.screening
    guard = screening.guard if wall else None
    prior = screening.screened.prior if guard is None else guard.prior
    first, second = ((stage.wall_values if wall else stage.values)[[place]] for stage in (screening, course))
    second = second[:, : course.pairs_used[place]]
    if np.sum(~np.isnan(second)) < FEWEST_PAIRS:
        return moderated(estimate(first), prior), None
    return moderated(estimate(second), prior), moderated(estimate(np.hstack((first, second))), prior)


def _effect(found: Estimate) -> Effect | None:
    return None if np.isnan(found.mean[0]) else Effect(*found.interval(0), int(found.count[0]))


def launches_needed(
    mean: float,
    variance: float,
    slower_level: float,
    clearing_level: float,
    rules: Rules,
    fewest: int,
    base: float = math.inf,
) -> int | None:
    """Launches until a case would be called SLOWER or OK, if its mean and variance are right; None beyond 1000.

    Launch pairs, or launches of head against `base` of base.
    """
    launches = np.arange(fewest, 1001)
    error = np.sqrt(variance * (1 / base + 1 / launches))
    dof = launches - 1 if base == math.inf else base + launches - 2
    is_slower = mean - stats.t.isf(slower_level, dof) * error > rules.log_margin
    is_clear = mean + stats.t.isf(clearing_level, dof) * error < rules.log_matters
    enough = launches[is_slower | is_clear]
    return int(enough[0]) if len(enough) else None
