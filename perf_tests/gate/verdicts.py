"""The verdicts of a gate: on each case, on each exact counter and on the run, and the slowdowns that are accepted.

The engine that measures asks `next_step` for each launch pair; `conclude` returns the same for every replay of the
samples.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import median

import numpy as np
import scipy

from perf_tests_suite.perf_tests.gate.accepted import SUITE, Acceptance, acceptance, accepted_slowdown, accepting_reason
from perf_tests_suite.perf_tests.gate.samples import (
    ABSENT,
    FEWEST_PAIRS,
    SIDES,
    Clock,
    ExactFinding,
    GateSamples,
    Incomparable,
    LeftOut,
    Measurement,
    NoTiming,
    NotSame,
    PairTime,
    Rules,
    Same,
    Uncounted,
    read_samples,
    rules_from_settings,
)
from perf_tests_suite.perf_tests.gate.stages import (
    Shift,
    StageHistory,
    detectable_in,
    replay_stages,
    screening_of,
    sentinel_shifts,
    shift_of_the_suite,
)
from perf_tests_suite.perf_tests.gate.statistics import ClockDecision, Estimate, estimate, moderated
from perf_tests_suite.perf_tests.records.format import finite
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json


class Verdict(StrEnum):
    """What a gate may say of a case or of an exact counter."""

    SLOWER = "SLOWER"
    FASTER = "FASTER"
    OK = "OK"
    UNDECIDED = "UNDECIDED"
    NEW = "NEW"
    GONE = "GONE"
    NO_LONGER_FITS = "NO LONGER FITS"
    IMPOSSIBLE = "IMPOSSIBLE"
    INCORRECT = "INCORRECT"
    SUSPICIOUS = "SUSPICIOUS"
    FAILED = "FAILED"
    NO_LONGER_SUPPORTED = "NO LONGER SUPPORTED"
    NOT_MEASURED = "NOT MEASURED"
    MORE = "MORE"
    """A counter rose."""
    LESS = "LESS"
    SAME = "SAME"
    """A counter did not change, or a case runs the same program on both sides and was not measured."""


LOST = {
    "out_of_memory": Verdict.NO_LONGER_FITS,
    "would_not_fit": Verdict.NO_LONGER_FITS,
    "unsupported": Verdict.NO_LONGER_SUPPORTED,
    "error": Verdict.FAILED,
    "timed_out": Verdict.FAILED,
    "process_died": Verdict.FAILED,
    "impossible": Verdict.IMPOSSIBLE,
    "incorrect": Verdict.INCORRECT,
    "suspicious": Verdict.SUSPICIOUS,
    ABSENT: Verdict.GONE,
}
"""The verdict where head has this outcome and base a timing."""

FAILING = frozenset({Verdict.SLOWER, Verdict.MORE, *LOST.values()})


@dataclass(frozen=True)
class Effect:
    """The slowdown of head as a share of base's time, with its 95 % interval.

    Where it decides a verdict, the interval says no less than the verdict: that of a SLOWER case begins at the margin
    or above, that of an OK case ends at what matters or below. The test behind the verdict excludes the rest, at its
    own level: Stefansson, Kim and Hsu (1988), "On confidence sets in multiple comparisons".
    """

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
    """The effect in the launches that decided: a suspect's in stage 2 alone, as selection biases stage 1."""
    all_launches: Effect | None = None
    """The effect in both stages, which is exaggerated where the case was a suspect."""
    base_seconds: float | None = None
    """Median time of a round by `clock`."""
    head_seconds: float | None = None
    clock: Clock | None = None
    """The one that decided; times, effect and interval are by it."""
    launches_needed: int | None = None
    """Fresh launch pairs until an undecided case has a verdict, if the estimate is right."""
    explanation: str = ""
    accepted: str | None = None
    """The reason, where this regression is accepted."""
    is_by_guard: bool = False
    """Wall time decided, although the run's verdicts use CPU time."""
    slower_by: Mapping[Clock, Effect] = field(default_factory=dict)
    """What each clock says of a SLOWER case whose interval lies above the margin. The row is of the first."""
    why_measured: str = ""
    """Why its program was not shown to be the same on both sides; empty where that was not asked."""
    minutes_needed: float | None = None
    """Minutes of a run on this undecided case alone that would decide it, if the estimate is right, or of the longest
    one."""

    @property
    def is_failure(self) -> bool:
        return self.verdict in FAILING and self.accepted is None


