"""`gate BASE HEAD`: judge runs that are recorded already, of two folders or commits; `run --against` measures both.

perf-tests gate BASE_FOLDER HEAD_FOLDER
perf-tests gate 3adf61e 9e03909 --summary verdicts.md
"""

import argparse
import os
import re
from itertools import chain
from operator import itemgetter
from pathlib import Path

from perf_tests.gate.recorded import RULES, conclude_recorded, why_incomparable
from perf_tests.gate.verdicts import FILE_NAME, read_accepted
from perf_tests.history.commits import machines_of, moment
from perf_tests.phases import RefusalError
from perf_tests.records.record import code_of, some_of
from perf_tests.records.store import DIRTY, StoredRecord, each_run_once, read_record, record_files, record_name
from perf_tests.report.gate_screens import limits_to_accept, offer_among, offer_entries, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", help="records of the base, at least five: a folder, or the start of a commit")
    parser.add_argument("head", help="records of the head, at least three")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")
    parser.add_argument("--summary", metavar="FILE", help="write the result as Markdown")


def run(arguments: argparse.Namespace) -> int:
    with RefusalError.instead_of(ValueError):
        found = [records_of(arguments.storage, word) for word in (arguments.base, arguments.head)]
        # Of the newest machine that has both sides; all where none has both.
        sides = [{record.path for record in side} for side in found]
        machines = [
            (max(moment(launch.written) for launch in machine.launches), paths)
            for machine in machines_of(chain(*found))
            if all((paths := {launch.path for launch in machine.launches}) & side for side in sides)
        ]
        kept = sorted(machines, key=itemgetter(0))[-1][1] if machines else set.union(*sides)
        base, head = ([record for record in side if record.path in kept] for side in found)
        others = [record.name for record in chain(*found) if record.path not in kept]
        if reason := why_incomparable(base, head):
            raise ValueError(reason)
        base_name = code_of(base[0].data)[:12]
        accepted = [entry for entry in read_accepted(arguments.storage / FILE_NAME) if entry.is_of(base_name)]
        result = conclude_recorded(base, head, RULES, accepted)
    if others and not arguments.json:
        print(
            f"Left out: {some_of(others)}, of another machine, build or setting; --storage with its folder judges it."
        )
    code = show(arguments, result, {}, RULES)
    limits = limits_to_accept(result, base_name)
    if limits and not (arguments.json or result.contaminated):
        print(offer_entries(limits, offer_among(arguments.storage, base_name), arguments.storage / FILE_NAME))
    return code


def records_of(storage: Path, asked: str) -> list[StoredRecord]:
    """The launches of a folder or commit; raises ValueError with one sentence for none or a broken one."""
    if os.path.isdir(asked):
        paths = record_files(Path(asked), "*") or record_files(Path(asked))  # a machine's folder, or a storage
    else:
        stored = record_files(storage) or record_files(storage, "*")  # a machine's folder
        start = asked[:12] if re.fullmatch("[0-9a-f]{40}", asked) else asked  # a record's name has the start of a hash
        found = [path for path in stored if path.name.partition("_")[2].startswith(start)]
        # Runs of a commit with uncommitted changes are of other code: taken where they are named, or alone.
        paths = [path for path in found if not record_name(path).endswith(DIRTY) or asked.endswith(DIRTY)] or found
    if not paths:
        raise ValueError(f"{asked} is not a folder with records, nor a commit of a run in {storage}; record one first.")
    return each_run_once([read_record(path) for path in paths])
