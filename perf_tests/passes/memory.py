"""The memory pass: each case in a fresh process, its peaks beside those that its counters predict."""

import gc
import inspect
import json
import math
import os
import pickle
import signal
import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from traceback import walk_stack
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

import model as model_package
from model.precision import PRECISIONS
from model.regions import regions_opened_by
from model.training import Training
from perf_tests.audit.rounds import CPU_WORKSPACE_BYTES_PER_THREAD, RowFacts, raised
from perf_tests.bench.loop import Measure, Rounds
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.profiler import exported_trace
from perf_tests.bench.workbench import CASE
from perf_tests.bench.workers import (
    ClosedError,
    WorkerEndedError,
    WorkerProcess,
    channel_of_worker,
    examined,
    inherited_environment,
    sent_elsewhere,
    start_worker,
)
from perf_tests.cases.case import Case
from perf_tests.hardware.device import proc_values
from perf_tests.hardware.torch_private import (
    FakeTensor,
    TorchDispatchMode,
    cuda_memory_history,
    cuda_memory_snapshot,
    load_compiler,
    wrappers_of_calls,
)
from perf_tests.passes.extra_pass import ExtraPass, Timing
from perf_tests.phases import ATTENTION_ALONE, label_of
from perf_tests.predict.costs import mutated_tensors, operator_name, tensors_in
from perf_tests.predict.counters import Counters
from perf_tests.predict.counting import (
    BACKWARD_PASS,
    CUDA_BLOCK_BYTES,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    Change,
    StorageBlock,
    StorageTracker,
    held_after,
    held_at_peak,
    place_among,
    saved_for_backward,
    take_in,
)
from perf_tests.predict.step import expect
from perf_tests.records.record import Json, thinned
from perf_tests.records.store import write_whole
from perf_tests.traces.trace import PHASES, layer_of

ALL_ROUNDS = 3
"""The first allocates what later ones reuse, the second gives the allocator's figures, the third the holders."""


class MemoryPass(ExtraPass):
    """A worker runs the rounds of each case in a process of their own."""

    @staticmethod
    def rounds_of(phase: str, rounds: int) -> int:
        return ALL_ROUNDS

    def look(self, timing: Timing) -> Json:
        snapshot, no_snapshot = self._snapshot_path()
        task = {
            "benchmark": self.benchmark_id(timing),
            "settings": sent_elsewhere(self.workbench.settings),
            "snapshot": None if snapshot is None else str(snapshot),
        }
        values = self.answered_by(partial(self.request.getfixturevalue("memory_worker").ask, task))
        expectation = expect(self.case, None, None, self.workbench.libraries)
        workspace_bytes = workspace_bytes_of(self.case, self.workbench.settings.threads)
        predicted = with_prediction(values, expectation.counters, expectation.counters_reason, workspace_bytes)
        return predicted | no_snapshot

    def _snapshot_path(self) -> tuple[Path | None, Json]:
        """The path of the snapshot where one is asked for, and why there is none where its folder cannot be made."""
        if not self.workbench.settings.memory_snapshot or self.workbench.session is None:
            return None, {}
        try:
            return self.workbench.session.side_file(self.request.node.nodeid, "pickle"), {}
        except OSError as error:
            reason = f"the folder of the snapshot cannot be made: {error}; free disk space."
            return None, {"snapshot_reason": reason}


def workspace_bytes_of(case: Case, threads: int) -> int:
    """What libraries may allocate beside the predicted peak, which has cuBLAS's workspaces on a GPU.

    Float32 products on a CPU allocate nothing.
    """
    if case.device == "cuda":
        return 0
    takes_some = case.attention != "naive" or PRECISIONS[case.precision].autocast_dtype is not None
    return threads * CPU_WORKSPACE_BYTES_PER_THREAD if takes_some else 0


