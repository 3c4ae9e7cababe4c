"""What one round holds in memory, seen from two sides: the allocator's exact figures, and what each block is.

`memory_of_round` reads peaks by part and bytes held before and after each part: on a GPU from the caching allocator's
statistics, on a CPU from every block that the allocator hands out or takes back, as a profiler's trace has them. There
bytes are beyond those handed out before the trace began; the resident size of the process would add the pages of freed
blocks and of other libraries.

`HolderWatch` sees every block with its category, the line that made it and the region that saved it, at the dispatcher,
on real tensors, so that it works for any model. Arguments live a little longer than usual meanwhile, so the peak itself
comes from the allocator.

Both become snapshots for pytorch.org/memory_viz where PyTorch records none itself: sizes, order and lines of Python are
real, addresses those of an imaginary device.
"""

import gc
import inspect
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from perf_tests_suite.model.regions import regions_opened_by
from perf_tests_suite.perf_tests.hardware.device import proc_values
from perf_tests_suite.perf_tests.hardware.torch_private import TorchDispatchMode, is_fake, wrappers_of_calls
from perf_tests_suite.perf_tests.passes.kernels import exported_trace
from perf_tests_suite.perf_tests.predict.costs import mutated_tensors, operator_name, tensors_in
from perf_tests_suite.perf_tests.predict.counting import StorageTracker, place_among
from perf_tests_suite.perf_tests.predict.parts import (
    BACKWARD_PASS,
    StorageBlock,
    StorageChange,
    live_after,
    live_at_peak,
)

# The allocator's side.


ROUND = "memory of a round"
PART = "memory of part "

OpenPart = Callable[[str], AbstractContextManager[object]]
"""A function from a part's name to the context that it runs in."""

RunRound = Callable[[OpenPart], object]
"""One round, each part inside its `OpenPart`."""

Forget = Callable[[], object]
"""Frees what the last round left."""


@dataclass(frozen=True)
class Mark:
    """What is held at one moment, `before backward`. A CPU's allocator reserves nothing."""

    name: str
    allocated_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True)
class RoundMemory:
    """One round, its set-up included."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    marks: tuple[Mark, ...]
    parts: tuple[dict[str, Any], ...]
    """The name of each as `phase`, and its peaks."""
    fragmentation: dict[str, int] | None
    """What the caching allocator keeps beyond what it hands out."""
    events: tuple["AllocatorEvent", ...] = ()
    """Every block of the round in order, on a CPU."""
    allocated_before_bytes: int = 0
    """Bytes held before the first of `events`."""
    peak_requested_bytes: int | None = None
    """The peak without what a caching allocator's blocks are larger by; None on a CPU, whose blocks are exact."""


def memory_of_round(run_round: RunRound, device: torch.device, forget: Forget = lambda: None) -> RoundMemory:
    """Measure the second of two rounds: the first makes what later ones find. `forget` is called after each."""
    if device.type == "cuda":
        return _on_cuda(run_round, device, forget)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        # Both are traced: the size of an earlier block, a gradient for example, is unknown when it goes.
        for name in (f"{ROUND}, the first", ROUND):
            with record_function(name):
                run_round(lambda part: record_function(f"{PART}{part}"))
            forget()
        live_at_end_bytes = live_tensor_bytes("cpu")
    return read_round(allocator_trace(profiler), live_at_end_bytes)


def allocated_bytes(device: torch.device) -> tuple[int, int | None]:
    """Return allocated and reserved bytes now, while no graph is alive."""
    if device.type != "cuda":
        return live_tensor_bytes(device.type), None
    statistics = torch.cuda.memory_stats(device)
    return statistics["allocated_bytes.all.current"], statistics["reserved_bytes.all.current"]


def live_tensor_bytes(device_type: str) -> int:
    """Return the bytes of all storages of tensors and gradients on a device type, each counted once.

    Call it while no graph is alive: tensors that only autograd holds are out of reach.
    """
    gc.collect()
    storages: dict[int, int] = {}
    for found in gc.get_objects():
        if issubclass(type(found), Tensor) and not is_fake(found):
            for tensor in (found, found.grad if found.is_leaf else None):
                if tensor is not None and tensor.layout == torch.strided and tensor.device.type == device_type:
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def resident_set_peak_bytes() -> int | None:
    """Return the peak resident bytes of this process (Linux); None where the system does not report them."""
    return next((int(value.split()[0]) * 1024 for value in proc_values("self/status", "VmHWM")), None)


