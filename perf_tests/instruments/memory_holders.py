"""What holds the memory of a round: every block with its category, the line that made it and the region that saved it.

Observed at the dispatcher, on real tensors, so that it works for any model. Arguments live a little longer than usual
meanwhile, so the peak itself comes from the allocator.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor

from model.regions import regions_opened_by
from perf_tests.instruments.counters import (
    BACKWARD_PASS,
    held_after,
    held_at_peak,
    place_among,
    saved_for_backward,
    take_in,
)
from perf_tests.instruments.kernel_cost import mutated_tensors, operator_name, tensors_in
from perf_tests.instruments.storage_tracker import CUDA_BLOCK_BYTES, Change, StorageBlock, StorageTracker
from perf_tests.instruments.torch_private import TorchDispatchMode, wrappers_of_calls

DEEPEST_STACK = 32
"""Frames kept of a call, innermost first."""

_INSTRUMENTS = (__file__, *wrappers_of_calls())
"""The innermost frames of every stack: this file and PyTorch's wrappers of calls."""

Regions = tuple[str, ...]
"""The open regions, outermost first."""


@dataclass(frozen=True)
class Frame:
    """One line of Python on the stack."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True)
class PartChanges:
    """A part of the round, by its first change and the one after its last."""

    name: str
    first: int
    end: int


@dataclass(frozen=True)
class Held:
    """One round, block by block; earlier blocks come first in `changes`."""

    changes: tuple[Change, ...]
    first_of_round: int
    parts: tuple[PartChanges, ...]
    saved_bytes: Counter[Regions]
    """What autograd saved, each block once, by the regions open at that moment."""
    frames: dict[int, tuple[Frame, ...]]
    """By the `id` of the block that they made."""

    def held_at_peak(self) -> Counter[str]:
        """Bytes by category at the peak."""
        changes = [(change.block.category, change.bytes) for change in self.changes]
        before, during = changes[: self.first_of_round], changes[self.first_of_round :]
        return held_at_peak(during, held_after(before, Counter()))

    def allocations(self) -> list[StorageBlock]:
        """The blocks made in the round."""
        return [change.block for change in self.changes[self.first_of_round :] if change.is_allocation]


class HolderWatch:
    """Watches one round on a device of type `device_type`.

    Lines in the folder `source` are named as places of blocks, stacks end at the file `outermost`, and the regions in
    `parts` are parts of the round. Of a round with compiled functions, which would not run compiled under the watch,
    set `sees_operations` to false: then only what autograd saves is recorded.
    """

    def __init__(
        self, device_type: str, source: Path, outermost: str, sees_operations: bool, parts: Collection[str] = ()
    ) -> None:
        on_cuda = device_type == "cuda"
        self.tracker = StorageTracker(CUDA_BLOCK_BYTES if on_cuda else 1, separate_host=on_cuda)
        self._device_type = device_type
        self._source = f"{source}/"
        self._outermost = outermost
        self._sees_operations = sees_operations
        self._names_of_parts = parts
        self._regions: list[str] = []
        self._parts: list[PartChanges] = []
        self._saved_bytes: Counter[Regions] = Counter()
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._first_of_round = 0

    def register(self, tensors: Iterable[Tensor], category: str) -> None:
        """Set the category of tensors; unknown ones are added."""
        for tensor in tensors:
            if not self.tracker.knows(tensor):
                self.tracker.add(tensor, "", "", category, on_host=tensor.device.type != self._device_type)
            self.tracker.block_of(tensor).category = category

    @contextmanager
    def round(self) -> Iterator[None]:
        """The round runs inside, and must free what it holds there too."""
        self._first_of_round = self.tracker.settle()
        with ExitStack() as stack:
            stack.enter_context(regions_opened_by(self._region))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._note_saved, lambda tensor: tensor))
            if self._sees_operations:
                stack.enter_context(_Operations(self._note_outputs))
            yield

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        first = self.tracker.settle()
        with self._open(name):
            yield
        self._parts.append(PartChanges(name, first, self.tracker.settle()))

    def finished(self) -> Held:
        """What was seen; call it once, when all categories are known."""
        changes = tuple(self.tracker.changes)
        self.tracker.forget_all()
        return Held(changes, self._first_of_round, tuple(self._parts), self._saved_bytes, self._frames)

    def _region(self, name: str) -> AbstractContextManager[object]:
        # Inside compiled code there is nothing to mark: the regions are fused into one kernel.
        if torch.compiler.is_compiling():
            return nullcontext()
        return self.part(name) if name in self._names_of_parts else self._open(name)

    @contextmanager
    def _open(self, name: str) -> Iterator[None]:
        self._regions.append(name)
        try:
            yield
        finally:
            self._regions.pop()

    def _note_saved(self, tensor: Tensor) -> Tensor:
        detached, new_bytes = saved_for_backward(self.tracker, tensor)
        if new_bytes:
            self._saved_bytes[tuple(self._regions)] += new_bytes
        return detached

    def _note_outputs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = operator_name(func)
        outputs = list(tensors_in((result,))) or mutated_tensors(name, args)
        made = [tensor for tensor in outputs if not self.tracker.knows(tensor)]
        if not made:
            return
        inputs = list(tensors_in((*args, *kwargs.values())))
        frames = self._stack()
        place = place_among(((frame.filename, frame.line) for frame in frames), self._source)
        if not place and "backward" in self._regions:  # which a GPU runs in a thread without Python frames
            place = BACKWARD_PASS
        for tensor in made:
            on_host = tensor.device.type != self._device_type
            self._frames[id(take_in(self.tracker, tensor, name, place, inputs, on_host))] = frames

    def _stack(self) -> tuple[Frame, ...]:
        """The running Python frames, innermost first, without this instrument's."""
        frames: list[Frame] = []
        for frame, line in walk_stack(inspect.currentframe()):
            code = frame.f_code
            if code.co_filename == self._outermost or len(frames) == DEEPEST_STACK:
                break
            if frames or not code.co_filename.startswith(_INSTRUMENTS):
                frames.append(Frame(code.co_filename, line, code.co_name))
        return tuple(frames)


class _Operations(TorchDispatchMode):
    """Calls `note` after each operation with operator, arguments, keyword arguments and result."""

    def __init__(self, note: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, result)
        return result
