"""`tables [RUN ...]`: a record's figures as tables for a paper or for a program; without RUN, of the newest record."""

import argparse
import csv
import difflib
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError, UsageError
from perf_tests.records.columns import AXES, COLUMNS, SPEEDUP, Row, Value, case_rows
from perf_tests.records.format import DASH, Table, latex, markdown, no_formula, significant, typst
from perf_tests.records.published import FLAT_COLUMNS, flat_figures
from perf_tests.records.record import Json, without_path
from perf_tests.records.store import (
    StoredRecord,
    announced,
    chosen_paths,
    each_readable,
    newest,
    tell_left_out,
    write_whole,
)
from perf_tests.report.tables import tables_of

CASES = "cases"
FORMATS = {"markdown": ("md", markdown), "latex": ("tex", latex), "typst": ("typ", typst)}
FLAT_FORMATS, PARQUET = ("csv", "jsonl"), "parquet"
NAMES = (
    CASES, "timing", "percentiles", "precision", "memory", "attention", "attention_memory", "kernel_shares",
    "kernels", "attention_parts", "memory_pass", "memory_parts", "memory_categories", "saved", "largest_blocks",
    "warmup", "first_rounds",
)  # fmt: skip

FOR_PEOPLE = (
    "size", "context_length", "head_dim", "sequence_length", "collective", "message_bytes", "world", "phase",
    "precision", "attention", "execution", "checkpoint", "outcome", "median_seconds", "tokens_per_second",
    "tflops_per_second", "bus_bytes_per_second", "bound",
)  # fmt: skip
"""The columns that fit a page, where none are asked for; without those that are empty in every row."""

MOST_SHOWN = 10
"""Values that a message lists."""

EVERY_COLUMN = {**COLUMNS, SPEEDUP.name: SPEEDUP}

Texts = dict[str, bytes]
"""Content by file name."""


