"""`replay SAMPLES`: judge the raw samples of a gate run again, with the same verdicts and figures.

perf-tests replay .benchmarks/gate/SAMPLES.jsonl
perf-tests replay SAMPLES.jsonl --json
"""

import argparse
from pathlib import Path

from perf_tests.gate.samples import Rules
from perf_tests.gate.verdicts import RunVerdict, judge
from perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError
from perf_tests.records.format import has_colours, painted
from perf_tests.records.record import Json
from perf_tests.records.store import write_named
from perf_tests.report.gate_screens import Result, as_json, markdown, report_lines

EXIT_CODES = {RunVerdict.PASSED: FINE, RunVerdict.FAILED: FINDINGS, RunVerdict.UNDECIDED: FINDINGS}
"""All other samples have no verdict on the code and count as input that cannot be compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("samples", type=Path, help="raw samples of a gate run, .jsonl or .jsonl.gz")
    parser.add_argument("--summary", metavar="FILE", help="write the result as Markdown")


def run(arguments: argparse.Namespace) -> int:
    with RefusalError.instead_of(ValueError):
        judged = judge(arguments.samples)
    return show(arguments, *judged)


def show(arguments: argparse.Namespace, result: Result, header: Json, rules: Rules) -> int:
    """Print the result as lines or JSON, write the summary that is asked for; the exit code."""
    if arguments.summary is not None:
        write_named(arguments.summary, markdown(result, header, rules).encode(), "--summary")
    if arguments.json:
        print(as_json(result, header, rules))
    else:
        print("\n".join(painted(line, has_colours()) for line in report_lines(result, header, rules)))
    return EXIT_CODES.get(result.verdict, UNREADABLE)
