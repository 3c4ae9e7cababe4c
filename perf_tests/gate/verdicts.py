"""What a gate may say of a case and of an exact counter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from perf_tests.gate.events import ABSENT
from perf_tests.gate.rules import Clock


class Verdict(StrEnum):
    SLOWER = "SLOWER"
    FASTER = "FASTER"
    OK = "OK"
    UNDECIDED = "UNDECIDED"
    NEW = "NEW"
    GONE = "GONE"
    NO_LONGER_FITS = "NO LONGER FITS"
    IMPOSSIBLE = "IMPOSSIBLE"
    INCORRECT = "INCORRECT"
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
    "incorrect": Verdict.INCORRECT,
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
    """From the launches that decided: of a suspect stage 2 alone, because selection in stage 1 biases its launches."""
    all_launches: Effect | None = None
    """From both stages, which exaggerates the effect of a suspect."""
    base_seconds: float | None = None
    """Median time of a round by `clock`."""
    head_seconds: float | None = None
    clock: Clock | None = None
    """The one that decided; times, effect and interval are by it."""
    launches_needed: int | None = None
    """Of an undecided case: fresh launch pairs until a verdict, if the estimate is right."""
    explanation: str = ""
    accepted: str | None = None
    """The reason, where this regression is accepted."""
    is_by_guard: bool = False
    """Wall time decided, although the run's verdicts use CPU time."""
    slower_by: Mapping[Clock, Effect] = field(default_factory=dict)
    """Of a SLOWER case: what each clock says whose interval lies above the margin. The row is of the first."""

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
