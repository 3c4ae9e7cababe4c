"""What a round holds: the allocator's figures to the byte, what each block is, and a snapshot that the viewer opens."""

import json
import math
import pickle
import pickletools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from perf_tests_suite.model.regions import region
from perf_tests_suite.perf_tests.hardware.torch_private import cuda_memory_history, cuda_memory_snapshot
from perf_tests_suite.perf_tests.passes import memory_watch
from perf_tests_suite.perf_tests.passes.memory import PICKLE_PROTOCOL
from perf_tests_suite.perf_tests.passes.memory_watch import PART, ROUND
from perf_tests_suite.perf_tests.predict.parts import (
    ACTIVATIONS,
    BACKWARD_PASS,
    GRADIENTS,
    PARAMETERS,
    TEMPORARIES,
    WEIGHT_COPIES,
)
from tests.support.example_cases import CPU

KIB, MIB = 2**10, 2**20


# The allocator's side.


def memory(time: float, count: int, device_type: int = 0) -> dict[str, Any]:
    args = {"Bytes": count, "Addr": 1, "Device Type": device_type, "Ev Idx": int(time)}
    return {"name": "[memory]", "ts": time, "args": args}


def trace_of(*events: dict[str, Any]) -> memory_watch.AllocatorTrace:
    text = json.dumps({"traceEvents": events})
    return memory_watch.allocator_trace(Mock(export_chrome_trace=lambda path: Path(path).write_text(text)))


def annotation(name: str, start: float, end: float) -> dict[str, Any]:
    return {"name": name, "cat": "user_annotation", "ts": start, "dur": end - start}


def test_a_round_is_read_with_what_stood_before_and_without_an_earlier_round() -> None:
    """100 bytes stand. The first round makes 20 of gradients, which the second lets go of and makes again."""
    first = [annotation(f"{ROUND}, the first", 0, 9), annotation(f"{PART}backward", 1, 8), memory(2, 20)]
    forward = [annotation(f"{PART}forward", 20, 40), memory(25, 7), memory(30, 5), memory(35, -5)]
    backward = [annotation(f"{PART}backward", 50, 90), memory(60, 20), memory(70, -7)]
    trace = trace_of(*first, annotation(ROUND, 10, 100), memory(12, -20), *forward, *backward)
    found = memory_watch.read_round(trace, live_at_end_bytes=120)
    assert (found.peak_allocated_bytes, found.allocated_before_bytes) == (127, 120)
    assert {part["phase"]: part["peak_allocated_bytes"] for part in found.parts} == {"forward": 112, "backward": 127}
    marks = {"before forward": 100, "after forward": 107, "before backward": 107, "after backward": 120}
    assert {mark.name: mark.allocated_bytes for mark in found.marks} == marks
    assert (found.peak_reserved_bytes, found.fragmentation) == (None, None), "a CPU reserves nothing"
    assert [event.bytes for event in found.events] == [-20, 7, 5, -5, 20, -7]


def test_a_peak_begins_with_what_is_held_when_the_stretch_does() -> None:
    assert trace_of(memory(1, 9), memory(3, -9), memory(4, 2)).peak_in(memory_watch.Stretch("it", 2, 5)) == 9


def test_events_are_read_in_the_order_of_time_and_of_a_cpu_alone() -> None:
    trace = trace_of(memory(5, 3), memory(1, 4), memory(2, 8, device_type=1))
    assert [event.bytes for event in trace.events] == [4, 3]
    assert trace.allocated_at(math.inf) == 7


def block(mebibytes: int) -> Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8)


def test_a_cpu_round_is_told_above_what_stands_and_without_what_is_forgotten_after_it() -> None:
    standing, kept = memory_watch.live_tensor_bytes("cpu"), list[Tensor]()

    def play(part: memory_watch.OpenPart) -> None:
        with part("forward"):
            first, second = block(1), block(2)
            del first
        with part("optimizer"):
            kept.append(block(4))
        del second

    def above(count: int) -> float:
        return (count - standing) / MIB

    found = memory_watch.memory_of_round(play, CPU, kept.clear)
    assert above(found.peak_allocated_bytes) == 6
    assert {one["phase"]: above(one["peak_allocated_bytes"]) for one in found.parts} == {"forward": 3, "optimizer": 6}
    assert [(mark.name, above(mark.allocated_bytes)) for mark in found.marks] == [
        ("before forward", 0), ("after forward", 2), ("before optimizer", 2), ("after optimizer", 6)
    ]  # fmt: skip
    assert [event.bytes / MIB for event in found.events] == [1, 2, -1, 4, -2]


def test_what_a_round_leaves_for_the_next_is_held_once() -> None:
    """The first round finds one mebibyte there, and each later one what the round before it made."""
    standing, kept = memory_watch.live_tensor_bytes("cpu"), [block(1)]

    def play(part: memory_watch.OpenPart) -> None:
        kept.append(block(3))
        kept.pop(0)

    assert memory_watch.memory_of_round(play, CPU).peak_allocated_bytes - standing == 6 * MIB


