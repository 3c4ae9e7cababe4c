"""`history [RUN ...]`: what changed since which commit, over all stored runs or those that are named."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from perf_tests.history.commits import machines_of, read_log
from perf_tests.history.series import Era, new_slowdowns, newest_first
from perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError, UsageError
from perf_tests.records.columns import case_name
from perf_tests.records.store import chosen_paths, each_readable
from perf_tests.report.screens import history_lines, series_json, verdict_line
from perf_tests.report.tables import EXPORTS
from perf_tests.verbs.reading import announced, tell_left_out
from perf_tests.verbs.writing import write_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("--case", metavar="PART", help="also every commit of the cases whose name has this part")
    parser.add_argument("--export", choices=list(EXPORTS), help="print the newest machine's history for a dashboard")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the export instead of printing it")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is not None and arguments.export is None:
        raise UsageError(f"-o {arguments.output} is for an export; name one with --export.")
    left_out: list[str] = []
    try:
        machines = machines_of(each_readable(announced(chosen_paths(arguments.storage, arguments.runs)), left_out))
    except ValueError as error:
        raise RefusalError(error) from error
    tell_left_out(left_out, arguments.runs)
    log = read_log(arguments.storage)
    eras = newest_first(machines, log)
    if not eras:
        return UNREADABLE
    if arguments.case and not any(arguments.case in case_name(one.case) for era in eras for one in era.series):
        raise UsageError(f"--case {arguments.case}: no recorded case has this in its name.")
    if arguments.export:
        return _export(eras, arguments.export, arguments.output)
    new = [found for era in eras[:1] for found in new_slowdowns(era, log)]
    if arguments.json:
        shown = {"eras": list(map(series_json, eras)), "new_slowdowns": [one.case for one, _ in new]}
        print(json.dumps(shown, indent=1))
    else:
        print("\n\n".join("\n".join(history_lines(era, arguments.case)) for era in eras))
        print(verdict_line(eras, new))
    return FINDINGS if new or left_out else FINE


def _export(eras: Sequence[Era], name: str, output: str | None) -> int:
    """Of the newest machine alone: a dashboard would join what cannot be compared."""
    text = EXPORTS[name](eras[0])
    if len(eras) > 1:
        print("Only the newest machine is exported; name its folder for another.", file=sys.stderr)
    if output is None:
        print(text, end="")
        return FINE
    write_named(output, text.encode())
    print(output)
    return FINE
