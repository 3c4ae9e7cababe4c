"""The clock reads the work of a round, all of it and nothing else, on a device that computes asynchronously."""

import pytest

from perf_tests.hardware.clock import Clock
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


def test_each_round_waits_twice_and_leaves_one_entry(device: QueueDevice) -> None:
    clock = Clock(device)
    for _ in range(3):
        read_one_round(device, clock)
    assert device.synchronisations == 6
    assert clock.device_seconds == [WORK] * 3
    # Half of the virtual time, by the fake's process_time.
    assert clock.cpu_seconds == [WORK / 2] * 3


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
    assert clock.part_seconds == {"forward": [3.0]}
    assert clock.device_seconds == []


def test_a_round_that_raised_does_not_disturb_the_next(device: QueueDevice) -> None:
    clock = Clock(device)
    clock.begin_round()
    clock()
    clock.mark("forward")  # and here the target raises, before the second reading
    assert read_one_round(device, clock) == WORK
    assert clock.device_seconds == [WORK]
    assert clock.part_seconds == {}


def test_forgetting_drops_the_rounds_of_the_last_case(device: QueueDevice) -> None:
    clock = Clock(device)
    read_one_round(device, clock)
    clock.forget()
    assert (clock.device_seconds, clock.cpu_seconds, clock.part_seconds) == ([], [], {})


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
