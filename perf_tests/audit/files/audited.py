"""All rules over one file."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from perf_tests.audit import consistency
from perf_tests.audit.benchmark_figures import read_benchmarks
from perf_tests.audit.consistency import Neighbours
from perf_tests.audit.figures import Kernel, LabelledFigure, Memory, Timing
from perf_tests.audit.files import kernel_checks, memory_checks
from perf_tests.audit.files.tables_of_others import Figure, open_figures
from perf_tests.audit.finding import VERDICTS, Finding, NotJudged
from perf_tests.audit.plausibility import memory_beyond_card, one_outlier, rule_out
from perf_tests.limits.datasheets import Gpu

T = TypeVar("T")
F = TypeVar("F", Timing, Memory, Kernel, Figure)

WINDOW = 100_000
"""Figures of a file that are held and compared at a time."""


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
    """The whole file at once. `gpu` is the card of rows that name none. Raises ValueError for an unreadable file."""
    parts = list(audits_of(path, gpu))
    places = [place for part in parts for place in part.places]
    findings = [finding for part in parts for finding in part.findings]
    return Audit(parts[0].kind, places, _gravest_first(findings), [one for part in parts for one in part.not_judged])


def audits_of(path: Path, gpu: Gpu | None = None, window: int = WINDOW) -> Iterator[Audit]:
    """The same in parts of at most `window` figures, which are compared with each other and not with other parts'.

    Raises ValueError with one sentence for an unreadable file, and for one whose rows cannot be read at all.
    """
    if path.suffix.casefold() == ".json":
        yield audit_timings("pytest-benchmark", _on(gpu, read_benchmarks(path)))
        return
    with open_figures(path) as table:
        is_read = False
        for rows in _batched(table.figures, window):
            unreadable = [row for row in rows if isinstance(row, NotJudged)]
            figures = [row for row in rows if not isinstance(row, NotJudged)]
            if not figures and not is_read and unreadable:
                raise ValueError(f"{path}: no row can be read. {unreadable[0].place}: {unreadable[0].sentence()}.")
            is_read = True
            yield _with_unreadable(_audit_figures(table.kind, _on(gpu, figures)), unreadable)
        if not is_read:
            raise ValueError(f"{path} has a header but no rows.")


def _audit_figures(kind: str, figures: Sequence[Figure]) -> Audit:
    if kind == "memory":
        return audit_memory([figure for figure in figures if isinstance(figure, Memory)])
    if kind == "kernels":
        return audit_kernels([figure for figure in figures if isinstance(figure, Kernel)])
    return audit_timings(kind, [figure for figure in figures if isinstance(figure, Timing)])


def _on(gpu: Gpu | None, figures: Sequence[F]) -> list[F]:
    """Those that name no card, on this one."""
    return [figure if figure.gpu or gpu is None else replace(figure, gpu=gpu.name) for figure in figures]


def _with_unreadable(audit: Audit, unreadable: list[NotJudged]) -> Audit:
    places = [*audit.places, *(one.place for one in unreadable)]
    return replace(audit, places=places, not_judged=[*audit.not_judged, *unreadable])


def audit_timings(kind: str, timings: Sequence[Timing]) -> Audit:
    said: list[Finding | NotJudged | None] = []
    neighbours: Neighbours | None = None
    for timing in timings:
        for one in (*rule_out(timing), one_outlier(timing)):
            if isinstance(one, Finding):
                neighbours = neighbours or Neighbours(timings)
                one = neighbours.explain(one)
            said.append(one)
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
    findings = _gravest_first([one for one in said if isinstance(one, Finding)])
    return Audit(kind, [row.place for row in rows], findings, [one for one in said if isinstance(one, NotJudged)])


def _gravest_first(findings: Sequence[Finding]) -> list[Finding]:
    order = list(VERDICTS)
    return sorted(findings, key=lambda finding: order.index(finding.verdict))


def _batched(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """`itertools.batched` of Python 3.12."""
    rows = iter(rows)
    while batch := list(islice(rows, size)):
        yield batch
