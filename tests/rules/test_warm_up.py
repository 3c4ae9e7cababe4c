"""A GPU is warmed up by time as well as by rounds, and the record says how many rounds that took."""

from collections.abc import Sequence
from typing import Any

import pytest

from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CudaDevice
from perf_tests.hardware.machine import RoundHealth
from perf_tests.interleaved.worker import OneRound, ServedMeasure
from tests.support.example_cases import language_model_case
from tests.support.fake_device import LoopBenchmark, QueueDevice

RAMP, ROUND, COMPILING = 0.3, 0.05, 40.0


class RampingDevice(QueueDevice):
    """Its clock rate rises from 345 to 1980 MHz once it has worked for its time; the first round compiles before."""

    warm_up_seconds = CudaDevice.warm_up_seconds

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def work(self) -> None:
        self.rounds += 1
        self.now += COMPILING if self.rounds == 1 else 0.0
        self.launch(ROUND)

    def facts(self) -> dict[str, Any]:
        return {"sm_clock_mhz": 1980 if self.rounds * ROUND > RAMP else 345}

    def is_throttled(self) -> bool:
        return False

    def energy_joules(self) -> None:
        return None


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> RampingDevice:
    device = RampingDevice()
    for module in ("hardware.clock", "bench.loop", "interleaved.worker"):
        monkeypatch.setattr(f"perf_tests.{module}.time", device)
    monkeypatch.setattr("perf_tests.bench.loop.drifting_facts", lambda torch_device, health: device.facts())
    return device


def timed(device: RampingDevice, warmup_rounds: int) -> tuple[dict[str, Any], list[int]]:
    """`extra_info`, and the number that the progress line got for each round."""
    benchmark = LoopBenchmark()
    numbers: list[int] = []
    health: Any = RoundHealth(device)  # type: ignore[arg-type]
    row = Row(language_model_case())
    TimedMeasure(benchmark, Clock(device), device, 3, warmup_rounds, row, numbers.append, health)(device.work)
    return benchmark.extra_info, numbers


def test_a_timing_starts_at_the_clock_rate_of_its_rounds(device: RampingDevice) -> None:
    info, numbers = timed(device, 2)
    assert info["warmup_rounds_run"] >= 1 + RAMP / ROUND
    assert (info["before"], info["after"]) == ({"sm_clock_mhz": 1980}, {"sm_clock_mhz": 1980})
    assert numbers == [0, *[1] * (info["warmup_rounds_run"] - 1), 2, 3, 4]


def test_as_many_rounds_as_asked_for_run_where_they_take_longer(device: RampingDevice) -> None:
    assert timed(device, 20)[0]["warmup_rounds_run"] == 20


def test_no_warm_up_stays_none(device: RampingDevice) -> None:
    assert timed(device, 0)[0]["warmup_rounds_run"] == 0


def test_a_side_of_the_gate_is_as_warm(device: RampingDevice) -> None:
    def serve(one_round: OneRound, warmup_seconds: Sequence[float]) -> None:
        assert device.facts() == {"sm_clock_mhz": 1980}
        assert min(warmup_seconds) == pytest.approx(ROUND)

    ServedMeasure(serve, Clock(device), device, 2)(device.work)