def with_prediction(values: Json, counters: Counters | None, reason: str | None, workspace_bytes: int) -> Json:
    """The row's values with the peaks that the counters predict, and a flag where the two disagree."""
    predicted = None if counters is None else counters.peak_bytes
    held = None if counters is None else counters.highest_part.bytes_by_category
    measured = values["peak_allocated_bytes"]
    peaks = {} if counters is None else {_region_of(peak.part): peak.peak_bytes for peak in counters.parts}
    facts = RowFacts(peak_allocated_bytes=measured, predicted_peak_bytes=predicted, workspace_bytes=workspace_bytes)
    return {
        **values,
        "predicted_peak_bytes": predicted,
        "predicted_by_category_bytes": held,
        "prediction_reason": reason,
        "prediction_error": measured / predicted - 1 if predicted else None,
        "parts": [{**part, "predicted_peak_bytes": peaks.get(part["phase"])} for part in values["parts"]],
        "flags": [*values["flags"], *raised(facts)],
    }


def _region_of(part: str) -> str:
    """The region that a part of the counters runs in: an inference is a forward pass too."""
    return "forward" if part == "inference" else label_of(part)


# What holds the memory of a round: every block with its category, the line that made it and the region that saved
# it.
#
# Observed at the dispatcher, on real tensors, so that it works for any model. Arguments live a little longer than
# usual
# meanwhile, so the peak itself comes from the allocator.


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


# The CPU allocator, exactly: every block that it hands out or takes back, in order, from a profiler's trace.
#
# Bytes are beyond those handed out before the trace began. The resident size of the process would add the pages of
# freed
# blocks and of other libraries.


CPU_DEVICE_TYPE = 0

Result = TypeVar("Result")


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

    def stretch(self, name: str) -> Stretch:
        """The last of this name; raises KeyError where there is none."""
        return {stretch.name: stretch for stretch in self.stretches}[name]

    def allocated_at(self, time: float) -> int:
        return sum(event.bytes for event in self.events if event.time <= time)

    def peak(self) -> int:
        """The most handed out at any moment; 0 where it is never more than before the trace."""
        return max(accumulate((event.bytes for event in self.events), initial=0))

    def peak_in(self, stretch: Stretch) -> int:
        """The most handed out at any moment of the stretch, its first moment included."""
        during = (event.bytes for event in self.events_in(stretch))
        return max(accumulate(during, initial=self.allocated_at(stretch.start)))

    def events_in(self, stretch: Stretch) -> tuple[AllocatorEvent, ...]:
        return tuple(event for event in self.events if stretch.start < event.time <= stretch.end)


def traced_allocator(function: Callable[[], Result]) -> tuple[AllocatorTrace, Result]:
    """The trace and the result of `function()`. The profiler slows it down, so do not time the same run."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    return read_allocator_trace(json.loads(exported_trace(profiler.export_chrome_trace))["traceEvents"]), result


def read_allocator_trace(events: Iterable[dict[str, Any]]) -> AllocatorTrace:
    """The CPU's memory events and the annotations of a Chrome trace."""
    allocations: list[tuple[float, int, AllocatorEvent]] = []
    stretches = []
    for event in events:
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == CPU_DEVICE_TYPE:
            args = event["args"]
            found = AllocatorEvent(event["ts"], args["Addr"], args["Bytes"])
            allocations.append((event["ts"], args["Ev Idx"], found))
        elif event.get("cat") == "user_annotation":
            stretches.append(Stretch(event["name"], event["ts"], event["ts"] + event["dur"]))
    in_order = tuple(event for _, _, event in sorted(allocations, key=lambda item: item[:2]))
    return AllocatorTrace(in_order, tuple(sorted(stretches, key=lambda stretch: stretch.start)))


# Memory of one round as the allocator reports it: peaks by part, and bytes held before and after each part.
#
# On a GPU from the caching allocator's statistics, on a CPU from every block that it handed out or took back.


ROUND = "memory of a round"
PART = "memory of part "

OpenPart = Callable[[str], AbstractContextManager[object]]
"""From a part's name to the context that it runs in."""

Play = Callable[[OpenPart], object]
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
    events: tuple[AllocatorEvent, ...] = ()
    """Every block of the round in order, on a CPU."""
    allocated_before_bytes: int = 0
    """Held before the first of `events`."""


def memory_of_round(play: Play, device: torch.device, forget: Forget = lambda: None) -> RoundMemory:
    """Memory of the second round: the first makes what later ones find. `forget` is called after each."""
    return _on_cuda(play, device, forget) if device.type == "cuda" else _on_cpu(play, forget)


