"""Two runs side by side, case by case: the ratio of medians, or why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb
from statistics import median

from perf_tests.records.record import OUTCOMES, Json, identity_of, timing_outcomes


class Status(StrEnum):
    """What became of one case between two runs."""

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
    """At least 95 %, and within these two launches only: another launch may differ by more."""
    explanation: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the case was measured before and has no figure now."""
        return self.status in (Status.GONE, Status.NO_LONGER)


def compare(before: Json, now: Json, gone_counts: bool = True) -> list[ComparedCase]:
    """A row for every case of either record; without `gone_counts`, cases only in `before` are left out."""
    timed_before, timed_now = _by_id(before["benchmarks"], "fullname"), _by_id(now["benchmarks"], "fullname")
    untimed_before, untimed_now = _by_id(timing_outcomes(before), "id"), _by_id(timing_outcomes(now), "id")
    rows = [_timed_now(case_id, timed, timed_before, untimed_before) for case_id, timed in timed_now.items()]
    rows += [_untimed_now(case_id, row, timed_before, untimed_before) for case_id, row in untimed_now.items()]
    if gone_counts:
        seen = timed_now.keys() | untimed_now.keys()
        rows += [_gone(case_id, row) for case_id, row in timed_before.items() if case_id not in seen]
        rows += [_never(case_id, row) for case_id, row in untimed_before.items() if case_id not in seen]
    return rows


def _timed_now(case_id: str, now: Json, timed_before: dict[str, Json], untimed_before: dict[str, Json]) -> ComparedCase:
    seconds = now["stats"]["data"]
    if case_id in untimed_before:
        was = OUTCOMES[untimed_before[case_id]["outcome"]]
        return ComparedCase(case_id, Status.MEASURED_NOW, median(seconds), explanation=f"{was} before")
    if case_id not in timed_before:
        return ComparedCase(case_id, Status.NEW, median(seconds))
    before = timed_before[case_id]
    difference = identity_difference(before, now)
    if difference:
        return ComparedCase(case_id, Status.INCOMPARABLE, median(seconds), explanation=difference)
    seconds_before = before["stats"]["data"]
    return ComparedCase(
        case_id,
        Status.MEASURED,
        median(seconds),
        median(seconds_before),
        median(seconds) / median(seconds_before),
        ratio_interval(seconds, seconds_before),
    )


def _untimed_now(
    case_id: str, now: Json, timed_before: dict[str, Json], untimed_before: dict[str, Json]
) -> ComparedCase:
    explanation = f"now {OUTCOMES[now['outcome']]}: {now['reason']}"
    if case_id in timed_before:
        before_seconds = median(timed_before[case_id]["stats"]["data"])
        difference = identity_difference(timed_before[case_id], now)
        if difference:
            return ComparedCase(case_id, Status.INCOMPARABLE, before_seconds=before_seconds, explanation=difference)
        return ComparedCase(case_id, Status.NO_LONGER, before_seconds=before_seconds, explanation=explanation)
    return ComparedCase(case_id, Status.NEVER if case_id in untimed_before else Status.NEW, explanation=explanation)


def _gone(case_id: str, before: Json) -> ComparedCase:
    return ComparedCase(
        case_id, Status.GONE, before_seconds=median(before["stats"]["data"]), explanation="not part of this run"
    )


def _never(case_id: str, before: Json) -> ComparedCase:
    was = OUTCOMES[before["outcome"]]
    return ComparedCase(case_id, Status.NEVER, explanation=f"{was} before, and not part of this run")


def identity_difference(before: Json, now: Json) -> str:
    """The identity fields in which two rows of one id differ; empty if they agree."""
    fields_before, fields_now = identity_of(before), identity_of(now)
    return ", ".join(
        f"{name} was {fields_before.get(name)!r}, is {fields_now.get(name)!r}"
        for name in dict.fromkeys((*fields_before, *fields_now))
        if fields_before.get(name) != fields_now.get(name)
    )


def _by_id(rows: Sequence[Json], key: str) -> dict[str, Json]:
    return {row[key]: row for row in rows}


def ratio_interval(now: Sequence[float], before: Sequence[float]) -> tuple[float, float] | None:
    """An interval of at least 95 % for the ratio of two medians; None with too few rounds for one.

    Each median is enclosed by order statistics at 97.5 %, so that both hold at 95 % (Bonferroni), whatever the
    distribution of independent rounds: David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.
    """
    around_now, around_before = median_interval(now, 0.975), median_interval(before, 0.975)
    if around_now is None or around_before is None:
        return None
    return around_now[0] / around_before[1], around_now[1] / around_before[0]


def median_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """The narrowest symmetric pair of order statistics that holds the median at `confidence`; None if none does."""
    ordered = sorted(values)
    count = len(ordered)
    chosen = None
    below = 0.0
    for skipped in range(count // 2):
        below += comb(count, skipped) / 2**count  # the median lies below the order statistic number skipped + 1
        if 1 - 2 * below < confidence:
            break
        chosen = ordered[skipped], ordered[count - 1 - skipped]
    return chosen
