"""The CPU allocator, exactly: every block that it hands out or takes back, in order, from a profiler's trace.

Bytes are beyond those handed out before the trace began. The resident size of the process would add the pages of freed
blocks and of other libraries.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from torch.profiler import ProfilerActivity, profile

from perf_tests.instruments.exported_trace import exported_trace

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
