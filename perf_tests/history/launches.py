"""What a history needs of a record: for each timed case its median, its counters, and the machine's speed beside it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from perf_tests.gate.exact_counters import COUNTERS
from perf_tests.gate.recorded_sides import NO_COMMIT, code_of
from perf_tests.records.record import Json, identity_of, machine_differences, parts_of, run_of, timing_outcomes
from perf_tests.records.store import StoredRecord
from perf_tests.records.times import Times

Identity = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Figure:
    """One case in one launch."""

    identity: Identity
    seconds: float
    sentinel_seconds: float | None
    """Of the product that no change of the code affects, around this case; None in older records."""
    counters: dict[str, int]


@dataclass(frozen=True)
class Launch:
    """One recorded run."""

    name: str
    code: str
    """The commit, or the digest of code that is in none; two launches of one code are equal here."""
    commit: str | None
    is_dirty: bool
    written: str
    """When the run was saved, and when its commit was made: ISO 8601, empty where unknown."""
    committed: str
    figures: dict[str, Figure] = field(repr=False)
    outcomes: dict[str, str] = field(default_factory=dict)
    """Of each case that has no timing here, by its id."""
    path: Path = Path()

    @property
    def has_cases(self) -> bool:
        """Whether it timed any, or failed to; a run of passes alone has none."""
        return bool(self.figures or self.outcomes)


@dataclass
class Machine:
    """Launches whose times compare: one machine, build and setting."""

    record: Json
    """Facts of its first record, without the cases."""
    launches: list[Launch] = field(default_factory=list)


def machines_of(records: Iterable[StoredRecord]) -> list[Machine]:
    """Launches by machine, each run once, and none of a merged record's shards."""
    machines: list[Machine] = []
    found: list[tuple[Machine, Launch, str | None]] = []
    merged: set[str] = set()
    identities: dict[Identity, Identity] = {}
    for record in records:
        merged |= parts_of(record.data)
        machine = _machine_of(record.data, machines)
        found.append((machine, _launch_of(record, identities), run_of(record.data)))
    seen: set[str | None] = set()
    for machine, launch, run in found:
        if launch.name in merged or run in merged or (run is not None and run in seen):
            continue
        seen.add(run)
        machine.launches.append(launch)
    return [machine for machine in machines if machine.launches]


def _machine_of(data: Json, machines: list[Machine]) -> Machine:
    info = data["machine_info"]
    for machine in machines:
        facts = machine.record["machine_info"]
        if facts == info or not machine_differences(info, facts):
            return machine
    machines.append(Machine({name: data.get(name) for name in ("machine_info", "datetime")}))
    return machines[-1]


def _launch_of(record: StoredRecord, identities: dict[Identity, Identity]) -> Launch:
    """Thousands of launches have the same few identities, so `identities` keeps each once."""
    data = record.data
    commit = data.get("commit_info")
    commit = commit if isinstance(commit, dict) else {}
    identifier = str(commit.get("id") or "")
    return Launch(
        record.name, code_of(data), None if identifier in NO_COMMIT else identifier, bool(commit.get("dirty")),
        str(data.get("datetime") or ""), str(commit.get("time") or ""),
        {row["fullname"]: _figure_of(row, identities) for row in data["benchmarks"]},
        {row["id"]: row["outcome"] for row in timing_outcomes(data)}, record.path,
    )  # fmt: skip


def _figure_of(row: Json, identities: dict[Identity, Identity]) -> Figure:
    info = row["extra_info"]
    identity = tuple((name, _hashable(value)) for name, value in identity_of(row).items())
    values = info.get("sentinel_seconds")
    around = [s for s in values if isinstance(s, float) and s > 0] if isinstance(values, list) else []
    counters = {name: info[name] for name in COUNTERS if isinstance(info.get(name), int)}
    sentinel_seconds = median(around) if around else None
    seconds = Times(row["stats"]["data"]).median
    return Figure(identities.setdefault(identity, identity), seconds, sentinel_seconds, counters)


def _hashable(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else str(value)
