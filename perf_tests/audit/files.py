"""All rules over one file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perf_tests.audit import consistency, kernel_checks, memory_checks
from perf_tests.audit.benchmark_figures import read_benchmarks
from perf_tests.audit.figures import Kernel, LabelledFigure, Memory, Timing
from perf_tests.audit.finding import VERDICTS, Finding, NotJudged
from perf_tests.audit.plausibility import memory_beyond_card, one_outlier, rule_out
from perf_tests.audit.tables_of_others import read_table
from perf_tests.limits.datasheets import Gpu


@dataclass(frozen=True)
class Audit:
    """The findings on a file. `places` are those of its figures, in their order."""

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
    """`gpu` is the card of rows that name none. Raises ValueError with one sentence for an unreadable file."""
    if path.suffix.casefold() == ".json":
        return audit_timings("pytest-benchmark", read_benchmarks(path), gpu)
    kind, figures = read_table(path)
    if isinstance(figures[0], Timing):
        return audit_timings(kind, [figure for figure in figures if isinstance(figure, Timing)], gpu)
    if isinstance(figures[0], Memory):
        return audit_memory([figure for figure in figures if isinstance(figure, Memory)])
    return audit_kernels([figure for figure in figures if isinstance(figure, Kernel)])


def audit_timings(kind: str, timings: list[Timing], gpu: Gpu | None = None) -> Audit:
    said = [one for timing in timings for one in (*rule_out(timing, None if timing.gpu else gpu), one_outlier(timing))]
    said = [consistency.with_neighbours(one, timings) if isinstance(one, Finding) else one for one in said]
    said += consistency.findings_between(timings)
    return _audit(kind, timings, said)


def audit_memory(memories: list[Memory]) -> Audit:
    said = [memory_beyond_card(memory) for memory in memories]
    said += [finding for rule in memory_checks.RULES for finding in rule(memories)]
    return _audit("memory", memories, said)


def audit_kernels(kernels: list[Kernel]) -> Audit:
    said: list[Finding | NotJudged | None] = [finding for rule in kernel_checks.RULES for finding in rule(kernels)]
    partial = "has neither a share nor both calls and average, so nothing to check it against"
    said += [
        NotJudged(kernel.place, partial)
        for kernel in kernels
        if kernel.percent is None and (kernel_checks.total_of(kernel) is None or kernel.average_seconds is None)
    ]
    return _audit("kernels", kernels, said)


def _audit(kind: str, rows: Sequence[LabelledFigure], said: Sequence[Finding | NotJudged | None]) -> Audit:
    """Findings gravest first."""
    order = list(VERDICTS)
    findings = sorted((one for one in said if isinstance(one, Finding)), key=lambda one: order.index(one.verdict))
    return Audit(kind, [row.place for row in rows], findings, [one for one in said if isinstance(one, NotJudged)])