class ChoiceError(ValueError):
    """A choice that cannot be met; the message is one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("--format", choices=[*FORMATS, *FLAT_FORMATS, PARQUET], default="markdown")
    parser.add_argument(
        "--only", choices=NAMES, help="only this table; csv and jsonl have cases, " + ", ".join(FLAT_COLUMNS)
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", help="one file for each table instead of printing")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")
    parser.add_argument("--columns", metavar="NAME,...", help="of cases: only these columns, in this order")
    parser.add_argument("--sort", metavar="NAME,...", help="of cases: by these columns; --sort=-NAME is descending")
    parser.add_argument(
        "--where", metavar="NAME=VALUE,...", action="append", default=[], help="of cases: only these; repeatable"
    )
    parser.add_argument("--against-axis", metavar="AXIS=VALUE", help="of cases: a column with the speed-up over VALUE")


def run(arguments: argparse.Namespace) -> int:
    try:
        choice = choice_of(arguments)
        _refuse_what_does_not_fit(arguments, choice)
        return _run(arguments, choice)
    except ChoiceError as error:
        raise UsageError(error) from error


def _run(arguments: argparse.Namespace, choice: "CaseChoice") -> int:
    left_out: list[str] = []
    try:
        readable = each_readable(announced(chosen_paths(arguments.storage, arguments.runs)), left_out)
        latest = None if arguments.runs else newest(readable)
        records = list(readable) if arguments.runs else [latest] if latest else []
    except ValueError as error:
        raise RefusalError(error) from error
    tell_left_out(left_out, arguments.runs)
    if not records:
        return UNREADABLE
    only = CASES if choice.is_made else arguments.only
    if arguments.json:
        print(json.dumps([_as_json(record, choice, only) for record in records], indent=1))
        return FINDINGS if left_out else FINE
    texts = _texts(records, arguments.format, only, choice)
    if not texts:
        print(f"{', '.join(record.name for record in records)}: no figures for this table.", file=sys.stderr)
        return FINDINGS
    try:
        _deliver(texts, arguments.output and Path(arguments.output))
    except OSError as error:
        why = without_path(error)
        raise UsageError(f"The tables cannot be written to {arguments.output}: {why}; name another folder.") from error
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

    @property
    def is_made(self) -> bool:
        return self != CaseChoice()

    def shown_columns(self, rows: Sequence[Row], for_people: bool) -> list[str]:
        """Those asked for, else every one, or for people those that fit a page."""
        speedup = [SPEEDUP.name] if self.against else []
        if self.columns:
            return list(self.columns)
        if for_people:
            return [name for name in FOR_PEOPLE if any(row[name] is not None for row in rows)] + speedup
        return [*COLUMNS, *speedup]

    def rows_of(self, records: Sequence[StoredRecord]) -> list[Row]:
        """The chosen rows in their order; raises ChoiceError for a value that no row has."""
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
        # By the first name, then the next; unknown values come last either way.
        for word in reversed(self.sort):
            name = word.removeprefix("-")
            known = [row for row in left if row[name] is not None]
            known.sort(key=lambda row, name=name: row[name], reverse=word.startswith("-"))  # type: ignore[misc]
            left = known + [row for row in left if row[name] is None]
        return left


def choice_of(arguments: argparse.Namespace) -> CaseChoice:
    """The choice of these options; raises ChoiceError naming the one that cannot be met."""
    against = None
    if arguments.against_axis is not None:
        axis, equals, value = arguments.against_axis.partition("=")
        if not equals or axis not in AXES:
            raise ChoiceError(
                f"--against-axis {arguments.against_axis!r} is not AXIS=VALUE; the axes are {', '.join(AXES)}."
            )
        against = axis, value
    known = EVERY_COLUMN if against else COLUMNS
    columns, sort = (tuple(_entries(f"--{name}", getattr(arguments, name))) for name in ("columns", "sort"))
    for name in columns:
        _check_column("--columns", name, known)
        if columns.count(name) > 1:
            raise ChoiceError(f"--columns names {name} twice; name each column once.")
    for name in sort:
        _check_column("--sort", name.removeprefix("-"), known)
    where = []
    for text in arguments.where:
        name, equals, values = text.partition("=")
        if not equals:
            raise ChoiceError(f"--where {text!r} is not NAME=VALUE; write, for example, --where size=small,medium.")
        _check_column("--where", name, known)
        where.append((name, tuple(value.strip() for value in values.split(","))))
    return CaseChoice(columns, sort, tuple(where), against)


def _entries(option: str, text: str | None) -> list[str]:
    found = [] if text is None else [entry.strip() for entry in text.split(",")]
    if "" in found:
        raise ChoiceError(f"{option} {text!r} has an empty entry; write names with commas in between.")
    return found


def _check_column(option: str, name: str, known: Iterable[str]) -> None:
    if name in known:
        return
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


def _refuse_what_does_not_fit(arguments: argparse.Namespace, choice: CaseChoice) -> None:
    """Raises ChoiceError where the options of `cases` or the format meet another table."""
    options = "--columns, --sort, --where and --against-axis"
    if choice.is_made and arguments.only not in (None, CASES):
        raise ChoiceError(f"{options} choose from the table {CASES}; drop --only {arguments.only}.")
    if arguments.json or arguments.format != PARQUET:
        return
    if arguments.only not in (None, CASES):
        raise ChoiceError(f"--format parquet writes the table {CASES} alone; choose csv or jsonl for {arguments.only}.")
    if arguments.output is None:
        raise ChoiceError("--format parquet writes a file; name its folder with -o FOLDER.")


# The tables in each format.


def _as_json(record: StoredRecord, choice: CaseChoice, only: str | None) -> Json:
    """Each table under its name; unknown values are null."""
    found: dict[str, list[Row]] = {}
    if only in (None, CASES):
        rows = choice.rows_of([record])
        names = choice.shown_columns(rows, for_people=False)
        found[CASES] = [{name: row[name] for name in names} for row in rows]
    if only != CASES:
        found |= {name: rows for name, rows in flat_figures(record.data, record.name).items() if only in (None, name)}
    return {"record": record.name, **found}


def _texts(records: Sequence[StoredRecord], chosen_format: str, only: str | None, choice: CaseChoice) -> Texts:
    """Each table that has rows, the runs below each other. Programs get the table of cases unless asked."""
    is_for_people = chosen_format in FORMATS
    if only == CASES or (only is None and not is_for_people):
        cases = choice.rows_of(records)
        if not cases:
            return {}
        names = choice.shown_columns(cases, for_people=is_for_people)
        if is_for_people:
            suffix, write = FORMATS[chosen_format]
            return {f"{CASES}.{suffix}": write([case_table(cases, names)]).encode()}
        return {
            f"{CASES}.{chosen_format}": exported([{name: row[name] for name in names} for row in cases], chosen_format)
        }
    if not is_for_people:
        assert only is not None
        flat = [row for record in records for row in flat_figures(record.data, record.name).get(only, [])]
        return {f"{only}.{chosen_format}": exported(flat, chosen_format)} if flat else {}
    suffix, write = FORMATS[chosen_format]
    built = [table for record in records for table in tables_of(record.data, record.name)]
    by_name = {name: [table for table in built if table.name == name] for name in NAMES if only in (None, name)}
    return {f"{name}.{suffix}": write(tables).encode() for name, tables in by_name.items() if tables}


def case_table(rows: Sequence[Row], names: Sequence[str]) -> Table:
    """The table of cases for people: four significant digits, in the columns' own units."""

    def text(value: Value) -> str:
        if value is None:
            return DASH
        if not isinstance(value, float):
            return str(value)
        return f"{value:.0f}" if value.is_integer() else significant(value)

    labels = next((place for place, name in enumerate(names) if EVERY_COLUMN[name].kind is float), len(names))
    texts = tuple(tuple(text(row[name]) for name in names) for row in rows)
    records = ", ".join(dict.fromkeys(str(row["record"]) for row in rows))
    return Table(CASES, "Cases", tuple(names), labels, texts, (f"record {records}",))


def exported(rows: Sequence[Row], chosen_format: str) -> bytes:
    """The rows, at least one, for a program: CSV, one JSON object per line, or Parquet; what is not known is null."""
    if chosen_format == PARQUET:
        return _as_parquet(rows)
    if chosen_format == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(no_formula, line) for line in (rows[0], *(row.values() for row in rows)))
    return text.getvalue().encode("utf-8", "replace")  # lone surrogates become question marks


def _as_parquet(rows: Sequence[Row]) -> bytes:
    """A column keeps its type where all its cells are null. Raises ChoiceError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ChoiceError(
            "--format parquet needs pyarrow, which is not installed; `pip install pyarrow`, or choose csv or jsonl."
        ) from error
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, types[EVERY_COLUMN[name].kind]) for name in rows[0]])
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), content)
    return content.getvalue()


def _deliver(texts: Mapping[str, bytes], folder: Path | None) -> None:
    if folder is None:
        print("\n".join(text.decode() for text in texts.values()), end="")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text)
        print(folder / name)
