"""A trace of an allocator is read to the byte: what is held when, the most of each part, and what stood before."""

import math
from typing import Any

import pytest

from perf_tests.passes.memory_watch import PART, ROUND, Stretch, read_allocator_trace, read_round


def memory(time: float, count: int, address: int = 1, device_type: int = 0) -> dict[str, Any]:
    args = {"Bytes": count, "Addr": address, "Device Type": device_type, "Ev Idx": int(time)}
    return {"name": "[memory]", "ts": time, "args": args}


def annotation(name: str, start: float, end: float) -> dict[str, Any]:
    return {"name": name, "cat": "user_annotation", "ts": start, "dur": end - start}


# 100 bytes stood before and stay. The first round makes 20 of gradients, which the second lets go of and makes again.
EVENTS = [
    annotation(f"{ROUND}, the first", 0, 9),
    annotation(f"{PART}backward", 1, 8),
    memory(2, 20),
    annotation(ROUND, 10, 100),
    memory(12, -20),
    annotation(f"{PART}forward", 20, 40),
    memory(25, 7),
    memory(30, 5),
    memory(35, -5),
    annotation(f"{PART}backward", 50, 90),
    memory(60, 20),
    memory(70, -7),
]
FOUND = read_round(read_allocator_trace(EVENTS), held_at_end_bytes=120)  # of which the trace saw 20 come


def test_what_stood_before_the_trace_is_part_of_every_figure() -> None:
    assert (FOUND.peak_allocated_bytes, FOUND.allocated_before_bytes) == (127, 120)


def test_each_part_has_its_own_peak_and_its_marks() -> None:
    assert [(part["phase"], part["peak_allocated_bytes"]) for part in FOUND.parts] == [
        ("forward", 112),
        ("backward", 127),
    ]
    assert {mark.name: mark.allocated_bytes for mark in FOUND.marks} == {
        "before forward": 100, "after forward": 107, "before backward": 107, "after backward": 120
    }  # fmt: skip


def test_a_cpu_reserves_nothing_and_has_no_fragmentation() -> None:
    assert (FOUND.peak_reserved_bytes, FOUND.fragmentation) == (None, None)


def test_the_parts_of_an_earlier_round_are_left_out() -> None:
    assert [event.bytes for event in FOUND.events] == [-20, 7, 5, -5, 20, -7]


def test_a_peak_begins_with_what_is_held_when_the_stretch_does() -> None:
    trace = read_allocator_trace([memory(1, 9), memory(3, -9), memory(4, 2)])
    assert trace.peak_in(Stretch("it", 2, 5)) == 9


def test_events_are_read_in_the_order_of_time_and_of_a_cpu_alone() -> None:
    trace = read_allocator_trace([memory(5, 3), memory(1, 4), memory(2, 8, device_type=1)])
    assert [event.bytes for event in trace.events] == [4, 3]
    assert trace.allocated_at(math.inf) == 7


def test_a_stretch_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError, match=ROUND):
        read_allocator_trace([memory(1, 4)]).stretch(ROUND)
