"""`replay SAMPLES`: judge the raw samples of a gate run again, with the same verdicts and figures."""

import argparse
from pathlib import Path

from perf_tests.gate.conclusion import RunVerdict, conclude
from perf_tests.gate.rules import rules_from_settings
from perf_tests.gate.samples import read_samples
from perf_tests.records.store import write_whole
from perf_tests.records.words import without_path
from perf_tests.verbs.exit_codes import FINDINGS, FINE, UNREADABLE
from perf_tests.views.screens.gate import as_json, markdown, report_lines

EXIT_CODES = {RunVerdict.PASSED: FINE, RunVerdict.FAILED: FINDINGS, RunVerdict.UNDECIDED: FINDINGS}
"""All other samples have no verdict on the code and count as input that cannot be compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("samples", type=Path, help="raw samples of a gate run, .jsonl or .jsonl.gz")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the result as Markdown")


def run(arguments: argparse.Namespace) -> int:
    try:
        samples = read_samples(arguments.samples)
        rules = rules_from_settings(samples.header["settings"])
        judged = conclude(samples, rules), samples.header, rules
        if arguments.summary is not None:
            write_summary(arguments.summary, markdown(*judged))
    except ValueError as error:
        print(error)
        return UNREADABLE
    print(as_json(*judged) if arguments.json else "\n".join(report_lines(*judged)))
    return EXIT_CODES.get(judged[0].verdict, UNREADABLE)


def write_summary(path: Path, text: str) -> None:
    """Raises ValueError with one sentence if the file cannot be written."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ValueError(f"The summary {path} cannot be written: {without_path(error)}.") from error
