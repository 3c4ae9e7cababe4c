"""`report [RUN ...]`: one page of recorded runs that opens from disk; without RUN, of all stored runs."""

import argparse
import json
import sys
from pathlib import Path

from perf_tests.records.chosen import chosen_paths
from perf_tests.records.store import each_readable, write_whole
from perf_tests.records.words import without_path
from perf_tests.verbs.exit_codes import FINDINGS, FINE, UNREADABLE, USAGE
from perf_tests.views.report.page import page_of
from perf_tests.views.report.run import machines_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", default=Path("report.html"), help="report.html")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    left_out: list[str] = []
    try:
        paths = chosen_paths(arguments.storage, arguments.runs)
    except ValueError as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    machines = machines_of(each_readable(paths, left_out), keeps_all=bool(arguments.runs))
    for sentence in left_out:
        print(f"Left out: {sentence}", file=sys.stderr)
    if not machines:
        return UNREADABLE
    named = [run for machine in machines for run in machine.runs] if arguments.runs else []
    shown = sorted(named or [machine.newest for machine in machines], key=lambda run: run.number)
    try:
        write_whole(arguments.output, page_of(machines, shown, left_out).encode())
    except OSError as error:
        why = without_path(error)
        print(f"{arguments.output} cannot be written: {why}; name another file with -o.", file=sys.stderr)
        return USAGE
    count = sum(len(machine.runs) for machine in machines)
    if arguments.json:
        page = {"page": str(arguments.output), "runs": count, "machines": len(machines), "left_out": left_out}
        print(json.dumps(page))
    else:
        print(f"Wrote {arguments.output}: {count} run(s) of {len(machines)} machine(s).")
    return FINDINGS if left_out else FINE
