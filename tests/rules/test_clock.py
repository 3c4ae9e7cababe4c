"""The clock reads the work of a round, all of it and nothing else; a device's own time leaves the host's stalls out."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.hardware import clock as clocks
from perf_tests_suite.perf_tests.hardware.clock import HOLD_SECONDS, Clock, busy_seconds, empty_round_seconds, rate_of
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from tests.support.example_cases import CPU
from tests.support.fake_device import QueueDevice

pytest_plugins = ("pytester",)

LEFT_OVER, WORK = 8.0, 2.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> QueueDevice:
    monkeypatch.setattr(clocks, "time", device := QueueDevice())
    return device


def read_one_round(device: QueueDevice, clock: Clock) -> float:
    """What the clock makes of 2 seconds of work, issued while 8 seconds of set-up are still in the queue."""
    device.launch(LEFT_OVER)
    clock.begin_round()
    start = clock()
    device.launch(WORK)
    return clock() - start


@pytest.mark.parametrize("deaf_to, reading", [(None, WORK), (1, LEFT_OVER + WORK), (2, 0.0)])
def test_a_round_is_its_own_work_and_nothing_else_by_either_of_its_two_waits(
    device: QueueDevice, deaf_to: int | None, reading: float
) -> None:
    device.deaf_to = deaf_to
    assert read_one_round(device, Clock(device)) == reading


def test_each_round_waits_twice_and_leaves_one_entry_which_is_forgotten_with_the_case(device: QueueDevice) -> None:
    """A round that raised before its second reading leaves none."""
    clock = Clock(device)
    clock()
    clock.mark("forward")
    for _ in range(3):
        read_one_round(device, clock)
    with clock.round():
        device.launch(WORK)
    assert device.synchronisations == 1 + 2 * 4
    # Half of the virtual time, by the fake's process_time.
    assert (clock.device_seconds, clock.cpu_seconds, clock.wall_seconds) == ([WORK] * 4, [WORK / 2] * 4, [WORK])
    assert clock.part_seconds == {}
    clock.forget()
    assert (clock.device_seconds, clock.cpu_seconds, clock.wall_seconds) == ([], [], [])


@pytest.mark.parametrize("has_events", [True, False])
def test_the_parts_of_a_round_add_up_to_it_and_wait_for_nothing(
    device: QueueDevice, has_events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the device's clock, or by the wall where it has none."""
    if not has_events:
        monkeypatch.setattr(device, "record_event", lambda: None)
    parts = {"forward": [1.0], "backward": [2.0], "optimizer": [0.5]}
    (clock := Clock(device))()
    for part, (seconds,) in parts.items():
        device.launch(seconds)
        device.now += 0.0 if has_events else seconds
        clock.mark(part)
    clock()
    assert (clock.part_seconds, clock.device_seconds) == (parts, [3.5] if has_events else [])
    assert device.synchronisations == 2


ROUNDS_OF_A_BENCHMARK = """
import pytest
from perf_tests_suite.perf_tests.hardware import clock as clocks
from tests.support.fake_device import QueueDevice

device = clocks.time = QueueDevice({deaf_to})
clock = clocks.Clock(device)

@pytest.mark.benchmark(timer=clock)
def test_rounds(benchmark):
    def set_up():
        device.launch(8.0)
        clock.begin_round()

    benchmark.pedantic(lambda: device.launch(2.0), setup=set_up, rounds=3, warmup_rounds=2)
    assert benchmark.stats["data"] == [2.0] * 3
    assert clock.device_seconds == [2.0] * 5
"""


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("deaf_to, outcome", [(None, "passed"), (5, "failed"), (6, "failed")])
def test_pytest_benchmark_takes_the_markers_clock(pytester: pytest.Pytester, deaf_to: int | None, outcome: str) -> None:
    """Deaf at the first measured round's start or end (two warm-up rounds wait four times), its reading is wrong."""
    pytester.makepyfile(ROUNDS_OF_A_BENCHMARK.format(deaf_to=deaf_to))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q")
    result.assert_outcomes(**{outcome: 1})


class HotDevice(QueueDevice):
    """Slows down by a quarter after a quarter of a second of work, and launches take a tenth of their work's time."""

    def product(self) -> None:
        self.now += 1e-4
        self.launch(1e-3 if self.done_at < 0.25 else 1.25e-3)


def test_a_gpu_is_timed_by_events_over_batches_before_and_under_load() -> None:
    """The launch and a wait after each batch are no part of the rate."""
    device = HotDevice()
    rate = rate_of(device.product, 100, device)
    assert (rate.burst, rate.sustained) == pytest.approx((100 / 1e-3, 100 / 1.25e-3), rel=0.03)


def test_a_cpu_has_the_rate_of_its_fastest_call_and_stops_at_one_fast_enough(device: QueueDevice) -> None:
    cpu, seconds = CpuDevice(CPU), iter([4.0, 2.0, 3.0, *[5.0] * 20])

    def work() -> None:
        device.now += next(seconds)

    assert rate_of(work, 100, cpu, enough=50.0).burst == 50.0
    rest = rate_of(work, 100, cpu)
    assert (rest.burst, rest.sustained) == (100 / 3, 100 / 3)
    assert len(list(seconds)) == 23 - 2 - (clocks._ROUNDS + 1)


