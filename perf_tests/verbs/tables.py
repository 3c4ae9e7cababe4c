"""`tables [RUN ...]`: write a record's figures as tables for a paper or a program; without RUN, the newest.

perf-tests tables --format csv
perf-tests tables --columns id,median_seconds --sort=-median_seconds
"""

import argparse
import csv
import difflib
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError, UsageError
from perf_tests_suite.perf_tests.records import store
from perf_tests_suite.perf_tests.records.columns import AXES, COLUMNS, SPEEDUP, Row, case_rows
from perf_tests_suite.perf_tests.records.format import (
    DASH,
    Table,
    Value,
    latex,
    markdown,
    no_formula,
    printable,
    significant,
)
from perf_tests_suite.perf_tests.records.record import collected, without_path
from perf_tests_suite.perf_tests.report.tables import tables_of

CASES = "cases"
FORMATS = {"markdown": ("md", markdown), "latex": ("tex", latex)}
FLAT_FORMATS = ("csv", "jsonl")
NAMES = (
    CASES, "timing", "percentiles", "precision", "memory", "attention", "attention_memory", "kernel_shares",
    "kernels", "attention_parts", "memory_pass", "memory_parts", "memory_categories", "saved", "largest_blocks",
    "warmup", "first_rounds",
)  # fmt: skip

MOST_SHOWN = 10
"""Values that a message lists."""

EVERY_COLUMN = {**COLUMNS, SPEEDUP.name: SPEEDUP}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("--format", choices=[*FORMATS, *FLAT_FORMATS], default="markdown")
    parser.add_argument("--only", choices=NAMES, help=f"only this table; csv and jsonl have {CASES} unless told")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="one file for each table instead of printing")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")
    parser.add_argument("--columns", metavar="NAME,...", help="keep these columns of the cases, in this order")
    parser.add_argument("--sort", metavar="NAME,...", help="sort cases by these columns; --sort=-NAME is descending")
    parser.add_argument("--where", metavar="NAME=VALUE,...", action="append", default=[],
                        help="keep rows with this value; repeatable")  # fmt: skip
    parser.add_argument("--against-axis", metavar="AXIS=VALUE", help="add a column with the speed-up over VALUE")


def run(arguments: argparse.Namespace) -> int:
    choice = choice_of(arguments)
    left_out: list[str] = []
    with RefusalError.instead_of(ValueError):
        readable = store.each_readable(store.announced(store.chosen_paths(arguments.storage, arguments.runs)), left_out)
        latest = None if arguments.runs else store.newest(readable)
        records = list(readable) if arguments.runs else [latest] if latest else []
    store.print_left_out(left_out, arguments.runs)
    if not records:
        return UNREADABLE
    only = arguments.only if choice == CaseChoice() else CASES
    if arguments.json:
        print(store.strict_json([{"record": one.name, **_rows_of(one, only, choice)} for one in records]))
    elif not (texts := _texts(records, arguments.format, only, choice)):
        print(f"{', '.join(record.name for record in records)}: no figures for this table.", file=sys.stderr)
        return FINDINGS
    elif arguments.output is None:
        shown = "\n".join(text.decode() for text in texts.values())
        if sys.stdout.isatty():  # a program that reads the tables gets them as they are
            shown = "".join(printable(line.rstrip("\n")) + "\n" for line in shown.splitlines(keepends=True))
        print(shown, end="")
    else:
        folder = Path(arguments.output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                store.write_whole(folder / name, text)
                print(folder / name)
        except OSError as error:
            said = f"The tables cannot be written to {arguments.output}: {without_path(error)}"
            raise UsageError(f"{said}; name another folder.") from error
    return FINDINGS if left_out else FINE


# Which rows and columns of the table `cases` are shown, in which order, and along which axis they are compared.


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

    def rows_of(self, records: Sequence[store.StoredRecord]) -> list[Row]:
        """The chosen rows in their order; raises UsageError for a value that no row has."""
        rows = [row for record in records for row in case_rows(record.data, record.name, self.against)]
        if self.against is not None and rows and all(row[SPEEDUP.name] is None for row in rows):
            axis, value = self.against
            raise UsageError(f"--against-axis {axis}={value}: no timed case has it; there are {_known(rows, axis)}.")
        left = rows
        for name, values in self.where:
            missing = next((value for value in values if not any(_is(row[name], value) for row in rows)), None)
            if missing is not None and rows:
                raise UsageError(f"--where {name}={missing}: no case has it; there are {_known(rows, name)}.")
            left = [row for row in left if any(_is(row[name], value) for value in values)]
        # By the first name, then the next; unknown values come last either way.
        for word in reversed(self.sort):
            name = word.removeprefix("-")
            known = [row for row in left if row[name] is not None]
            known.sort(key=lambda row, name=name: row[name], reverse=word.startswith("-"))  # type: ignore[misc]
            left = known + [row for row in left if row[name] is None]
        return left


def choice_of(arguments: argparse.Namespace) -> CaseChoice:
    """The choice of these options; raises UsageError naming the one that cannot be met, or that meets another table."""
    against = None
    if arguments.against_axis is not None:
        axis, equals, value = arguments.against_axis.partition("=")
        if not equals or axis not in AXES:
            typed, known_axes = arguments.against_axis, ", ".join(AXES)
            raise UsageError(f"--against-axis {typed!r} is not AXIS=VALUE; the axes are {known_axes}.")
        against = axis, value
    known = EVERY_COLUMN if against else COLUMNS
    named = {name: getattr(arguments, name) for name in ("columns", "sort")}
    chosen = {name: tuple(map(str.strip, text.split(","))) if text is not None else () for name, text in named.items()}
    for option, names in chosen.items():
        for name in names:
            if not name:
                said = f"--{option} {named[option]!r}"
                raise UsageError(f"{said} has an empty entry; write names with commas in between.")
            _check_column(f"--{option}", name.removeprefix("-" if option == "sort" else ""), known)
            if option == "columns" and names.count(name) > 1:
                raise UsageError(f"--columns names {name} twice; name each column once.")
    where = []
    for text in arguments.where:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"--where {text!r} is not NAME=VALUE; write, for example, --where size=small,medium.")
        _check_column("--where", name, known)
        where.append((name, tuple(map(str.strip, values.split(",")))))
    choice = CaseChoice(chosen["columns"], chosen["sort"], tuple(where), against)
    if arguments.only not in (None, CASES):
        only, options = arguments.only, "--columns, --sort, --where and --against-axis"
        if choice != CaseChoice():
            raise UsageError(f"{options} choose from the table {CASES}; drop --only {only}.")
    return choice


