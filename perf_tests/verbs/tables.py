"""`tables [RUN ...]`: a record's figures as tables for a paper or for a program; without RUN, of the newest record."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError, UsageError
from perf_tests.records.columns import (
    NAME,
    CaseChoice,
    ChoiceError,
    add_choice,
    as_table,
    choice_of,
    latex,
    markdown,
    typst,
)
from perf_tests.records.record import Json, without_path
from perf_tests.records.store import StoredRecord, chosen_paths, each_readable, newest, write_whole
from perf_tests.report.tables import FLAT_COLUMNS, as_csv, as_jsonl, as_parquet, flat_figures, tables_of, with_null
from perf_tests.verbs.reading import announced, tell_left_out

FORMATS = {"markdown": ("md", markdown), "latex": ("tex", latex), "typst": ("typ", typst)}
FLAT_FORMATS, PARQUET = ("csv", "jsonl"), "parquet"
NAMES = (
    NAME, "timing", "percentiles", "precision", "memory", "attention", "attention_memory", "kernel_shares",
    "kernels", "attention_parts", "memory_pass", "memory_parts", "memory_categories", "saved", "largest_blocks",
    "warmup", "first_rounds",
)  # fmt: skip

Texts = dict[str, bytes]
"""Content by file name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("--format", choices=[*FORMATS, *FLAT_FORMATS, PARQUET], default="markdown")
    parser.add_argument(
        "--only", choices=NAMES, help="only this table; csv and jsonl have cases, " + ", ".join(FLAT_COLUMNS)
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", help="one file for each table instead of printing")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")
    add_choice(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        choice = choice_of(arguments)
        _refuse_what_does_not_fit(arguments, choice)
        return _run(arguments, choice)
    except ChoiceError as error:
        raise UsageError(error) from error


def _refuse_what_does_not_fit(arguments: argparse.Namespace, choice: CaseChoice) -> None:
    """Raises ChoiceError."""
    options = "--columns, --sort, --where and --against-axis"
    if choice.is_made and arguments.only not in (None, NAME):
        raise ChoiceError(f"{options} choose from the table {NAME}; drop --only {arguments.only}.")
    if arguments.json or arguments.format != PARQUET:
        return
    if arguments.only not in (None, NAME):
        raise ChoiceError(f"--format parquet writes the table {NAME} alone; choose csv or jsonl for {arguments.only}.")
    if arguments.output is None:
        raise ChoiceError("--format parquet writes a file; name its folder with -o FOLDER.")


def _run(arguments: argparse.Namespace, choice: CaseChoice) -> int:
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
    only = NAME if choice.is_made else arguments.only
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


def _as_json(record: StoredRecord, choice: CaseChoice, only: str | None) -> Json:
    """Each table under its name; unknown values are null."""
    rows = choice.rows_of([record]) if only in (None, NAME) else []
    names = choice.shown_columns(rows, for_people=False)
    found = {NAME: [{name: row[name] for name in names} for row in rows]}
    found |= {} if only == NAME else flat_figures(record.data, record.name)
    kept = {name: rows for name, rows in found.items() if only in (None, name)}
    return {"record": record.name, **{name: list(map(with_null, rows)) for name, rows in kept.items()}}


def _texts(records: Sequence[StoredRecord], chosen_format: str, only: str | None, choice: CaseChoice) -> Texts:
    """Of each table that has rows, the runs below each other. Programs get the table of cases unless asked."""
    is_for_people = chosen_format in FORMATS
    if only == NAME or (only is None and not is_for_people):
        return _texts_of_cases(records, chosen_format, choice)
    if only is not None and not is_for_people:
        return _flat_texts(records, chosen_format, only)
    suffix, write = FORMATS[chosen_format]
    built = [table for record in records for table in tables_of(record.data, record.name)]
    by_name = {name: [table for table in built if table.name == name] for name in NAMES if only in (None, name)}
    return {f"{name}.{suffix}": write(tables).encode() for name, tables in by_name.items() if tables}


def _texts_of_cases(records: Sequence[StoredRecord], chosen_format: str, choice: CaseChoice) -> Texts:
    rows = choice.rows_of(records)
    names = choice.shown_columns(rows, for_people=chosen_format in FORMATS)
    if not rows:
        return {}
    if chosen_format in FORMATS:
        suffix, write = FORMATS[chosen_format]
        return {f"{NAME}.{suffix}": write([as_table(rows, names)]).encode()}
    shown = [{name: row[name] for name in names} for row in rows]
    if chosen_format == PARQUET:
        return {f"{NAME}.{PARQUET}": as_parquet(shown, names)}
    text = as_csv(shown, names) if chosen_format == "csv" else as_jsonl(shown)
    return {f"{NAME}.{chosen_format}": text.encode()}


def _flat_texts(records: Sequence[StoredRecord], chosen_format: str, only: str) -> Texts:
    """In the columns of published collections."""
    rows = [row for record in records for row in flat_figures(record.data, record.name).get(only, [])]
    if not rows:
        return {}
    text = as_csv(rows, FLAT_COLUMNS[only]) if chosen_format == "csv" else as_jsonl(rows)
    return {f"{only}.{chosen_format}": text.encode()}


def _deliver(texts: Texts, folder: Path | None) -> None:
    if folder is None:
        print("\n".join(text.decode() for text in texts.values()), end="")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text)
        print(folder / name)
