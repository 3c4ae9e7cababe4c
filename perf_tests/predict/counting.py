"""Exact counters of any PyTorch code, without a device: launches, FLOPs, bytes touched, memory held.

Code inside `Counting` is cut into named parts, each with its `PartCounters`. Under `FakeTensorMode` nothing is computed
or allocated, and the counters are the same as with real tensors."""

import inspect
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor

from perf_tests.hardware.device import no_collections
from perf_tests.hardware.limits import KernelCost
from perf_tests.hardware.torch_private import (
    DataDependentOutputException,
    FakeTensor,
    TorchDispatchMode,
    autograd_file,
)
from perf_tests.predict.allocator import CUDA_BLOCK_BYTES, Log
from perf_tests.predict.costs import (
    LAUNCHES_NOTHING,
    REUSES_FIRST_ARGUMENT,
    CudaRules,
    accumulator_bytes,
    bytes_of,
    flops_of,
    index_splits,
    launches_of,
    mutated_tensors,
    operator_name,
    rate_of,
    strided_elements,
    summed_of,
    tensors_in,
)

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
class Change:
    """One allocation or release."""

    block: StorageBlock
    is_allocation: bool

    @property
    def bytes(self) -> int:
        """Bytes taken, negative when freed."""
        return self.block.bytes if self.is_allocation else -self.block.bytes