def read_round(trace: "AllocatorTrace", live_at_end_bytes: int) -> RoundMemory:
    """Read the last round of a trace at whose end `live_at_end_bytes` are held in all."""
    before = live_at_end_bytes - trace.allocated_at(math.inf)
    (whole,) = (stretch for stretch in trace.stretches if stretch.name == ROUND)
    marks, parts = [], []
    for stretch in trace.stretches:
        if stretch.name.startswith(PART) and whole.start <= stretch.start <= whole.end:
            name = stretch.name.removeprefix(PART)
            marks.append(Mark(f"before {name}", before + trace.allocated_at(stretch.start), None))
            marks.append(Mark(f"after {name}", before + trace.allocated_at(stretch.end), None))
            parts.append(_part(name, before + trace.peak_in(stretch), None))
    return RoundMemory(
        peak_allocated_bytes=before + trace.peak_in(whole),
        peak_reserved_bytes=None,
        marks=tuple(marks),
        parts=tuple(parts),
        fragmentation=None,
        events=trace.events_in(whole),
        allocated_before_bytes=before + trace.allocated_at(whole.start),
    )


def _part(name: str, allocated_bytes: int, reserved_bytes: int | None) -> dict[str, Any]:
    return {"phase": name, "peak_allocated_bytes": allocated_bytes, "peak_reserved_bytes": reserved_bytes}


