"""All rules over one file: what is impossible or inconsistent in it, and what could not be judged."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from perf_tests.audit import consistency, kernel_checks, memory_checks
from perf_tests.audit.benchmark_figures import read_benchmarks
from perf_tests.audit.figures import Kernel, Memory, Timing
from perf_tests.audit.finding import VERDICTS, Finding, NotJudged
from perf_tests.audit.plausibility import memory_beyond_card, one_outlier, rule_out
from perf_tests.audit.tables_of_others import read_table
from perf_tests.limits.datasheets import Gpu


@dataclass(frozen=True)
class Audit:
    """What was said of a file. `places` are those of its figures, in its own order."""

    kind: str
    places: list[str]
    findings: list[Finding]
    not_judged: list[NotJudged]

    def counts(self) -> dict[str, int]:
        """Figures by their gravest verdict; `fine` are those judged without any."""
        gravest: dict[str, str] = {}
        for verdict in reversed(VERDICTS):
            gravest |= {place: verdict for finding in self.findings_of(verdict) for place in finding.places}
        unjudged = {one.place for one in self.not_judged} - gravest.keys()
        counted = Counter(gravest.values())
        return {
            **{verdict: counted[verdict] for verdict in VERDICTS},
            "not judged": len(unjudged),
            "fine": len(self.places) - len(gravest) - len(unjudged),
        }

    def findings_of(self, verdict: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == verdict]

    def reasons(self) -> dict[str, int]:
        """Why figures were not judged, most frequent first."""
        return dict(Counter(one.reason for one in self.not_judged).most_common())


def audit_file(path: Path, gpu: Gpu | None = None) -> Audit:
    """`gpu` stands for the card of rows that name none. Raises ValueError with one sentence for an unreadable file."""
    if path.suffix.casefold() == ".json":
        return audit_timings("pytest-benchmark", read_benchmarks(path), gpu)
    table = read_table(path)
    timings = [figure for figure in table.figures if isinstance(figure, Timing)]
    if timings:
        return audit_timings(table.kind, timings, gpu)
    memories = [figure for figure in table.figures if isinstance(figure, Memory)]
    if memories:
        return audit_memory(memories)
    return audit_kernels([figure for figure in table.figures if isinstance(figure, Kernel)])


def audit_timings(kind: str, timings: list[Timing], gpu: Gpu | None = None) -> Audit:
    findings: list[Finding] = []
    not_judged: list[NotJudged] = []
    for timing in timings:
        for said in rule_out(timing, None if timing.gpu else gpu):
            if isinstance(said, NotJudged):
                not_judged.append(said)
            else:
                findings.append(consistency.with_neighbours(said, timings))
        outlier = one_outlier(timing)
        if outlier:
            findings.append(outlier)
    for rule in consistency.RULES:
        findings.extend(rule(timings))
    return Audit(kind, [timing.place for timing in timings], _gravest_first(findings), not_judged)


def audit_memory(memories: list[Memory]) -> Audit:
    said = [memory_beyond_card(memory) for memory in memories]
    findings = [one for one in said if isinstance(one, Finding)]
    for rule in memory_checks.RULES:
        findings.extend(rule(memories))
    not_judged = [one for one in said if isinstance(one, NotJudged)]
    return Audit("memory", [memory.place for memory in memories], _gravest_first(findings), not_judged)


def audit_kernels(kernels: list[Kernel]) -> Audit:
    findings = [finding for rule in kernel_checks.RULES for finding in rule(kernels)]
    partial = "neither a share nor both of calls and average: nothing to hold it against"
    not_judged = [
        NotJudged(kernel.place, partial)
        for kernel in kernels
        if kernel.percent is None and (kernel_checks.total_of(kernel) is None or kernel.average_seconds is None)
    ]
    return Audit("kernels", [kernel.place for kernel in kernels], _gravest_first(findings), not_judged)


def _gravest_first(findings: list[Finding]) -> list[Finding]:
    order = list(VERDICTS)
    return sorted(findings, key=lambda finding: order.index(finding.verdict))
