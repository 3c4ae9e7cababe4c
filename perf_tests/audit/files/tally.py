"""What a file's audit came to, part by part: counts, and one line for findings that are alike."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from perf_tests.audit.files.audited import Audit
from perf_tests.audit.finding import ACCUSING, NOTICE, VERDICTS, Finding, NotJudged
from perf_tests.records.words import how_many

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
        return f"{self.worst.sentence()} The worst of {self.findings} like it: {named}{places}{others}."


@dataclass
class Tally:
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
            self._group(finding).add(finding)

    def _group(self, finding: Finding) -> Group:
        key = (finding.verdict, finding.rule, finding.series)
        if key not in self.groups and len(self.groups) >= MOST_GROUPS:
            key = (finding.verdict, finding.rule, "")
        return self.groups.setdefault(key, Group(finding))

    @property
    def accuses(self) -> bool:
        return any(verdict in ACCUSING for verdict, _, _ in self.groups)

    def worst_first(self, with_notices: bool) -> Iterator[Group]:
        order = list(VERDICTS)
        groups = [group for (verdict, _, _), group in self.groups.items() if with_notices or verdict != NOTICE]
        return iter(sorted(groups, key=lambda group: (order.index(group.worst.verdict), -group.worst.excess)))

    def lines(self) -> list[str]:
        """The counts in words."""
        lines = [f"{verdict}: {self.counts[verdict]} ({meaning})" for verdict, meaning in VERDICTS.items()]
        for reason, count in self.unjudged.most_common(MOST_REASONS):
            first = self.first_unjudged[reason]
            detail = f" ({'first ' if count > 1 else ''}{first.place}: {first.detail})" if first.detail else ""
            lines.append(f"not judged: {count}: {reason}{detail}")
        rest = self.unjudged.most_common()[MOST_REASONS:]
        if rest:
            lines.append(f"not judged: {sum(count for _, count in rest)}: {len(rest)} other reasons")
        lines.append(f"{how_many(self.figures, 'figure')} of {self.kind}, {self.counts['fine']} without a finding")
        return lines


MOST_REASONS = 30
"""Shown one by one."""