@dataclass(frozen=True)
class ExactResult:
    """The row of an exact counter."""

    id: str
    counter: str
    old: float
    new: float
    verdict: Verdict
    accepted: str | None = None

    @property
    def is_failure(self) -> bool:
        return self.verdict in FAILING and self.accepted is None


class RunVerdict(StrEnum):
    """The verdict on the whole run."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    UNDECIDED = "UNDECIDED"
    """Nothing failed, but a case is undecided under --gate-undecided=fail."""
    UNFINISHED = "UNFINISHED"
    """Nothing failed, but --time-limit ended the run with cases undecided."""
    CONTAMINATED = "CONTAMINATED"
    INCOMPARABLE = "INCOMPARABLE"
    INTERRUPTED = "INTERRUPTED"
    NOT_MEASURED = "NOT MEASURED"
    """No time was compared, by --gate-minutes 0 or because base has none of the cases; nothing that is known failed."""


EXIT_CODES = {
    RunVerdict.PASSED: 0,
    RunVerdict.FAILED: 1,
    RunVerdict.UNDECIDED: 1,
    RunVerdict.UNFINISHED: 4,
    RunVerdict.CONTAMINATED: 4,
    RunVerdict.INCOMPARABLE: 4,
    RunVerdict.INTERRUPTED: 2,
    RunVerdict.NOT_MEASURED: 0,
}
"""pytest's: 2 is its own for an interrupted run."""


@dataclass(frozen=True)
class GateResult:
    """The verdicts of a run and what they rest on."""

    verdict: RunVerdict
    reason: str
    """Why a run is contaminated, incomparable, interrupted or unfinished; empty otherwise."""
    cases: list[CaseResult]
    exact: list[ExactResult]
    suite: Shift | None
    """The slowdown that all cases share."""
    suite_accepted: str | None
    sentinels: dict[str, Shift]
    clock: ClockDecision
    detectable: float | None
    """The slowdown that this run could detect with 80 % power, as a share of base's time; None if it could none."""
    pairs: tuple[int, int]
    """Launch pairs of stage 1 and of stage 2."""
    uncounted: tuple[Uncounted, ...] = ()
    """Cases whose exact counters are not compared."""
    minutes_needed: float | None = None
    """Minutes of a run that would decide every undecided case, if the estimates are right, or of the longest one."""

    @property
    def exit_code(self) -> int:
        """4 too where no time was measured and not even counters say anything of a case."""
        is_unknown = self.verdict == RunVerdict.NOT_MEASURED and bool(self.unknown)
        return EXIT_CODES[RunVerdict.INCOMPARABLE if is_unknown else self.verdict]

    @property
    def unknown(self) -> list[str]:
        """The cases that both sides have and of which nothing was compared."""
        counted = {row.id for row in self.exact}
        return [row.id for row in self.cases if row.verdict == Verdict.NOT_MEASURED and row.id not in counted]

    @property
    def bisect_code(self) -> int:
        """What `git bisect run` is told of head: `GOOD_COMMIT`, `BAD_COMMIT`, or `SKIPPED_COMMIT` where an end that
        decides both is missing. What is accepted is slower all the same.
        """
        if self.verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE, RunVerdict.INTERRUPTED):
            return SKIPPED_COMMIT
        is_bad = any(row.verdict == Verdict.SLOWER for row in self.cases)
        is_bad |= any(row.verdict == Verdict.MORE and row.accepted != OF_TWO_BUILDS for row in self.exact)
        if is_bad or (self.suite is not None and self.suite.is_significant and self.suite.effect > 0):
            return BAD_COMMIT
        is_good = bool(self.cases) and all(row.verdict in DECIDED for row in self.cases)
        return GOOD_COMMIT if is_good else SKIPPED_COMMIT


