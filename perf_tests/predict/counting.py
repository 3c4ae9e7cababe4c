"""Exact counters of any PyTorch code, without a device: launches, FLOPs, bytes touched, memory held.

Code inside `Counting` is cut into named parts, each with its `PartCounters`. Under `FakeTensorMode` nothing is computed
or allocated, and the counters are the same as with real tensors."""

import inspect
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor

from perf_tests_suite.perf_tests.hardware.device import no_collections
from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.hardware.torch_private import (
    DataDependentOutputException,
    TorchDispatchMode,
    autograd_file,
    backward_number,
    is_fake,
)
from perf_tests_suite.perf_tests.predict import costs
from perf_tests_suite.perf_tests.predict.allocator import CUDA_BLOCK_BYTES
from perf_tests_suite.perf_tests.predict.cuda_rules import CudaRules
from perf_tests_suite.perf_tests.predict.parts import (
    ACTIVATIONS,
    BACKWARD_PASS,
    PARAMETERS,
    TEMPORARIES,
    WEIGHT_COPIES,
    OpenPart,
    Parts,
    StorageBlock,
    StorageChange,
    add_launches,
    finished,
)


class StorageTracker:
    """Every block registered or allocated, and every change in order.

    On a GPU blocks are multiples of CUDA_BLOCK_BYTES, and tensors on the host take no memory.
    """

    def __init__(self, on_cuda: bool) -> None:
        self.changes: list[StorageChange] = []
        self.on_cuda = on_cuda
        self.blocks: dict[int, StorageBlock] = {}
        self._references: dict[int, weakref.ref[object]] = {}
        self._last_allocation = 0
        self._last_key = 0
        self._may_be_reused: StorageBlock | None = None

    def knows(self, tensor: Tensor) -> bool:
        return id(tensor.untyped_storage()) in self.blocks

    def block_of(self, tensor: Tensor) -> StorageBlock:
        """The block under a tensor; an unknown one existed before and is added."""
        key = id(tensor.untyped_storage())
        if key not in self.blocks:
            self.add(tensor, "", "", TEMPORARIES)
        return self.blocks[key]

    def add(self, tensor: Tensor, operator: str, place: str, category: str, on_host: bool = False) -> StorageBlock:
        """Follow the storage of `tensor`, which must be unknown so far."""
        storage = tensor.untyped_storage()
        key, on_host = id(storage), on_host and self.on_cuda
        block = self.blocks[key] = self._block(0 if on_host else storage.nbytes(), operator, place, category, on_host)
        self._references[key] = weakref.ref(storage, lambda _: self._free(key))
        self.changes.append(StorageChange(block, True))
        self._last_allocation, self._last_key = len(self.changes) - 1, key
        self._may_be_reused = None
        return block

    def made(self, tensor: Tensor, operator: str, place: str, inputs: list[Tensor], on_host: bool) -> StorageBlock:
        """Add the block of an operation's result, which autograd may have written into the first argument.

        That happens where nothing else holds the argument: if its block is freed before the next allocation.
        """
        is_cast_weight = operator == "aten._to_copy" and self.block_of(inputs[0]).category == PARAMETERS
        block = self.add(tensor, operator, place, WEIGHT_COPIES if is_cast_weight else TEMPORARIES, on_host)
        if operator in costs.REUSES_FIRST_ARGUMENT and place == BACKWARD_PASS and inputs[0].dtype == tensor.dtype:
            argument = self.block_of(inputs[0])
            if self.changes[self._last_allocation].block.bytes == argument.bytes:
                self._may_be_reused = argument
        return block

    def passes_by(self, size: int, operator: str, place: str) -> None:
        """Add a block that its operation frees before it returns."""
        block = self._block(size, operator, place, TEMPORARIES, on_host=False)
        self.changes += [StorageChange(block, True), StorageChange(block, False)]

    def saved(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Return what autograd shall keep of `tensor` for the backward pass, and the bytes that this adds."""
        # Detached, or an output that its own operation saves would hold the graph that holds it.
        detached = tensor.detach()
        block = self.block_of(detached)
        if block.is_saved or block.category not in (TEMPORARIES, WEIGHT_COPIES):
            return detached, 0
        block.is_saved = True
        if block.category == TEMPORARIES:
            block.category = ACTIVATIONS
        return detached, block.bytes

    def settle(self) -> int:
        """The number of changes so far, now final: no earlier block can be reused any more."""
        self._may_be_reused = None
        return len(self.changes)

    def forget_all(self) -> None:
        """Stop following all blocks."""
        self._references.clear()
        self.blocks.clear()

    def _block(self, size: int, operator: str, place: str, category: str, on_host: bool) -> StorageBlock:
        unit = CUDA_BLOCK_BYTES if self.on_cuda else 1
        return StorageBlock(-(-size // unit) * unit, operator, place, category, on_host)

    def _free(self, key: int) -> None:
        block = self.blocks.pop(key, None)
        self._references.pop(key, None)
        if block is None:
            return
        if block is self._may_be_reused and self._last_key in self.blocks:
            # What was added last was written into `block`, which lives on under its name.
            self._may_be_reused = None
            self.blocks[self._last_key] = block
            del self.changes[self._last_allocation]
        else:
            self.changes.append(StorageChange(block, False))


_USUAL = {"aten.all": True, "aten.any": False}
"""What a check of all values finds where nothing is unusual: no padding, no packing, no infinity."""


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
        self.tracker = StorageTracker(self.on_cuda)
        self._float32_rate = float32_rate
        self._source = None if source is None else f"{source}/"
        self._parts: dict[str, OpenPart] = {}
        self._current = OpenPart(0)
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
        for block in self.tracker.blocks.values():
            if block.category == TEMPORARIES:
                block.category = category

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside under this name."""
        outside = self._current
        self._current = part = OpenPart(self.tracker.settle())
        with torch.autograd.graph.saved_tensors_hooks(self._note_saved, lambda tensor: tensor):
            yield
        part.last_change = self.tracker.settle()
        self._parts[name] = part
        self._current = outside

    def finished(self) -> Parts:
        """The counters of each part; call it when all categories are known."""
        return finished(self.tracker.changes, self._parts)

    def _note_saved(self, tensor: Tensor) -> Tensor:
        detached, new_bytes = self.tracker.saved(tensor)
        self._current.saved_bytes += new_bytes
        return detached

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default and is_fake(args[0]):
            return args[0].fake_device  # more than half of all calls, and slow through the dispatcher
        name = costs.operator_name(func)
        if name == "aten._local_scalar_dense":
            return self._number_on_the_host(func, args)
        if self.guesses_values and only_writes(func, name, args):
            # Nothing is made, and code that is known to fit its tensors needs no check; a check takes most of the time.
            result = args[0] if isinstance(args[0], Tensor) else None
        else:
            result = func(*args, **kwargs)
        nothing_launched = func.is_view or name in costs.LAUNCHES_NOTHING
        if nothing_launched and func.is_view and name != "aten.lift_fresh":
            return result
        inputs = list(costs.tensors_in((*args, *kwargs.values())))
        outputs = list(costs.tensors_in((result,))) or costs.mutated_tensors(name, args)
        on_host = name == "aten.lift_fresh" or self._all_on_host(inputs)
        for tensor in outputs:
            if not self.tracker.knows(tensor):
                self.tracker.made(tensor, name, self._place(), inputs, on_host)
        if self.on_cuda and (size := costs.accumulator_bytes(name, args)):
            self.tracker.passes_by(size, name, self._place())
        if outputs and not nothing_launched and not on_host:
            launches, cost = costs.launches_and_cost(
                func, args, kwargs, inputs, outputs, self._float32_rate, self.on_cuda
            )
            if launches:
                # Autograd itself records no graph in a backward pass; a checkpoint does.
                if backward_number() is not None and torch.is_grad_enabled():
                    cost = replace(cost, is_recomputed=True)
                add_launches(self._current.kernels, cost, launches)
                self.note(inputs, outputs, cost, launches)
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


def only_writes(func: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Whether an operation writes into its first argument, or a list of them, and changes no shape: of fake tensors,
    which have no values, but some of one element."""
    first = args[:1] if name.endswith("_") and torch.Tag.inplace_view not in func.tags else ()
    tensors = costs.tensors_in(first)
    return bool(first) and all(is_fake(tensor) and tensor.numel() > 1 for tensor in tensors)


def place_among(lines: Iterable[tuple[str, int]], source: str | None) -> str:
    """The innermost running (file, line) in the folder `source`; empty where there is none."""
    for file, line in lines:
        if file == autograd_file():
            return BACKWARD_PASS
        if source is not None and file.startswith(source):
            return f"{Path(source).name}/{file.removeprefix(source)}:{line}"
    return ""