class StorageTracker:
    """Every block registered or allocated, and every change in order.

    Blocks are rounded up to multiples of `block_bytes`. With `separate_host`, tensors on the host take no memory.
    """

    def __init__(self, block_bytes: int, separate_host: bool) -> None:
        self.changes: list[Change] = []
        self._block_bytes = block_bytes
        self._separate_host = separate_host
        self._blocks: dict[int, StorageBlock] = {}
        self._references: dict[int, weakref.ref[object]] = {}
        self._last_allocation = 0
        self._last_key = 0
        self._may_be_reused: StorageBlock | None = None

    def knows(self, tensor: Tensor) -> bool:
        return id(tensor.untyped_storage()) in self._blocks

    def block_of(self, tensor: Tensor) -> StorageBlock:
        """The block under a tensor; an unknown one existed before and is added."""
        key = id(tensor.untyped_storage())
        if key not in self._blocks:
            self.add(tensor, "", "", TEMPORARIES)
        return self._blocks[key]

    def add(self, tensor: Tensor, operator: str, place: str, category: str, on_host: bool = False) -> StorageBlock:
        """Follow the storage of `tensor`, which must be unknown so far."""
        storage = tensor.untyped_storage()
        key = id(storage)
        size = -(-storage.nbytes() // self._block_bytes) * self._block_bytes
        on_host = on_host and self._separate_host
        block = StorageBlock(0 if on_host else size, operator, place, category, on_host)
        self._blocks[key] = block
        self._references[key] = weakref.ref(storage, lambda _: self._free(key))
        self.changes.append(Change(block, True))
        self._last_allocation, self._last_key = len(self.changes) - 1, key
        self._may_be_reused = None
        return block

    def pass_by(self, size: int, operator: str, place: str, category: str) -> None:
        """Add a block that its operation frees before it returns."""
        block = StorageBlock(
            -(-size // self._block_bytes) * self._block_bytes, operator, place, category, on_host=False
        )
        self.changes += [Change(block, True), Change(block, False)]

    def reuses_if_freed_next(self, argument: StorageBlock) -> None:
        """The block just added reuses that of `argument` if the latter is freed before the next allocation."""
        if self.changes[self._last_allocation].block.bytes == argument.bytes:
            self._may_be_reused = argument

    def settle(self) -> int:
        """The number of changes so far, now final: no earlier block can be reused any more."""
        self._may_be_reused = None
        return len(self.changes)

    def live_blocks(self) -> list[StorageBlock]:
        return list(self._blocks.values())

    def forget_all(self) -> None:
        """Stop following all blocks."""
        self._references.clear()
        self._blocks.clear()

    def _free(self, key: int) -> None:
        block = self._blocks.pop(key, None)
        self._references.pop(key, None)
        if block is None:
            return
        if block is self._may_be_reused and self._last_key in self._blocks:
            # What was added last was written into `block`, which lives on under its name.
            self._may_be_reused = None
            self._blocks[self._last_key] = block
            del self.changes[self._last_allocation]
        else:
            self.changes.append(Change(block, False))


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

_USUAL = {"aten.all": True, "aten.any": False}
"""What a check of all values finds where nothing is unusual: no padding, no packing, no infinity."""

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
    live_at_peak: Counter[str]
    live_at_end: Counter[str]
    changes: tuple[tuple[str, int], ...]
    """Category and bytes, negative when freed, in order."""
    allocations: Counter[tuple[int, str, str]]
    """Number of blocks by (bytes, operator, place)."""
    host_reads: int = 0
    """Values on the device that the host waits for, as `.item()` does."""
    log: Log | None = None
    """`changes`, for an allocator to replay; None where the layers do not repeat."""
    log_before: Log | None = None
    """The same since the part before, or since anything was there."""

    @property
    def peak_bytes(self) -> int:
        return self.live_at_peak.total()


@dataclass
class _OpenPart:
    first_change: int
    last_change: int = 0
    kernels: Counter[KernelCost] = field(default_factory=Counter)
    saved_bytes: int = 0
    host_reads: int = 0


class Counting(TorchDispatchMode):
    """Counts what runs inside it for a device of type `target`, "cuda" or "cpu".

    `float32_rate` is the rate of a float32 matrix product, "fp32" or "tf32". Lines in the folder `source` are named as
    places of blocks. Register tensors that exist before, or they count when first touched. Draws nothing random and
    leaves the thread count alone.
    """

    def __init__(self, target: str, float32_rate: str = "fp32", source: Path | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_cuda = target == "cuda"
        self.guesses_values = True
        """Whether a value that a fake tensor does not have is taken for 0; else reading one raises."""
        self.tracker = StorageTracker(CUDA_BLOCK_BYTES if self.on_cuda else 1, separate_host=self.on_cuda)
        self._float32_rate = float32_rate
        self._source = None if source is None else f"{source}/"
        self._parts: dict[str, _OpenPart] = {}
        self._current = _OpenPart(0)
        self._stack = ExitStack()

    def __enter__(self) -> "Counting":
        if self.on_cuda:
            self._stack.enter_context(CudaRules())
        # A collection would free at a moment that depends on everything else in the process.
        self._stack.enter_context(no_collections())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._stack.close()
        self.tracker.forget_all()

    def register(self, tensors: Iterable[Tensor], category: str) -> None:
        """Set the category of tensors; unknown ones are added."""
        for tensor in tensors:
            self.tracker.block_of(tensor).category = category

    def claim(self, category: str) -> None:
        """Set the category of everything held that has none yet."""
        for block in self.tracker.live_blocks():
            if block.category == TEMPORARIES:
                block.category = category

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside under this name."""
        outside = self._current
        self._current = part = _OpenPart(self.tracker.settle())
        with torch.autograd.graph.saved_tensors_hooks(self._note_saved, lambda tensor: tensor):
            yield
        part.last_change = self.tracker.settle()
        self._parts[name] = part
        self._current = outside

    def finished(self) -> dict[str, PartCounters]:
        """The counters of each part; call it when all categories are known."""
        log, found, done = _Logged(), {}, 0
        for name, part in self._parts.items():
            before, during = (
                log.of(self.tracker.changes[start:end])
                for start, end in ((done, part.first_change), (part.first_change, part.last_change))
            )
            found[name] = replace(self._counters(part), log=during, log_before=before)
            done = part.last_change
        return found

    def _note_saved(self, tensor: Tensor) -> Tensor:
        detached, new_bytes = saved_for_backward(self.tracker, tensor)
        self._current.saved_bytes += new_bytes
        return detached

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # more than half of all calls, and slow through the dispatcher
        name = operator_name(func)
        if name == "aten._local_scalar_dense":
            return self._number_on_the_host(func, args)
        result = func(*args, **kwargs)
        nothing_launched = func.is_view or name in LAUNCHES_NOTHING
        if nothing_launched and func.is_view and name != "aten.lift_fresh":
            return result
        inputs = list(tensors_in((*args, *kwargs.values())))
        outputs = list(tensors_in((result,))) or mutated_tensors(name, args)
        on_host = name == "aten.lift_fresh" or self._all_on_host(inputs)
        for tensor in outputs:
            if not self.tracker.knows(tensor):
                take_in(self.tracker, tensor, name, self._place(), inputs, on_host)
        if self.on_cuda and (size := accumulator_bytes(name, args)):
            self.tracker.pass_by(size, name, self._place(), TEMPORARIES)
        if outputs and not nothing_launched and not on_host:
            launches = launches_of(name, args, self.on_cuda)
            if launches == 1 and self.on_cuda:
                launches = index_splits(func, name, args, inputs, outputs)
            strided = strided_elements(func, name, inputs, outputs) if self.on_cuda else 0
            if launches:
                # They share the operation's bytes; no byte is lost in dividing.
                share, left_over = divmod(bytes_of(name, inputs, outputs), launches)
                rate = rate_of(name, args, self._float32_rate, self.on_cuda)
                cost = KernelCost(
                    name, flops_of(name, args, kwargs), share, rate, strided // launches, summed_of(name, args)
                )
                self._current.kernels[replace(cost, bytes=share + 1)] += left_over
                self._current.kernels[cost] += launches - left_over
                self.note(inputs, outputs, replace(cost, bytes=share * launches + left_over), launches)
        return result

    def note(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cost: KernelCost, launches: int) -> None:
        """Note an operation that launches kernels, or none where the host reads a value; `cost.bytes` are of all."""

    def _number_on_the_host(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The value of a one-element tensor; of a fake one 0, which a scaler reads as no overflow."""
        if not self._all_on_host(list(args[:1])):
            self._current.host_reads += 1
            self.note([args[0]], [], KernelCost("aten._local_scalar_dense", 0, 0, ""), 0)
        try:
            return func(*args)
        except DataDependentOutputException:
            operator = self.tracker.block_of(args[0]).operator
            if operator in _USUAL:
                return _USUAL[operator]
            if not self.guesses_values:
                raise
            return 0.0 if args[0].dtype.is_floating_point else 0

    def _place(self) -> str:
        lines = walk_stack(inspect.currentframe())
        return place_among(((frame.f_code.co_filename, line) for frame, line in lines), self._source)

    def _all_on_host(self, inputs: list[Tensor]) -> bool:
        return bool(inputs) and self.on_cuda and all(self.tracker.block_of(tensor).on_host for tensor in inputs)

    def _counters(self, part: _OpenPart) -> PartCounters:
        during = self.tracker.changes[part.first_change : part.last_change]
        changes = tuple((change.block.category, change.bytes) for change in during)
        before = self.tracker.changes[: part.first_change]
        at_start = live_after(((change.block.category, change.bytes) for change in before), Counter())
        return PartCounters(
            kernels=+part.kernels,
            saved_bytes=part.saved_bytes,
            live_at_start=at_start,
            live_at_peak=live_at_peak(changes, at_start),
            live_at_end=live_after(changes, at_start),
            changes=changes,
            allocations=Counter(
                (change.block.bytes, change.block.operator, change.block.place)
                for change in during
                if change.is_allocation
            ),
            host_reads=part.host_reads,
        )


class _Logged:
    """Turns changes, stretch by stretch, into a log."""

    def __init__(self) -> None:
        self._living: defaultdict[tuple[str, int], list[StorageBlock]] = defaultdict(list)
        self._born: dict[int, int] = {}

    def of(self, changes: Iterable[Change]) -> Log:
        """The log of a stretch. What is freed at one moment, in an order that may depend on addresses, goes by age."""
        log: list[tuple[str, int, int]] = []
        kept = (change for change in changes if change.bytes)
        for is_allocation, run in groupby(kept, lambda change: change.is_allocation):
            blocks = [change.block for change in run]
            if not is_allocation:
                blocks.sort(key=lambda block: -self._born[id(block)])
            for block in blocks:
                same = self._living[block.category, block.bytes]
                if is_allocation:
                    self._born[id(block)] = len(self._born)
                    same.append(block)
                    log.append((block.category, block.bytes, 0))
                else:
                    younger = next(place for place, other in enumerate(reversed(same)) if other is block)
                    del same[-1 - younger]
                    log.append((block.category, -block.bytes, younger))
        return tuple(log)


def live_after(changes: Iterable[tuple[str, int]], at_start: Counter[str]) -> Counter[str]:
    """Bytes held by category after all changes, each a category and its bytes."""
    held = at_start.copy()
    for category, size in changes:
        held[category] += size
    return +held  # without zeros, which a Counter keeps


def live_at_peak(changes: Sequence[tuple[str, int]], at_start: Counter[str]) -> Counter[str]:
    """Bytes held by category at the first moment of the peak, the start included."""
    sums = accumulate((size for _, size in changes), initial=0)
    number, _ = max(enumerate(sums), key=lambda item: item[1])
    return live_after(changes[:number], at_start)


def saved_for_backward(tracker: StorageTracker, tensor: Tensor) -> tuple[Tensor, int]:
    """What autograd shall keep instead of `tensor`, and the bytes that this adds."""
    # Detached, or an output that its own operation saves would hold the graph that holds it.
    detached = tensor.detach()
    block = tracker.block_of(detached)
    if block.is_saved or block.category not in (TEMPORARIES, WEIGHT_COPIES):
        return detached, 0
    block.is_saved = True
    if block.category == TEMPORARIES:
        block.category = ACTIVATIONS
    return detached, block.bytes


def take_in(
    tracker: StorageTracker, made: Tensor, operator: str, place: str, inputs: list[Tensor], on_host: bool
) -> StorageBlock:
    """Add the block of an operation's result, which autograd may have written into the first argument."""
    is_cast_weight = operator == "aten._to_copy" and tracker.block_of(inputs[0]).category == PARAMETERS
    block = tracker.add(made, operator, place, WEIGHT_COPIES if is_cast_weight else TEMPORARIES, on_host)
    if operator in REUSES_FIRST_ARGUMENT and place == BACKWARD_PASS and inputs[0].dtype == made.dtype:
        tracker.reuses_if_freed_next(tracker.block_of(inputs[0]))
    return block


def place_among(lines: Iterable[tuple[str, int]], source: str | None) -> str:
    """The innermost running (file, line) in the folder `source`; empty where there is none."""
    for file, line in lines:
        if file == autograd_file():
            return BACKWARD_PASS
        if source is not None and file.startswith(source):
            return f"{Path(source).name}/{file.removeprefix(source)}:{line}"
    return ""
