"""`report [RUN ...]`: one page of recorded runs that opens from disk; without RUN, of all stored runs."""

import argparse
import json
import sys
from pathlib import Path

from perf_tests.history.commits import read_log
from perf_tests.history.launches import machines_of
from perf_tests.history.series import newest_first
from perf_tests.records.chosen import chosen_paths
from perf_tests.records.store import each_readable, write_whole
from perf_tests.records.words import without_path
from perf_tests.verbs.exit_codes import FINDINGS, FINE, UNREADABLE, USAGE
from perf_tests.views.report.page import page_of
from perf_tests.views.report.run import in_full, numbered, run_of
from perf_tests.views.screens.lines import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html", help="report.html")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    left_out: list[str] = []
    try:
        machines = machines_of(each_readable(chosen_paths(arguments.storage, arguments.runs), left_out))
    except ValueError as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    numbers = numbered(machines)
    full = each_readable((launch.path for launch in in_full(machines, bool(arguments.runs))), left_out)
    shown = [run_of(record, numbers[record.path]) for record in full]
    for sentence in left_out:
        print(f"Left out: {printable(sentence)}", file=sys.stderr)
    if not shown:
        return UNREADABLE
    page = page_of(newest_first(machines, read_log(arguments.storage)), numbers, shown, left_out)
    try:
        write_whole(Path(arguments.output), page.encode())
    except OSError as error:
        why = without_path(error)
        print(f"{arguments.output} cannot be written: {why}; name another file with -o.", file=sys.stderr)
        return USAGE
    count = len(numbers)
    if arguments.json:
        said = {"page": arguments.output, "runs": count, "machines": len(machines), "left_out": left_out}
        print(json.dumps(said))
    else:
        print(f"Wrote {arguments.output}: {count} run(s) of {len(machines)} machine(s).")
    return FINDINGS if left_out else FINE
