"""The clock reads the work of a round, all of it and nothing else; a device's own time leaves the host's stalls out."""

from collections.abc import Callable

import pytest
import torch

from perf_tests.hardware.clock import HOLD_SECONDS, OPERATIONS_OF_A_SLICE, Clock, busy_seconds, rate_of
from perf_tests.hardware.device import CpuDevice
from tests.support.example_cases import CPU
from tests.support.fake_device import QueueDevice

pytest_plugins = ("pytester",)

LEFT_OVER = 8.0
WORK = 2.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> QueueDevice:
    device = QueueDevice()
    monkeypatch.setattr("perf_tests.hardware.clock.time", device)
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
    clock = Clock(device)
    for _ in range(3):
        read_one_round(device, clock)
    assert device.synchronisations == 6
    assert clock.device_seconds == [WORK] * 3
    # Half of the virtual time, by the fake's process_time.
    assert clock.cpu_seconds == [WORK / 2] * 3
    clock.forget()
    assert (clock.device_seconds, clock.cpu_seconds, clock.part_seconds) == ([], [], {})


def test_the_parts_of_a_round_add_up_to_it_and_wait_for_nothing(device: QueueDevice) -> None:
    clock = Clock(device)
    device.launch(LEFT_OVER)
    clock.begin_round()
    clock()
    for part, seconds in (("forward", 1.0), ("backward", 2.0), ("optimizer", 0.5)):
        device.launch(seconds)
        clock.mark(part)
    clock()
    assert clock.part_seconds == {"forward": [1.0], "backward": [2.0], "optimizer": [0.5]}
    assert clock.device_seconds == [3.5]
    assert device.synchronisations == 2


def test_without_events_the_parts_are_wall_time(device: QueueDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "record_event", lambda: None)
    clock = Clock(device)
    clock()
    device.now += 3.0
    clock.mark("forward")
    clock()
    assert (clock.part_seconds, clock.device_seconds) == ({"forward": [3.0]}, [])


def test_a_round_that_raised_does_not_disturb_the_next(device: QueueDevice) -> None:
    clock = Clock(device)
    clock.begin_round()
    clock()
    clock.mark("forward")  # and here the target raises, before the second reading
    assert read_one_round(device, clock) == WORK
    assert (clock.device_seconds, clock.part_seconds) == ([WORK], {})


ROUNDS_OF_A_BENCHMARK = """
import pytest
from perf_tests.hardware import clock as clock_module
from tests.support.fake_device import QueueDevice

device = QueueDevice({deaf_to})
clock = clock_module.Clock(device)

@pytest.mark.benchmark(timer=clock)
def test_rounds(benchmark, monkeypatch):
    monkeypatch.setattr(clock_module, "time", device)

    def set_up():
        device.launch({left_over})
        clock.begin_round()

    benchmark.pedantic(lambda: device.launch({work}), setup=set_up, rounds=3, warmup_rounds=2)
    assert benchmark.stats["data"] == [{work}] * 3
    assert clock.device_seconds == [{work}] * 5
"""


@pytest.mark.parametrize("deaf_to, outcome", [(None, "passed"), (5, "failed"), (6, "failed")])
def test_pytest_benchmark_takes_the_markers_clock(pytester: pytest.Pytester, deaf_to: int | None, outcome: str) -> None:
    """Deaf at the first measured round's start or end (two warm-up rounds wait four times), its reading is wrong."""
    pytester.makepyfile(ROUNDS_OF_A_BENCHMARK.format(deaf_to=deaf_to, left_over=LEFT_OVER, work=WORK))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q")
    result.assert_outcomes(**{outcome: 1})


def test_a_cpu_stops_at_the_first_product_that_is_fast_enough() -> None:
    calls: list[int] = []
    rate_of(lambda: calls.append(1), 100, CpuDevice(CPU), enough=1e-6)
    assert len(calls) == 1
    rate_of(lambda: calls.append(1), 100, CpuDevice(CPU))
    assert len(calls) > 2


KERNEL = 0.002


def round_of(device: QueueDevice, stall_seconds: float) -> Callable[[], None]:
    """Two kernels, between which the host takes its time."""

    def work() -> None:
        device.launch(KERNEL)
        device.now += stall_seconds
        device.launch(KERNEL)

    return work


def test_the_hosts_stalls_are_no_work_of_the_device_and_a_host_that_it_catches_up_with_has_no_figure() -> None:
    device = QueueDevice()
    found = busy_seconds(lambda: device.launch(8.0), round_of(device, 0.02), device, has_slices=True)
    assert found == pytest.approx(2 * KERNEL)
    device = QueueDevice()
    assert busy_seconds(lambda: None, round_of(device, HOLD_SECONDS), device, has_slices=True) is None
    assert busy_seconds(lambda: None, device.synchronize, device, has_slices=True) is None


def launches(device: QueueDevice, count: int, host_seconds: float) -> Callable[[], None]:
    """Operations of one kernel each, which the host takes its time to issue, in both directions of a graph."""

    class Launched(torch.autograd.Function):
        @staticmethod
        def forward(_: object, value: torch.Tensor) -> torch.Tensor:
            return launch(value)

        @staticmethod
        def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
            return launch(gradient)

    def launch(value: torch.Tensor) -> torch.Tensor:
        device.now += host_seconds
        device.launch(KERNEL)
        return value + 0  # seen by a dispatch mode

    def work() -> None:
        value = torch.ones((), requires_grad=True)
        for _ in range(count // 2):
            value = Launched.apply(value)  # type: ignore[no-untyped-call]
        value.backward()

    return work


@pytest.mark.parametrize("host_seconds", [KERNEL / 100, 0.9 * HOLD_SECONDS / OPERATIONS_OF_A_SLICE])
def test_a_round_of_more_launches_than_the_queue_takes_has_a_figure(host_seconds: float) -> None:
    device, count = QueueDevice(longest_queue=1000), 6000
    work = launches(device, count, host_seconds)
    assert busy_seconds(lambda: None, work, device, has_slices=True) == pytest.approx(count * KERNEL)
    assert busy_seconds(lambda: None, work, device, has_slices=False) is None


@pytest.mark.parametrize("operations_before", [0, 3000], ids=["early", "late"])
def test_one_slice_that_the_device_caught_up_with_leaves_no_figure(operations_before: int) -> None:
    """Whichever it was: the others were ahead."""
    device = QueueDevice()
    before, after = launches(device, operations_before, 1e-5), launches(device, 3000, 1e-5)

    def work() -> None:
        before()
        device.now = device.done_at + 1.0
        after()

    assert busy_seconds(lambda: None, work, device, has_slices=True) is None


def test_on_a_cpu_nothing_runs_for_it() -> None:
    ran: list[str] = []
    set_up, work = (lambda: ran.append("set-up")), (lambda: ran.append("work"))
    assert busy_seconds(set_up, work, CpuDevice(CPU), has_slices=True) is None
    assert ran == []
