"""Counters of a deep model from those of two shallow ones, exactly.

What a model of L equal layers allocates and frees is a beginning, L times one layer, and an end. So the logs of two
depths that differ by one layer tell that of L: they agree from the start through every layer of the shallower, and
backwards from the end. From either end the bytes held run in parallel, and in between each layer differs from its
neighbour by the same amount, so that the peak lies in the first layer or in the last. Where the two logs are not of
this form, the two common ends do not cover the deeper one, and NotOfEqualLayersError is raised.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import accumulate, groupby
from typing import TypeVar

from perf_tests.instruments.counters import PartCounters

LogStep = list[tuple[str, int]]
"""Category and bytes, negative when freed, of what happens at once."""

Key = TypeVar("Key", bound=Hashable)


class NotOfEqualLayersError(Exception):
    """The counters do not grow by the same amount with each layer; run all of them."""


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
    early = _held_after(at_start, few_steps[: _first_highest(few_steps[:from_start])])
    late = _held_after(before_last_frees, backwards[: _last_highest(backwards[:from_end])])
    return PartCounters(
        kernels=_line(few.kernels, more.kernels, further_layers),
        saved_bytes=_line(Counter(saved=few.saved_bytes), Counter(saved=more.saved_bytes), further_layers)["saved"],
        held_at_start=at_start,
        held_at_peak=max(early, late, key=lambda held: held.total()),
        held_at_end=at_end,
        changes=(),
        allocations=_line(few.allocations, more.allocations, further_layers),
        host_reads=_line(Counter(reads=few.host_reads), Counter(reads=more.host_reads), further_layers)["reads"],
    )


def _steps(changes: tuple[tuple[str, int], ...]) -> list[LogStep]:
    """Each allocation by itself, and what is freed in one go together: its order says nothing and may depend on
    addresses, as that of autocast's copies does."""
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
    """The steps up to the last allocation, and what is freed after it: no peak is there, and all layers are in it."""
    if not steps or steps[-1][0][1] > 0:
        return steps, Counter()
    return steps[:-1], Counter({category: -size for category, size in steps[-1]})


def _is_covered(steps: list[LogStep], from_start: int, from_end: int) -> bool:
    """Whether each step is in the common start or the common end; one in between may free, for no peak is there."""
    if from_start + from_end >= len(steps):
        return True
    return from_start + from_end == len(steps) - 1 and all(size < 0 for _, size in steps[from_start])


def _line(few: Counter[Key], more: Counter[Key], further_layers: int) -> Counter[Key]:
    """Each count, further on along the straight line through both."""
    line = Counter({key: few[key] + (more[key] - few[key]) * further_layers for key in {**few, **more}})
    if min(line.values(), default=0) < 0:
        raise NotOfEqualLayersError("a count would be negative")
    return +line


def _common_start(few: list[LogStep], more: list[LogStep]) -> int:
    return next((place for place, (one, other) in enumerate(zip(few, more, strict=False)) if one != other), len(few))


def _first_highest(steps: list[LogStep]) -> int:
    """After how many of `steps` the most is held, the first time."""
    return max(enumerate(_heights(steps)), key=lambda item: item[1])[0]


def _last_highest(steps: list[LogStep]) -> int:
    """The last time; of steps backwards it is the first that happened, which a full log would name."""
    return max(enumerate(_heights(steps)), key=lambda item: (item[1], item[0]))[0]


def _heights(steps: list[LogStep]) -> Iterator[int]:
    return accumulate((sum(size for _, size in step) for step in steps), initial=0)


def _held_after(held: Counter[str], steps: list[LogStep]) -> Counter[str]:
    """What is held when all of `steps` are done."""
    after = held.copy()
    for step in steps:
        for category, size in step:
            after[category] += size
    return +after
