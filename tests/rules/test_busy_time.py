"""The time of a device's own work leaves the host's stalls out, or is null; between two events alone they are in it."""

from collections.abc import Callable

import pytest
import torch

from perf_tests.hardware.clock import HOLD_SECONDS, OPERATIONS_OF_A_SLICE, busy_seconds
from perf_tests.hardware.device import CpuDevice
from tests.support.example_cases import CPU
from tests.support.fake_device import QueueDevice

WORK = 0.002


def round_of(device: QueueDevice, stall_seconds: float) -> Callable[[], None]:
    """Two kernels, between which the host takes its time."""

    def work() -> None:
        device.launch(WORK)
        device.now += stall_seconds
        device.launch(WORK)

    return work


def test_the_hosts_stalls_are_no_work_of_the_device() -> None:
    device = QueueDevice()
    assert busy_seconds(lambda: device.launch(8.0), round_of(device, 0.02), device, has_slices=True) == pytest.approx(
        2 * WORK
    )


def test_a_host_that_the_device_catches_up_with_has_no_figure() -> None:
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
        device.launch(WORK)
        return value + 0  # seen by a dispatch mode

    def work() -> None:
        value = torch.ones((), requires_grad=True)
        for _ in range(count // 2):
            value = Launched.apply(value)  # type: ignore[no-untyped-call]
        value.backward()

    return work


@pytest.mark.parametrize("host_seconds", [WORK / 100, 0.9 * HOLD_SECONDS / OPERATIONS_OF_A_SLICE])
def test_a_round_of_more_launches_than_the_queue_takes_has_a_figure(host_seconds: float) -> None:
    device, count = QueueDevice(longest_queue=1000), 6000
    work = launches(device, count, host_seconds)
    assert busy_seconds(lambda: None, work, device, has_slices=True) == pytest.approx(count * WORK)
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
    assert (
        busy_seconds(lambda: ran.append("set-up"), lambda: ran.append("work"), CpuDevice(CPU), has_slices=True) is None
    )
    assert ran == []
