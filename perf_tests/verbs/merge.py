"""`merge RECORD RECORD ...`: join the shards of one grid, measured on like machines, into one record.

perf-tests merge 0004 0005
perf-tests merge .benchmarks/shards -o whole.json
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path

from perf_tests.phases import FINE, RefusalError, UsageError
from perf_tests.records import store
from perf_tests.records.record import Json, machine_differences, run_of, without_nan
from perf_tests.report.ranks import conclude


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", metavar="RECORD", help="path, or start of a record's name")
    beside = "write this new file, not the next number beside the first"
    parser.add_argument("-o", "--output", metavar="OUT", help=beside)
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    with RefusalError.instead_of(ValueError):
        records = [store.read_record(path) for path in store.chosen_paths(arguments.storage, arguments.records)]
        record = merged(records)
    if arguments.output is not None:
        path = Path(arguments.output)
        if os.path.exists(path):
            raise UsageError(f"{path} exists, and merge overwrites nothing; name another file with -o.")
        store.write_named(arguments.output, store.encoded(record))
    else:
        first = records[0].path
        try:
            path = store.save_record(record, first.parent, first.stem.partition("_")[2] or "merged")
        except OSError as error:
            raise UsageError(f"The merged record cannot be written: {error}; name a file for it with -o.") from error
    said = arguments.output or path
    cases = len(record["benchmarks"]) + len(record["outcomes"]) + len(record["passes"])
    if arguments.json:
        print(json.dumps({"record": str(said), "cases": cases, "shards": record["suite"]["merged_from"]}))
    else:
        print(f"Saved {said}: {cases} cases of {len(records)} shards.")
    return FINE


@dataclass(frozen=True)
class Shard:
    record: store.StoredRecord
    share: int
    """Counted from 1."""
    shares: int
    place: dict[str, int]
    """The place of each selected case in the whole grid."""

    @property
    def settings(self) -> Json:
        """The run's settings without the share and the number of a GPU, which shards on one host differ in."""
        settings = self.record.data["suite"]["settings"]
        return {**settings, "shard": None, "device": str(settings.get("device")).partition(":")[0]}


def merged(records: Sequence[store.StoredRecord]) -> Json:
    """One record of the whole grid, in its order.

    Raises ValueError with one sentence where the records are not all shards of one grid, each once.
    """
    shards = sorted(map(_shard, store.each_run_once(records)), key=lambda shard: shard.share)
    first = shards[0]
    facts = [
        {
            "commit": (shard.record.data.get("commit_info") or {}).get("id"),
            "code": shard.record.data["suite"].get("source"),
            "number of shards": shard.shares,
            **{f"the setting {name}": value for name, value in sorted(shard.settings.items())},
        }
        for shard in shards
    ]
    for shard, other in zip(shards[1:], facts[1:], strict=True):  # another run: the first fact in which they differ
        names = f"{first.record.name} and {shard.record.name}"
        if said := machine_differences(first.record.data["machine_info"], shard.record.data["machine_info"]):
            raise ValueError(f"{names} differ in machine or build: {'; '.join(said)}.")
        for name in {**facts[0], **other}:
            if facts[0].get(name) != other.get(name):
                raise ValueError(f"{names} differ in {name}: {facts[0].get(name)!r} and {other.get(name)!r}.")
    _refuse_an_incomplete_set(shards)
    place = {case_id: place for shard in shards for case_id, place in shard.place.items()}

    def rows(kind: str, name: str) -> list[Json]:
        found = [row for shard in shards for row in shard.record.data.get(kind, [])]
        return sorted(found, key=lambda row: place[row[name]])

    suites = [shard.record.data["suite"] for shard in shards]
    suite = {
        **suites[0],
        "settings": first.settings,
        "selection": sorted(place, key=lambda case_id: place[case_id]),
        "places": None,
        "started": min(str(suite.get("started")) for suite in suites),
        "other_drivers": sorted({str(driver) for suite in suites for driver in suite.get("other_drivers") or []}),
        "run": None,
        "merged_from": [shard.record.name for shard in shards],
        "merged_runs": [run_of(shard.record.data) for shard in shards],
    }
    record: Json = {
        **first.record.data,
        "benchmarks": rows("benchmarks", "fullname"),
        "outcomes": rows("outcomes", "id"),
        "passes": rows("passes", "id"),
        "datetime": max(str(shard.record.data.get("datetime")) for shard in shards),
        "suite": suite,
    }
    conclude(record)
    return without_nan(record)


def _shard(record: store.StoredRecord) -> Shard:
    suite = record.data["suite"]
    try:
        share, shares = suite["settings"]["shard"]
        place = dict(zip(suite["selection"], suite["places"], strict=True))
        rows = {row["fullname"] for row in record.data["benchmarks"]}
        rows |= {row["id"] for kind in ("outcomes", "passes") for row in record.data.get(kind, [])}
        is_whole = rows == place.keys() and {type(number) for number in (share, shares, *place.values())} == {int}
        is_whole = is_whole and isinstance(suite.get("other_drivers") or [], list)
    except (KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{record.name} was not recorded whole with --shard K/N; merge joins such records.")
    return Shard(record, share, shares, place)


def _refuse_an_incomplete_set(shards: Sequence[Shard]) -> None:
    shares, name = shards[0].shares, shards[0].record.name
    for one, other in combinations(shards, 2):
        names = f"{one.record.name} and {other.record.name}"
        if one.share == other.share:
            raise ValueError(f"{names} are both shard {one.share}/{shares}.")
        if twice := sorted(one.place.keys() & other.place.keys()):
            raise ValueError(f"{names} both hold {twice[0]}.")
    given = {shard.share for shard in shards}
    missing = (f"{share}/{shares}" for share in range(1, shares + 1) if share not in given)
    # A hostile record may claim a billion shards.
    if absent := ", ".join(islice(missing, 8)):
        raise ValueError(f"Beside {name}, of {shares} shards {absent} is missing; name its record too.")
    places = sorted(place for shard in shards for place in shard.place.values())
    if places != list(range(len(places))):
        raise ValueError(f"The shards beside {name} are of different grids: their places do not join.")
