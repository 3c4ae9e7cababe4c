"""Counters of a deep model, exactly, from those of two shallow ones that differ by one layer.

The log of a model of L equal layers is a beginning, L times one layer, and an end. The logs of the two shallow models
agree from the start through every layer of the shallower, and backwards from the end. In between, each layer differs
from its neighbour by the same bytes, so the peak lies in the first layer or the last. For logs of another form, the
common start and end do not cover the deeper log, and NotOfEqualLayersError is raised.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import accumulate, chain, groupby
from typing import TypeVar

from perf_tests.instruments.counters import PartCounters, held_after

LogStep = list[tuple[str, int]]
"""Categories and bytes, negative when freed, of simultaneous changes."""

Key = TypeVar("Key", bound=Hashable)


class NotOfEqualLayersError(Exception):
    """The counters do not grow by the same amount with each layer; count all layers."""


def extrapolated(few: PartCounters, more: PartCounters, further_layers: int) -> PartCounters:
    """The counters of a model with `further_layers` more layers than `few`, which has one less than `more`."""
    few_steps, few_freed_last = _without_last_frees(_steps(few.changes))
    more_steps, more_freed_last = _without_last_frees(_steps(more.changes))
    from_start, from_end = _common_start(few_steps, more_steps), _common_start(few_steps[::-1], more_steps[::-1])
    if not _is_covered(more_steps, from_start, from_end):
        raise NotOfEqualLayersError("the logs of the two depths differ in the middle")
    at_start = _line(few.held_at_start, more.held_at_start, further_layers)
    at_end = _line(few.held_at_end, more.held_at_end, further_layers)
    before_last_frees = at_end + _line(few_freed_last, more_freed_last, further_layers)
    backwards = [[(category, -size) for category, size in step] for step in few_steps[::-1]]
    early = few_steps[: max(_heights(few_steps[:from_start]), key=lambda item: item[1])[0]]
    # Of steps backwards, the last of equal heights is the first that happened, which a full log would name.
    late = backwards[: max(_heights(backwards[:from_end]), key=lambda item: (item[1], item[0]))[0]]
    peaks = (held_after(chain(*early), at_start), held_after(chain(*late), before_last_frees))
    scalars = _line(
        Counter(saved=few.saved_bytes, reads=few.host_reads),
        Counter(saved=more.saved_bytes, reads=more.host_reads),
        further_layers,
    )
    return PartCounters(
        kernels=_line(few.kernels, more.kernels, further_layers),
        saved_bytes=scalars["saved"],
        held_at_start=at_start,
        held_at_peak=max(peaks, key=Counter.total),
        held_at_end=at_end,
        changes=(),
        allocations=_line(few.allocations, more.allocations, further_layers),
        host_reads=scalars["reads"],
    )


def _steps(changes: tuple[tuple[str, int], ...]) -> list[LogStep]:
    """Each allocation by itself, and simultaneous frees together: their order may depend on addresses."""
    steps: list[LogStep] = []
    for is_allocation, run in groupby(changes, key=lambda change: change[1] > 0):
        if is_allocation:
            steps += [[change] for change in run]
        else:
            freed: Counter[str] = Counter()
            for category, size in run:
                freed[category] += size
            steps.append(sorted(freed.items()))
    return steps


def _without_last_frees(steps: list[LogStep]) -> tuple[list[LogStep], Counter[str]]:
    """The steps up to the last allocation, and what is freed after it, which is of all layers and holds no peak."""
    if not steps or steps[-1][0][1] > 0:
        return steps, Counter()
    return steps[:-1], Counter({category: -size for category, size in steps[-1]})


def _is_covered(steps: list[LogStep], from_start: int, from_end: int) -> bool:
    """Whether common start and end contain each step, except one that only frees and so holds no peak."""
    if from_start + from_end >= len(steps):
        return True
    return from_start + from_end == len(steps) - 1 and all(size < 0 for _, size in steps[from_start])


def _line(few: Counter[Key], more: Counter[Key], further_layers: int) -> Counter[Key]:
    """Each count, extrapolated linearly."""
    line = Counter({key: few[key] + (more[key] - few[key]) * further_layers for key in {**few, **more}})
    if min(line.values(), default=0) < 0:
        raise NotOfEqualLayersError("a count would be negative")
    return +line


def _common_start(few: list[LogStep], more: list[LogStep]) -> int:
    return next((place for place, (one, other) in enumerate(zip(few, more, strict=False)) if one != other), len(few))


def _heights(steps: list[LogStep]) -> Iterator[tuple[int, int]]:
    """Bytes held, relative to the start, after each number of steps."""
    return enumerate(accumulate((sum(size for _, size in step) for step in steps), initial=0))