def allocated_bytes(device: torch.device) -> tuple[int, int | None]:
    """Allocated and reserved bytes now, while no graph is alive."""
    if device.type != "cuda":
        return live_tensor_bytes(device.type), None
    statistics = torch.cuda.memory_stats(device)
    return statistics["allocated_bytes.all.current"], statistics["reserved_bytes.all.current"]


def live_tensor_bytes(device_type: str) -> int:
    """Bytes of all storages of tensors and gradients on a device type, each once.

    Call it while no graph is alive: tensors that only autograd holds are out of reach.
    """
    gc.collect()
    storages: dict[int, int] = {}
    for found in gc.get_objects():
        if issubclass(type(found), Tensor) and not isinstance(found, FakeTensor):
            for tensor in (found, found.grad if found.is_leaf else None):
                if tensor is not None and tensor.layout == torch.strided and tensor.device.type == device_type:
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def resident_set_peak_bytes() -> int | None:
    """Peak resident memory of this process (Linux); None where the system does not report it."""
    return next((int(value.split()[0]) * 1024 for value in proc_values("self/status", "VmHWM")), None)


def _on_cpu(play: Play, forget: Forget) -> RoundMemory:
    def play_twice() -> int:
        # Both are traced: the size of an earlier block, a gradient for example, is unknown when it goes.
        for name in (f"{ROUND}, the first", ROUND):
            with record_function(name):
                play(lambda part: record_function(f"{PART}{part}"))
            forget()
        return live_tensor_bytes("cpu")

    return read_round(*traced_allocator(play_twice))


def read_round(trace: AllocatorTrace, held_at_end_bytes: int) -> RoundMemory:
    """The last round of a trace at whose end `held_at_end_bytes` are held in all."""
    before = held_at_end_bytes - trace.allocated_at(math.inf)
    whole = trace.stretch(ROUND)
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


def _on_cuda(play: Play, device: torch.device, forget: Forget) -> RoundMemory:
    play(lambda part: nullcontext())
    forget()
    statistics = _CudaStatistics(device)
    play(statistics.part)
    found = statistics.round_memory()
    forget()
    return found


