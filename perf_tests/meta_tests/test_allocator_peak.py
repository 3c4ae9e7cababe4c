"""The CPU allocator's peak is exact: blocks of known sizes give known sums."""

import torch

from perf_tests.instruments.allocator_trace import allocator_peak_bytes, read_allocator_trace

MIB = 2**20


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8)


def test_the_peak_is_the_most_held_at_one_time() -> None:
    def hold_three_then_five() -> None:
        first, second = block(1), block(2)
        del first
        third = block(3)
        del second, third
        block(4)

    assert allocator_peak_bytes(hold_three_then_five) == 5 * MIB


def test_what_was_held_before_does_not_count() -> None:
    held_before = block(8)
    assert allocator_peak_bytes(lambda: block(1)) == MIB
    assert held_before.numel() == 8 * MIB


def test_a_second_look_starts_from_zero() -> None:
    kept: list[torch.Tensor] = []
    assert allocator_peak_bytes(lambda: kept.append(block(2))) == 2 * MIB
    assert allocator_peak_bytes(lambda: block(1)) == MIB


def test_the_graph_holds_what_the_backward_pass_needs() -> None:
    """Each exp keeps its result; without a graph only its input and its result are there at once."""
    x = torch.zeros(MIB // 4, requires_grad=True)
    assert allocator_peak_bytes(lambda: x.exp().exp().exp()) == 3 * MIB
    with torch.no_grad():
        assert allocator_peak_bytes(lambda: x.exp().exp().exp()) == 2 * MIB


def test_nothing_allocated_is_zero() -> None:
    assert read_allocator_trace([]).peak() == 0


def test_events_of_another_device_are_left_out() -> None:
    events = [
        {"name": "[memory]", "ts": 1.0, "args": {"Ev Idx": 1, "Addr": 64, "Bytes": 5, "Device Type": 0}},
        {"name": "[memory]", "ts": 2.0, "args": {"Ev Idx": 2, "Addr": 64, "Bytes": 7, "Device Type": 1}},
    ]
    assert read_allocator_trace(events).peak() == 5
