"""`report [RUN ...]`: one page of recorded runs that opens from disk; without RUN, of all stored runs."""

import argparse
import json
from pathlib import Path

from perf_tests.history.commits import machines_of, read_log
from perf_tests.history.series import newest_first
from perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError
from perf_tests.records.store import announced, chosen_paths, each_readable, tell_left_out, write_named
from perf_tests.report.page_parts.page import page_of
from perf_tests.report.page_parts.run import in_full, numbered, run_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html", help="report.html")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    left_out: list[str] = []
    try:
        machines = machines_of(each_readable(announced(chosen_paths(arguments.storage, arguments.runs)), left_out))
    except ValueError as error:
        raise RefusalError(error) from error
    numbers = numbered(machines)
    full = each_readable(announced(launch.path for launch in in_full(machines, bool(arguments.runs))), left_out)
    shown = [run_of(record, numbers[record.path]) for record in full]
    tell_left_out(left_out, arguments.runs)
    if not shown:
        return UNREADABLE
    page = page_of(newest_first(machines, read_log(arguments.storage)), numbers, shown, left_out)
    write_named(arguments.output, page.encode())
    count = len(numbers)
    if arguments.json:
        said = {"page": arguments.output, "runs": count, "machines": len(machines), "left_out": left_out}
        print(json.dumps(said))
    else:
        print(f"Wrote {arguments.output}: {count} run(s) of {len(machines)} machine(s).")
    return FINDINGS if left_out else FINE
