"""The gate's verdicts, computed from the samples of a run and nothing else: screen, look by look confirm, conclude.

The engine that measures asks `next_step` what to launch; `conclude` says what it all came to, and says the same to
whoever reads the samples again.
"""

from dataclasses import dataclass
from enum import StrEnum

from perf_tests.gate.accepted import SUITE, accepted_in
from perf_tests.gate.clock import ClockDecision, pair_value
from perf_tests.gate.course import Look, Screening, course_of, screening_of
from perf_tests.gate.events import Uncounted
from perf_tests.gate.rules import Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.suite import Shift, detectable_in, sentinel_shifts, shift_of_the_suite
from perf_tests.gate.verdicts import CaseResult, ExactResult, Verdict, accepted_slowdown, case_results, exact_results

__all__ = ["GateResult", "Look", "RunVerdict", "Step", "conclude", "look", "next_step", "pair_value", "screen"]


class RunVerdict(StrEnum):
    """What became of the run as a whole."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    UNDECIDED = "UNDECIDED"
    """Nothing failed, and what is undecided is not to pass."""
    CONTAMINATED = "CONTAMINATED"
    INCOMPARABLE = "INCOMPARABLE"
    INTERRUPTED = "INTERRUPTED"


EXIT_CODES = {
    RunVerdict.PASSED: 0,
    RunVerdict.FAILED: 1,
    RunVerdict.UNDECIDED: 1,
    RunVerdict.CONTAMINATED: 4,
    RunVerdict.INCOMPARABLE: 4,
    RunVerdict.INTERRUPTED: 2,
}
"""pytest's: 2 is its own for an interrupted run."""


@dataclass(frozen=True)
class GateResult:
    """Everything that is said of a run."""

    verdict: RunVerdict
    reason: str
    """Why the run is contaminated, incomparable or interrupted; empty otherwise."""
    cases: list[CaseResult]
    exact: list[ExactResult]
    suite: Shift | None
    """The slowdown that all cases share."""
    suite_accepted: str | None
    sentinels: dict[str, Shift]
    clock: ClockDecision
    detectable: float | None
    """The slowdown found in four of five cases on this machine, as a share of base's time."""
    pairs: tuple[int, int]
    """Launch pairs of stage 1 and of stage 2."""
    uncounted: tuple[Uncounted, ...] = ()
    """Cases whose exact counters are not compared."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class Step:
    """The next launch pair: its stage and its cases."""

    stage: int
    cases: tuple[str, ...]


def screen(samples: GateSamples, rules: Rules) -> Screening:
    """Stage 1: who is suspected, who is too noisy to clear, who is OK, by which clock."""
    return screening_of(samples, rules)


def look(samples: GateSamples, rules: Rules, look_number: int) -> Look:
    """Stage 2 after its look `look_number`, from 1; raises ValueError before its launches are there."""
    looks = course_of(samples, rules, look_number).looks
    if len(looks) < look_number:
        raise ValueError(f"Look {look_number} of the gate needs more launch pairs than {len(samples.pairs(2))}.")
    return looks[look_number - 1]


def next_step(samples: GateSamples, rules: Rules) -> Step | None:
    """What to launch next; None when everything is decided, or the launches of the last look are done."""
    without_timing = {row.case for row in samples.without_timing}
    if len(samples.pairs(1)) < rules.screen_pairs:
        cases = tuple(case for case in samples.cases if case not in without_timing)
        return Step(1, cases) if cases else None
    if contamination(samples, rules):
        return None
    course = course_of(samples, rules)
    goes_on = course.looks[-1].goes_on if course.looks else course.screening.candidates
    cases = tuple(case for case in goes_on if case not in without_timing)
    finished = len(samples.pairs(2)) >= rules.confirm_looks[-1]
    return Step(2, cases) if cases and not finished else None


def contamination(samples: GateSamples, rules: Rules) -> str:
    """Why the run says nothing of the change, because frozen work moved; empty if it did not."""
    moved = [
        f"{name} {shift.effect:+.1%} ({shift.low:+.1%} to {shift.high:+.1%})"
        for name, shift in sentinel_shifts(samples, rules).items()
        if shift.is_significant
    ]
    return f"work that is the same on both sides took longer on one: {', '.join(moved)}" if moved else ""


def conclude(samples: GateSamples, rules: Rules) -> GateResult:
    """Everything that the samples say under these rules; raises ValueError for damaged acceptances in the header."""
    accepted = accepted_in(samples.header)
    course = course_of(samples, rules)
    cases = case_results(samples, course, rules, accepted)
    exact = exact_results(samples.exact, accepted)
    suite = shift_of_the_suite(course.screening, rules)
    suite_accepted = None if suite is None else accepted_slowdown(SUITE, suite.effect, accepted)
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
        detectable_in(course, rules),
        (len(samples.pairs(1)), len(samples.pairs(2))),
        tuple(samples.uncounted),
    )


def _run_verdict(samples: GateSamples, rules: Rules, cases: list[CaseResult], fails: bool) -> tuple[RunVerdict, str]:
    if samples.incomparable:
        return RunVerdict.INCOMPARABLE, "; ".join(samples.incomparable)
    moved = contamination(samples, rules)
    if moved:
        return RunVerdict.CONTAMINATED, moved
    if samples.end in (None, "interrupted"):
        return RunVerdict.INTERRUPTED, "the run did not come to its end"
    if fails:
        return RunVerdict.FAILED, ""
    undecided = any(row.verdict == Verdict.UNDECIDED for row in cases)
    return RunVerdict.UNDECIDED if undecided and rules.undecided == "fail" else RunVerdict.PASSED, ""
