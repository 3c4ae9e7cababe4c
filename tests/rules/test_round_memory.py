"""One round's memory as the allocator tells it: real blocks on a CPU, and a GPU's statistics against fakes."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from perf_tests.passes.memory_watch import OpenPart, live_tensor_bytes, memory_of_round, resident_set_peak_bytes
from tests.support.allocator_peak import allocator_peak_bytes
from tests.support.example_cases import CPU

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
