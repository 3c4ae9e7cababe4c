"""Two runs side by side in a terminal: lost cases first, then the slowest, then the rest."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log

from perf_tests.records.compare import ComparedCase, Status
from perf_tests.views.screens.lines import DASH, case_name, duration, printable, table

NARROWEST, WIDEST = 80, 200
"""Characters that lines are fitted to; a narrower terminal breaks them, a wider one gains nothing."""
WIDTH_OF_A_FILE = 120
"""Without a terminal; COLUMNS in the environment overrides it."""

NOTE = (
    "ratio: now / before, the interval within these launches; launches of one code differ by more, so this is no "
    "verdict: for one, `pytest perf_tests --against REV` or `python -m perf_tests gate BASE HEAD`"
)

STRIP_COLUMNS = 25
"""An odd number, so that the ratio 1 has its own column."""
LEAST_SHOWN = 0.02
"""The strip shows at least this much on either side of 1, so that noise does not look like a slowdown."""


@dataclass(frozen=True)
class ScreenLine:
    text: str
    is_red: bool = False
    """It repeats what the words say."""


class Reading(StrEnum):
    """The interval's meaning for these two launches only; slower and faster are verdicts, which they cannot give."""

    DIFFERS = "differs"
    SAME = "no difference"
    TOO_FEW = "too few rounds"


FIRST = (Status.GONE, Status.NO_LONGER, Status.INCOMPARABLE)
"""Without a ratio, before all ratios; new cases and those never measured come last."""


def reading(row: ComparedCase) -> Reading:
    if row.interval is None:
        return Reading.TOO_FEW
    return Reading.SAME if row.interval[0] <= 1 <= row.interval[1] else Reading.DIFFERS


def comparison_lines(rows: Sequence[ComparedCase], width: int) -> list[ScreenLine]:
    """A tally, the lost cases, the ratios from the worst on, and the cases that only one run has."""
    width = min(max(width, NARROWEST), WIDEST)
    lost = sorted((row for row in rows if row.status in FIRST), key=lambda row: FIRST.index(Status(row.status)))
    # Differences first; among equals, the largest first.
    measured = sorted(
        (row for row in rows if row.ratio is not None),
        key=lambda row: (list(Reading).index(reading(row)), -abs(log(row.ratio or 1.0))),
    )
    others = [row for row in rows if row.ratio is None and row.status not in FIRST]
    lines = [ScreenLine(_tally(rows))] if rows else []
    lines += [ScreenLine(_in_words(row), row.is_failure) for row in lost]
    if measured:
        lines += [*_table(measured, width), ScreenLine(NOTE)]
    return lines + [ScreenLine(_in_words(row)) for row in others]


def _tally(rows: Sequence[ComparedCase]) -> str:
    counts = Counter(str(row.status if row.ratio is None else reading(row)) for row in rows)
    order = dict.fromkeys([*map(str, FIRST), *map(str, Reading), *map(str, Status)])
    said = ", ".join(f"{counts[name]} {_plural(name, counts[name])}" for name in order if counts[name])
    return f"{len(rows)} case{'' if len(rows) == 1 else 's'}: {said}"


def _plural(reading_or_status: str, count: int) -> str:
    return "differ" if reading_or_status == Reading.DIFFERS and count > 1 else reading_or_status


HEADER = ("case", "before", "now", "ratio", "95 % interval", "reading")
DROPPED = ("before", "now")
"""In a narrow terminal, in this order; the strip goes before them."""


def _table(rows: Sequence[ComparedCase], width: int) -> list[ScreenLine]:
    """Columns as far as they fit; then names lose their middle."""
    columns = {name: [name, *texts] for name, texts in zip(HEADER, zip(*map(_cells, rows), strict=True), strict=True)}
    for name in DROPPED:
        if _width(columns) > width:
            del columns[name]
    over = _width(columns) - width
    if over > 0:
        longest = max(map(len, columns["case"])) - over
        columns["case"] = [shortened(name, longest) for name in columns["case"]]
    elif width - _width(columns) >= STRIP_COLUMNS + 2:
        columns["strip"] = ["", *_strips(rows)]
    header, *cells = zip(*columns.values(), strict=True)
    return [ScreenLine(line.rstrip()) for line in table(header, cells, left=("case", "reading", ""))]


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(map(len, texts)) for texts in columns.values()) + 2 * (len(columns) - 1)


def _cells(row: ComparedCase) -> tuple[str, ...]:
    times = (duration(seconds or 0) for seconds in (row.before_seconds, row.now_seconds))
    return printable(case_name(row.id)), *times, f"{row.ratio:.3f}", interval_words(row), reading(row)


def interval_words(row: ComparedCase) -> str:
    return DASH if row.interval is None else f"{row.interval[0]:.3f} to {row.interval[1]:.3f}"


def shortened(name: str, length: int) -> str:
    """Both ends of a name: its phase and its last axes tell cases apart."""
    if len(name) <= length:
        return name
    start = max(length - 2, 0) // 2
    return f"{name[:start]}..{name[len(name) - max(length - 2 - start, 0) :]}"


def _strips(rows: Sequence[ComparedCase]) -> list[str]:
    """Each interval as a line with its ratio marked, 1 in the middle, all on one logarithmic scale."""
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

    return list(map(strip, rows))


def _in_words(row: ComparedCase) -> str:
    seconds = row.before_seconds if row.now_seconds is None else row.now_seconds
    figure = "" if seconds is None else f" ({duration(seconds)}{' before' if row.now_seconds is None else ''})"
    return printable(f"{case_name(row.id)}: {why_without_ratio(row, figure)}")


def why_without_ratio(row: ComparedCase, figure: str = "") -> str:
    return f"{row.status}{figure}{': ' if row.explanation else ''}{row.explanation}"


def width() -> int:
    return shutil.get_terminal_size((WIDTH_OF_A_FILE, 24)).columns


def has_colours() -> bool:
    """In a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(line: ScreenLine) -> str:
    return f"\x1b[31m{line.text}\x1b[0m" if line.is_red and has_colours() else line.text
