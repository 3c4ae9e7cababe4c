"""`show RECORD`: print what a run prints at its end.

perf-tests show .benchmarks/MACHINE/0002_NAME.json
perf-tests show .benchmarks/MACHINE/0002_NAME.json --against .benchmarks/MACHINE/0001_NAME.json
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, RefusalError
from perf_tests_suite.perf_tests.records.columns import case_rows
from perf_tests_suite.perf_tests.records.comparison import Baseline, Comparison, refuse_incomparable
from perf_tests_suite.perf_tests.records.format import Screen, ScreenLine, printable
from perf_tests_suite.perf_tests.records.record import FAILURES, Json, how_many
from perf_tests_suite.perf_tests.records.store import announced, read_record, strict_json
from perf_tests_suite.perf_tests.report.comparison import comparison_lines, painted, width
from perf_tests_suite.perf_tests.report.ranks import collective_lines, rank_lines, why_damaged
from perf_tests_suite.perf_tests.report.screens import notice_lines, pass_lines, result_lines


def comparison_section(comparison: Comparison) -> tuple[str, Sequence[ScreenLine]]:
    """The title and the lines of a comparison."""
    return f"compared with {comparison.baseline.name}", comparison_lines(comparison.rows, width())


def _results(record: Json) -> Mapping[str, Sequence[str]]:
    return {"results": [*result_lines(record, width()), *notice_lines(record)]}


def _ranks(record: Json) -> Mapping[str, Sequence[str]]:
    return {"ranks": rank_lines(record["benchmarks"]), "collectives": collective_lines(record["benchmarks"])}


PARTS: tuple[Callable[[Json], Mapping[str, Sequence[str]]], ...] = (_results, _ranks, pass_lines)
"""The screen from top to bottom, lines by title; what has no lines is left out."""


def tally_line(record: Json) -> str:
    """The last line of a run: how many cases it measured, and of what a reader should know."""
    flags = [row["extra_info"].get("flags") or [] for row in record["benchmarks"]]
    failed = sum(row["outcome"] in FAILURES for row in record["outcomes"])
    names = ", ".join(name for name, _ in Counter(chain.from_iterable(flags)).most_common())
    flagged = f"{sum(map(bool, flags))} flagged{f' ({names})' if names else ''}"
    measured = how_many(len(record["benchmarks"]), "case")
    return f"{measured} measured, {failed} failed, {flagged}, {len(record['outcomes']) - failed} not measured"


def shown(record: Json, comparison: Comparison | None = None) -> Screen:
    """Lay out what a record holds; FINDINGS where a case failed in it, or the comparison has failures."""
    sections: list[tuple[str, Sequence[ScreenLine]]] = [
        (title, [(printable(line), False) for line in lines])
        for part in PARTS
        for title, lines in part(record).items()
        if lines
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
