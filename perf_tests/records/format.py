"""Figures and tables as text for a terminal, Markdown and LaTeX; names from a file stay text in all of them."""

import math
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

DASH = "-"
"""Stands for a figure that is not known."""
GIB, MIB = 2**30, 2**20
UNITS = ((1, "s"), (1e3, "ms"), (1e6, "us"))
"""Units of time, largest first, with how many of each a second is."""

SPREAD_DIGITS = 2
"""Significant digits of a standard deviation; the mean ends at the same place."""
EXACT_DIGITS = 4
"""Significant digits of a figure without a spread."""

T = TypeVar("T")


# Colours.

VERDICTS = re.compile(r"\b(?:(?P<red>SLOWER|GONE|FAILED|NO LONGER FITS|MORE)|(?P<green>FASTER|PASSED))\b")
STEPS = re.compile(r"(?P<red>  \+[\d.]+%(?=  )|[1-9]\d* slowdowns?)|(?P<green>  -[\d.]+%(?=  ))")
"""What a terminal paints of a gate, and of a history."""
COLOURS = {"red": 31, "green": 32}


def has_colours() -> bool:
    """Whether the output is painted: a terminal's, or as NO_COLOR and FORCE_COLOR say (https://no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def painted(line: str, is_in_colours: bool, what: re.Pattern[str] = VERDICTS) -> str:
    """The line with its verdicts in red and green, which repeat what the words say."""
    if not is_in_colours:
        return line
    return what.sub(lambda found: f"\x1b[{COLOURS[found.lastgroup or 'red']}m{found[0]}\x1b[0m", line)


# Numbers.


def finite(value: object) -> float | None:
    """The value where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int beyond the floats
        return None


