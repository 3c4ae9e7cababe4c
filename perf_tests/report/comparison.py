"""`compare BEFORE NOW`: compare two records of one machine, case by case, without a verdict.

Also the screen of a run beside its baseline: lost cases first, then the largest differences, then the rest.

    perf-tests compare BEFORE.json NOW.json
    perf-tests compare BEFORE.json NOW.json --json
"""

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from math import log
from pathlib import Path

from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, RefusalError
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.comparison import refuse_incomparable
from perf_tests_suite.perf_tests.records.format import (
    Column,
    ScreenLine,
    column_table,
    duration,
    fitting,
    has_colours,
    printable,
    text_column,
)
from perf_tests_suite.perf_tests.records.record import how_many, is_shard
from perf_tests_suite.perf_tests.records.store import ComparedCase, Status, announced, compare, read_record, strict_json

NARROWEST, WIDEST = 80, 200
"""Characters that lines are fitted to; a narrower terminal breaks them, a wider one gains nothing."""
WIDTH_OF_A_FILE = 120
"""The width without a terminal; COLUMNS in the environment overrides it."""

COMPARISON_NOTE = (
    "ratio: now / before, the interval within these launches; two launches of unchanged code can differ by more. "
    "For a verdict run `perf-tests run --against REV`"
)

STRIP_COLUMNS = 25
"""An odd number, so that the ratio 1 has its own column."""
LEAST_SHOWN = 0.02
"""The strip shows at least this much on either side of 1, so that noise does not look like a slowdown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="a record, .benchmarks/MACHINE/NUMBER_NAME.json")
    parser.add_argument("now", type=Path, help="a later record of the same machine")


def run(arguments: argparse.Namespace) -> int:
    with RefusalError.instead_of(ValueError):
        before, now = map(read_record, announced((arguments.before, arguments.now)))
        refuse_incomparable(before, now)
    rows = compare(before.data, now.data, gone_counts=not is_shard(now.data))
    if arguments.json:
        print(strict_json([{**asdict(row), "is_failure": row.is_failure} for row in rows]))
    else:
        print("\n".join(map(painted, comparison_lines(rows, width()))))
    return FINDINGS if any(row.is_failure for row in rows) else FINE


def width() -> int:
    """The terminal's, in characters."""
    return shutil.get_terminal_size((WIDTH_OF_A_FILE, 24)).columns


def painted(line: ScreenLine) -> str:
    """The line, red where the output has colours."""
    text, is_red = line
    return f"\x1b[31m{text}\x1b[0m" if is_red and has_colours() else text


class Reading(StrEnum):
    """The interval's meaning for these two launches only; slower and faster are verdicts, which they cannot give."""

    DIFFERS = "differs"
    SAME = "no difference"
    TOO_FEW = "too few rounds"


def reading(row: ComparedCase) -> Reading:
    """What the interval of a measured case says."""
    if row.interval is None:
        return Reading.TOO_FEW
    return Reading.SAME if row.interval[0] <= 1 <= row.interval[1] else Reading.DIFFERS


FIRST = (Status.GONE, Status.NO_LONGER, Status.INCOMPARABLE)
"""Cases without a ratio that come before all ratios; new cases and those never measured come last."""


def comparison_lines(rows: Sequence[ComparedCase], width: int) -> list[ScreenLine]:
    """A tally, the lost cases, the ratios from the worst on, and the cases that only one run has."""
    if not rows:
        return []
    lost = sorted((row for row in rows if row.status in FIRST), key=lambda row: FIRST.index(row.status))
    # Differences first; among equals, the largest first.
    measured = sorted(
        (row for row in rows if row.ratio is not None),
        key=lambda row: (list(Reading).index(reading(row)), -abs(log(row.ratio or 1.0))),
    )
    others = [row for row in rows if row.ratio is None and row.status not in FIRST]
    counts = Counter(str(row.status if row.ratio is None else reading(row)) for row in rows)
    places = dict.fromkeys([*map(str, FIRST), *map(str, Reading), *map(str, Status)])
    tally = (
        f"{count} {'differ' if name == Reading.DIFFERS and count > 1 else name}"
        for name in places
        if (count := counts[name])
    )
    table_lines = _ratio_table(measured, min(max(width, NARROWEST), WIDEST)) if measured else []
    lines = [(f"{how_many(len(rows), 'case')}: {', '.join(tally)}", False)]
    lines += [(_sentence(row), row.is_failure) for row in lost]
    return lines + [(line, False) for line in (*table_lines, *map(_sentence, others))]