GOOD_COMMIT, BAD_COMMIT, SKIPPED_COMMIT = 0, 1, 125
"""Exit codes of what `git bisect run` starts; from 128 on git stops, and takes any other for a bad commit."""
DECIDED = (Verdict.OK, Verdict.SAME, Verdict.FASTER)


@dataclass(frozen=True)
class NextLaunch:
    stage: int
    cases: tuple[str, ...]


def next_step(samples: GateSamples, rules: Rules) -> NextLaunch | None:
    """What to launch next; None when everything is decided, or the launches of the last look are done."""
    if len(samples.pairs(1)) < rules.screen_pairs:
        stage, asked = 1, screening_of(samples, rules).undecided
    elif contamination(samples, rules) or len(samples.pairs(2)) >= rules.confirm_looks[-1]:
        return None
    else:
        history = replay_stages(samples, rules)
        stage, asked = 2, history.interim[-1].undecided if history.interim else history.screening.candidates
    without = {row.case for row in samples.of(NoTiming)} | {row.case for row in samples.of(LeftOut)}
    without |= {row.case for row in samples.of(Same)} | _risen(samples)
    cases = tuple(case for case in asked if case not in without)
    return NextLaunch(stage, cases) if cases else None


def failed_cases(samples: GateSamples, rules: Rules) -> set[str]:
    """The cases that fail by these samples, however many more follow."""
    result = conclude(samples, rules)
    rows: list[CaseResult | ExactResult] = [*result.cases, *result.exact]
    return {row.id for row in rows if row.is_failure}


def _risen(samples: GateSamples) -> set[str]:
    """The cases whose exact counters rose beyond what is accepted: they fail whatever their time, which needs no
    measuring.
    """
    return {row.id for row in _exact_results(samples) if row.is_failure}


def _exact_results(samples: GateSamples) -> list[ExactResult]:
    accepted = [acceptance(entry) for entry in samples.header.get("accepted", [])]
    two_builds = "build" in samples.header["base"]
    return [exact_result(finding, accepted, two_builds) for finding in samples.of(ExactFinding)]


def judge(path: Path) -> tuple[GateResult, Json, Rules]:
    """The result of the samples at `path`, with their header; raises ValueError with one sentence if there is none."""
    samples = read_samples(path)
    try:
        rules = rules_from_settings(samples.header["settings"])
        return conclude(samples, rules), samples.header, rules
    except ValueError as error:
        raise ValueError(f"{path} cannot be judged: {error}") from error


def conclude(samples: GateSamples, rules: Rules) -> GateResult:
    """The verdicts under these rules; raises ValueError for damaged acceptances in the header."""
    accepted = [acceptance(entry) for entry in samples.header.get("accepted", [])]
    history = replay_stages(samples, rules)
    cases = case_results(samples, history, rules, accepted)
    cases = [replace(row, minutes_needed=_minutes_needed(samples, [row], rules)) for row in cases]
    exact = _exact_results(samples)
    clock = history.screening.clock
    suite = shift_of_the_suite(history.screening, rules)
    suite_accepted = None if suite is None else accepted_slowdown(SUITE, clock.clock, suite.effect, accepted)
    suite_fails = suite is not None and suite.is_significant and suite_accepted is None
    left = sum(row.verdict == Verdict.UNDECIDED for row in cases)
    untimed = Counter(row.verdict for row in cases if row.verdict in (Verdict.NEW, Verdict.NOT_MEASURED))
    verdict, reason = RunVerdict.PASSED, ""
    if reasons := [event.reason for event in samples.of(Incomparable)]:
        verdict, reason = RunVerdict.INCOMPARABLE, "; ".join(reasons)
    elif moved := contamination(samples, rules):
        verdict, reason = RunVerdict.CONTAMINATED, moved
    elif samples.end in (None, "interrupted"):
        verdict, reason = RunVerdict.INTERRUPTED, "the run did not finish"
    elif suite_fails or any(row.is_failure for row in cases) or any(row.is_failure for row in exact):
        verdict = RunVerdict.FAILED
    elif never_compared := why_never_compared(cases, samples):
        verdict, reason = RunVerdict.INCOMPARABLE, never_compared
    elif (_measures_no_time(samples) and untimed) or (cases and untimed == {Verdict.NEW: len(cases)}):
        verdict = RunVerdict.NOT_MEASURED
    elif left and rules.undecided == "fail":
        verdict, reason = RunVerdict.UNDECIDED, "--gate-undecided=fail"
    elif samples.end == "time_limit" and left:
        verdict = RunVerdict.UNFINISHED
        reason = f"--time-limit ended the gate with {left} of {len(cases)} cases undecided"
    return GateResult(
        verdict,
        reason,
        cases,
        exact,
        suite,
        suite_accepted,
        sentinel_shifts(samples, rules),
        clock,
        detectable_in(samples, history, rules),
        (len(samples.pairs(1)), len(samples.pairs(2))),
        tuple(samples.of(Uncounted)),
        _minutes_needed(samples, cases, rules),
    )


