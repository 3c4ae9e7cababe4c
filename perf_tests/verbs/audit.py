"""`audit FILE`: say which figures of a table or benchmark file are impossible or inconsistent, and why.

perf-tests audit TIMES.csv
perf-tests audit TIMES.csv --gpu H100 --all
"""

import argparse
import json
import shutil
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import fill

from perf_tests.audit.figures import ACCUSING, NOTICE, VERDICTS, Finding, NotJudged
from perf_tests.audit.tables import WINDOW, Audit, audits_of
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.phases import FINDINGS, FINE, RefusalError
from perf_tests.records.record import how_many
from perf_tests.records.store import announced

SHOWN_GROUPS = 40
MOST_REASONS = 30
"""Shown one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="a CSV (.gz, .xz) or Markdown table of timings, memory or kernels, or a pytest-benchmark JSON",
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
    tally, before = Tally(), '{\n "findings": [\n'
    not_judged: list[NotJudged] = []
    with RefusalError.instead_of(ValueError):
        for file in announced([arguments.file]):
            for part in audits_of(file, arguments.gpu):
                tally.add(part)
                if arguments.json:  # line by line: a part's findings are let go before the next part is read
                    not_judged += part.not_judged
                    for finding in part.findings:
                        print(f"{before}{json.dumps(asdict(finding))}")
                        before = ","
                elif arguments.all:
                    for finding in part.findings:
                        print(_fitted(finding.sentence()))
    if arguments.json:
        rest = {
            "kind": tally.kind,
            "figures": tally.figures,
            "counts": dict(tally.counts),
            "not_judged": [asdict(one) for one in not_judged],
        }
        print(f"{before.removesuffix(',')}],{json.dumps(rest, indent=1).removeprefix('{')}")
    else:
        print("\n".join(map(_fitted, [*([] if arguments.all else tally.shown_groups()), *tally.lines()])))
    return FINDINGS if tally.accuses else FINE


def _fitted(sentence: str) -> str:
    """Wrap a sentence at a terminal's width; a program that reads gets it as it is."""
    width = shutil.get_terminal_size().columns
    is_shown = sys.stdout.isatty()
    return fill(sentence, width, subsequent_indent="    ", break_long_words=False) if is_shown else sentence


# What a file's audit came to, part by part: counts, and one line for findings that are alike.


MOST_GROUPS = 2000
"""Kept apart; findings beyond are counted under their rule alone."""
MOST_PLACES = 4


@dataclass
class Group:
    """Findings of one rule on one source, and the worst of them."""

    worst: Finding
    findings: int = 0
    figures: int = 0
    first_places: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.findings += 1
        self.figures += len(finding.places)
        self.first_places += finding.places[: MOST_PLACES - len(self.first_places)]
        if finding.excess > self.worst.excess:
            self.worst = finding

    def sentence(self) -> str:
        if self.findings == 1:
            return self.worst.sentence()
        others = f", ... ({how_many(self.figures, 'figure')})" if self.figures > len(self.first_places) else ""
        places = ", ".join(place.removeprefix("line ") for place in self.first_places)
        named = "lines " if self.first_places[0].startswith("line ") else ""
        return self.worst.sentence(f" The worst of {self.findings} like it: {named}{places}{others}.")


@dataclass
class Tally:
    """What all parts came to, in bounded room."""

    kind: str = ""
    figures: int = 0
    parts: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)
    first_unjudged: dict[str, NotJudged] = field(default_factory=dict)
    groups: dict[tuple[str, str, str], Group] = field(default_factory=dict)

    def add(self, audit: Audit) -> None:
        self.kind = audit.kind
        self.figures += len(audit.places)
        self.parts += 1
        self.counts.update(audit.counts())
        for one in audit.not_judged:
            self.unjudged[one.reason] += 1
            self.first_unjudged.setdefault(one.reason, one)
        for finding in audit.findings:
            key = (finding.verdict, finding.rule, finding.series)
            if key not in self.groups and len(self.groups) >= MOST_GROUPS:
                key = (finding.verdict, finding.rule, "")
            self.groups.setdefault(key, Group(finding)).add(finding)

    def shown_groups(self) -> list[str]:
        """The worst of those alike, the gravest first."""
        order = list(VERDICTS)
        groups = [group for group in self.groups.values() if group.worst.verdict != NOTICE]
        groups.sort(key=lambda group: (order.index(group.worst.verdict), -group.worst.excess))
        more = f"... and {len(groups) - SHOWN_GROUPS} more groups of findings; --all prints every finding"
        return [group.sentence() for group in groups[:SHOWN_GROUPS]] + [more] * (len(groups) > SHOWN_GROUPS)

    @property
    def accuses(self) -> bool:
        return any(verdict in ACCUSING for verdict, _, _ in self.groups)

    def lines(self) -> list[str]:
        """The counts in words."""
        lines = [f"{verdict}: {self.counts[verdict]} ({meaning})" for verdict, meaning in VERDICTS.items()]
        reasons = self.unjudged.most_common()
        for reason, count in reasons[:MOST_REASONS]:
            first = self.first_unjudged[reason]
            detail = f" ({'first ' if count > 1 else ''}{first.place}: {first.detail})" if first.detail else ""
            lines.append(f"not judged: {count}: {reason}{detail}")
        if rest := reasons[MOST_REASONS:]:
            lines.append(f"not judged: {sum(count for _, count in rest)}: {len(rest)} other reasons")
        compared = f"; each {WINDOW:,} of them were compared with each other" if self.parts > 1 else ""
        of_kind = f"{how_many(self.figures, 'figure')} of {self.kind}, {self.counts['fine']} without a finding"
        return [*lines, f"{of_kind}{compared}"]
