"""One label with two times, and two tables of one card: which of the figures is at fault, as far as the file tells."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from perf_tests.audit.figures import Timing
from perf_tests.audit.finding import SUSPICIOUS, Finding, found
from perf_tests.audit.groups import Table, fastest_first, figure, milliseconds, repository, same_configuration
from perf_tests.audit.plausibility import is_impossible
from perf_tests.records.grouped import grouped

SAME_CELL_TOLERANCE = 1.25
SCATTER_SHARE, SCATTER_RATIO = 0.05, 3.0
"""Deviation over mean from which a figure is a disturbed one, if it is so many times the other's."""

MOST_SERIES = 30
"""Of one card, that are compared with each other."""

FASTER_THAN_LABEL = "another precision under this label, or a pass that was not waited for"
DISTURBED = "a busy device or rounds that were not warmed up: the slower figures scatter more"
LESS_WARMUP = "no or one warm-up round before the slower figures"
SINGLE_ROUND = "a profiler running, or a single round, in the slower figures"
ONE_AGAINST_MANY = "another set-up in the one that differs, which its labels do not tell"
UNKNOWN = "two set-ups that the labels do not tell apart"


@dataclass(frozen=True)
class Repeat:
    """The figures of one label, split at the largest gap between them."""

    faster: list[Timing]
    slower: list[Timing]

    @property
    def ordered(self) -> list[Timing]:
        return [*self.faster, *self.slower]

    def cause(self) -> str:
        """As far as these figures tell it."""
        if any(map(is_impossible, self.faster)) and not all(map(is_impossible, self.slower)):
            return FASTER_THAN_LABEL
        if _scatter(self.slower) > max(SCATTER_SHARE, SCATTER_RATIO * _scatter(self.faster)):
            return DISTURBED
        if _most(one.rounds for one in self.slower) == 1 < _most(one.rounds for one in self.faster):
            return SINGLE_ROUND
        if _most(one.warmup_rounds for one in self.slower) < min(2, _most(one.warmup_rounds for one in self.faster)):
            return LESS_WARMUP
        return UNKNOWN

    def accused(self, cause: str) -> list[Timing]:
        if cause == FASTER_THAN_LABEL:
            return self.faster
        if cause in (DISTURBED, LESS_WARMUP, SINGLE_ROUND):
            return self.slower
        return min(self.faster, self.slower, key=len) if cause == ONE_AGAINST_MANY else self.ordered


def _scatter(timings: Sequence[Timing]) -> float:
    return max((one.std_seconds or 0) / figure(one) for one in timings)


def _most(counts: Iterable[int | None]) -> int:
    """Unknown ones are as many as usual."""
    return max(10 if count is None else count for count in counts)


def same_cell_twice(table: Table) -> Iterator[Finding]:
    """One configuration and phase of one repository with two times."""
    labels = grouped(
        table.timings, lambda t: (repository(t), *same_configuration(t)[1:], t.phase, t.optimizer)
    ).values()
    repeats = [repeat for group in labels if len(group) > 1 for repeat in _split(group)]
    for of_one_file in grouped(repeats, lambda repeat: repository(repeat.faster[0])).values():
        causes = [repeat.cause() for repeat in of_one_file]
        known = Counter(cause for cause in causes if cause != UNKNOWN)
        for repeat, cause in zip(of_one_file, causes, strict=True):
            yield _finding(repeat, cause, known)


def _split(group: Sequence[Timing]) -> list[Repeat]:
    ordered, ratio = fastest_first(group)
    if ratio <= SAME_CELL_TOLERANCE:
        return []
    gaps = [figure(after) / figure(before) for before, after in pairwise(ordered)]
    cut = 1 + gaps.index(max(gaps))
    return [Repeat(ordered[:cut], ordered[cut:])]


def _finding(repeat: Repeat, cause: str, known: Counter[str]) -> Finding:
    """Where the figures do not tell the cause, that of most other repeats in the file is the likeliest."""
    said = cause
    if cause == UNKNOWN and known:
        cause, count = known.most_common(1)[0]
        said = f"{cause}, as for {count} other labels of this file"
    elif cause == UNKNOWN and len(repeat.faster) != len(repeat.slower):
        said = cause = ONE_AGAINST_MANY
    accused = repeat.accused(cause)
    ratio = figure(repeat.ordered[-1]) / figure(repeat.ordered[0])
    why, limit = f"the same labels are {ratio:.2f} apart", f"{SAME_CELL_TOLERANCE:g}"
    return found(
        SUSPICIOUS,
        "same cell twice",
        accused,
        milliseconds(repeat.ordered),
        limit,
        why,
        said,
        ratio / SAME_CELL_TOLERANCE,
    )


def constant_offset(table: Table) -> Iterator[Finding]:
    """Two series of one card that differ by the same time at every size, as by constant work inside one range."""
    forward = [timing for timing in table.forward_passes if timing.is_eager]
    for group in grouped(forward, lambda t: (t.gpu, t.precision_label)).values():
        series = [{id(t.work): t for t in reversed(one)} for one in grouped(group, lambda t: t.series).values()]
        for one, other in combinations(series[:MOST_SERIES], 2):
            shared = [work for work in reversed(one) if work in other]
            lower, upper = sorted(
                ([table[work] for work in shared] for table in (one, other)), key=lambda rows: sum(map(figure, rows))
            )
            gaps = [figure(high) - figure(low) for low, high in zip(lower, upper, strict=True)]
            times = [figure(low) for low in lower]
            is_offset = len(gaps) >= 4 and min(gaps) > 0 and max(gaps) < 1.3 * min(gaps)
            if is_offset and max(times) > 3 * min(times) and min(gaps) > min(times) / 2:
                shown = f"{min(gaps) * 1e3:.3g} to {max(gaps) * 1e3:.3g} ms more at {len(gaps)} sizes"
                why = "another series of the same card lacks a time that does not grow with the model"
                cause = "the profiler's start inside the range"
                yield found(SUSPICIOUS, "constant offset", upper, shown, "1.3 between sizes", why, cause)
