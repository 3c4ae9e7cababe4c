"""Which rows and columns of the table `cases` are shown, in which order, and along which axis they are compared."""

import difflib
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass

from perf_tests.records.store import StoredRecord
from perf_tests.views.tables.case_columns import AXES, COLUMNS, SPEEDUP, Value
from perf_tests.views.tables.cases import Row, case_rows

FOR_PEOPLE = (
    "size", "context_length", "head_dim", "sequence_length", "collective", "message_bytes", "world", "phase",
    "precision", "attention", "execution", "checkpoint", "outcome", "median_seconds", "tokens_per_second",
    "tflops_per_second", "bus_bytes_per_second", "bound",
)  # fmt: skip
"""The columns that fit a page, where none are asked for; without those that are empty in every row."""

MOST_SHOWN = 10
"""Values that a message lists."""


class ChoiceError(ValueError):
    """A choice that cannot be met; the message is one sentence."""


@dataclass(frozen=True)
class CaseChoice:
    """Empty fields choose everything, in the record's order."""

    columns: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    """Names of columns; `-` before one sorts it from the highest down."""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Columns, each with the values that it may have."""
    against: tuple[str, str] | None = None
    """An axis, and the value that the others are compared with."""

    @property
    def is_made(self) -> bool:
        return self != CaseChoice()

    def shown_columns(self, rows: Sequence[Row], for_people: bool) -> list[str]:
        speedup = [SPEEDUP.name] if self.against else []
        if self.columns:
            return list(self.columns)
        if for_people:
            return [name for name in FOR_PEOPLE if any(row[name] is not None for row in rows)] + speedup
        return [*COLUMNS, *speedup]

    def rows_of(self, records: Sequence[StoredRecord]) -> list[Row]:
        """Raises ChoiceError for a value that no row has."""
        rows = [row for record in records for row in case_rows(record.data, record.name, self.against)]
        if self.against is not None and rows and all(row[SPEEDUP.name] is None for row in rows):
            axis, value = self.against
            raise ChoiceError(f"--against-axis {axis}={value}: no timed case has it; there are {_some(rows, axis)}.")
        left = rows
        for name, values in self.where:
            missing = next((value for value in values if not any(_is(row[name], value) for row in rows)), None)
            if missing is not None and rows:
                raise ChoiceError(f"--where {name}={missing}: no case has it; there are {_some(rows, name)}.")
            left = [row for row in left if any(_is(row[name], value) for value in values)]
        return _in_order(left, self.sort)


def add_choice(parser: ArgumentParser) -> None:
    """The options that choose from the table `cases`."""
    parser.add_argument("--columns", metavar="NAME,...", help="of cases: only these columns, in this order")
    parser.add_argument("--sort", metavar="NAME,...", help="of cases: by these columns; --sort=-NAME is descending")
    parser.add_argument(
        "--where", metavar="NAME=VALUE,...", action="append", default=[], help="of cases: only these; repeatable"
    )
    parser.add_argument("--against-axis", metavar="AXIS=VALUE", help="of cases: a column with the speed-up over VALUE")


def choice_of(arguments: Namespace) -> CaseChoice:
    """Raises ChoiceError naming the option."""
    against = None if arguments.against_axis is None else _axis(arguments.against_axis)
    known = [*COLUMNS, *([SPEEDUP.name] if against else [])]
    columns = tuple(_column("--columns", name, known) for name in _entries("--columns", arguments.columns))
    doubled = next((name for name in columns if columns.count(name) > 1), None)
    if doubled is not None:
        raise ChoiceError(f"--columns names {doubled} twice; name each column once.")
    sort = tuple(_entries("--sort", arguments.sort))
    for name in sort:
        _column("--sort", name.removeprefix("-"), known)
    return CaseChoice(columns, sort, tuple(_condition(text, known) for text in arguments.where), against)


def _entries(option: str, text: str | None) -> list[str]:
    found = [] if text is None else [entry.strip() for entry in text.split(",")]
    if "" in found:
        raise ChoiceError(f"{option} {text!r} has an empty entry; write names with commas in between.")
    return found


def _axis(text: str) -> tuple[str, str]:
    axis, equals, value = text.partition("=")
    if not equals or axis not in AXES:
        raise ChoiceError(f"--against-axis {text!r} is not AXIS=VALUE; the axes are {', '.join(AXES)}.")
    return axis, value


def _condition(text: str, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    if not equals:
        raise ChoiceError(f"--where {text!r} is not NAME=VALUE; write, for example, --where size=small,medium.")
    return _column("--where", name, known), tuple(value.strip() for value in values.split(","))


def _column(option: str, name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3) or [other for other in known if name and name in other][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/tables.md lists them."
    if name == SPEEDUP.name:
        hint = "it needs --against-axis AXIS=VALUE."
    raise ChoiceError(f"{option} {name!r} is no column of the table of cases; {hint}")


def _is(found: Value, text: str) -> bool:
    """Numbers by value, so that `1e9` finds a billion; an empty text is what is not known."""
    if found is None:
        return text == ""
    if isinstance(found, bool):
        return str(found).casefold() == text.casefold()
    if isinstance(found, str):
        return found == text
    try:
        return float(text) == found
    except ValueError:
        return False


def _some(rows: Sequence[Row], name: str) -> str:
    known = list(dict.fromkeys("unknown ones" if row[name] is None else f"{row[name]!s:.60}" for row in rows))
    rest = f" and {len(known) - MOST_SHOWN} others" if len(known) > MOST_SHOWN else ""
    return ", ".join(known[:MOST_SHOWN]) + rest


def _in_order(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """By the first name, then the next; unknown values come last either way."""
    ordered = list(rows)
    for word in reversed(names):
        name = word.removeprefix("-")
        known = [row for row in ordered if row[name] is not None]
        known.sort(key=lambda row, name=name: row[name], reverse=word.startswith("-"))  # type: ignore[misc]
        ordered = known + [row for row in ordered if row[name] is None]
    return ordered
