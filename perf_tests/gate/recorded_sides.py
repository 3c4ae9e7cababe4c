"""The recorded launches behind a run's verdicts: those of the baseline's code, and those of its own, itself included.

Only cases that this run measured too count, with the same identity on the same machine and build.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perf_tests.records.compare import identity_difference
from perf_tests.records.record import Json, machine_differences, run_of
from perf_tests.records.store import StoredRecord
from perf_tests.records.words import how_many

FEWEST_BASE_LAUNCHES = 5
FEWEST_HEAD_LAUNCHES = 3

NO_COMMIT = ("", "unknown", "unversioned")
"""pytest-benchmark's values where git has no commit."""


@dataclass(frozen=True)
class RecordedSides:
    """Launches of base and of head; `base_name` is the start of the commit or of what `code_of` returns instead."""

    base: Sequence[StoredRecord]
    head: Sequence[StoredRecord]
    base_name: str

    @property
    def why_no_verdict(self) -> str:
        """Why there are too few launches, with the next step; empty if there are enough."""
        if not self.base:
            return (
                "No verdict on time: every comparable record is of this run's own code. Record "
                f"{FEWEST_BASE_LAUNCHES} launches of another commit (`make baseline`), or use --against REV."
            )
        if len(self.base) >= FEWEST_BASE_LAUNCHES and len(self.head) >= FEWEST_HEAD_LAUNCHES:
            return ""
        return (
            f"No verdict on time: {self.base_name} has {how_many(len(self.base), 'comparable launch')} and this code "
            f"{len(self.head)}; at least {FEWEST_BASE_LAUNCHES} and {FEWEST_HEAD_LAUNCHES} are needed "
            "(`make baseline` records ten). --against REV needs none."
        )


def sides_of(
    now: StoredRecord, records: Sequence[StoredRecord], baseline: StoredRecord, is_asked: bool
) -> RecordedSides:
    """The sides of the run `now` among `records`, oldest first; `is_asked` where the user named `baseline`.

    Otherwise base is the newest other code with enough launches, or the newest other code if none has.
    """
    rows = {row["fullname"]: row for row in now.data["benchmarks"]}
    others = [_shared(r, rows) for r in records if not _is_same_run(r.data, now.data) and _fits(r, now)]
    launches: dict[str, list[StoredRecord]] = {}
    for record in others:
        if record.data["benchmarks"]:
            code = code_of(record.data)
            launches[code] = [*launches.pop(code, []), record]  # the code measured last comes last
    own, asked = code_of(now.data), code_of(baseline.data)
    head = [*launches.pop(own, []), _shared(now, rows)]
    enough = [code for code, found in launches.items() if len(found) >= FEWEST_BASE_LAUNCHES]
    if not is_asked:
        asked = [asked, *launches, *enough][-1]
    return RecordedSides(launches.get(asked, []), head, asked[:12])


def code_of(record: Json) -> str:
    """The commit of a clean tree; else the digest of the code that ran, or a name that no other record has."""
    commit = record.get("commit_info") or {}
    identifier = str(commit.get("id") or "")
    if identifier not in NO_COMMIT and not commit.get("dirty"):
        return identifier
    return str(record["suite"].get("source") or f"the run of {record.get('datetime')}")


def _is_same_run(record: Json, now: Json) -> bool:
    return record.get("datetime") == now["datetime"] or (run_of(now) is not None and run_of(record) == run_of(now))


def _fits(record: StoredRecord, now: StoredRecord) -> bool:
    return not machine_differences(record.data["machine_info"], now.data["machine_info"])


def _shared(record: StoredRecord, rows: Mapping[str, Json]) -> StoredRecord:
    """The record with this run's cases alone; the plain comparison reports cases that are gone or no longer fit."""
    kept = [
        row
        for row in record.data["benchmarks"]
        if row["fullname"] in rows and not identity_difference(rows[row["fullname"]], row)
    ]
    return StoredRecord(record.path, {**record.data, "benchmarks": kept, "outcomes": []})
