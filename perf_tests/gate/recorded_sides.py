"""Which recorded launches a run is judged by: those of the baseline's code, and those of its own, itself included.

Of each only the cases count that this run measured too, with the same identity on the same machine and build.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perf_tests.records.compare import identity_difference
from perf_tests.records.record import Json, machine_differences
from perf_tests.records.store import StoredRecord

FEWEST_BASE_LAUNCHES = 5
FEWEST_HEAD_LAUNCHES = 3

NO_COMMIT = ("", "unknown", "unversioned")
"""What pytest-benchmark writes where git knows none."""


@dataclass(frozen=True)
class RecordedSides:
    """Launches of base and of head; `base_name` is the commit, or what stands for one."""

    base: Sequence[StoredRecord]
    head: Sequence[StoredRecord]
    base_name: str

    @property
    def why_no_verdict(self) -> str:
        """Why nothing can be said of times, with the next step; empty if there are launches enough."""
        if not self.base:
            return (
                "No verdict on time: no comparable record is of other code than this run's. Record "
                f"{FEWEST_BASE_LAUNCHES} launches of another commit (`make baseline`), "
                "or measure side by side: --against REV."
            )
        if len(self.base) >= FEWEST_BASE_LAUNCHES and len(self.head) >= FEWEST_HEAD_LAUNCHES:
            return ""
        return (
            f"No verdict on time: {self.base_name} has {len(self.base)} comparable launches recorded and this code "
            f"{len(self.head)}; it takes at least {FEWEST_BASE_LAUNCHES} and {FEWEST_HEAD_LAUNCHES} "
            "(`make baseline` records ten). Side by side needs none: --against REV."
        )


def sides_of(
    now: StoredRecord, records: Sequence[StoredRecord], baseline: StoredRecord, is_asked: bool
) -> RecordedSides:
    """The sides of the run `now` among `records`, oldest first; `is_asked` where the user named `baseline`.

    Unasked, base is the newest other code with launches enough, or failing that the newest other code.
    """
    rows = {row["fullname"]: row for row in now.data["benchmarks"]}
    others = [_shared(r, rows) for r in records if r.data["datetime"] != now.data["datetime"] and _fits(r, now)]
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
    """The commit of a clean tree; of another one the digest of what ran, or what no second record shares."""
    commit = record.get("commit_info") or {}
    identifier = str(commit.get("id") or "")
    if identifier not in NO_COMMIT and not commit.get("dirty"):
        return identifier
    return str(record["suite"].get("source") or f"the run of {record['datetime']}")


def _fits(record: StoredRecord, now: StoredRecord) -> bool:
    return not machine_differences(record.data["machine_info"], now.data["machine_info"])


def _shared(record: StoredRecord, rows: Mapping[str, Json]) -> StoredRecord:
    """The record with the cases of this run alone. What is gone, or fits no longer, the plain comparison tells."""
    kept = [
        row
        for row in record.data["benchmarks"]
        if row["fullname"] in rows and not identity_difference(rows[row["fullname"]], row)
    ]
    return StoredRecord(record.path, {**record.data, "benchmarks": kept, "outcomes": []})
