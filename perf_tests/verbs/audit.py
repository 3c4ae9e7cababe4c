"""`audit FILE`: which figures of a table or benchmark file are impossible or inconsistent, and why."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from perf_tests.audit.files import Audit, audit_file
from perf_tests.audit.finding import ACCUSING, VERDICTS
from perf_tests.limits.datasheets import gpu_named
from perf_tests.verbs.exit_codes import FINDINGS, FINE, UNREADABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a CSV of timings, memory or kernels, or a pytest-benchmark JSON")
    parser.add_argument("--gpu", type=_gpu, help="GPU of rows that name none, by name or peaks (memory=..,fp32=..)")
    parser.add_argument("--all", action="store_true", help="print notices and suspicions too, not their counts alone")


def _gpu(text: str) -> object:
    try:
        return gpu_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    try:
        audit = audit_file(arguments.file, arguments.gpu)
    except ValueError as error:
        print(error)
        return UNREADABLE
    if arguments.json:
        data = {
            "kind": audit.kind,
            "figures": len(audit.places),
            "counts": audit.counts(),
            "not_judged": [asdict(one) for one in audit.not_judged],
            "findings": [asdict(finding) for finding in audit.findings],
        }
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(_lines(audit, show_all=arguments.all)))
    return FINDINGS if any(finding.verdict in ACCUSING for finding in audit.findings) else FINE


def _lines(audit: Audit, show_all: bool) -> list[str]:
    lines = [finding.sentence() for finding in audit.findings if show_all or finding.verdict in ACCUSING]
    counts = audit.counts()
    lines += [f"{verdict}: {counts[verdict]} ({meaning})" for verdict, meaning in VERDICTS.items()]
    lines += [f"not judged: {count}: {reason}" for reason, count in audit.reasons().items()]
    return [*lines, f"{len(audit.places)} figures of {audit.kind}, {counts['fine']} without a finding"]
