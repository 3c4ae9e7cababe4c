"""Why a case has no timing: judged before it is tried, or read from the error or report that ended it."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pytest

from perf_tests_suite.perf_tests.bench.workers import lines_not_compiled
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.device import Device, error_text, is_beyond_device, is_out_of_memory
from perf_tests_suite.perf_tests.phases import DIMENSIONS
from perf_tests_suite.perf_tests.predict.counters import needed_bytes
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json, identity_of


@dataclass(frozen=True)
class Outcome:
    """Why a case has no timing. Raises ValueError for a kind that records do not know."""

    outcome: str
    reason: str
    needed_bytes: int | None = None
    available_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is not known; it must be one of {', '.join(OUTCOMES)}.")

    @property
    def is_of_a_side(self) -> bool:
        """Whether base may be another: it may support what head does not, or be honest. Only its worker can tell."""
        return self.outcome in ("unsupported", "suspicious")

    @property
    def sentence(self) -> str:
        return f"{OUTCOMES[self.outcome]}: {self.reason}"

    def as_row(self, case_id: str, case: Case, rounds: Sequence[float]) -> Json:
        """The row of the record; `rounds` are the seconds measured before the case ended."""
        return {"id": case_id, **case.identity(), **asdict(self), "rounds": list(rounds)}


class ImpossibleError(Exception):
    """A case was measured faster than its machine can be; the message gives the limit and the likely cause."""


class SuspiciousError(Exception):
    """Code of the user's was not measured as the suite's own is; the message says what was found."""


def why_too_large(case: Case, budget_bytes: int, earlier: Sequence[Json], of_what: str = "") -> Outcome | None:
    """Judge a case before it is tried; None where it may fit.

    It does not where it needs more than the budget, or where a smaller case of its family did not fit, according to
    the rows in `earlier`. `of_what` says what limits the budget, in words that continue "may be used".
    """
    needed = needed_bytes(case)
    if needed > budget_bytes:
        reason = (
            f"needs at least {amount(needed)}, and {amount(budget_bytes)} may be used{of_what}; "
            "choose a smaller batch, context or size, or raise --memory-budget."
        )
        return Outcome("would_not_fit", reason, needed, budget_bytes)
    here = case.identity()

    def is_smaller(row: Json) -> bool:
        """Whether the row is of the same family, no dimension of it is larger, and all else but its size agrees."""
        there = identity_of(row)
        return there.keys() == here.keys() and all(
            there[name] <= here[name]
            if name in DIMENSIONS and None not in (there[name], here[name])
            else there[name] == here[name]
            for name in here
            if name != "size"
        )

    for row in earlier:
        if row["outcome"] in ("out_of_memory", "would_not_fit") and is_smaller(row):
            smaller = row["id"].rpartition("::")[2]
            reason = f"not tried: the smaller {smaller} is {OUTCOMES[row['outcome']]}."
            return Outcome("would_not_fit", reason, needed, budget_bytes)
    return None


def outcome_of_error(error: BaseException, case: Case, device: Device, available_bytes: int) -> Outcome | None:
    """Read from an error what it says of the device; None where the case itself has failed."""
    words = error_text(error)
    if is_beyond_device(error):
        return Outcome("unsupported", words)
    if not is_out_of_memory(error):
        return None
    # PyTorch's own allocator tells what is free.
    memory = "" if "is free" in words else device.memory_state()
    return Outcome("out_of_memory", f"{words} ({memory})" if memory else words, needed_bytes(case), available_bytes)


def outcome_of_report(report: pytest.TestReport) -> Outcome:
    """Read the outcome from pytest's report of a case that was skipped or failed."""
    if report.skipped:
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        return Outcome("unsupported", reason.removeprefix("Skipped: "))
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message if crash else report.longreprtext)
    of_user = lines_not_compiled(message)
    explained = re.findall(r"^\s*Explanation: (.+)", message, re.MULTILINE)[:1]
    place = [f"at {file}:{line}" for file, line in of_user[-1:]]
    return Outcome("error", "; ".join([*message.splitlines()[:1], *(explained + place if place else [])]))


def amount(count: float) -> str:
    """Format bytes as MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


KILLED = Outcome(
    "process_died",
    "the process was killed twice while this case ran, by a signal that it cannot name: from outside, or for want of "
    "memory.",
)

RANK_DIED = Outcome(
    "process_died",
    "a rank died twice while this case ran, or torchrun was told to end; what torchrun says above has its exit code.",
)