def _on_cuda(run_round: RunRound, device: torch.device, forget: Forget) -> RoundMemory:
    """Peaks count from the last reset; the start and end of each part read and reset them."""
    run_round(lambda part: nullcontext())
    forget()
    retries_before = torch.cuda.memory_stats(device)["num_alloc_retries"]
    torch.cuda.reset_peak_memory_stats(device)
    marks: list[Mark] = []
    parts: list[dict[str, Any]] = []
    peaks: Counter[str] = Counter()

    def read(mark: str | None = None) -> dict[str, Any]:
        """Return the statistics since the last call; peaks count anew from here."""
        statistics = torch.cuda.memory_stats(device)
        torch.cuda.reset_peak_memory_stats(device)
        for kind in ("allocated", "reserved", "inactive_split", "requested"):
            peaks[kind] = max(peaks[kind], statistics[f"{kind}_bytes.all.peak"])
        if mark is not None:
            marks.append(Mark(mark, *(statistics[f"{kind}_bytes.all.current"] for kind in ("allocated", "reserved"))))
        return statistics

    @contextmanager
    def part(name: str) -> Iterator[None]:
        read(f"before {name}")
        yield
        statistics = read(f"after {name}")
        parts.append(_part(name, *(statistics[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved"))))

    run_round(part)
    retries = read()["num_alloc_retries"] - retries_before
    forget()
    fragmentation = {
        "reserved_less_allocated_bytes": peaks["reserved"] - peaks["allocated"],  # difference of the two peaks
        # Peak of idle memory in blocks cut from larger ones, which cannot be given back.
        "inactive_split_bytes": peaks["inactive_split"],
        "allocation_retries": retries,  # allocations that succeeded only after the cache was emptied
    }
    return RoundMemory(
        peaks["allocated"],
        peaks["reserved"],
        tuple(marks),
        tuple(parts),
        fragmentation,
        peak_requested_bytes=peaks["requested"],
    )


CPU_DEVICE_TYPE = 0


@dataclass(frozen=True)
class AllocatorEvent:
    """A block of `bytes` came, or went where they are negative."""

    time: float
    address: int
    bytes: int


@dataclass(frozen=True)
class Stretch:
    """A marked part of the trace, in its own microseconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class AllocatorTrace:
    """All events and all marked stretches, in the order of time."""

    events: tuple[AllocatorEvent, ...]
    stretches: tuple[Stretch, ...]

    def allocated_at(self, time: float) -> int:
        return sum(event.bytes for event in self.events if event.time <= time)

    def peak_in(self, stretch: Stretch) -> int:
        """Return the most bytes handed out at any moment of the stretch, its first moment included."""
        during = (event.bytes for event in self.events_in(stretch))
        return max(accumulate(during, initial=self.allocated_at(stretch.start)))

    def events_in(self, stretch: Stretch) -> tuple[AllocatorEvent, ...]:
        return tuple(event for event in self.events if stretch.start < event.time <= stretch.end)


def allocator_trace(profiler: profile) -> AllocatorTrace:
    """Read the CPU's memory events and the annotations of what was profiled, which the profiler slowed down."""
    blocks, stretches = [], []
    for event in json.loads(exported_trace(profiler.export_chrome_trace))["traceEvents"]:
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == CPU_DEVICE_TYPE:
            blocks.append(event)
        elif event.get("cat") == "user_annotation":
            stretches.append(Stretch(event["name"], event["ts"], event["ts"] + event["dur"]))
    blocks.sort(key=lambda event: (event["ts"], event["args"]["Ev Idx"]))
    return AllocatorTrace(
        tuple(AllocatorEvent(event["ts"], event["args"]["Addr"], event["args"]["Bytes"]) for event in blocks),
        tuple(sorted(stretches, key=lambda stretch: stretch.start)),
    )


# What each block is.


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
class LiveTensors:
    """One round, block by block; earlier blocks come first in `changes`."""

    changes: tuple[StorageChange, ...]
    first_of_round: int
    parts: tuple[PartChanges, ...]
    saved_bytes: Counter[Regions]
    """What autograd saved, each block once, by the regions open at that moment."""
    frames: dict[int, tuple[Frame, ...]]
    """Stacks by the `id` of the block that they made."""

    def live_at_peak(self) -> Counter[str]:
        """Return the bytes by category at the peak."""
        changes = [(change.block.category, change.bytes) for change in self.changes]
        before, during = changes[: self.first_of_round], changes[self.first_of_round :]
        return live_at_peak(during, live_after(before, Counter()))

    def happenings(self) -> tuple[list["Happening"], list["Happening"]]:
        """Return what came and went before the round, and in it, for a snapshot."""
        rows: list[Happening] = [
            (id(change.block), change.bytes, self.frames.get(id(change.block), ())) for change in self.changes
        ]
        return rows[: self.first_of_round], rows[self.first_of_round :]

    def allocations(self) -> list[StorageBlock]:
        """Return the blocks made in the round."""
        return [change.block for change in self.changes[self.first_of_round :] if change.is_allocation]


@dataclass(eq=False)
class HolderWatch(TorchDispatchMode):
    """Watches one round on a device of type `device_type`.

    Lines in the folder `source` are named as places of blocks, stacks end at the file `outermost`, and the regions in
    `parts` are parts of the round. Of a round with compiled functions, which would not run compiled under the watch,
    set `sees_operations` to false: then only what autograd saves is recorded.
    """

    device_type: str
    source: Path
    outermost: str
    sees_operations: bool
    parts: Collection[str] = ()
    _regions: list[str] = field(default_factory=list)
    _parts: list[PartChanges] = field(default_factory=list)
    _saved_bytes: Counter[Regions] = field(default_factory=Counter)
    _frames: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    _first_of_round: int = 0

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = StorageTracker(self.device_type == "cuda")

    def register(self, tensors: Iterable[Tensor], category: str) -> None:
        """Set the category of tensors; unknown ones are added."""
        for tensor in tensors:
            if not self.tracker.knows(tensor):
                self.tracker.add(tensor, "", "", category, on_host=tensor.device.type != self.device_type)
            self.tracker.block_of(tensor).category = category

    @contextmanager
    def round(self) -> Iterator[None]:
        """Watch the round that runs inside, and must free what it holds there too."""

        def region(name: str) -> AbstractContextManager[object]:
            # Inside compiled code there is nothing to mark: the regions are fused into one kernel.
            if torch.compiler.is_compiling():
                return nullcontext()
            return self.part(name) if name in self.parts else self._open(name)

        def keep(tensor: Tensor) -> Tensor:
            detached, new_bytes = self.tracker.saved(tensor)
            if new_bytes:
                self._saved_bytes[tuple(self._regions)] += new_bytes
            return detached

        self._first_of_round = self.tracker.settle()
        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with regions_opened_by(region), saving, self if self.sees_operations else nullcontext():
            yield

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        first = self.tracker.settle()
        with self._open(name):
            yield
        self._parts.append(PartChanges(name, first, self.tracker.settle()))

    def finished(self) -> LiveTensors:
        """Return what was seen; call it once, when all categories are known."""
        changes = tuple(self.tracker.changes)
        self.tracker.forget_all()
        return LiveTensors(changes, self._first_of_round, tuple(self._parts), self._saved_bytes, self._frames)

    @contextmanager
    def _open(self, name: str) -> Iterator[None]:
        self._regions.append(name)
        try:
            yield
        finally:
            self._regions.pop()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result, name = func(*args, **kwargs), operator_name(func)
        outputs = list(tensors_in((result,))) or mutated_tensors(name, args)
        made = [tensor for tensor in outputs if not self.tracker.knows(tensor)]
        if made:
            inputs, frames = list(tensors_in((*args, *kwargs.values()))), self._stack()
            place = place_among(((frame.filename, frame.line) for frame in frames), f"{self.source}/")
            if not place and "backward" in self._regions:  # which a GPU runs in a thread without Python frames
                place = BACKWARD_PASS
            for tensor in made:
                on_host = tensor.device.type != self.device_type
                self._frames[id(self.tracker.made(tensor, name, place, inputs, on_host))] = frames
        return result

    def _stack(self) -> tuple[Frame, ...]:
        """Return the running Python frames, innermost first, without this instrument's."""
        frames: list[Frame] = []
        for frame, line in walk_stack(inspect.currentframe()):
            code = frame.f_code
            if code.co_filename == self.outermost or len(frames) == DEEPEST_STACK:
                break
            if frames or not code.co_filename.startswith(_INSTRUMENTS):
                frames.append(Frame(code.co_filename, line, code.co_name))
        return tuple(frames)


# Snapshots.


MOST_ENTRIES = 100_000
"""Events that are kept, the latest: a million of them exhausts the viewer's memory."""

ALIGNMENT_BYTES = 512
FIRST_ADDRESS = 0x7F00_0000_0000

Snapshot = dict[str, Any]
Frames = tuple[Frame, ...]
Happening = tuple[object, int, Frames]
"""A block came, or went where bytes are negative: its key, bytes, and the lines that made it."""


def synthetic_snapshot(before: Iterable[Happening], during: Iterable[Happening]) -> Snapshot:
    """Make a snapshot of one segment, filled first fit, in which blocks of `before` have a place but no event."""
    # Each frame and each stack once, so that a file of 100 000 entries refers to them.
    row = cache(asdict)
    rows = cache(lambda frames: [row(frame) for frame in frames])
    live: dict[object, int] = {}
    # By address: the size, the size asked for, and the lines.
    blocks: dict[int, tuple[int, int, Frames]] = {}
    entries: list[dict[str, Any]] = []
    end = FIRST_ADDRESS
    for time, (key, count, frames) in [*((None, one) for one in before), *enumerate(during)]:
        if count > 0:
            size, address = -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, FIRST_ADDRESS
            for other in sorted(blocks):
                if other - address >= size:
                    break  # the first gap that is large enough
                address = other + blocks[other][0]
            live[key], blocks[address], end = address, (size, count, frames), max(end, address + size)
        elif key in live:
            address = live.pop(key)
            del blocks[address]
        else:  # an empty one, or one that never came
            continue
        if time is not None:
            event = {"addr": address, "size": abs(count), "stream": 0, "time_us": time, "frames": rows(frames)}
            actions = ("alloc",) if count > 0 else ("free_requested", "free_completed")
            entries += [{"action": action, **event} for action in actions]
    filled: list[dict[str, Any]] = []
    free = FIRST_ADDRESS
    for address in sorted({*blocks, end}):
        if address > free:
            filled.append(_block(free, address - free, 0, "inactive", []))
        if address in blocks:
            size, asked, frames = blocks[address]
            filled.append(_block(address, size, asked, "active_allocated", rows(frames)))
            free = address + size
    held = sum(size for size, _, _ in blocks.values())
    segment = {
        "device": 0, "address": FIRST_ADDRESS, "total_size": end - FIRST_ADDRESS, "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "allocated_size": held, "active_size": held,
        "requested_size": sum(asked for _, asked, _ in blocks.values()), "is_expandable": False,
        "frames": [], "blocks": filled,
    }  # fmt: skip
    return {"segments": [segment], "device_traces": [entries[-MOST_ENTRIES:]]}


def _block(address: int, size: int, asked: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": frames}