def _measures_no_time(samples: GateSamples) -> bool:
    return samples.header["settings"].get("minutes") == 0


def _minutes_needed(samples: GateSamples, rows: Sequence[CaseResult], rules: Rules) -> float | None:
    """Return the minutes of a run on the cases of `rows` that decides the undecided ones; None without such a case.

    It takes stage 1 and fresh pairs of these: no more than the last look has, and all for a case without an estimate.
    A pair takes its launch and the same for each case. A run without a pair is taken to have ended in half of one.
    """
    undecided = [row for row in rows if row.verdict == Verdict.UNDECIDED]
    screening = [one for one in samples.of(PairTime) if one.stage == 1]
    cases = Counter(line.pair for line in samples.measurements)
    # Where older samples lack the launch's part, every pair is taken to be as long.
    launches = [one.seconds if one.launch_seconds is None else one.launch_seconds for one in screening]
    launch = median(launches or [120 * (finite(samples.header["settings"].get("minutes")) or 1.0)])
    beside = [(one.seconds - part) / max(1, cases[one.pair]) for one, part in zip(screening, launches, strict=True)]

    def pair_seconds(measured: Sequence[CaseResult]) -> float:
        return launch + median(beside or [0.0]) * sum(row.verdict != Verdict.SAME for row in measured)

    pairs = [min(row.launches_needed or math.inf, rules.confirm_looks[-1]) for row in undecided]
    return (rules.screen_pairs * pair_seconds(rows) + max(pairs) * pair_seconds(undecided)) / 60 if pairs else None


def contamination(samples: GateSamples, rules: Rules) -> str:
    """Name the sentinels that differ between the sides, so that the run says nothing of the change; empty if none."""
    moved = [
        f"{name} {shift.effect:+.1%} ({shift.low:+.1%} to {shift.high:+.1%})"
        for name, shift in sentinel_shifts(samples, rules).items()
        if shift.is_significant
    ]
    return f"the sentinels, identical work on both sides, differ: {', '.join(moved)}" if moved else ""


def why_never_compared(cases: Sequence[CaseResult], samples: GateSamples) -> str:
    """Say why base, which failed, was compared in no case; empty where it was in one, or only lacks them.

    Of tests of the user's, why it was not in one that base had, or in any.
    """
    failed = [row for row in samples.of(NoTiming) if row.side == "base" and LOST[row.outcome] == Verdict.FAILED]
    tests, verdicts = samples.header.get("tests", {}), {row.id: row.verdict for row in cases}
    for row in (row for row in samples.of(NoTiming) if row.side == "base"):
        if row.case in tests.get("at_base", ()) and verdicts[row.case] == Verdict.NEW:
            reason = row.reason.strip().rstrip(".")
            return f"base has {row.case}, and head's version of the test does not run on base's code: {reason}"
    lost = {row.case for row in samples.of(NoTiming)}
    if tests and all(row.verdict == Verdict.NOT_MEASURED and row.id in lost for row in cases):
        return "no test could be measured"
    if not failed or any(row.verdict not in (Verdict.NEW, Verdict.NOT_MEASURED) for row in cases):
        return ""
    reason = failed[0].reason.strip().rstrip(".")
    return f"nothing was compared, because base failed: {reason}; give a base that runs"