def test_a_rate_is_of_what_its_work_computes_or_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves by a second a call."""
    monkeypatch.setattr(clocks, "time", Mock(perf_counter=Mock(side_effect=itertools.count())))
    monkeypatch.setattr(clocks, "_WIDTH", {"cpu": 8})
    monkeypatch.setattr(clocks, "_ARRAY_BYTES", {"cpu": 2**16})
    device = CpuDevice(CPU)
    rates = clocks.memory_rate(device), clocks.strided_rate(device), clocks.matmul_rate(PRECISIONS["fp32"], device)
    assert [rate.burst for rate in rates] == [3 * 2**16, 2**14, 2 * 8**3]
    assert rates[0].sustained == rates[0].burst


KERNEL = 0.002


def test_the_hosts_stalls_are_no_work_of_the_device_and_a_host_that_it_catches_up_with_has_no_figure() -> None:
    for stall_seconds, busy in ((0.02, 2 * KERNEL), (HOLD_SECONDS, None)):
        device = QueueDevice()

        def work(device: QueueDevice = device, stall_seconds: float = stall_seconds) -> None:
            device.launch(KERNEL)
            device.now += stall_seconds
            device.launch(KERNEL)

        found = busy_seconds(lambda device=device: device.launch(8.0), work, device, has_slices=True)  # type: ignore[misc]
        assert found == (busy and pytest.approx(busy))
    assert busy_seconds(lambda: None, device.synchronize, device, has_slices=True) is None
    assert busy_seconds(work, work, CpuDevice(CPU), has_slices=True) is None, "a CPU has no clock of its own"


def launches(device: QueueDevice, count: int, host_seconds: float) -> Callable[[], None]:
    """Operations of one kernel each, which the host takes its time to issue, in both directions of a graph."""

    def launch(value: torch.Tensor) -> torch.Tensor:
        device.now += host_seconds
        device.launch(KERNEL)
        return value + 0  # seen by a dispatch mode

    class Launched(torch.autograd.Function):
        forward = staticmethod(lambda _, value: launch(value))
        backward = staticmethod(lambda _, gradient: launch(gradient))  # type: ignore[assignment]

    def work() -> None:
        value = torch.ones((), requires_grad=True)
        for _ in range(count // 2):
            value = Launched.apply(value)  # type: ignore[no-untyped-call]
        value.backward()

    return work


def test_a_round_of_more_launches_than_the_queue_takes_has_a_figure() -> None:
    count = 6000
    for host_seconds in (KERNEL / 100, 0.9 * HOLD_SECONDS / clocks.OPERATIONS_OF_A_SLICE):
        work = launches(device := QueueDevice(longest_queue=1000), count, host_seconds)
        assert busy_seconds(lambda: None, work, device, has_slices=True) == pytest.approx(count * KERNEL)
        assert busy_seconds(lambda: None, work, device, has_slices=False) is None


@pytest.mark.parametrize("operations_before", [0, 3000])
def test_one_slice_that_the_device_caught_up_with_leaves_no_figure(operations_before: int) -> None:
    """Whichever it was: the others were ahead."""
    device = QueueDevice()
    before, after = (launches(device, count, 1e-5) for count in (operations_before, 3000))

    def work() -> None:
        before()
        device.now = device.done_at + 1.0
        after()

    assert busy_seconds(lambda: None, work, device, has_slices=True) is None


@pytest.mark.parametrize("kernel, rounds", [(KERNEL, clocks.BUSY_ROUNDS), (0.2, 1)])
def test_busy_time_is_the_median_of_a_few_short_rounds_or_one_long_one(kernel: float, rounds: int) -> None:
    device, ran = QueueDevice(), list[float]()

    def work() -> None:
        ran.append(kernel * (9 if len(ran) == 1 else 1))
        device.launch(ran[-1])

    assert busy_seconds(lambda: None, work, device, has_slices=False) == pytest.approx(kernel)
    assert len(ran) == rounds


def test_a_case_keeps_its_timing_where_only_the_busy_round_runs_out_of_memory() -> None:
    """The mode that slices it keeps tensors longer; any other error of the device is the case's."""
    for error, is_kept in ((torch.OutOfMemoryError("CUDA out of memory"), True), (RuntimeError("an assert"), False)):
        work = Mock(side_effect=error)
        with nullcontext() if is_kept else pytest.raises(RuntimeError, match="an assert"):
            assert busy_seconds(lambda: None, work, QueueDevice(), has_slices=True) is None


def test_an_empty_round_is_what_launching_and_waiting_cost_and_leaves_no_entry(
    device: QueueDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = itertools.cycle([10e-6, 10e-6, 14e-6])
    monkeypatch.setattr(device, "synchronize", lambda: setattr(device, "now", device.now + next(waits) / 2))
    clock = Clock(device)
    assert empty_round_seconds(clock, device) == pytest.approx(5e-6)
    assert (clock.device_seconds, clock.cpu_seconds) == ([], [])
    assert empty_round_seconds(clock, CpuDevice(CPU)) is None