def _check_column(option: str, name: str, known: Iterable[str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=3) or [other for other in known if name and name in other][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/reference.md lists them."
    if name == SPEEDUP.name:
        hint = "it needs --against-axis AXIS=VALUE."
    raise UsageError(f"{option} {name!r} is not a column of the table of cases; {hint}")


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


def _known(rows: Sequence[Row], name: str) -> str:
    found = list(dict.fromkeys("unknown ones" if row[name] is None else f"{row[name]!s:.60}" for row in rows))
    return ", ".join(found[:MOST_SHOWN]) + (f" and {len(found) - MOST_SHOWN} others" if found[MOST_SHOWN:] else "")


# The tables in each format.


def _rows_of(record: store.StoredRecord, only: str | None, choice: CaseChoice) -> dict[str, list[Row]]:
    """The rows of each table for programs."""
    found = {CASES: _case_rows([record], choice)} if only in (None, CASES) else {}
    built = {} if only == CASES else _built([record])
    return found | {name: _as_rows(named) for name, named in built.items() if only in (None, name)}


def _case_rows(records: Sequence[store.StoredRecord], choice: CaseChoice) -> list[Row]:
    """Rows of the table of cases, the records below each other; unknown values are null."""
    names = choice.columns or [*COLUMNS, *([SPEEDUP.name] if choice.against else [])]
    return [{name: row[name] for name in names} for row in choice.rows_of(records)]


def _built(records: Sequence[store.StoredRecord]) -> dict[str, list[tuple[str, Table]]]:
    """Every other table that has rows by its name, in the order of a write-up: each record's name, and its table."""
    named = [(record.name, table) for record in records for table in tables_of(record.data, record.name)]
    found = collected((table.name, (record, table)) for record, table in named)
    return {name: found[name] for name in NAMES if name in found}


def _as_rows(named: Sequence[tuple[str, Table]]) -> list[Row]:
    """The rows of tables of one name as people read them, each with its record; all have every column of any table."""
    columns = dict.fromkeys(["record", *(column for _, table in named for column in table.header)])
    return [
        {**columns, "record": record, **dict(zip(table.header, row, strict=True))}
        for record, table in named
        for row in table.rows
    ]


def _texts(
    records: Sequence[store.StoredRecord], chosen_format: str, only: str | None, choice: CaseChoice
) -> dict[str, bytes]:
    """Each table that has rows, by file name. Programs get the table of cases unless asked."""
    if chosen_format not in FORMATS:
        name = only or CASES
        rows = _case_rows(records, choice) if name == CASES else _as_rows(_built(records).get(name, ()))
        return {f"{name}.{chosen_format}": exported(rows, chosen_format)} if rows else {}
    suffix, write = FORMATS[chosen_format]
    if only == CASES:
        rows = choice.rows_of(records)
        fitting = [name for name, one in COLUMNS.items() if one.is_shown and any(row[name] is not None for row in rows)]
        names = choice.columns or [*fitting, *([SPEEDUP.name] if choice.against else [])]
        return {f"{CASES}.{suffix}": write([case_table(rows, names)]).encode()} if rows else {}
    built = {name: [table for _, table in named] for name, named in _built(records).items() if only in (None, name)}
    return {f"{name}.{suffix}": write(tables).encode() for name, tables in built.items()}


def case_table(rows: Sequence[Row], names: Sequence[str]) -> Table:
    """The table of cases for people: four significant digits, in the columns' own units."""

    def text(value: Value) -> str:
        if value is None:
            return DASH
        if not isinstance(value, float):
            return str(value)
        return f"{value:.0f}" if value.is_integer() else significant(value)

    words = frozenset(name for name in names if EVERY_COLUMN[name].kind in (str, bool))
    texts = tuple(tuple(text(row[name]) for name in names) for row in rows)
    records = ", ".join(dict.fromkeys(str(row["record"]) for row in rows))
    return Table(CASES, "Cases", tuple(names), 0, texts, (f"record {records}",), words)


def exported(rows: Sequence[Row], chosen_format: str) -> bytes:
    """The rows, at least one, for a program: CSV, or one JSON object per line; what is not known is null."""
    if chosen_format == "jsonl":
        return "".join(store.strict_json(row, indent=None) + "\n" for row in rows).encode()
    lines = []
    for cells in (rows[0], *(row.values() for row in rows)):
        line = io.StringIO()
        # With another end of a line, a lone carriage return inside of a cell would go without quotes and end the row.
        csv.writer(line, lineterminator="\r\n").writerow(map(no_formula, cells))
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines).encode("utf-8", "replace")  # lone surrogates become question marks