def _sentence(row: ComparedCase) -> str:
    seconds = row.before_seconds if row.now_seconds is None else row.now_seconds
    figure = "" if seconds is None else f" ({duration(seconds)}{' before' if row.now_seconds is None else ''})"
    return printable(f"{case_name(row.id)}: {why_without_ratio(row, figure)}")


def why_without_ratio(row: ComparedCase, figure: str = "") -> str:
    """The status and its explanation, with the figure of the one run that has one."""
    return f"{row.status}{figure}{': ' if row.explanation else ''}{row.explanation}"


RATIO: tuple[Column[ComparedCase], ...] = (
    Column("before_seconds", float, "", lambda row: row.before_seconds, heading="before"),
    Column("now_seconds", float, "", lambda row: row.now_seconds, heading="now"),
    Column("ratio", float, "", lambda row: row.ratio),
    Column("interval_ratio", tuple, "", lambda row: row.interval, heading="95 % interval"),
)
"""The figures of a case that both runs measured."""
DROPPED_FIRST = ("before_seconds", "now_seconds")
"""Columns that a narrow terminal loses, in this order; the strip goes before them."""


def _ratio_table(rows: Sequence[ComparedCase], width: int) -> list[str]:
    """Columns as far as they fit; then names lose their middle. What the interval says stands below."""
    named: Column[ComparedCase] = text_column("case", lambda row: printable(case_name(row.id)))
    note = text_column("note", reading)
    columns = fitting([named, *RATIO, note], rows, width, DROPPED_FIRST)
    over = len(column_table(columns, rows)[0]) - width
    if over > 0:
        longest = max(len(named.alone(row)) for row in rows) - over
        columns[0] = text_column("case", lambda row: shortened(named.alone(row), longest))
    elif -over >= STRIP_COLUMNS + 2:
        columns.append(text_column("", _strips(rows)))
    return [*(line.rstrip() for line in column_table(columns, rows)), COMPARISON_NOTE]


def shortened(name: str, length: int) -> str:
    """Both ends of a name: its phase and its last axes tell cases apart."""
    if len(name) <= length:
        return name
    start = max(length - 2, 0) // 2
    return f"{name[:start]}..{name[len(name) - max(length - 2 - start, 0) :]}"


def _strips(rows: Sequence[ComparedCase]) -> Callable[[ComparedCase], str]:
    """What draws an interval as a line with its ratio marked, 1 in the middle, all on one logarithmic scale."""
    ends = [end for row in rows for end in row.interval or (row.ratio or 1.0,)]
    most = max(abs(log(end)) for end in [1 + LEAST_SHOWN, *(end for end in ends if end > 0)])
    middle = STRIP_COLUMNS // 2

    def place(ratio: float) -> int:
        return middle + round(middle * log(ratio) / most) if ratio > 0 else 0

    def strip(row: ComparedCase) -> str:
        marks = [" "] * STRIP_COLUMNS
        marks[middle] = "|"
        low, high = map(place, row.interval or (row.ratio or 1.0, row.ratio or 1.0))
        for column in range(low, high + 1):
            marks[column] = "+" if column == middle else "-"
        marks[place(row.ratio or 1.0)] = "o"
        return "".join(marks)

    return strip
