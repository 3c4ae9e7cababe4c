"""`audit FILE`: which figures of a table or benchmark file are impossible or inconsistent, and why."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from perf_tests.audit.tables import WINDOW, Audit, Tally, audits_of
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.phases import FINDINGS, FINE, RefusalError
from perf_tests.records.store import announced

SHOWN_GROUPS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, help="a CSV of timings, memory or kernels (.gz, .xz) or a pytest-benchmark JSON"
    )
    parser.add_argument("--gpu", type=_gpu, help="GPU of rows that name none, by name or peaks (memory=..,fp32=..)")
    parser.add_argument(
        "--all", action="store_true", help="print every finding and notice, not the worst of those alike"
    )


def _gpu(text: str) -> object:
    try:
        return gpu_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    tally = Tally()
    show = _as_json if arguments.json else _each if arguments.all else _grouped
    try:
        for file in announced([arguments.file]):
            for line in show(audits_of(file, arguments.gpu), tally):
                print(line)
    except ValueError as error:
        raise RefusalError(error) from error
    return FINDINGS if tally.accuses else FINE


def _grouped(parts: Iterator[Audit], tally: Tally) -> Iterator[str]:
    for part in parts:
        tally.add(part)
    groups = list(tally.worst_first(with_notices=False))
    for group in groups[:SHOWN_GROUPS]:
        yield group.sentence()
    if len(groups) > SHOWN_GROUPS:
        yield f"... and {len(groups) - SHOWN_GROUPS} more groups of findings; --all prints every finding"
    yield from _counted(tally)


def _each(parts: Iterator[Audit], tally: Tally) -> Iterator[str]:
    for part in parts:
        tally.add(part)
        for finding in part.findings:
            yield finding.sentence()
    yield from _counted(tally)


def _counted(tally: Tally) -> list[str]:
    compared = f"; each {WINDOW:,} of them were compared with each other" if tally.parts > 1 else ""
    *lines, last = tally.lines()
    return [*lines, f"{last}{compared}"]


def _as_json(parts: Iterator[Audit], tally: Tally) -> Iterator[str]:
    """The document line by line: a part's findings are let go before the next part is read."""
    opening = '{\n "findings": ['
    not_judged = []
    separator = ""
    for part in parts:
        tally.add(part)
        not_judged += part.not_judged
        if opening:
            yield opening
            opening = ""
        for finding in part.findings:
            yield f"{separator}{json.dumps(asdict(finding))}"
            separator = ","
    rest = {
        "kind": tally.kind,
        "figures": tally.figures,
        "counts": dict(tally.counts),
        "not_judged": [asdict(one) for one in not_judged],
    }
    yield f"],{json.dumps(rest, indent=1).removeprefix('{')}"
