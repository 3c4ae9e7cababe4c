"""Who holds the memory of a round: every block with its category, the line that made it, and the region that saved it.

Watched at the dispatcher, on real tensors, so that somebody else's model is told as ours is. The watch keeps arguments
alive a little longer than they would be, so the peak itself is the allocator's to tell.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from model.regions import regions_opened_by
from perf_tests.instruments.counters import ACTIVATIONS, BACKWARD_PASS, PARAMETERS, WEIGHT_COPIES, held_after
from perf_tests.instruments.kernel_cost import REUSES_FIRST_ARGUMENT, mutated_tensors, operator_name, tensors_in
from perf_tests.instruments.storage_tracker import CUDA_BLOCK_BYTES, TEMPORARIES, Block, Change, StorageTracker

DEEPEST_STACK = 32
"""Frames kept of a call, innermost first."""

_INSTRUMENTS = (__file__, *(str(Path(torch.__file__).parent / name) for name in ("_dynamo", "_compile.py")))
"""What every stack begins with: this watch, and what PyTorch wraps its calls in."""

Regions = tuple[str, ...]
"""The regions that are open, outermost first."""


@dataclass(frozen=True)
class Frame:
    """One line of Python on the stack."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True)
class Part:
    """A part of the round, by its first change and the one after its last."""

    name: str
    first: int
    end: int


@dataclass(frozen=True)
class Held:
    """One round, told block by block; blocks that were there before come first in `changes`."""

    changes: tuple[Change, ...]
    first_of_round: int
    parts: tuple[Part, ...]
    saved_bytes: Counter[Regions]
    """What autograd kept, each block once, by the regions that were open when it did."""
    frames: dict[int, tuple[Frame, ...]]
    """By the `id` of the block that was made there."""

    def held_at_peak(self) -> Counter[str]:
        """Bytes by category when the most is held."""
        during = self.changes[self.first_of_round :]
        sums = accumulate((change.bytes for change in during), initial=0)
        place, _ = max(enumerate(sums), key=lambda item: item[1])
        return held_after(self.changes[: self.first_of_round + place], Counter())

    def allocations(self) -> list[Block]:
        """The blocks made in the round."""
        return [change.block for change in self.changes[self.first_of_round :] if change.is_allocation]


class HolderWatch:
    """Watches one round on a device of type `device_type`.

    `source` is the folder whose lines are named as makers of blocks, `outermost` the file at which a stack is cut off,
    `parts` the regions that are parts of the round. A compiled function runs its kernels out of sight, and a watched
    one would not run compiled: of such a round, with `sees_operations` false, only what autograd keeps is told.
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
        self._parts: list[Part] = []
        self._saved_bytes: Counter[Regions] = Counter()
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._first_of_round = 0

    def register(self, tensors: Iterable[Tensor], category: str) -> None:
        """Say what tensors are for; those not seen before are taken in."""
        for tensor in tensors:
            if not self.tracker.knows(tensor):
                self.tracker.add(tensor, "", "", category, on_host=tensor.device.type != self._device_type)
            self.tracker.block_of(tensor).category = category

    @contextmanager
    def round(self) -> Iterator[None]:
        """The round runs inside; what it holds on to must be let go of in there too."""
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
        self._parts.append(Part(name, first, self.tracker.settle()))

    def finished(self) -> Held:
        """What was seen; read it when every category is known. Nothing is followed any longer."""
        changes = tuple(self.tracker.changes)
        self.tracker.forget_all()
        return Held(changes, self._first_of_round, tuple(self._parts), self._saved_bytes, self._frames)

    def _region(self, name: str) -> AbstractContextManager[object]:
        # Inside compiled code there is nothing to tell apart: it is one kernel there.
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
        # Detached, or an output that its own operation saves would hold the graph that holds it.
        detached = tensor.detach()
        block = self.tracker.block_of(detached)
        if block.category in (TEMPORARIES, WEIGHT_COPIES) and not block.is_saved:
            block.is_saved = True
            self._saved_bytes[tuple(self._regions)] += block.bytes
            if block.category == TEMPORARIES:
                block.category = ACTIVATIONS
        return detached

    def _note_outputs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = operator_name(func)
        outputs = list(tensors_in((result,))) or mutated_tensors(name, args)
        made = [tensor for tensor in outputs if not self.tracker.knows(tensor)]
        if not made:
            return
        inputs = list(tensors_in((*args, *kwargs.values())))
        frames = self._stack()
        place = self._place(frames)
        for tensor in made:
            on_host = tensor.device.type != self._device_type
            block = self.tracker.add(tensor, name, place, self._category(name, inputs), on_host)
            self._frames[id(block)] = frames
            if name in REUSES_FIRST_ARGUMENT and place == BACKWARD_PASS and inputs[0].dtype == tensor.dtype:
                self.tracker.reuses_if_freed_next(self.tracker.block_of(inputs[0]))

    def _category(self, name: str, inputs: list[Tensor]) -> str:
        if name == "aten._to_copy" and self.tracker.block_of(inputs[0]).category == PARAMETERS:
            return WEIGHT_COPIES
        return TEMPORARIES

    def _stack(self) -> tuple[Frame, ...]:
        """The Python that is running, innermost first, without this instrument."""
        frame: FrameType | None = inspect.currentframe()
        frames: list[Frame] = []
        while frame is not None and frame.f_code.co_filename != self._outermost and len(frames) < DEEPEST_STACK:
            if frames or not frame.f_code.co_filename.startswith(_INSTRUMENTS):
                frames.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return tuple(frames)

    def _place(self, frames: tuple[Frame, ...]) -> str:
        """The line of the source that is running; a GPU's backward pass runs in a thread that has none."""
        for frame in frames:
            if frame.filename == torch.autograd.graph.__file__:
                return BACKWARD_PASS
            if frame.filename.startswith(self._source):
                return f"{Path(self._source).name}/{frame.filename[len(self._source) :]}:{frame.line}"
        return BACKWARD_PASS if "backward" in self._regions else ""


class _Operations(TorchDispatchMode):
    """Tells `note` of each operation that was run: operator, arguments, keyword arguments, result."""

    def __init__(self, note: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, result)
        return result
