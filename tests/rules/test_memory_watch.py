"""What a round holds: the allocator's figures to the byte, what each block is, and a snapshot that the viewer opens."""

import math
import pickle
import pickletools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.regions import region
from perf_tests.hardware.torch_private import cuda_memory_history, cuda_memory_snapshot
from perf_tests.passes import memory_watch
from perf_tests.passes.memory import PICKLE_PROTOCOL
from perf_tests.passes.memory_watch import (
    MOST_ENTRIES,
    PART,
    ROUND,
    AllocatorEvent,
    Frame,
    Happening,
    Held,
    HolderWatch,
    OpenPart,
    Snapshot,
    Stretch,
    live_tensor_bytes,
    memory_of_round,
    read_allocator_trace,
    read_round,
    resident_set_peak_bytes,
    snapshot_of_events,
    synthetic_snapshot,
)
from perf_tests.predict.counting import ACTIVATIONS, BACKWARD_PASS, GRADIENTS, PARAMETERS, TEMPORARIES, WEIGHT_COPIES
from tests.support.allocator_peak import allocator_peak_bytes
from tests.support.example_cases import CPU


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


def test_a_round_is_read_with_what_stood_before_and_without_an_earlier_round() -> None:
    assert (FOUND.peak_allocated_bytes, FOUND.allocated_before_bytes) == (127, 120)
    assert [(part["phase"], part["peak_allocated_bytes"]) for part in FOUND.parts] == [
        ("forward", 112),
        ("backward", 127),
    ]
    assert {mark.name: mark.allocated_bytes for mark in FOUND.marks} == {
        "before forward": 100, "after forward": 107, "before backward": 107, "after backward": 120
    }  # fmt: skip
    assert (FOUND.peak_reserved_bytes, FOUND.fragmentation) == (None, None), "a CPU reserves nothing"
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


MIB = 2**20
GPU = torch.device("cuda", 0)


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8)


def test_a_cpu_round_is_told_above_what_stands() -> None:
    standing = live_tensor_bytes("cpu")

    def play(part: OpenPart) -> None:
        with part("forward"):
            first, second = block(1), block(2)
            del first
        with part("backward"):
            third = block(4)
        del second, third

    found = memory_of_round(play, CPU)
    assert [(part["phase"], part["peak_allocated_bytes"] - standing) for part in found.parts] == [
        ("forward", 3 * MIB), ("backward", 6 * MIB)
    ]  # fmt: skip
    assert found.peak_allocated_bytes - standing == 6 * MIB
    assert {mark.name: (mark.allocated_bytes - standing) // MIB for mark in found.marks} == {
        "before forward": 0, "after forward": 2, "before backward": 2, "after backward": 6
    }  # fmt: skip


def test_what_a_round_leaves_for_the_next_is_held_once() -> None:
    """The first round finds one mebibyte there, and each later one what the round before it made."""
    standing, kept = live_tensor_bytes("cpu"), [block(1)]

    def play(part: OpenPart) -> None:
        kept.append(block(3))
        kept.pop(0)

    assert memory_of_round(play, CPU).peak_allocated_bytes - standing == 6 * MIB


def test_what_is_forgotten_after_a_round_is_neither_in_it_nor_in_the_next() -> None:
    standing, kept = live_tensor_bytes("cpu"), list[torch.Tensor]()

    def play(part: OpenPart) -> None:
        with part("optimizer"):
            kept.append(block(3))

    found = memory_of_round(play, CPU, kept.clear)
    assert found.peak_allocated_bytes - standing == 3 * MIB
    assert [event.bytes for event in found.events] == [3 * MIB]
    before, after = (mark.allocated_bytes - standing for mark in found.marks)
    assert (before, after) == (0, 3 * MIB)


def test_live_tensors_are_counted_by_storage_and_with_their_gradients() -> None:
    before = live_tensor_bytes("cpu")
    weight = torch.zeros(MIB, dtype=torch.float32, requires_grad=True)
    view = weight[1:]
    assert live_tensor_bytes("cpu") - before == 4 * MIB
    weight.sum().backward()
    assert live_tensor_bytes("cpu") - before == 8 * MIB
    del weight, view
    assert live_tensor_bytes("cpu") == before


