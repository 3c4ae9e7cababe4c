"""`show RECORD`: print what a run prints at its end.

perf-tests show .benchmarks/MACHINE/0002_NAME.json
perf-tests show .benchmarks/MACHINE/0002_NAME.json --against .benchmarks/MACHINE/0001_NAME.json
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, RefusalError
from perf_tests_suite.perf_tests.records.columns import case_rows
from perf_tests_suite.perf_tests.records.comparison import Baseline, Comparison, refuse_incomparable
from perf_tests_suite.perf_tests.records.format import Screen, ScreenLine, printable
from perf_tests_suite.perf_tests.records.record import FAILURES, Json
from perf_tests_suite.perf_tests.records.store import announced, read_record, strict_json
from perf_tests_suite.perf_tests.report.comparison import comparison_lines, painted, width
from perf_tests_suite.perf_tests.report.ranks import collective_lines, rank_lines, why_damaged
from perf_tests_suite.perf_tests.report.screens import notice_lines, pass_lines, result_lines, tally_line


def comparison_section(comparison: Comparison) -> tuple[str, Sequence[ScreenLine]]:
    """The title and the lines of a comparison."""
    return f"compared with {comparison.baseline.name}", comparison_lines(comparison.rows, width())


def shown(record: Json, comparison: Comparison | None = None) -> Screen:
    """Lay out what a record holds; FINDINGS where a case failed in it, or the comparison has failures."""
    rows = record["benchmarks"]
    parts = {
        "results": [*result_lines(record, width()), *notice_lines(record)],
        "ranks": rank_lines(rows),
        "collectives": collective_lines(rows),
        **pass_lines(record),
    }
    sections: list[tuple[str, Sequence[ScreenLine]]] = [
        (title, [(printable(line), False) for line in lines]) for title, lines in parts.items() if lines
    ]
    failures = [] if comparison is None else comparison.failures
    if comparison is not None and comparison.rows:
        sections.append(comparison_section(comparison))
    has_failed = bool(failures) or any(row["outcome"] in FAILURES for row in record["outcomes"])
    return Screen(sections, failures, tally_line(record), FINDINGS if has_failed else FINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", type=Path, help="a record, .benchmarks/MACHINE/NUMBER_NAME.json")
    parser.add_argument("--against", type=Path, metavar="RECORD", help="an earlier record of the same machine")


def run(arguments: argparse.Namespace) -> int:
    paths = [arguments.record] + ([] if arguments.against is None else [arguments.against])
    with RefusalError.instead_of(ValueError):
        now, *others = map(read_record, announced(paths))
        for before in others:
            refuse_incomparable(before, now)
    if wrong := why_damaged(now.data["benchmarks"]):
        raise RefusalError(f"{now.path} cannot be used: {wrong}.")
    comparison = next((Comparison.of(now.data, Baseline(before.name, before.data)) for before in others), None)
    screen = shown(now.data, comparison)
    if arguments.json:
        rows = [] if comparison is None else comparison.rows
        compared = [{**asdict(row), "is_failure": row.is_failure} for row in rows]
        print(strict_json({"record": now.name, "cases": case_rows(now.data, now.name), "compared": compared}))
        return screen.exit_code
    for title, lines in screen.sections:
        print("\n".join([title, *map(painted, lines), ""]))
    for failure in screen.failures:
        print(painted((printable(failure), True)))
    print(screen.last)
    return screen.exit_code