# The rows: each case's verdict with the effect and the interval behind it.

SAME_PROGRAM = "the program is the same on both sides"


def case_results(
    samples: GateSamples, history: StageHistory, rules: Rules, accepted: Sequence[Acceptance]
) -> list[CaseResult]:
    """A row for each case, in the order of the run."""
    lost, risen = {(row.case, row.side): row for row in samples.of(NoTiming)}, _risen(samples)
    same, why = {row.case for row in samples.of(Same)}, {row.case: row.reason for row in samples.of(NotSame)}
    rows = []
    for place, case in enumerate(samples.cases):
        if case in same:
            rows.append(CaseResult(case, Verdict.SAME, explanation=SAME_PROGRAM))
            continue
        found = [lost[case, side] for side in SIDES if (case, side) in lost]
        if found:
            row = untimed(case, found)
        elif any(line.case == case for line in samples.measurements):
            row = _timed(samples, history, rules, place)
        elif case in risen:
            row = CaseResult(case, Verdict.MORE, explanation="its exact counters rose, so its time was not measured")
        elif _measures_no_time(samples):
            row = CaseResult(case, Verdict.NOT_MEASURED, explanation="--gate-minutes 0 measures no time")
        else:
            row = CaseResult(case, Verdict.UNDECIDED, explanation="not measured in any launch pair")
        rows.append(replace(row, why_measured=why.get(case, "")))
    return [with_acceptance(row, accepted) for row in rows]


def untimed(case: str, lost: Sequence[NoTiming]) -> CaseResult:
    """The row of a case that one side, or both, base first, has `lost`."""
    outcomes = {**OUTCOMES, ABSENT: "does not have it"}
    words = [f"{outcomes[row.outcome]}{row.reason and ': '}{row.reason.rstrip('.')}" for row in lost]
    if len(lost) == 1:
        verdict = Verdict.NEW if lost[0].side == "base" else LOST[lost[0].outcome]
        return CaseResult(case, verdict, explanation=f"{lost[0].side} {words[0]}")
    base, head = words
    explanation = f"on both sides {base}" if base == head else f"base {base}; head {head}"
    return CaseResult(case, Verdict.NOT_MEASURED, explanation=explanation)


