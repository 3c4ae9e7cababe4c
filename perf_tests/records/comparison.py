"""A record held against an earlier one: how the two differ, and what of that fails a run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from perf_tests_suite.perf_tests.records.record import Json, machine_differences, run_of
from perf_tests_suite.perf_tests.records.store import ComparedCase, StoredRecord, compare, identity_difference


class StatsCheck(Protocol):
    """A condition of `--benchmark-compare-fail`, as pytest-benchmark parses it."""

    def fails(self, current: Json, compared: Json) -> str | None:
        """Return in which way the one's `stats` are too much above the other's; None where they are not."""


@dataclass(frozen=True)
class Baseline:
    """What a record is held against."""

    name: str
    data: Json
    gone_counts: bool = True
    """Whether a case that it has and the record lacks is a failure."""
    checks: Sequence[StatsCheck] = ()


@dataclass(frozen=True)
class Comparison:
    """How a record differs from its baseline."""

    baseline: Baseline
    rows: Sequence[ComparedCase]
    failures: Sequence[str]
    """Sentences on cases that the record lost, and on those that fail a check."""

    @classmethod
    def of(cls, record: Json, baseline: Baseline) -> "Comparison":
        rows = compare(baseline.data, record, baseline.gone_counts)
        lost = [f"{row.id}: {row.status}, {row.explanation}" for row in rows if row.is_failure]
        slower = [
            f"{row['fullname']}: {failure}"
            for row, before in with_baseline(record["benchmarks"], baseline.data)
            if before is not None
            for check in baseline.checks
            if (failure := check.fails(row["stats"], before["stats"]))
        ]
        return cls(baseline, rows, lost + slower)


def refuse_incomparable(before: StoredRecord, now: StoredRecord) -> None:
    """Raise ValueError, with one sentence, for two records of one run or of different machines."""
    if run_of(before.data) is not None and run_of(before.data) == run_of(now.data):
        raise ValueError(f"{before.name} and {now.name} are one run, saved twice; compare it with another.")
    if differences := machine_differences(before.data["machine_info"], now.data["machine_info"], ("A", "B")):
        words = "; ".join(differences)
        raise ValueError(f"{before.name} (A) and {now.name} (B) differ in machine, build or settings: {words}.")


def with_baseline(rows: Iterable[Json], baseline: Json | None) -> Iterator[tuple[Json, Json | None]]:
    """Yield each timed row with its comparable one of the baseline, or None."""
    known = {row["fullname"]: row for row in baseline["benchmarks"]} if baseline else {}
    for row in rows:
        before = known.get(row["fullname"])
        yield row, None if before is None or identity_difference(before, row) else before