def whole(value: object) -> int | None:
    """The value where it is a whole number that 64 bits hold."""
    number = finite(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < 2**63 else None


def shown(value: float | None, form: str) -> str:
    """The value in a form of `format`; a dash for None."""
    return DASH if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """Four significant digits in a fitting unit; a dash for None."""
    if seconds is None:
        return DASH
    factor, unit = next((one for one in UNITS if seconds * one[0] >= 1), (1e9, "ns"))
    return f"{seconds * factor:.4g} {unit}"


def mebibytes(count: float) -> str:
    """Bytes in MiB: `12.50 MiB`."""
    return f"{significant(count / MIB)} MiB"


def duration_range(low_seconds: float, high_seconds: float) -> str:
    """`32 to 61 ms`: three significant digits, in the unit of the higher end."""
    factor, unit = next((one for one in UNITS if high_seconds * one[0] >= 1), UNITS[-1])
    ends = (seconds * factor for seconds in (low_seconds, high_seconds))
    return f"{' to '.join(f'{end:.0f}' if end >= 100 else f'{end:.3g}' for end in ends)} {unit}"


def significant(value: float, digits: int = EXACT_DIGITS) -> str:
    """The value in at least `digits` significant digits, never as a power of ten; whole numbers stay whole."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    return _rounded(value, max(_places(value, digits), 0))


def with_spread(value: float, spread: float | None) -> str:
    """`875 ± 12`; without a spread, or with none to see, four significant digits of the value alone."""
    if spread is None or not spread > 0 or not math.isfinite(spread) or not math.isfinite(value):
        return significant(value)
    places = _places(spread, SPREAD_DIGITS)
    return f"{_rounded(value, places)} ± {_rounded(spread, places)}"


def _places(value: float, digits: int) -> int:
    """Decimal places that show `digits` significant digits of `value` as it reads once rounded: 0.0996 is 0.10."""
    exponent = int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    return digits - 1 - exponent


def _rounded(value: float, places: int) -> str:
    return f"{round(value, places):.{max(places, 0)}f}"


def ratio_spread(
    ratio: float, spread_over: float | None, over: float, spread_under: float | None, under: float
) -> float:
    """Standard deviation of over / under from those of both, to first order and taken as independent."""
    return abs(ratio) * math.hypot((spread_over or 0.0) / over, (spread_under or 0.0) / under)


# Text.


def printable(text: object) -> str:
    """Control characters and lone surrogates as spaces: a name from a file must not move a terminal's cursor."""
    words = str(text)
    return words if words.isprintable() else "".join(one if one.isprintable() else " " for one in words)


def one_line(text: str) -> str:
    """Line breaks and other control characters, lone surrogates among them, as single spaces."""
    return " ".join(printable(text).split())


def no_formula(value: object) -> object:
    """Text that a spreadsheet does not read as a formula; all else as it is."""
    starts_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if starts_formula and value != DASH else value


def distinct(values: Iterable[str]) -> list[str]:
    """Each value once, in order of first appearance."""
    return list(dict.fromkeys(values))


def order(value: object) -> tuple[int, float, str]:
    """A sort key of any value: numbers before words."""
    number = finite(value)
    return (0, number, "") if number is not None else (1, 0.0, str(value))


# Screens.


ScreenLine = tuple[str, bool]
"""A text, and whether it is red, which repeats what the words say."""


@dataclass(frozen=True)
class Screen:
    """What is shown of a record, and the exit code that it gives."""

    sections: Sequence[tuple[str, Sequence[ScreenLine]]]
    """Titles, each with at least one line."""
    failures: Sequence[str]
    last: str
    exit_code: int


# Columns: what a figure is, where a row holds it, in which unit people read it.


class MeanAndStd(NamedTuple):
    """A mean, and the standard deviation beside it."""

    mean: float | None
    deviation: float | None


@dataclass(frozen=True)
class Unit:
    """How people read a figure: `alone`, or `below` a heading that says the unit, which is `factor` to the figure's."""

    alone: Callable[[float], str]
    heading: str = ""
    factor: float = 1.0
    below: Callable[[float], str] = significant


def rate(value: float) -> str:
    """The rate in whole numbers from a thousand on, else in three digits."""
    return format(value, ",.0f") if value >= 1000 else significant(value, 3)


SECONDS, MICROSECONDS = Unit(duration, " (ms)", 1e3), Unit(duration, " (us)", 1e6)
BYTES = Unit(mebibytes, " (MiB)", 1 / MIB)
SHARE = Unit("{:.1%}".format, " (%)", 100, "{:.1f}".format)
MILLIONS = Unit(lambda value: significant(value / 1e6))
GIGABYTES_PER_SECOND = Unit(lambda value: f"{value / 1e9:.3g} GB/s")
WHOLE_PERCENT = Unit("{:.0%}".format)
UNITS_BY_ENDING = {
    "bytes_per_second": GIGABYTES_PER_SECOND, "_per_second": Unit(rate),
    "seconds": SECONDS, "bytes": BYTES, "share": SHARE,
    "_spread": Unit("{:.1%}".format), "_change": Unit("{:+.1%}".format), "_efficiency": Unit("{:.1%}".format),
    "mfu": Unit("{:.1%}".format), "_fraction": WHOLE_PERCENT, "_ceiling": WHOLE_PERCENT, "_error": WHOLE_PERCENT,
    "ratio": Unit("{:.3f}".format),
}  # fmt: skip
"""How people read a figure, by the unit that its name ends with: one format for each."""
COUNTS = {int: Unit("{:,}".format), float: Unit("{:g}".format)}
"""How they read a figure without a unit."""

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Column(Generic[T]):
    """A figure of rows of one type; `kind` is `str`, `int`, `float`, `bool`; for people `tuple` or `MeanAndStd` too."""

    name: str
    kind: type
    meaning: str
    of: Callable[[T], object]
    is_shown: bool = False
    """Whether a table for people has it where no columns are asked for; without those that are empty in every row."""
    heading: str = ""
    """What people are told it is, in place of its name."""
    own_unit: Unit | None = None
    """The unit where the name ends with none, or with another."""

    @cached_property
    def unit(self) -> Unit:
        named = (unit for end, unit in UNITS_BY_ENDING.items() if self.name.endswith(end))
        return self.own_unit or next(named, COUNTS.get(self.kind, COUNTS[float]))

    @property
    def label(self) -> str:
        """The heading where each figure has its unit."""
        return self.heading or self.name

    @property
    def title(self) -> str:
        """The heading with the unit of the figures below."""
        return self.label + ("" if self.kind is str else self.unit.heading)

    def value(self, row: T) -> Value:
        """The value, null where a damaged or hostile record has another kind there."""
        found = self.of(row)
        if self.kind is str:
            return None if found is None else str(found).encode("utf-8", "replace").decode() or None
        if self.kind is bool:
            return found if isinstance(found, bool) else None
        return whole(found) if self.kind is int else finite(found)

    def has_value(self, row: T) -> bool:
        return self.below(row) != DASH

    def alone(self, row: T) -> str:
        """The value as people read it with its unit; a dash for null."""
        return self._written(row, self.unit.alone)

    def below(self, row: T) -> str:
        """The same below its title."""
        unit = self.unit
        if not unit.heading:
            return self.alone(row)
        if self.kind is MeanAndStd:
            mean, deviation = map(finite, self.of(row) or (None, None))  # type: ignore[call-overload]
            return DASH if mean is None else with_spread(mean * unit.factor, deviation and deviation * unit.factor)
        return self._written(row, lambda value: unit.below(value * unit.factor))

    def _written(self, row: T, write: Callable[[float], str]) -> str:
        if self.kind is tuple:
            ends = [finite(end) for end in self.of(row) or ()]  # type: ignore[attr-defined]
            return " to ".join(write(end) for end in ends if end is not None) or DASH
        value = self.value(row)
        return (value or DASH) if value is None or isinstance(value, str) else write(value)


def text_column(heading: str, of: Callable[[T], object]) -> Column[T]:
    """Text of a row, for people alone."""
    return Column(heading, str, "", of)


# Tables.


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: Container[str] = ()) -> list[str]:
    """Columns as wide as their content; the first and those headed as in `left` to the left, figures to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    aligned = [
        [cell.ljust(width) if not place or column[0] in left else cell.rjust(width) for cell in column]
        for place, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]
    return ["  ".join(line) for line in zip(*aligned, strict=True)]


def column_table(columns: Sequence[Column[T]], rows: Iterable[T]) -> list[str]:
    """The same, from columns whose figures have their units beside them; text to the left."""
    texts = [[one.alone(row) for one in columns] for row in rows]
    return table([one.label for one in columns], texts, left={one.label for one in columns if one.kind is str})


def fitting(
    columns: Sequence[Column[T]], rows: Sequence[T], width: int, dropped_first: Sequence[str]
) -> list[Column[T]]:
    """The columns without those that have to go, in the order of `dropped_first`, for a table of that width."""
    left = list(columns)
    wide = {one.name: max([len(one.label), *(len(one.alone(row)) for row in rows)]) for one in columns}
    for name in dropped_first:
        if sum(wide[one.name] + 2 for one in left) - 2 > width:
            left = [one for one in left if one.name != name]
    return left


@dataclass(frozen=True)
class Table:
    """A table as data: the first `label_columns` say what a row is, the others figures, or text in `text_columns`."""

    name: str
    title: str
    header: tuple[str, ...]
    label_columns: int
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    text_columns: frozenset[str] = frozenset()

    def aligned(self, left: str, right: str) -> list[str]:
        """`left` for each label and each column of words, `right` for each figure."""
        is_left = (place < self.label_columns or name in self.text_columns for place, name in enumerate(self.header))
        return [left if one else right for one in is_left]


def markdown(tables: Sequence[Table]) -> str:
    """Pipe tables, the title above and the conditions below."""
    lines: list[str] = []
    for one in tables:
        header, _, *rows = pipe_table(one.header, one.rows)
        rule = f"| {' | '.join(one.aligned(':---', '---:'))} |"
        lines += [f"**{in_markdown(one.title)}**", "", header, rule, *rows]
        lines += ["", *(f"- {in_markdown(note)}" for note in one.notes), ""]
    return "\n".join(lines)


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]], label_columns: int = 1) -> list[str]:
    """Lines of a Markdown table, labels to the left and figures to the right."""
    rule = [":---"] * label_columns + ["---:"] * (len(header) - label_columns)
    cells = [list(map(in_markdown, header)), rule, *(map(in_markdown, row) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def in_markdown(text: str) -> str:
    """Text on one line, with every character of markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>&|~$#!@])", r"\\\1", one_line(text))


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$",
}  # fmt: skip


def latex(tables: Sequence[Table]) -> str:
    r"""`table` environments for `\usepackage{booktabs}`, the conditions in a comment line above and in the caption."""

    def escaped(text: str) -> str:
        return "".join(LATEX.get(character, character) for character in one_line(text))

    def line(cells: Sequence[str]) -> str:
        # An empty group first: a row that began with a bracket would be read as an argument of the break before it.
        return "{}" + " & ".join(map(escaped, cells)) + r" \\"

    def environment(one: Table) -> str:
        rows = "\n".join(map(line, one.rows))
        return rf"""\begin{{table}}
\centering
\caption{{{escaped(one.title)}. {"; ".join(map(escaped, one.notes))}.}}
\label{{tab:{one.name.replace("_", "-")}}}
\begin{{tabular}}{{{"".join(one.aligned("l", "r"))}}}
\toprule
{line(one.header)}
\midrule
{rows}
\bottomrule
\end{{tabular}}
\end{{table}}
"""

    return "\n".join([r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}", *map(environment, tables)])
