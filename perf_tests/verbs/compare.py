"""`compare BEFORE NOW`: two records of one machine, case by case."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from perf_tests.phases import FINDINGS, FINE, RefusalError
from perf_tests.records.record import is_shard, machine_differences, run_of
from perf_tests.records.store import compare, read_record
from perf_tests.report.screens import comparison_lines, painted, width
from perf_tests.verbs.reading import announced


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="a record, .benchmarks/MACHINE/NUMBER_NAME.json")
    parser.add_argument("now", type=Path, help="a later record of the same machine")


def run(arguments: argparse.Namespace) -> int:
    try:
        before, now = map(read_record, announced((arguments.before, arguments.now)))
    except ValueError as error:
        raise RefusalError(error) from error
    if run_of(before.data) is not None and run_of(before.data) == run_of(now.data):
        raise RefusalError(f"{before.name} and {now.name} are one run, saved twice; compare it with another.")
    differences = machine_differences(now.data["machine_info"], before.data["machine_info"])
    if differences:
        words = "; ".join(differences)
        raise RefusalError(f"{before.name} and {now.name} differ in machine, build or settings: {words}.")
    rows = compare(before.data, now.data, gone_counts=not is_shard(now.data))
    if arguments.json:
        print(json.dumps([{**asdict(row), "is_failure": row.is_failure} for row in rows], indent=1))
    else:
        print("\n".join(map(painted, comparison_lines(rows, width()))))
    return FINDINGS if any(row.is_failure for row in rows) else FINE