@dataclass
class _CudaStatistics:
    """Peaks count from the last reset; the start and end of each part read and reset them."""

    device: torch.device
    marks: list[Mark] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)
    retries_before: int = 0

    def __post_init__(self) -> None:
        self.retries_before = torch.cuda.memory_stats(self.device)["num_alloc_retries"]
        torch.cuda.reset_peak_memory_stats(self.device)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._mark(f"before {name}")
        yield
        statistics = self._mark(f"after {name}")
        peaks = (statistics[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved"))
        self.parts.append(_part(name, *peaks))

    def _mark(self, name: str) -> dict[str, Any]:
        statistics = self._note_peaks()
        current = (statistics[f"{kind}_bytes.all.current"] for kind in ("allocated", "reserved"))
        self.marks.append(Mark(name, *current))
        return statistics

    def _note_peaks(self) -> dict[str, Any]:
        """The statistics since the last call; peaks count anew from here."""
        statistics = torch.cuda.memory_stats(self.device)
        for kind in ("allocated", "reserved", "inactive_split"):
            peak = statistics[f"{kind}_bytes.all.peak"]
            self.peaks[kind] = max(peak, self.peaks.get(kind, 0))
        torch.cuda.reset_peak_memory_stats(self.device)
        return statistics

    def round_memory(self) -> RoundMemory:
        retries = self._note_peaks()["num_alloc_retries"] - self.retries_before
        allocated, reserved = self.peaks["allocated"], self.peaks["reserved"]
        fragmentation = {
            "reserved_less_allocated_bytes": reserved - allocated,  # difference of the two peaks
            # Peak of idle memory in blocks cut from larger ones, which cannot be given back.
            "inactive_split_bytes": self.peaks["inactive_split"],
            "allocation_retries": retries,  # allocations that succeeded only after the cache was emptied
        }
        return RoundMemory(allocated, reserved, tuple(self.marks), tuple(self.parts), fragmentation)


# The row of the memory pass: the allocator's figures and what held each block, as plain values.


MARKS = ("after forward", "before backward", "before optimizer", "after optimizer")
MOST_MOMENTS = 300
"""Moments of a timeline; of more, the highest and the lowest of every stretch and the borders of parts are kept."""
LARGEST_ALLOCATIONS = 8

NOT_ATTRIBUTED = "not attributed"
"""Category of what compiled code holds."""


def memory_values(
    case: Case, after_init: tuple[int, int | None], exact: RoundMemory, held: Held, sees_operations: bool
) -> Json:
    """Without what is predicted."""
    marks = [Mark("after init", *after_init), *(mark for mark in exact.marks if mark.name in MARKS)]
    values: Json = {
        "peak_allocated_bytes": exact.peak_allocated_bytes,
        "peak_reserved_bytes": exact.peak_reserved_bytes,
        "marks": [vars(mark) for mark in marks],
        "parts": list(exact.parts),
        "saved_bytes_by_part": saved_by_part(held.saved_bytes),
        "residual_tensor_bytes": case.residual_tensor_bytes,
        "fragmentation": exact.fragmentation,
        "resident_set_peak_bytes": resident_set_peak_bytes(),
        "snapshot": None,
        "flags": [],
    }
    values |= _attributed(held) if sees_operations else _not_attributed(exact)
    if case.row.family == ATTENTION_ALONE:
        moment = "before backward" if case.row.has_backward else "after forward"
        values["memory_before_backward_bytes"] = next(m.allocated_bytes for m in marks if m.name == moment)
    return values


def saved_by_part(saved_bytes: Counter[Regions]) -> list[Json]:
    """Bytes saved for the backward pass, by block and by the innermost region that saved them."""
    rows: Counter[tuple[str | None, str]] = Counter()
    for regions, count in saved_bytes.items():
        rows[layer_of(regions), _innermost(regions)] += count
    return [{"block": block, "part": part, "saved_bytes": count} for (block, part), count in rows.items()]


def _innermost(regions: Regions) -> str:
    names = [name for name in regions if name not in PHASES and not name.startswith("block ")]
    if names:
        return names[-1]
    return "residual" if layer_of(regions) else "elsewhere"


def _attributed(held: Held) -> Json:
    """What held the memory of a round whose operations were seen, by category and line."""
    made = Counter((block.bytes, block.place, block.category) for block in held.allocations())
    largest = sorted(made.items(), key=lambda item: (-item[0][0], item[0][1:]))[:LARGEST_ALLOCATIONS]
    return {
        "peak_by_category_bytes": dict(sorted(held.held_at_peak().items())),
        "largest_allocations": [
            {"bytes": size, "count": count, "line": place, "category": category}
            for (size, place, category), count in largest
        ],
        "timeline": timeline(held),
    }


def _not_attributed(exact: RoundMemory) -> Json:
    """The same of compiled code, which shows sizes alone."""
    totals = list(accumulate((event.bytes for event in exact.events), initial=exact.allocated_before_bytes))
    kept = [totals[place] for place in thinned(totals, MOST_MOMENTS)]
    made = Counter(event.bytes for event in exact.events if event.bytes > 0)
    return {
        "peak_by_category_bytes": {NOT_ATTRIBUTED: exact.peak_allocated_bytes},
        "largest_allocations": [
            {"bytes": size, "count": made[size], "line": "compiled code", "category": NOT_ATTRIBUTED}
            for size in sorted(made, reverse=True)[:LARGEST_ALLOCATIONS]
        ],
        "timeline": {"category_bytes": {NOT_ATTRIBUTED: kept} if exact.events else {}, "parts": []},
    }


def timeline(held: Held) -> Json:
    """Bytes of each category after every change of the round, or after MOST_MOMENTS of them."""
    totals = list(accumulate((change.bytes for change in held.changes), initial=0))[held.first_of_round :]
    parts = [(part.name, part.first - held.first_of_round, part.end - held.first_of_round) for part in held.parts]
    borders = {min(border, len(totals) - 1) for _, *ends in parts for border in ends}
    chosen = sorted({*thinned(totals, MOST_MOMENTS - len(borders)), *borders})
    moments = _held_at(held, chosen)
    categories = sorted({category for moment in moments for category in moment})
    return {
        "category_bytes": {category: [moment[category] for moment in moments] for category in categories},
        "parts": [
            {"name": name, "first": _place(chosen, first), "last": _place(chosen, end)} for name, first, end in parts
        ],
    }


def _held_at(held: Held, chosen: Sequence[int]) -> list[Counter[str]]:
    """Bytes by category after each of the `chosen` numbers of changes of the round, ascending."""
    bytes_now: Counter[str] = Counter()
    done, moments = 0, []
    for place in chosen:
        for change in held.changes[done : held.first_of_round + place]:
            bytes_now[change.block.category] += change.bytes
        done = held.first_of_round + place
        moments.append(+bytes_now)
    return moments


def _place(chosen: Sequence[int], changes: int) -> int:
    """The place among the chosen moments of the one after so many changes."""
    return min(bisect_left(chosen, changes), len(chosen) - 1)


# Memory snapshots for pytorch.org/memory_viz, written from what was seen of a round where PyTorch records none
# itself.
#
# Sizes, order and lines of Python are real, addresses those of an imaginary device.


MOST_ENTRIES = 100_000
"""Only the latest events are kept: a million of them exhausts the viewer's memory."""

ALIGNMENT_BYTES = 512
FIRST_ADDRESS = 0x7F00_0000_0000

Snapshot = dict[str, Any]
Frames = tuple[Frame, ...]
Rows = Callable[[Frames], list[dict[str, Any]]]
Happening = tuple[object, int, Frames]
"""A block came, or went where bytes are negative: its key, bytes, and the lines that made it."""


def snapshot_of_held(held: Held) -> Snapshot:
    """Of a watched round; earlier blocks have no event."""
    happenings = [(id(change.block), change.bytes, held.frames.get(id(change.block), ())) for change in held.changes]
    return synthetic_snapshot(happenings[: held.first_of_round], happenings[held.first_of_round :])


def snapshot_of_events(events: Iterable[AllocatorEvent]) -> Snapshot:
    """Of a round without lines of Python: compiled code has none."""
    return synthetic_snapshot([], [(event.address, event.bytes, ()) for event in events])


def synthetic_snapshot(before: Iterable[Happening], during: Iterable[Happening]) -> Snapshot:
    """Blocks of `before` have a place but no event."""
    memory = _ImaginaryMemory()
    # Each frame and each stack once, so that a file of 100 000 entries refers to them.
    row = cache(asdict)
    rows = cache(lambda frames: [row(frame) for frame in frames])
    for key, count, frames in before:
        memory.follow(key, count, frames)
    entries: list[dict[str, Any]] = []
    for time, (key, count, frames) in enumerate(during):
        address = memory.follow(key, count, frames)
        if address is None:
            continue
        event = {"addr": address, "size": abs(count), "stream": 0, "time_us": time, "frames": rows(frames)}
        actions = ("alloc",) if count > 0 else ("free_requested", "free_completed")
        entries += [{"action": action, **event} for action in actions]
    return {"segments": memory.segments(rows), "device_traces": [entries[-MOST_ENTRIES:]]}


class _ImaginaryMemory:
    """One segment, filled first fit; blocks by address, each with its size, the size asked for and its lines."""

    def __init__(self) -> None:
        self._live: dict[object, int] = {}
        self._blocks: dict[int, tuple[int, int, Frames]] = {}
        self._addresses: list[int] = []
        self._end = FIRST_ADDRESS

    def follow(self, key: object, count: int, frames: Frames) -> int | None:
        """The block's address; None for an empty one and for one that goes but never came."""
        if count > 0:
            address = self._place(count)
            self._live[key] = address
            self._blocks[address] = (_aligned(count), count, frames)
            insort(self._addresses, address)
            self._end = max(self._end, address + _aligned(count))
            return address
        address_of_gone = self._live.pop(key, None)
        if address_of_gone is not None:
            self._addresses.remove(address_of_gone)
            del self._blocks[address_of_gone]
        return address_of_gone

    def _place(self, count: int) -> int:
        """The first gap that is large enough."""
        free = FIRST_ADDRESS
        for address in self._addresses:
            if address - free >= _aligned(count):
                return free
            free = address + self._blocks[address][0]
        return free

    def segments(self, rows: Rows) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        free = FIRST_ADDRESS
        for address in [*self._addresses, self._end]:
            if address > free:
                blocks.append(_block(free, address - free, 0, "inactive", []))
            if address in self._blocks:
                size, asked, frames = self._blocks[address]
                blocks.append(_block(address, size, asked, "active_allocated", rows(frames)))
                free = address + size
        held = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return [
            {
                "device": 0, "address": FIRST_ADDRESS, "total_size": self._end - FIRST_ADDRESS, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "allocated_size": held, "active_size": held,
                "requested_size": sum(block["requested_size"] for block in blocks), "is_expandable": False,
                "frames": [], "blocks": blocks,
            }
        ]  # fmt: skip


def _block(address: int, size: int, asked: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": frames}


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


# A few rounds watched for memory: the allocator's figures, and what holds each block.


PARTS = ("forward", "loss", "backward", "optimizer")
"""The regions of a training step that are parts of its round."""

PICKLE_PROTOCOL = 4
"""The newest that pytorch.org/memory_viz reads."""

MODEL_SOURCE = Path(model_package.__file__).parent


@dataclass(frozen=True)
class Standing:
    """The tensors that outlive a round."""

    training: Training | None
    inputs: tuple[Tensor, ...]

    def by_category(self) -> Iterable[tuple[str, list[Tensor]]]:
        """Gradients last, because they come and go."""
        leaves = [tensor for tensor in self.inputs if tensor.requires_grad]
        yield INPUTS, list(self.inputs)
        if self.training is not None:
            module, state = self.training.model, self.training.optimizer.state
            leaves = list(module.parameters())
            yield PARAMETERS, [*leaves, *module.buffers()]
            yield OPTIMIZER_STATE, list(tensors_in(state.values()))
        yield GRADIENTS, [leaf.grad for leaf in leaves if leaf.grad is not None]


@dataclass
class HeldMeasure(Measure):
    """Runs in a process of its own."""

    case: Case
    device: torch.device
    standing: Callable[[], Standing]
    """Called once the benchmark has built what its rounds need."""
    snapshot: Path | None

    def look(self, rounds: Rounds) -> Json:
        def play(open_part: OpenPart) -> None:
            with regions_opened_by(lambda name: open_part(name) if name in PARTS else nullcontext()):
                self._play(rounds, open_part)

        after_init = allocated_bytes(self.device)
        exact = memory_of_round(play, self.device, rounds.forget)
        watch = HolderWatch(self.device.type, MODEL_SOURCE, __file__, self._sees_operations, PARTS)
        self._register_standing(watch)
        with watch.round():
            self._play(rounds, watch.part)
        self._register_standing(watch)
        held = watch.finished()
        values = memory_values(self.case, after_init, exact, held, self._sees_operations)
        if self.snapshot is None:
            return values
        return values | self._keep_snapshot(self.snapshot, exact, held, rounds)

    def _register_standing(self, watch: HolderWatch) -> None:
        # A separate call, because a name left over would keep the gradients alive through the next round.
        for category, tensors in self.standing().by_category():
            watch.register(tensors, category)

    @property
    def _sees_operations(self) -> bool:
        """Whether Python sees each operation; compiled code runs in one piece."""
        return not self.case.is_compiled

    def _play(self, rounds: Rounds, open_part: OpenPart) -> None:
        """One round. Attention alone opens no regions, so its passes are made parts here."""

        def part(name: str) -> AbstractContextManager[object]:
            return open_part(name) if self.case.row.family == ATTENTION_ALONE else nullcontext()

        if rounds.setup is None:
            rounds.play(around_target=lambda: part("forward"))
        else:
            rounds.play(lambda: part("forward"), lambda: part("backward"))

    def _keep_snapshot(self, path: Path, exact: RoundMemory, held: Held, rounds: Rounds) -> Json:
        """Its path, or why it has none: a full folder costs the snapshot, not the case."""
        content = pickle.dumps(self._snapshot(exact, held, rounds), protocol=PICKLE_PROTOCOL)
        try:
            write_whole(path, content)
        except OSError as error:
            return {
                "snapshot": None,
                "snapshot_reason": f"the snapshot of {len(content):,} bytes cannot be written: {error}; "
                "free disk space and run again.",
            }
        return {"snapshot": f"{path.parent.name}/{path.name}"}

    def _snapshot(self, exact: RoundMemory, held: Held, rounds: Rounds) -> Snapshot:
        if self.device.type == "cuda":
            rounds.forget()
            with cuda_memory_history(MOST_ENTRIES):
                self._play(rounds, lambda name: nullcontext())
                return cuda_memory_snapshot()
        return snapshot_of_held(held) if self._sees_operations else snapshot_of_events(exact.events)


# The worker of the memory pass, which forks a process for each case: `python -m perf_tests.passes.memory SOCKET`.
#
# It imports what a case needs, but touches no device and starts no thread. In: a benchmark's node id and the run's
# settings. Out: what the rounds of the benchmark show of memory, or an outcome. pytest runs the benchmark, so that
# its
# rounds are those of the timings.


@dataclass
class MemoryWorker:
    """The suite's end. `root` is the folder that holds the suite; a worker that ended is started again."""

    root: Path
    _worker: WorkerProcess | None = None

    def ask(self, task: Json) -> Json:
        """The `values` or the `outcome` of a case. Raises WorkerEndedError with one sentence."""
        if self._worker is None:
            # numpy starts threads on import, and a fork does not inherit threads.
            environment = {**inherited_environment(), "OPENBLAS_NUM_THREADS": "1"}
            self._worker = start_worker("perf_tests.passes.memory", self.root, environment)
        try:
            return self._worker.ask(task)
        except WorkerEndedError as error:
            self.end()
            raise WorkerEndedError(f"the worker of the memory pass ended: {error}.") from error
        except BaseException:  # the time of the case is up: what it answers later is not the next one's
            self.end()
            raise

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None


def main() -> int:
    channel = channel_of_worker()
    if torch.version.cuda is None:
        # AdamW and torch.compile import it; a build with CUDA may ask the driver meanwhile, and no fork survives that.
        load_compiler()
    gc.freeze()  # no collection of a case need walk what is imported
    while True:
        try:
            channel.send(in_a_fork(channel.receive()))
        except ClosedError:  # the suite is done, or has died
            return 0


def in_a_fork(task: Json) -> Json:
    """The answer of a fork of this process; an outcome where it died."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        _answer_and_end(task, write)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        content = answers.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return _died(signal.Signals(os.WTERMSIG(status)).name)
    try:
        answer: Json = json.loads(content)
    except ValueError:
        return _died(f"exit code {os.WEXITSTATUS(status)}")
    return answer


def _died(of: str) -> Json:
    """Linux kills with SIGKILL the process that takes the machine's last memory."""
    if of == "SIGKILL":
        reason = "its process was killed by SIGKILL, probably by the out-of-memory killer; set --memory-budget."
        return {"outcome": asdict(Outcome("out_of_memory", reason))}
    return {"outcome": asdict(Outcome("error", f"its process ended with {of}; run the case alone to see why."))}


def _answer_and_end(task: Json, write: int) -> NoReturn:
    """Ends without the clean-up that belongs to the process which was forked."""
    try:
        content = json.dumps(_examine(task)).encode()
        with os.fdopen(write, "wb") as answers:
            answers.write(content)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _examine(task: Json) -> Json:
    snapshot = None if task["snapshot"] is None else Path(task["snapshot"])
    answer = examined(
        task,
        lambda item, workbench: HeldMeasure(
            item.stash[CASE], workbench.device.torch_device, lambda: _standing(item), snapshot
        ),
    )
    return answer or {"outcome": asdict(Outcome("error", "pytest did not run it"))}


def _standing(item: Any) -> Standing:
    """The tensors that the benchmark's fixtures made."""
    fixtures = item.funcargs
    if "training" in fixtures:
        return Standing(fixtures["training"], tuple(vars(fixtures["batch"]).values()))
    return Standing(None, tuple(vars(fixtures["inputs"]).values()))


if __name__ == "__main__":
    sys.exit(main())
