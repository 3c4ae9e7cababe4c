"""The rows of a gate run: each case's verdict with the effect and the interval behind it, and each exact counter's."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from scipy import stats

from perf_tests.gate.accepted import Acceptance
from perf_tests.gate.course import Course
from perf_tests.gate.events import ABSENT, ExactFinding, Measurement, NoTiming
from perf_tests.gate.rules import Clock, Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.statistics import FEWEST_PAIRS, Estimate, estimate, moderated
from perf_tests.gate.verdicts import LOST, CaseResult, Effect, ExactResult, Verdict
from perf_tests.records.record import OUTCOMES


def case_results(samples: GateSamples, course: Course, rules: Rules, accepted: list[Acceptance]) -> list[CaseResult]:
    """A row for each case, in the order of the run."""
    lost = {(row.case, row.side): row for row in samples.of(NoTiming)}
    rows = []
    for place, case in enumerate(samples.cases):
        base, head = lost.get((case, "base")), lost.get((case, "head"))
        is_timed = base is None and head is None
        rows.append(_timed(samples, course, rules, place) if is_timed else _untimed(case, base, head))
    return [with_acceptance(row, accepted) for row in rows]


OF_TWO_BUILDS = "each side counts what its own build runs"
"""Why a rise fails no run whose base is under another interpreter: it need not be of the code."""


def exact_result(finding: ExactFinding, accepted: list[Acceptance], two_builds: bool = False) -> ExactResult:
    """The row of a counter: any increase fails, unless its new value is accepted or is of another build."""
    rise = finding.new - finding.old
    verdict = Verdict.MORE if rise > 0 else Verdict.LESS if rise < 0 else Verdict.SAME
    reason = None
    if rise > 0:
        limits = [row for row in accepted if (row.id, row.counter) == (finding.case, finding.counter)]
        reason = OF_TWO_BUILDS if two_builds else _reason(finding.new, limits)
    return ExactResult(finding.case, finding.counter, finding.old, finding.new, verdict, reason)


def with_acceptance(row: CaseResult, accepted: Sequence[Acceptance]) -> CaseResult:
    """The row, with the reason if its slowdown is accepted by every clock that shows it."""
    reasons = [accepted_slowdown(row.id, clock, found.effect, accepted) for clock, found in row.slower_by.items()]
    known = [reason for reason in reasons if reason is not None]
    return replace(row, accepted="; ".join(dict.fromkeys(known))) if known and len(known) == len(reasons) else row


def accepted_slowdown(case: str, clock: Clock, effect: float, accepted: Sequence[Acceptance]) -> str | None:
    """Why a slowdown of this size by this clock is accepted, or None."""
    limits = [row for row in accepted if (row.id, row.counter) == (case, None) and row.clock in (None, clock)]
    return _reason(1 + effect, limits)


def _reason(amount: float, limits: Sequence[Acceptance]) -> str | None:
    return next((row.reason for row in limits if amount <= row.limit), None)


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
    used = course.screening.clock.clock
    called = {by: bool(flags[place]) for by, flags in course.slower_by.items()}
    slower_by = slowdowns(lambda by, said: _effect(_estimates(course, place, by)[0], said, rules), called, rules)
    clock: Clock = next(iter(slower_by), "wall" if _waits_for_wall(course, place, verdict, rules) else used)
    found, everything = _estimates(course, place, clock)
    if verdict == Verdict.OK and not course.confirmed.cleared[place]:
        found = _screened_estimate(course, place, clock)
    needed = None
    if verdict == Verdict.UNDECIDED:
        level = rules.stage_two_alpha * rules.look_shares[-1]
        level /= max(1, len(course.screening.candidates))
        mean, variance = float(found.mean[0]), float(found.variance[0])
        needed = launches_needed(mean, variance, level, rules.look_clearing_level, rules, FEWEST_PAIRS)
    return CaseResult(
        case,
        verdict,
        _effect(found, verdict, rules),
        None if everything is None else _effect(everything, Verdict.UNDECIDED, rules),
        *median_seconds(lines, clock),
        clock,
        needed,
        is_by_guard=clock == "wall" != used,
        slower_by=slower_by,
    )


def slowdowns(
    effect_by: Callable[[Clock, Verdict], Effect | None], called: Mapping[Clock, bool], rules: Rules
) -> dict[Clock, Effect]:
    """What each clock says of a case that a clock `called` SLOWER, such clocks first; else nothing.

    Another clock counts by its interval alone: it stops with the one that decides, too early for its own test.
    """
    if not any(called.values()):
        return {}
    found = {}
    for clock in sorted(called, key=lambda clock: not called[clock]):
        effect = effect_by(clock, Verdict.SLOWER if called[clock] else Verdict.UNDECIDED)
        if effect is not None and (called[clock] or effect.low > rules.margin):
            found[clock] = effect
    return found


def _waits_for_wall(course: Course, place: int, verdict: Verdict, rules: Rules) -> bool:
    """Whether wall time alone keeps a case from being OK."""
    guard, clock = course.screening.guard, course.screening.clock.clock
    if verdict != Verdict.UNDECIDED or guard is None or not guard.slower_suspects[place]:
        return False
    by_other_clock = _estimates(course, place, clock)[0]
    return bool(by_other_clock.upper_limits(rules.look_clearing_level)[0] < rules.log_matters)


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


def _estimates(course: Course, place: int, clock: Clock) -> tuple[Estimate, Estimate | None]:
    """Of stage 2 if it has enough launches, with that of all launches, else of stage 1; arrays of one case."""
    first, second = (stage.by_clock[clock][[place]] for stage in (course.screening, course))
    second = second[:, : course.pairs_used[place]]
    if np.sum(~np.isnan(second)) < FEWEST_PAIRS:
        return _screened_estimate(course, place, clock), None
    prior = course.priors[clock]
    return moderated(estimate(second), prior), moderated(estimate(np.hstack((first, second))), prior)


def _screened_estimate(course: Course, place: int, clock: Clock) -> Estimate:
    return moderated(estimate(course.screening.by_clock[clock][[place]]), course.priors[clock])


def _effect(found: Estimate, verdict: Verdict, rules: Rules) -> Effect | None:
    return shown_effect(found, 0, found.count[0], verdict, rules)


def shown_effect(found: Estimate, place: int, pairs: float, verdict: Verdict, rules: Rules) -> Effect | None:
    """The effect of one case by the estimate that decided its verdict; None with too few launches."""
    if np.isnan(found.mean[place]):
        return None
    effect, low, high = found.interval(place)
    low = max(low, rules.margin) if verdict == Verdict.SLOWER else low
    high = min(high, rules.matters) if verdict == Verdict.OK else high
    return Effect(effect, low, high, int(pairs))


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
