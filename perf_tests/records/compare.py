"""Two runs side by side, case by case: the ratio of medians, or why there is none."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from perf_tests.records.record import OUTCOMES, Json, identity_of, timing_outcomes
from perf_tests.records.times import Times


class Status(StrEnum):
    MEASURED = "measured in both"
    NEW = "new"
    GONE = "gone"
    NO_LONGER = "no longer measured"
    MEASURED_NOW = "measured now, not before"
    NEVER = "measured in neither"
    INCOMPARABLE = "incomparable"


@dataclass(frozen=True)
class ComparedCase:
    """One case of either run. `ratio` is now over before: 1.05 takes 5 % longer."""

    id: str
    status: Status
    now_seconds: float | None = None
    before_seconds: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    """At least 95 %, for these two launches only: another launch may differ by more."""
    explanation: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the case was measured before and has no figure now."""
        return self.status in (Status.GONE, Status.NO_LONGER)


def compare(before: Json, now: Json, gone_counts: bool = True) -> list[ComparedCase]:
    """A row for every case of either record; without `gone_counts`, cases only in `before` are left out."""
    rows_before, rows_now = rows_by_id(before), rows_by_id(now)
    ids = [*rows_now, *(case_id for case_id in rows_before if gone_counts and case_id not in rows_now)]
    return [_compared(case_id, rows_before.get(case_id), rows_now.get(case_id)) for case_id in ids]


def rows_by_id(record: Json) -> dict[str, Json]:
    """Of each case that was to be timed, its timing or its outcome."""
    timed = {row["fullname"]: row for row in record["benchmarks"]}
    return timed | {row["id"]: row for row in timing_outcomes(record)}


def _compared(case_id: str, before: Json | None, now: Json | None) -> ComparedCase:
    times_now, times_before = _times(now), _times(before)
    now_seconds, before_seconds = (None if times is None else times.median for times in (times_now, times_before))
    is_now = f"now {OUTCOMES[now['outcome']]}: {now['reason']}" if now is not None and now_seconds is None else ""
    was = f"{OUTCOMES[before['outcome']]} before" if before is not None and before_seconds is None else ""
    row = partial(ComparedCase, case_id, now_seconds=now_seconds, before_seconds=before_seconds)
    if now is None:
        if was:
            return row(Status.NEVER, explanation=f"{was}, and not part of this run")
        return row(Status.GONE, explanation="not part of this run")
    if before is None:
        return row(Status.NEW, explanation=is_now)
    if before_seconds is None:
        return row(Status.NEVER, explanation=is_now) if is_now else row(Status.MEASURED_NOW, explanation=was)
    difference = identity_difference(before, now)
    if difference:
        return row(Status.INCOMPARABLE, before_seconds=before_seconds if is_now else None, explanation=difference)
    if times_now is None or times_before is None:
        return row(Status.NO_LONGER, explanation=is_now)
    interval = ratio_interval(times_now, times_before)
    return row(Status.MEASURED, ratio=times_now.median / times_before.median, interval=interval)


def _times(row: Json | None) -> Times | None:
    return None if row is None or "stats" not in row else Times.of(row["stats"]["data"])


def identity_difference(before: Json, now: Json) -> str:
    """The identity fields in which two rows of one id differ; empty if they agree."""
    fields_before, fields_now = identity_of(before), identity_of(now)
    return ", ".join(
        f"{name} was {fields_before.get(name)!r}, is {fields_now.get(name)!r}"
        for name in dict.fromkeys((*fields_before, *fields_now))
        if fields_before.get(name) != fields_now.get(name)
    )


def ratio_interval(now: Times, before: Times) -> tuple[float, float] | None:
    """An interval of at least 95 % for the ratio of two medians; None with too few rounds for one.

    Order statistics enclose each median at 97.5 %, so both hold at 95 % (Bonferroni), for any distribution of
    independent rounds: David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.
    """
    around_now, around_before = now.median_interval(0.975), before.median_interval(0.975)
    if around_now is None or around_before is None:
        return None
    return around_now[0] / around_before[1], around_now[1] / around_before[0]