def _timed(samples: GateSamples, history: StageHistory, rules: Rules, place: int) -> CaseResult:
    """The row of a case by the clock that decided it."""
    case, screening, confirmed = samples.cases[place], history.screening, history.confirmed
    screened, guard, used = screening.screened, screening.guard, screening.clock.clock

    def of_stage_one(clock: Clock) -> Estimate:
        return moderated(estimate(screening.by_clock[clock][[place]]), history.priors[clock])

    def estimates(clock: Clock) -> tuple[Estimate, Estimate | None]:
        """Estimate by stage 2 if it has enough launches, and by all launches, else by stage 1; arrays of one case."""
        first, second = (stage.by_clock[clock][[place]] for stage in (screening, history))
        second = second[:, : history.pairs_used[place]]
        if np.sum(~np.isnan(second)) < FEWEST_PAIRS:
            return of_stage_one(clock), None
        prior = history.priors[clock]
        return moderated(estimate(second), prior), moderated(estimate(np.hstack((first, second))), prior)

    def effect(found: Estimate, verdict: Verdict) -> Effect | None:
        return shown_effect(found, 0, found.count[0], verdict, rules)

    # A case suspected only of being faster is cleared of being slower.
    unclear = screened.slower_suspects[place] or screened.too_noisy[place]
    too_few = screened.estimate.count[place] < FEWEST_PAIRS
    decided = {Verdict.SLOWER: confirmed.slower, Verdict.FASTER: confirmed.faster, Verdict.OK: confirmed.cleared}
    otherwise = Verdict.UNDECIDED if unclear or too_few else Verdict.OK
    verdict = next((verdict for verdict, flags in decided.items() if flags[place]), otherwise)
    lines = [line for line in samples.measurements if line.case == case]
    called = {by: bool(flags[place]) for by, flags in history.slower_by.items()}
    slower_by = slowdowns(lambda by, said: effect(estimates(by)[0], said), called, rules)
    waits_for_wall = (  # wall time alone keeps the case from being OK
        verdict == Verdict.UNDECIDED
        and guard is not None
        and guard.slower_suspects[place]
        and estimates(used)[0].upper_limits(rules.interim_clearing_level)[0] < rules.log_matters
    )
    clock: Clock = next(iter(slower_by), "wall" if waits_for_wall else used)
    found, everything = estimates(clock)
    if verdict == Verdict.OK and not confirmed.cleared[place]:
        found = of_stage_one(clock)
    needed = None
    if verdict == Verdict.UNDECIDED:
        level = rules.stage_two_alpha * rules.look_shares[-1] / max(1, len(screening.candidates))
        mean, variance = float(found.mean[0]), float(found.variance[0])
        needed = launches_needed(mean, variance, level, rules.interim_clearing_level, rules, FEWEST_PAIRS)
    return CaseResult(
        case,
        verdict,
        effect(found, verdict),
        None if everything is None else effect(everything, Verdict.UNDECIDED),
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


def shown_effect(found: Estimate, place: int, pairs: float, verdict: Verdict, rules: Rules) -> Effect | None:
    """The effect of one case by the estimate that decided its verdict; None with too few launches."""
    if np.isnan(found.mean[place]):
        return None
    effect, low, high = found.interval(place)
    low = max(low, rules.margin) if verdict == Verdict.SLOWER else low
    high = min(high, rules.matters) if verdict == Verdict.OK else high
    return Effect(effect, low, high, int(pairs))


def median_seconds(lines: Sequence[Measurement], clock: Clock) -> tuple[float | None, float | None]:
    """The median over launch pairs of base's and head's median round by this clock; None where it was not read."""
    read = [line.seconds_by(clock) for line in lines]
    sides = [[float(np.median(turns)) for pair in read if (turns := pair[side]) is not None] for side in (0, 1)]
    base, head = (median(side) if side else None for side in sides)
    return base, head


MOST_NEEDED = 1000
"""Launch pairs that are looked for: more than anybody measures."""


def launches_needed(
    mean: float,
    variance: float,
    slower_level: float,
    clearing_level: float,
    rules: Rules,
    fewest: int,
) -> int | None:
    """Return launch pairs until a case is called SLOWER or OK, if mean and variance are right.

    None beyond `MOST_NEEDED`.
    """
    pairs = np.arange(fewest, MOST_NEEDED + 1)
    error, dof = np.sqrt(variance / pairs), pairs - 1
    is_slower = mean - scipy.stats.t.isf(slower_level, dof) * error > rules.log_margin
    is_clear = mean + scipy.stats.t.isf(clearing_level, dof) * error < rules.log_matters
    enough = pairs[is_slower | is_clear]
    return int(enough[0]) if len(enough) else None


OF_TWO_BUILDS = "each side counts what its own build runs"
"""Why a rise fails no run whose base is under another interpreter: it need not be of the code."""


def exact_result(finding: ExactFinding, accepted: Sequence[Acceptance], two_builds: bool = False) -> ExactResult:
    """The row of a counter: any increase fails, unless its new value is accepted or is of another build."""
    rise = finding.new - finding.old
    verdict = Verdict.MORE if rise > 0 else Verdict.LESS if rise < 0 else Verdict.SAME
    reason = None
    if rise > 0:
        limits = [row for row in accepted if (row.id, row.counter) == (finding.case, finding.counter)]
        reason = OF_TWO_BUILDS if two_builds else accepting_reason(finding.new, limits)
    return ExactResult(finding.case, finding.counter, finding.old, finding.new, verdict, reason)


def with_acceptance(row: CaseResult, accepted: Sequence[Acceptance]) -> CaseResult:
    """The row, with the reason if its slowdown is accepted by every clock that shows it."""
    reasons = [accepted_slowdown(row.id, clock, found.effect, accepted) for clock, found in row.slower_by.items()]
    known = [reason for reason in reasons if reason is not None]
    return replace(row, accepted="; ".join(dict.fromkeys(known))) if known and len(known) == len(reasons) else row
