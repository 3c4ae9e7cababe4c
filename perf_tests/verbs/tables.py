"""`tables [RUN ...]`: a record's figures as tables for a paper, or one per line; without RUN, of the newest record."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from perf_tests.records.chosen import chosen_paths, newest
from perf_tests.records.store import StoredRecord, each_readable, write_whole
from perf_tests.records.words import without_path
from perf_tests.verbs.exit_codes import FINDINGS, FINE, UNREADABLE, USAGE
from perf_tests.views.tables.flat_figures import COLUMNS, as_csv, as_jsonl, flat_figures
from perf_tests.views.tables.record import tables_of
from perf_tests.views.tables.table import latex, markdown, typst

FORMATS = {"markdown": ("md", markdown), "latex": ("tex", latex), "typst": ("typ", typst)}
FLAT_FORMATS = ("csv", "jsonl")
NAMES = (
    "timing", "percentiles", "precision", "memory", "attention", "attention_memory", "kernel_shares", "kernels",
    "attention_parts", "memory_pass", "memory_parts", "memory_categories", "saved", "largest_blocks", "warmup",
    "first_rounds",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("--format", choices=[*FORMATS, *FLAT_FORMATS], default="markdown")
    parser.add_argument("--only", choices=NAMES, help="only this table; csv and jsonl have " + ", ".join(COLUMNS))
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="one file for each table instead of printing"
    )
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    left_out: list[str] = []
    try:
        readable = each_readable(chosen_paths(arguments.storage, arguments.runs), left_out)
        latest = None if arguments.runs else newest(readable)
        records = list(readable) if arguments.runs else [latest] if latest else []
    except ValueError as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    for sentence in left_out:
        print(sentence, file=sys.stderr)
    if not records:
        return UNREADABLE
    if arguments.json:
        print(json.dumps([{"record": r.name, **flat_figures(r.data, r.name)} for r in records], indent=1))
        return FINDINGS if left_out else FINE
    texts = _texts(records, arguments.format, arguments.only)
    if not texts:
        print(f"{', '.join(record.name for record in records)}: no figures for this table.", file=sys.stderr)
        return FINDINGS
    try:
        _deliver(texts, arguments.output)
    except OSError as error:
        why = without_path(error)
        print(f"The tables cannot be written to {arguments.output}: {why}; name another folder.", file=sys.stderr)
        return USAGE
    return FINDINGS if left_out else FINE


def _texts(records: Sequence[StoredRecord], chosen_format: str, only: str | None) -> dict[str, str]:
    """Content by file name of each table that has rows, the runs below each other."""
    if chosen_format in FLAT_FORMATS:
        return _flat_texts(records, chosen_format, only)
    suffix, write = FORMATS[chosen_format]
    built = [table for record in records for table in tables_of(record.data, record.name)]
    by_name = {name: [table for table in built if table.name == name] for name in NAMES if only in (None, name)}
    return {f"{name}.{suffix}": write(tables) for name, tables in by_name.items() if tables}


def _flat_texts(records: Sequence[StoredRecord], chosen_format: str, only: str | None) -> dict[str, str]:
    figures = [flat_figures(record.data, record.name) for record in records]
    rows = {kind: [row for found in figures for row in found[kind]] for kind in COLUMNS if only in (None, kind)}
    return {
        f"{kind}.{chosen_format}": as_csv(found, COLUMNS[kind]) if chosen_format == "csv" else as_jsonl(found)
        for kind, found in rows.items()
        if found
    }


def _deliver(texts: dict[str, str], folder: Path | None) -> None:
    if folder is None:
        print("\n".join(texts.values()), end="")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
        print(folder / name)
