"""`scaling RECORD ...`: how well more ranks help, over records of one machine."""

import argparse
import json
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from perf_tests.phases import FINE, RefusalError
from perf_tests.records.record import machine_differences
from perf_tests.records.store import read_record, scalings
from perf_tests.report.screens import collective_lines, message_lines, rank_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", type=Path, nargs="+", help="records, .benchmarks/MACHINE/NUMBER_NAME.json")


def run(arguments: argparse.Namespace) -> int:
    try:
        records = [read_record(path) for path in arguments.records]
    except ValueError as error:
        raise RefusalError(error) from error
    first, *others = records
    for other in others:
        differences = machine_differences(first.data["machine_info"], other.data["machine_info"])
        if differences:
            raise RefusalError(
                f"{first.name} and {other.name} differ in machine, build or settings, so no efficiency relates them: "
                f"{'; '.join(differences)}."
            )
    rows = list(chain.from_iterable(record.data["benchmarks"] for record in records))
    if arguments.json:
        print(json.dumps([{"id": row["fullname"], **asdict(scaling)} for row, scaling in scalings(rows)], indent=1))
    else:
        print(
            "\n".join(
                [*rank_lines(rows), *message_lines(rows), *collective_lines(rows)]
                or ["No row is of several ranks; measure some with --parallel."]
            )
        )
    return FINE