def test_the_resident_size_is_read_where_the_system_tells_it() -> None:
    resident = resident_set_peak_bytes()
    assert resident is None or resident > 10 * MIB


def test_the_peak_is_the_most_held_at_one_time() -> None:
    def hold_three_then_five() -> None:
        first, second = block(1), block(2)
        del first
        third = block(3)
        del second, third
        block(4)

    assert allocator_peak_bytes(hold_three_then_five) == 5 * MIB


def test_a_second_look_starts_from_zero_whatever_the_first_left() -> None:
    kept: list[torch.Tensor] = []
    assert allocator_peak_bytes(lambda: kept.append(block(2))) == 2 * MIB
    assert allocator_peak_bytes(lambda: None) == 0
    assert allocator_peak_bytes(lambda: block(1)) == MIB


def test_the_graph_holds_what_the_backward_pass_needs() -> None:
    """Each exp keeps its result; without a graph only its input and its result are there at once."""
    x = torch.zeros(MIB // 4, requires_grad=True)
    assert allocator_peak_bytes(lambda: x.exp().exp().exp()) == 3 * MIB
    with torch.no_grad():
        assert allocator_peak_bytes(lambda: x.exp().exp().exp()) == 2 * MIB


class FakeStatistics:
    """torch.cuda's statistics of an allocator that hands out of segments of 10 bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = self.peak = 0
        self.retries = 5
        monkeypatch.setattr(torch.cuda, "memory_stats", self._statistics)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)

    def hold(self, count: int) -> None:
        self.allocated += count
        self.peak = max(self.peak, self.allocated)

    def _reset(self, device: torch.device) -> None:
        self.peak = self.allocated

    def _statistics(self, device: torch.device) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.allocated, "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": 10 * -(-self.allocated // 10),
            "reserved_bytes.all.peak": 10 * -(-self.peak // 10),
            "inactive_split_bytes.all.peak": 3, "num_alloc_retries": self.retries,
        }  # fmt: skip


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeStatistics:
    return FakeStatistics(monkeypatch)


def a_step(cuda: FakeStatistics) -> Callable[[OpenPart], None]:
    def held(part: AbstractContextManager[object], up: int, down: int) -> None:
        with part:
            cuda.hold(up)
            cuda.hold(-down)

    def play(part: OpenPart) -> None:
        cuda.hold(13)  # in no part
        cuda.hold(-13)
        held(part("forward"), 8, 2)
        held(part("backward"), 5, 11)

    return play


def test_each_part_of_a_gpu_round_has_its_own_peak_and_the_highest_may_lie_outside(cuda: FakeStatistics) -> None:
    found = memory_of_round(a_step(cuda), GPU)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (13, 20)
    assert list(found.parts) == [
        {"phase": "forward", "peak_allocated_bytes": 8, "peak_reserved_bytes": 10},
        {"phase": "backward", "peak_allocated_bytes": 11, "peak_reserved_bytes": 20},
    ]
    assert [(mark.name, mark.allocated_bytes, mark.reserved_bytes) for mark in found.marks] == [
        ("before forward", 0, 0), ("after forward", 6, 10), ("before backward", 6, 10), ("after backward", 0, 0)
    ]  # fmt: skip


def test_fragmentation_is_of_the_round_and_not_of_what_came_before(cuda: FakeStatistics) -> None:
    played: list[int] = []

    def play(part: OpenPart) -> None:
        cuda.retries += 1
        a_step(cuda)(part)
        played.append(cuda.retries)

    found = memory_of_round(play, GPU).fragmentation
    assert found == {
        "reserved_less_allocated_bytes": 7, "inactive_split_bytes": 3, "allocation_retries": 1
    }  # fmt: skip
    assert len(played) == 2


KIB = 1024


def weight(kibibytes: int) -> Tensor:
    return torch.ones(kibibytes * KIB // 4, requires_grad=True)


def held(function: Callable[[], object], *parameters: Tensor, sees_operations: bool = True) -> Held:
    watch = HolderWatch("cpu", Path(__file__).parent, "", sees_operations, parts=("forward", "backward"))
    watch.register(parameters, PARAMETERS)
    with watch.round():
        function()
    watch.register((leaf.grad for leaf in parameters if leaf.grad is not None), GRADIENTS)
    return watch.finished()


def test_the_peak_is_told_by_category() -> None:
    w = weight(4)

    def step() -> None:
        with region("forward"):
            loss = w.exp().sum()
        with region("backward"):
            loss.backward()

    at_peak = held(step, w).held_at_peak()
    assert {at_peak[category] for category in (PARAMETERS, ACTIVATIONS, GRADIENTS)} == {4 * KIB}


def test_what_autograd_keeps_belongs_to_the_regions_that_were_open() -> None:
    w = weight(4)

    def forward() -> Tensor:
        with region("forward"), region("block 0"), region("softmax"):
            return w.exp()

    assert held(forward, w).saved_bytes == Counter({("forward", "block 0", "softmax"): 4 * KIB})


def test_a_block_that_is_saved_twice_and_a_parameter_count_once_and_never() -> None:
    w = weight(4)

    def forward() -> None:
        e = w.exp()
        kept = e * e * w
        del e
        kept.sum()

    assert held(forward, w).saved_bytes.total() == 8 * KIB


def test_a_large_block_has_the_line_that_made_it_and_a_bounded_stack() -> None:
    found = held(lambda: torch.zeros(KIB))
    (block,) = found.allocations()
    assert block.place.startswith("rules/test_memory_watch.py:")
    frames = found.frames[id(block)]
    assert frames[0].filename == __file__
    assert len(frames) <= 32


def test_blocks_of_the_backward_pass_have_no_line_of_the_model() -> None:
    w = weight(4)
    made = held(lambda: w.exp().sum().backward(), w).allocations()
    assert (made[-1].place, made[-1].category) == (BACKWARD_PASS, GRADIENTS)


def test_gradients_of_the_round_before_are_gone_once_they_are_let_go_of() -> None:
    w = weight(4)
    w.sum().backward()
    watch = HolderWatch("cpu", Path(__file__).parent, "", True)
    watch.register([w], PARAMETERS)
    assert w.grad is not None
    watch.register([w.grad], GRADIENTS)
    with watch.round():
        w.grad = None
        torch.zeros(KIB)
    assert watch.finished().held_at_peak() == Counter({PARAMETERS: 4 * KIB, GRADIENTS: 4 * KIB})


def test_autocasts_copies_of_the_weights_have_a_category_of_their_own() -> None:
    """The one copy is saved by both products, counts once and stays what it is."""
    w, x = torch.ones(32, 32, requires_grad=True), torch.ones(32, 32, requires_grad=True)

    def forward() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w) @ w

    found = held(forward, w)
    assert found.saved_bytes.total() == 3 * 32 * 32 * 2
    assert {block.category for block in found.allocations()} == {WEIGHT_COPIES, ACTIVATIONS, TEMPORARIES}


def test_parts_are_the_regions_named_so_and_say_which_changes_are_theirs() -> None:
    def step() -> None:
        with region("forward"):
            torch.zeros(KIB)
        torch.zeros(KIB)
        with region("backward"):
            torch.zeros(KIB)

    assert [(part.name, part.first, part.end) for part in held(step).parts] == [("forward", 0, 2), ("backward", 4, 6)]


@pytest.mark.parametrize("sees_operations", [True, False])
def test_what_is_saved_is_told_of_compiled_code_too(sees_operations: bool) -> None:
    w = weight(4)
    found = held(lambda: w.exp().sum(), w, sees_operations=sees_operations)
    assert found.saved_bytes.total() == 4 * KIB


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
    monkeypatch.setattr(memory_watch, "MOST_ENTRIES", 4)
    entries = synthetic_snapshot([], happenings(100, 200, 300, -300, 400))["device_traces"][0]
    assert [entry["size"] for entry in entries] == [300, 300, 300, 400]


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
