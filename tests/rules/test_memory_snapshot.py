"""A snapshot is one that pytorch.org/memory_viz opens: its opcodes, its fields, and blocks that lie where it says."""

import pickle
import pickletools
from typing import Any

import pytest
import torch

from perf_tests.hardware.torch_private import cuda_memory_history, cuda_memory_snapshot
from perf_tests.passes import memory_watch as memory_snapshot
from perf_tests.passes.memory import PICKLE_PROTOCOL
from perf_tests.passes.memory_watch import (
    AllocatorEvent,
    Frame,
    Happening,
    Snapshot,
    snapshot_of_events,
    synthetic_snapshot,
)

MOST_ENTRIES = memory_snapshot.MOST_ENTRIES
VIEWER_READS = {
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "LIST", "DICT", "APPEND", "APPENDS", "SETITEM",
    "SETITEMS", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE",
    "BINUNICODE",
}  # fmt: skip
"""Every opcode that the viewer's own reader knows (pytorch/pytorch, torch/utils/viz/MemoryViz.js)."""

LINE = Frame("model/attention.py", 42, "softmax")


def assert_opens(content: bytes) -> None:
    """The viewer's reader gets to the end of it; nothing is unpickled here."""
    opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    assert opcodes[0] == ("PROTO", 4)
    assert {name for name, _ in opcodes} <= VIEWER_READS


def assert_consistent(snapshot: Snapshot) -> None:
    """The fields that the viewer reads are there, and played backwards its events fit its final state."""
    (segment,) = snapshot["segments"]
    live = laid_out(segment)
    for event in reversed(snapshot["device_traces"][0]):
        start, end = event["addr"], event["addr"] + event["size"]
        assert segment["address"] <= start < end <= segment["address"] + segment["total_size"]
        assert all({"filename", "line", "name"} <= frame.keys() for frame in event["frames"])
        if event["action"] == "alloc":
            assert live.pop(start) == event["size"]
        elif event["action"] == "free_completed":
            assert all(end <= other or other + size <= start for other, size in live.items())
            live[start] = event["size"]
        else:
            assert event["action"] == "free_requested"


def laid_out(segment: dict[str, Any]) -> dict[int, int]:
    """Address to size asked for of the live blocks; the viewer adds up the blocks' sizes to find each."""
    live, address = {}, segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == address
        assert block["size"] >= block["requested_size"]
        if block["state"] == "active_allocated":
            live[address] = block["requested_size"]
        address += block["size"]
    assert address == segment["address"] + segment["total_size"]
    assert segment["allocated_size"] == sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated")
    return live


def happenings(*sizes: int) -> list[Happening]:
    """Blocks named by their size; negative when they go."""
    return [(abs(size), size, (LINE,)) for size in sizes]


def actions(snapshot: Snapshot) -> list[str]:
    return [event["action"] for event in snapshot["device_traces"][0]]


def test_blocks_come_and_go_in_order_with_their_lines_and_gaps_are_filled_again() -> None:
    snapshot = synthetic_snapshot([], happenings(700, 300, -700, 200))
    assert_consistent(snapshot)
    assert actions(snapshot) == ["alloc", "alloc", "free_requested", "free_completed", "alloc"]
    first, *_, again = snapshot["device_traces"][0]
    assert first["frames"] == [{"filename": LINE.filename, "line": 42, "name": "softmax"}]
    assert first["addr"] == again["addr"]


def test_what_stood_before_takes_its_place_without_an_event_and_what_never_came_is_left_out() -> None:
    snapshot = synthetic_snapshot(happenings(5000), happenings(300, -300, -200))
    assert_consistent(snapshot)
    assert actions(snapshot) == ["alloc", "free_requested", "free_completed"]
    assert 5000 in laid_out(snapshot["segments"][0]).values()


def test_the_latest_events_are_kept_and_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_snapshot, "MOST_ENTRIES", 4)
    entries = synthetic_snapshot([], happenings(100, 200, 300, -300, 400))["device_traces"][0]
    assert [entry["size"] for entry in entries] == [300, 300, 300, 400]
    assert MOST_ENTRIES <= 100_000


def test_the_viewer_reads_every_opcode_of_a_large_snapshot() -> None:
    """Long lists, many frames and 48-bit addresses take other opcodes than a few small numbers do."""
    many: list[Happening] = []
    for number in range(3000):
        many += [(number, 10 ** number.bit_length(), (Frame("a" * (number % 300), number, "f"), LINE))]
    snapshot = synthetic_snapshot([], [*many, *((key, -size, frames) for key, size, frames in many[::2])])
    assert_consistent(snapshot)
    assert_opens(pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL))


def test_another_protocol_would_not_be_opened() -> None:
    with pytest.raises(AssertionError):
        assert_opens(pickle.dumps(synthetic_snapshot([], happenings(300)), protocol=5))


def test_blocks_of_a_cpu_allocator_make_a_snapshot_too() -> None:
    snapshot = snapshot_of_events([AllocatorEvent(1, 64, 100), AllocatorEvent(2, 64, -100)])
    assert_consistent(snapshot)
    assert actions(snapshot) == ["alloc", "free_requested", "free_completed"]


def test_a_gpu_records_python_frames_a_bounded_number_and_only_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: asked.append(how))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": [[]]})
    with cuda_memory_history(MOST_ENTRIES):
        assert cuda_memory_snapshot() == {"segments": [], "device_traces": [[]]}
        assert len(asked) == 1
    assert asked == [{"enabled": "all", "stacks": "python", "max_entries": MOST_ENTRIES}, {"enabled": None}]
