"""Memory of one round as the allocator reports it: peaks by part, and bytes held before and after each part.

On a GPU from the caching allocator's statistics, on a CPU from every block that it handed out or took back.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from perf_tests.instruments.allocator_trace import AllocatorEvent, AllocatorTrace, traced_allocator
from perf_tests.instruments.host_memory import proc_values
from perf_tests.instruments.torch_private import FakeTensor

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