def test_live_tensors_are_counted_by_storage_and_with_their_gradients() -> None:
    held = [memory_watch.live_tensor_bytes("cpu")]
    weight = torch.zeros(MIB, dtype=torch.float32, requires_grad=True)
    view = weight[1:]
    held.append(memory_watch.live_tensor_bytes("cpu"))
    weight.sum().backward()
    held.append(memory_watch.live_tensor_bytes("cpu"))
    del weight, view
    held.append(memory_watch.live_tensor_bytes("cpu"))
    assert [count - held[0] for count in held] == [0, 4 * MIB, 8 * MIB, 0]


def test_each_part_of_a_gpu_round_has_its_own_peak_without_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an allocator that hands out of segments of 10 bytes."""
    cuda = SimpleNamespace(allocated=0, peak=0, retries=5)

    def statistics(device: torch.device) -> dict[str, int]:
        segments = {"current": cuda.allocated, "peak": cuda.peak}
        return {
            **{f"allocated_bytes.all.{which}": count for which, count in segments.items()},
            **{f"reserved_bytes.all.{which}": 10 * -(-count // 10) for which, count in segments.items()},
            "inactive_split_bytes.all.peak": 3, "num_alloc_retries": cuda.retries,
            "requested_bytes.all.peak": cuda.peak - 1,
        }  # fmt: skip

    def hold(up: int, down: int) -> None:
        cuda.peak = max(cuda.peak, cuda.allocated + up)
        cuda.allocated += up - down

    def play(part: memory_watch.OpenPart) -> None:
        cuda.retries += 1
        hold(13, 13)  # in no part, and the highest
        with part("forward"):
            hold(8, 2)
        with part("backward"):
            hold(5, 11)

    monkeypatch.setattr(torch.cuda, "memory_stats", statistics)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: setattr(cuda, "peak", cuda.allocated))
    found = memory_watch.memory_of_round(play, torch.device("cuda", 0))
    assert cuda.retries == 5 + 2
    assert (found.peak_requested_bytes, found.peak_allocated_bytes, found.peak_reserved_bytes) == (12, 13, 20)
    assert [tuple(part.values()) for part in found.parts] == [("forward", 8, 10), ("backward", 11, 20)]
    marks = {"before forward": (0, 0), "after forward": (6, 10), "before backward": (6, 10), "after backward": (0, 0)}
    assert {mark.name: (mark.allocated_bytes, mark.reserved_bytes) for mark in found.marks} == marks
    lost = {"reserved_less_allocated_bytes": 7, "inactive_split_bytes": 3, "allocation_retries": 1}
    assert found.fragmentation == lost


# What each block is.


def weight(kibibytes: int = 4) -> Tensor:
    return torch.ones(kibibytes * KIB // 4, requires_grad=True)


HERE = Path(__file__).parent


def held(
    function: Callable[[], object], *parameters: Tensor, sees_operations: bool = True, source: Path = HERE
) -> memory_watch.LiveTensors:
    watch = memory_watch.HolderWatch("cpu", source, "", sees_operations, parts=("forward", "backward"))

    def register() -> None:
        watch.register(parameters, PARAMETERS)
        watch.register((leaf.grad for leaf in parameters if leaf.grad is not None), GRADIENTS)

    register()
    with watch.round():
        function()
    register()
    return watch.finished()


def test_the_peak_of_a_step_is_told_by_category_and_a_gradient_has_no_line_of_the_model() -> None:
    w = weight()

    def step() -> None:
        with region("forward"):
            loss = w.exp().sum()
        with region("backward"):
            loss.backward()

    found = held(step, w)
    at_peak = found.live_at_peak()
    assert {at_peak[category] for category in (PARAMETERS, ACTIVATIONS, GRADIENTS)} == {4 * KIB}
    last = found.allocations()[-1]
    assert (last.place, last.category) == (BACKWARD_PASS, GRADIENTS)


def in_regions(w: Tensor) -> object:
    with region("forward"), region("block 0"), region("softmax"):
        return w.exp()


def saved_twice_beside_a_parameter(w: Tensor) -> None:
    e = w.exp()
    kept = e * e * w
    del e
    kept.sum()


@pytest.mark.parametrize("sees_operations", [True, False])
@pytest.mark.parametrize(
    "forward, saved",
    [(in_regions, {("forward", "block 0", "softmax"): 4 * KIB}), (saved_twice_beside_a_parameter, {(): 8 * KIB})],
)
def test_what_autograd_keeps_counts_once_for_the_open_regions_and_a_parameter_never(
    forward: Callable[[Tensor], object], saved: dict[tuple[str, ...], int], sees_operations: bool
) -> None:
    """Of compiled code too, of which no operation is seen."""
    w = weight()
    assert held(lambda: forward(w), w, sees_operations=sees_operations).saved_bytes == saved


def test_autocasts_copies_of_the_weights_have_a_category_of_their_own() -> None:
    """The one copy is saved by both products, counts once and stays what it is."""
    w, x = torch.ones(32, 32, requires_grad=True), torch.ones(32, 32, requires_grad=True)

    def forward() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w) @ w

    found = held(forward, w)
    assert found.saved_bytes.total() == 3 * 32 * 32 * 2
    assert {block.category for block in found.allocations()} == {WEIGHT_COPIES, ACTIVATIONS, TEMPORARIES}


def test_gradients_of_the_round_before_are_gone_once_they_are_let_go_of() -> None:
    w = weight()
    w.sum().backward()

    def clear_and_use() -> None:
        w.grad = None
        torch.zeros(KIB)

    assert held(clear_and_use, w).live_at_peak() == Counter({PARAMETERS: 4 * KIB, GRADIENTS: 4 * KIB})


def test_parts_know_their_changes_and_a_block_the_line_that_made_it_and_a_bounded_stack() -> None:
    def step() -> None:
        with region("forward"):
            torch.zeros(KIB)
        torch.zeros(KIB)
        with region("backward"):
            torch.zeros(KIB)

    found = held(step)
    assert [(part.name, part.first, part.end) for part in found.parts] == [("forward", 0, 2), ("backward", 4, 6)]
    blocks = found.allocations()
    assert all(block.place.startswith("rules/test_memory_watch.py:") for block in blocks)
    stacks = [found.frames[id(block)] for block in blocks]
    assert {(frames[0].filename, len(frames)) for frames in stacks} == {(__file__, memory_watch.DEEPEST_STACK)}
    elsewhere = held(step, source=HERE / "nowhere").allocations()
    assert [block.place for block in elsewhere] == ["", "", BACKWARD_PASS], "which a GPU runs without Python's frames"


# Snapshots.


VIEWER_READS = {
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "LIST", "DICT", "APPEND", "APPENDS", "SETITEM",
    "SETITEMS", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE",
    "BINUNICODE",
}  # fmt: skip
"""Every opcode that the viewer's own reader knows (pytorch/pytorch, torch/utils/viz/MemoryViz.js)."""

