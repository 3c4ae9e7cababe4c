"""`merge RECORD RECORD ...`: join the shards of one grid, measured on like machines, into one record."""

import argparse
import json
from pathlib import Path

from perf_tests.phases import FINE, RefusalError, UsageError
from perf_tests.records.record import Json
from perf_tests.records.store import chosen_paths, encoded, merged, read_record, save_record
from perf_tests.verbs.writing import write_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", metavar="RECORD", help="path, or start of a record's name")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write this new file, not the next number beside the first"
    )
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    try:
        records = [read_record(path) for path in chosen_paths(arguments.storage, arguments.records)]
        record = merged(records)
    except ValueError as error:
        raise RefusalError(error) from error
    path = arguments.output or _saved(record, records[0].path)
    if arguments.output is not None:
        if Path(path).exists():
            raise UsageError(f"{path} exists, and merge overwrites nothing; name another file with -o.")
        write_named(arguments.output, encoded(record))
    cases = len(record["benchmarks"]) + len(record["outcomes"]) + len(record["passes"])
    if arguments.json:
        print(json.dumps({"record": str(path), "cases": cases, "shards": record["suite"]["merged_from"]}))
    else:
        print(f"Saved {path}: {cases} cases of {len(records)} shards.")
    return FINE


def _saved(record: Json, first: Path) -> Path:
    """The new file, under the next number beside the first shard."""
    try:
        return save_record(record, first.parent, first.stem.partition("_")[2] or "merged")
    except OSError as error:
        raise UsageError(f"The merged record cannot be written: {error}; name a file for it with -o.") from error
