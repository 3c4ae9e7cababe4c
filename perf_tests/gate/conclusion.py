"""The gate's verdicts, computed from the samples of a run alone.

The engine that measures asks `next_step` for each launch pair; `conclude` returns the same for every replay of the
samples.
"""

from dataclasses import dataclass
from enum import StrEnum

from perf_tests.gate.accepted import SUITE, acceptance
from perf_tests.gate.clock import ClockDecision
from perf_tests.gate.course import course_of, screening_of
from perf_tests.gate.events import ExactFinding, Incomparable, LeftOut, NoTiming, Uncounted
from perf_tests.gate.rows import accepted_slowdown, case_results, exact_result
from perf_tests.gate.rules import Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.suite import Shift, detectable_in, sentinel_shifts, shift_of_the_suite
from perf_tests.gate.verdicts import CaseResult, ExactResult, Verdict


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


EXIT_CODES = {
    RunVerdict.PASSED: 0,
    RunVerdict.FAILED: 1,
    RunVerdict.UNDECIDED: 1,
    RunVerdict.UNFINISHED: 4,
    RunVerdict.CONTAMINATED: 4,
    RunVerdict.INCOMPARABLE: 4,
    RunVerdict.INTERRUPTED: 2,
}
"""pytest's: 2 is its own for an interrupted run."""


@dataclass(frozen=True)
class GateResult:
    verdict: RunVerdict
    reason: str
    """Of a contaminated, incomparable, interrupted or unfinished run; empty otherwise."""
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

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class Step:
    stage: int
    cases: tuple[str, ...]


def next_step(samples: GateSamples, rules: Rules) -> Step | None:
    """What to launch next; None when everything is decided, or the launches of the last look are done."""
    if len(samples.pairs(1)) < rules.screen_pairs:
        stage, asked = 1, screening_of(samples, rules).undecided
    elif contamination(samples, rules) or len(samples.pairs(2)) >= rules.confirm_looks[-1]:
        return None
    else:
        course = course_of(samples, rules)
        stage, asked = 2, course.looks[-1].undecided if course.looks else course.screening.candidates
    without = {row.case for row in samples.of(NoTiming)} | {row.case for row in samples.of(LeftOut)}
    cases = tuple(case for case in asked if case not in without)
    return Step(stage, cases) if cases else None


def contamination(samples: GateSamples, rules: Rules) -> str:
    """Which sentinels differ between the sides, so that the run says nothing about the change; empty if none does."""
    moved = [
        f"{name} {shift.effect:+.1%} ({shift.low:+.1%} to {shift.high:+.1%})"
        for name, shift in sentinel_shifts(samples, rules).items()
        if shift.is_significant
    ]
    return f"the sentinels, identical work on both sides, differ: {', '.join(moved)}" if moved else ""


def conclude(samples: GateSamples, rules: Rules) -> GateResult:
    """The verdicts under these rules; raises ValueError for damaged acceptances in the header."""
    accepted = [acceptance(entry) for entry in samples.header.get("accepted", [])]
    course = course_of(samples, rules)
    cases = case_results(samples, course, rules, accepted)
    two_builds = "build" in samples.header["base"]
    exact = [exact_result(finding, accepted, two_builds) for finding in samples.of(ExactFinding)]
    clock = course.screening.clock.clock
    suite = shift_of_the_suite(course.screening, rules)
    suite_accepted = None if suite is None else accepted_slowdown(SUITE, clock, suite.effect, accepted)
    suite_fails = suite is not None and suite.is_significant and suite_accepted is None
    fails = suite_fails or any(row.is_failure for row in cases) or any(row.is_failure for row in exact)
    verdict, reason = _run_verdict(samples, rules, cases, fails)
    return GateResult(
        verdict,
        reason,
        cases,
        exact,
        suite,
        suite_accepted,
        sentinel_shifts(samples, rules),
        course.screening.clock,
        detectable_in(samples, course, rules),
        (len(samples.pairs(1)), len(samples.pairs(2))),
        tuple(samples.of(Uncounted)),
    )


def _run_verdict(samples: GateSamples, rules: Rules, cases: list[CaseResult], fails: bool) -> tuple[RunVerdict, str]:
    if reasons := [event.reason for event in samples.of(Incomparable)]:
        return RunVerdict.INCOMPARABLE, "; ".join(reasons)
    moved = contamination(samples, rules)
    if moved:
        return RunVerdict.CONTAMINATED, moved
    if samples.end in (None, "interrupted"):
        return RunVerdict.INTERRUPTED, "the run did not finish"
    if fails:
        return RunVerdict.FAILED, ""
    left = sum(row.verdict == Verdict.UNDECIDED for row in cases)
    if left and rules.undecided == "fail":
        return RunVerdict.UNDECIDED, "--gate-undecided=fail"
    if samples.end == "time_limit" and left:
        return RunVerdict.UNFINISHED, f"--time-limit ended the gate with {left} of {len(cases)} cases undecided"
    return RunVerdict.PASSED, ""