LINE = memory_watch.Frame("model/attention.py", 42, "softmax")


def assert_opens(content: bytes) -> None:
    """The viewer's reader gets to the end of it; nothing is unpickled here."""
    opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    assert opcodes[0] == ("PROTO", 4)
    assert {name for name, _ in opcodes} <= VIEWER_READS


def assert_consistent(snapshot: memory_watch.Snapshot) -> None:
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


def happenings(*sizes: int) -> list[memory_watch.Happening]:
    """Blocks named by their size; negative when they go."""
    return [(abs(size), size, (LINE,)) for size in sizes]


def test_blocks_come_and_go_with_their_lines_gaps_are_filled_and_what_stood_before_or_is_empty_has_no_event() -> None:
    snapshot = memory_watch.synthetic_snapshot(happenings(5000), happenings(1024, 300, 0, -1024, -999, 1500, 1000))
    assert_consistent(snapshot)
    first, *others, again = snapshot["device_traces"][0]
    assert [event["action"] for event in others] == ["alloc", "free_requested", "free_completed", "alloc"]
    assert first["frames"] == [{"filename": LINE.filename, "line": 42, "name": "softmax"}]
    assert (first["action"], first["addr"]) == (again["action"], again["addr"]) == ("alloc", again["addr"])
    assert sorted(laid_out(snapshot["segments"][0]).values()) == [300, 1000, 1500, 5000]


def test_the_latest_events_are_kept_and_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "MOST_ENTRIES", 4)
    entries = memory_watch.synthetic_snapshot([], happenings(100, 200, 300, -300, 400))["device_traces"][0]
    assert [entry["size"] for entry in entries] == [300, 300, 300, 400]


def test_the_viewer_reads_every_opcode_of_a_large_snapshot() -> None:
    """Long lists, many frames and 48-bit addresses take other opcodes than a few small numbers do."""
    many: list[memory_watch.Happening] = []
    for number in range(3000):
        many += [(number, 10 ** number.bit_length(), (memory_watch.Frame("a" * (number % 300), number, "f"), LINE))]
    snapshot = memory_watch.synthetic_snapshot([], [*many, *((key, -size, frames) for key, size, frames in many[::2])])
    assert_consistent(snapshot)
    assert_opens(pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL))


def test_a_gpu_records_python_frames_a_bounded_number_and_only_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: asked.append(how))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": []})
    with cuda_memory_history(7):
        assert (cuda_memory_snapshot(), len(asked)) == ({"segments": []}, 1)
    assert asked == [{"enabled": "all", "stacks": "python", "max_entries": 7}, {"enabled": None}]
