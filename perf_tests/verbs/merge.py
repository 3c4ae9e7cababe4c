"""`merge RECORD RECORD ...`: join the shards of one grid, measured on like machines, into one record."""

import argparse
import json
import sys
from pathlib import Path

from perf_tests.records.chosen import chosen_paths
from perf_tests.records.merge import merged
from perf_tests.records.store import encoded, read_record, save_record, write_whole
from perf_tests.verbs.exit_codes import FINE, UNREADABLE, USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", metavar="RECORD", help="path, or start of a record's name")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="write this new file, not the next number beside the first"
    )
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    try:
        records = [read_record(path) for path in chosen_paths(arguments.storage, arguments.records)]
        record = merged(records)
    except ValueError as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    if arguments.output is not None and arguments.output.exists():
        print(f"{arguments.output} exists, and merge overwrites nothing; name another file with -o.", file=sys.stderr)
        return USAGE
    try:
        if arguments.output is None:
            name = records[0].path.stem.partition("_")[2] or "merged"
            path = save_record(record, records[0].path.parent, name)
        else:
            path = arguments.output
            write_whole(path, encoded(record))
    except OSError as error:
        print(f"The merged record cannot be written: {error}; name another file with -o.", file=sys.stderr)
        return USAGE
    cases = len(record["benchmarks"]) + len(record["outcomes"]) + len(record["passes"])
    if arguments.json:
        print(json.dumps({"record": str(path), "cases": cases, "shards": record["suite"]["merged_from"]}))
    else:
        print(f"Saved {path}: {cases} cases of {len(records)} shards.")
    return FINE
