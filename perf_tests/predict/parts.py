"""What a part of a round launches, allocates and holds, out of the changes of its storages. No torch."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby

from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.predict.allocator import Log

# A log of tensor storages as they are allocated and freed: how much is held when, and by what.
#
# A storage is a block of memory that views share. A weak reference follows it, so that it counts as free when its
# last tensor is gone, as in the allocator.


TEMPORARIES = "temporaries"


@dataclass
class StorageBlock:
    """One storage, from its allocation on."""

    bytes: int
    operator: str
    place: str
    """`model/attention.py:48`; empty where no known line of the model made it."""
    category: str
    on_host: bool
    is_saved: bool = False
    """Whether autograd keeps it for the backward pass."""


@dataclass(frozen=True)
class StorageChange:
    """One allocation or release."""

    block: StorageBlock
    is_allocation: bool

    @property
    def bytes(self) -> int:
        """Bytes taken, negative when freed."""
        return self.block.bytes if self.is_allocation else -self.block.bytes


PARAMETERS = "parameters"
INPUTS = "inputs"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
ACTIVATIONS = "activations"
WEIGHT_COPIES = "autocast's weight copies"
WORKSPACES = "library workspaces"
"""Workspaces of cuBLAS, which Counting does not see."""

FORMER_PASS = "former pass"
"""Outputs, and perhaps the graph, of a pass before that a loop still holds."""

BACKWARD_PASS = "backward pass"
"""The place of blocks made by autograd, whose caller's line would mislead."""


@dataclass(frozen=True)
class PartCounters:
    """Counters of one part. Bytes held are by category."""

    kernels: Counter[KernelCost]
    """Launches; those of one operation share its bytes evenly."""
    saved_bytes: int
    """Saved for the backward pass, each storage once in its first part, without named ones such as parameters."""
    live_at_start: Counter[str]
    log: Log
    """Every allocation and release, for an allocator to play."""
    log_before: Log
    """The same since the part before, or since anything was there."""
    allocations: Counter[tuple[int, str, str]]
    """Number of blocks by (bytes, operator, place)."""
    host_reads: int = 0
    """Values on the device that the host waits for, as `.item()` does."""

    @cached_property
    def live_at_peak(self) -> Counter[str]:
        return live_at_peak(self.log, self.live_at_start)

    @cached_property
    def live_at_end(self) -> Counter[str]:
        return live_after(self.log, self.live_at_start)

    @property
    def peak_bytes(self) -> int:
        return self.live_at_peak.total()


@dataclass
class OpenPart:
    """A part while it is counted: its place among the changes, its launches, what autograd keeps, what is read."""

    first_change: int
    last_change: int = 0
    kernels: Counter[KernelCost] = field(default_factory=Counter)
    saved_bytes: int = 0
    host_reads: int = 0


Parts = dict[str, PartCounters]


def add_launches(kernels: Counter[KernelCost], cost: KernelCost, launches: int) -> None:
    """Add the launches of one operation, which share its bytes; no byte is lost in dividing."""
    share, left_over = divmod(cost.bytes, launches)
    if left_over:
        kernels[replace(cost, bytes=share + 1)] += left_over
    kernels[cost if launches == 1 else replace(cost, bytes=share)] += launches - left_over


def finished(changes: Sequence[StorageChange], parts: Mapping[str, OpenPart]) -> Parts:
    """The counters of each part, out of all changes, once every category is known."""
    living: defaultdict[tuple[str, int], list[StorageBlock]] = defaultdict(list)
    born: dict[int, int] = {}

    def logged(stretch: Iterable[StorageChange]) -> Log:
        """The log of the next stretch. What is freed at one moment, perhaps in order of address, goes by age."""
        log: list[tuple[str, int, int]] = []
        kept = (change for change in stretch if change.bytes)
        for is_allocation, run in groupby(kept, lambda change: change.is_allocation):
            blocks = [change.block for change in run]
            if not is_allocation:
                blocks.sort(key=lambda block: -born[id(block)])
            for block in blocks:
                same = living[block.category, block.bytes]
                if is_allocation:
                    born[id(block)] = len(born)
                    same.append(block)
                    log.append((block.category, block.bytes, 0))
                else:
                    younger = next(place for place, other in enumerate(reversed(same)) if other is block)
                    del same[-1 - younger]
                    log.append((block.category, -block.bytes, younger))
        return tuple(log)

    found, held, done = dict[str, PartCounters](), Counter[str](), 0
    for name, part in parts.items():
        before = logged(changes[done : part.first_change])
        during = changes[part.first_change : part.last_change]
        made = [change.block for change in during if change.is_allocation]
        found[name] = PartCounters(
            kernels=+part.kernels,
            saved_bytes=part.saved_bytes,
            live_at_start=live_after(before, held),
            log=logged(during),
            log_before=before,
            allocations=Counter((block.bytes, block.operator, block.place) for block in made),
            host_reads=part.host_reads,
        )
        held, done = found[name].live_at_end, part.last_change
    return found


Changes = Sequence[tuple[str, int, *tuple[int, ...]]]
"""Category and bytes of each, negative when freed, and perhaps more, as in a `Log`."""


def live_after(changes: Changes, at_start: Counter[str]) -> Counter[str]:
    """Bytes held by category after all changes."""
    held = at_start.copy()
    for category, size, *_ in changes:
        held[category] += size
    return +held  # without zeros, which a Counter keeps


def live_at_peak(changes: Changes, at_start: Counter[str]) -> Counter[str]:
    """Bytes held by category at the first moment of the peak, the start included."""
    sums = accumulate((size for _, size, *_ in changes), initial=0)
    number, _ = max(enumerate(sums), key=lambda item: item[1])
    return live_after(changes[:number], at_start)
