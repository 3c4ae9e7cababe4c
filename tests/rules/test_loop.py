"""The loop over rounds and the row that it makes: how long it warms up, what it flags, what it leaves out."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perf_tests.bench import loop
from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.bench.workbench import WORK, Workbench
from perf_tests.hardware.clock import Clock, product_seconds
from perf_tests.hardware.device import CpuDevice, CudaDevice
from perf_tests.hardware.machine import RoundHealth
from perf_tests.interleaved.on_demand import OneRound, RoundsOnDemand
from tests.support.example_cases import CPU, language_model_case
from tests.support.fake_device import LoopBenchmark, QueueDevice

ROW = Row(language_model_case())


def timed(target: Callable[[], object], rounds: int = 3, warmup_rounds: int = 1, **changes: Any) -> dict[str, Any]:
    """`extra_info` of rounds on a CPU, which pytest-benchmark says took a second each unless `data` says otherwise."""
    benchmark, device = LoopBenchmark(), changes.pop("device", CpuDevice(CPU))
    benchmark.stats = {"median": 1.0, "data": changes.pop("data", [1.0] * rounds)}
    row = changes.pop("row", ROW)
    TimedMeasure(benchmark, Clock(device), device, rounds, warmup_rounds, row, **changes)(target)
    return benchmark.extra_info


@pytest.mark.parametrize("warmup_rounds, generated_in_round, is_flagged", [(1, 0, False), (2, 3, True), (0, 0, True)])
def test_code_generated_in_a_measured_round_is_flagged(
    warmup_rounds: int, generated_in_round: int, is_flagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = rounds = 0

    def target() -> None:
        nonlocal graphs, rounds
        graphs += rounds in (0, generated_in_round)
        rounds += 1

    monkeypatch.setattr(loop, "count_compilations", lambda: Counter(graphs=graphs, cache_misses=graphs))
    info = timed(target, warmup_rounds=warmup_rounds)
    assert ("recompiled" in info["flags"]) == is_flagged
    assert info["suggested_warmup_rounds"] is None
    assert (info["compile_seconds"] is None) == (warmup_rounds == 0)


def test_slow_first_measured_rounds_are_flagged_with_what_to_warm_up_with() -> None:
    seconds = [3.0, 1.5, *(1.0 + 0.001 * (place % 3) for place in range(8))]
    info = timed(lambda: None, 10, 5, data=seconds)
    assert "short_warmup" in info["flags"]
    assert info["suggested_warmup_rounds"] == 7


@pytest.mark.parametrize("where, is_kept", [("cpu", True), ("cuda", False)])
def test_cpu_time_is_left_out_where_the_thread_that_waits_for_the_device_spins(where: str, is_kept: bool) -> None:
    info = timed(lambda: None, row=Row(language_model_case(device=where)))
    assert (info["cpu_seconds"] is not None) == is_kept


def test_a_skipped_step_is_a_fall_from_the_scale_before_its_round_and_warm_up_rounds_count_none() -> None:
    scales, device = iter([8.0, 4.0, 2.0, 2.0, 1.0]), CpuDevice(CPU)
    benchmark = LoopBenchmark()
    TimedMeasure(benchmark, Clock(device), device, 3, 1, ROW)(lambda: None, loss_scale=lambda: next(scales))
    assert benchmark.extra_info["skipped_steps"] == 2, "4 to 2 and 2 to 1; 8 to 4 was the warm-up round"


def test_a_product_is_timed_before_the_first_round_and_after_the_last() -> None:
    calls: list[str] = []

    def sentinel() -> float:
        calls.append("sentinel")
        return float(len(calls))

    info = timed(lambda: calls.append("round"), sentinel=sentinel)
    assert calls == ["sentinel", *["round"] * 4, "sentinel"]
    assert info["sentinel_seconds"] == [1.0, 6.0]


def test_the_product_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device, released = CpuDevice(CPU), list[bool]()
    monkeypatch.setattr(device, "release_memory", lambda: released.append(True))
    assert product_seconds(device) > 0
    assert released == [True]


@pytest.mark.parametrize("stall_seconds, is_flagged", [(0.02, True), (0.0, False)])
def test_a_row_whose_device_waits_for_the_host_says_so(
    stall_seconds: float, is_flagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, benchmark, work = QueueDevice(), LoopBenchmark(), 0.002

    def target() -> None:
        device.launch(work)
        device.now += stall_seconds
        device.launch(work)

    monkeypatch.setattr("perf_tests.hardware.clock.time", device)
    wall_seconds = 2 * work + stall_seconds - min(stall_seconds, work)
    benchmark.stats = {"median": wall_seconds, "data": [wall_seconds] * 3}
    TimedMeasure(benchmark, Clock(device), device, 3, 1, ROW)(target)
    assert benchmark.extra_info["device_busy_seconds"] == pytest.approx(2 * work)
    assert ("waits_for_host" in benchmark.extra_info["flags"]) is is_flagged


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
    for module in ("hardware.clock", "bench.loop", "interleaved.on_demand"):
        monkeypatch.setattr(f"perf_tests.{module}.time", device)
    monkeypatch.setattr(loop, "drifting_facts", lambda torch_device, health: device.facts())
    return device


@pytest.mark.parametrize("asked", [0, 2, 20])
def test_a_gpu_is_warmed_up_by_time_as_well_as_by_rounds(asked: int, device: RampingDevice) -> None:
    """And the progress line counts no round of the warm-up as a measured one."""
    numbers: list[int] = []
    health: Any = RoundHealth(device)  # type: ignore[arg-type]
    info = timed(device.work, 3, asked, device=device, on_round=numbers.append, health=health)
    ran = info["warmup_rounds_run"]
    assert ran == asked if asked != 2 else ran >= 1 + RAMP / ROUND
    assert numbers == [*(min(number, asked - 1) for number in range(ran)), *range(asked, asked + 3)]
    if asked:
        assert (info["before"], info["after"]) == ({"sm_clock_mhz": 1980}, {"sm_clock_mhz": 1980})


def test_a_side_of_the_gate_is_as_warm(device: RampingDevice) -> None:
    def serve(one_round: OneRound, warmup_seconds: Sequence[float]) -> None:
        assert device.facts() == {"sm_clock_mhz": 1980}
        assert min(warmup_seconds) == pytest.approx(ROUND)

    RoundsOnDemand(serve, Clock(device), device, 2)(device.work)


def test_work_inside_of_other_work_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that counts its case: otherwise the shares of a run add up to more than all of it."""
    readings = iter([0.0, 10.0, 14.0, 20.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    anything: Any = None
    workbench = Workbench(anything, anything, anything, 2**40)
    with workbench.spending("passes"), workbench.spending("counting"):
        pass
    assert workbench.spent_seconds == dict.fromkeys(WORK, 0) | {"counting": 4, "passes": 16}
