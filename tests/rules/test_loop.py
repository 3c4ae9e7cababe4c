"""The loop over rounds and its row: what a round is, how long it warms up, what a row flags and leaves out."""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.perf_tests.bench import loop
from perf_tests_suite.perf_tests.bench.checked_rounds import Check, Draws, Slices
from perf_tests_suite.perf_tests.bench.loop import Rounds, RowBuilder, TimedMeasure
from perf_tests_suite.perf_tests.bench.workbench import WORK, Workbench
from perf_tests_suite.perf_tests.hardware.clock import Clock, product_seconds
from perf_tests_suite.perf_tests.hardware.device import CpuDevice, CudaDevice
from perf_tests_suite.perf_tests.hardware.machine import RoundHealth
from perf_tests_suite.perf_tests.interleaved.on_demand import OneRound, RoundsOnDemand
from tests.support.example_cases import CPU, language_model_case
from tests.support.fake_device import LoopBenchmark, QueueDevice


def test_nothing_of_the_last_round_is_alive_while_the_next_is_set_up() -> None:
    """Neither arguments nor result nor what a benchmark leaves beside them."""
    seen: list[weakref.ref[torch.Tensor]] = []
    left: list[torch.Tensor] = []

    def new(value: torch.Tensor) -> torch.Tensor:
        seen.append(weakref.ref(value))
        return value

    def setup() -> tuple[torch.Tensor]:
        assert [reference() for reference in seen] == [None] * len(seen)
        return (new(torch.ones(1)),)

    def target(tensor: torch.Tensor) -> torch.Tensor:
        left.append(new(tensor + 1))
        return new(tensor + 2)

    rounds = Rounds(target, setup, forget_more=left.clear)
    for number in range(3):
        rounds.run_round()
        assert rounds.result.item() == 3, "the target gets what the set-up returns"
        assert (len(seen), len(left)) == (3 * number + 3, 1)
        assert seen[-3]() is None, "only the result outlives a round"


ROW = RowBuilder(language_model_case())


def timed(target: Callable[[], object], rounds: int = 3, warmup_rounds: int = 1, **changes: Any) -> dict[str, Any]:
    """`extra_info` of rounds on a CPU, which pytest-benchmark says took a second each unless `data` says otherwise."""
    benchmark, device = LoopBenchmark(), changes.pop("device", CpuDevice(CPU))
    data = changes.pop("data", [1.0] * rounds)
    benchmark.stats = {"median": sorted(data)[len(data) // 2], "data": data}
    of_call = ("loss_scale", "setup", "renew", "check")
    called = {name: changes.pop(name) for name in of_call if name in changes}
    row = changes.pop("row", ROW)
    TimedMeasure(benchmark, Clock(device), device, rounds, warmup_rounds, row, **changes)(target, **called)
    return benchmark.extra_info


@pytest.mark.parametrize("warmup_rounds, generated_in_round, is_flagged", [(1, 0, False), (2, 3, True), (0, 0, True)])
def test_code_generated_in_a_measured_round_is_flagged(
    warmup_rounds: int, generated_in_round: int, is_flagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bool] = []
    monkeypatch.setattr(loop, "count_compilations", lambda: Counter(graphs=sum(ran), cache_misses=sum(ran)))
    info = timed(lambda: ran.append(len(ran) in (0, generated_in_round)), warmup_rounds=warmup_rounds)
    assert ("recompiled" in info["flags"], info["suggested_warmup_rounds"]) == (is_flagged, None)
    assert (info["compile_seconds"] is None) == (warmup_rounds == 0)


def test_slow_first_measured_rounds_are_flagged_with_what_to_warm_up_with() -> None:
    info = timed(lambda: None, 10, 5, data=[3.0, 1.5, *(1.0 + 0.001 * (place % 3) for place in range(8))])
    assert ("short_warmup" in info["flags"], info["suggested_warmup_rounds"]) == (True, 7)


def test_cpu_time_is_left_out_where_the_thread_that_waits_for_the_device_spins() -> None:
    infos = {where: timed(lambda: None, row=RowBuilder(language_model_case(device=where))) for where in ("cpu", "cuda")}
    assert {where: info["cpu_seconds"] is not None for where, info in infos.items()} == {"cpu": True, "cuda": False}


def test_rates_are_of_the_median_and_a_share_is_of_products_that_are_executed() -> None:
    """Fused attention skips the masked half of the square, and a checkpoint computes it again."""
    case = language_model_case()
    info = timed(lambda: None, data=[4.0, 2.0, 2.0], row=RowBuilder(case, matmul_flops_per_second=1e12))
    assert case.model_flops is not None
    rate = pytest.approx(case.model_flops / 2.0 / 1e12)
    names = ("tokens_per_second", "matmul_ceiling_tflops_per_second", "tflops_per_second", "share_of_matmul_ceiling")
    assert [info[name] for name in names] == [2 * 8 / 2.0, 1.0, rate, rate]
    for other in (language_model_case(attention="sdpa"), language_model_case(checkpoint="block")):
        info = timed(lambda: None, row=RowBuilder(other, matmul_flops_per_second=1e12))
        assert info["share_of_matmul_ceiling"] is None


def test_the_buffer_that_flushes_caches_is_no_memory_of_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice(CPU)
    monkeypatch.setattr(device, "allocated_bytes", lambda: 100)
    monkeypatch.setattr(device, "peaks", lambda: (120, 115, 200))
    for flush, held in ((Mock(bytes=30), (70, 90, 85, 170)), (None, (100, 120, 115, 200))):
        info = timed(lambda: None, rounds=3, warmup_rounds=2, device=device, flush=flush)
        kinds = ("allocated", "requested", "reserved")
        names = ("allocated_before_bytes", *(f"peak_{kind}_bytes" for kind in kinds))
        assert tuple(info[name] for name in names) == held
        assert info.get("flushed_bytes") == (flush and 30)
        assert flush is None or flush.call_count == 3


def test_what_a_profiler_tells_is_asked_once_the_rounds_are_timed() -> None:
    ran: list[str] = []

    def ask() -> str:
        ran.append("asked")
        return "math"

    info = timed(lambda: ran.append("round"), row=RowBuilder(language_model_case(attention="sdpa"), sdpa_backend=ask))
    assert (ran[-1], ran.count("asked"), info["sdpa_backend"]) == ("asked", 1, "math")
    assert "math_attention" in info["flags"]


def test_new_values_are_written_before_the_set_up_and_slices_kept_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the slices take is in no peak."""
    did: list[str] = []
    peak = {"bytes": 120}

    class Kept(Check):
        about, reruns = "all", 0

        def before(self) -> Slices:
            did.append("before")
            return {}

        def after(self, result: Any) -> Slices:
            did.append("after")
            peak["bytes"] = 500
            return {}

    device = CpuDevice(CPU)
    monkeypatch.setattr(device, "peaks", lambda: (peak["bytes"], None, peak["bytes"]))
    monkeypatch.setattr(device, "start_peaks", lambda: peak.update(bytes=100))

    def target() -> None:
        did.append("round")
        peak["bytes"] = max(120, peak["bytes"])

    info = timed(
        target, 2, 1, device=device, flush=Mock(side_effect=lambda: did.append("flush"), bytes=0),
        draws=Draws(3, "case"), row=RowBuilder(language_model_case()), check=Kept,
        setup=lambda: did.append("set-up"), renew=lambda generator: did.append("write"),
    )  # fmt: skip
    of_round = did[did.index("before") - 2 :][:8]
    assert of_round == ["write", "set-up", "before", "flush", "round", "after", "write", "set-up"]
    assert did.count("write") == 3
    assert info["peak_allocated_bytes"] == 120
    assert list(info)[-2:] == ["values_seed", "checked"]
    assert (info["values_seed"], info["checked"]["rounds"]) == (3, [1, 2])


def test_a_skipped_step_is_a_fall_from_the_scale_before_its_round_and_warm_up_rounds_count_none() -> None:
    scales = iter([8.0, 4.0, 2.0, 2.0, 1.0])
    info = timed(lambda: None, loss_scale=lambda: next(scales))
    assert info["skipped_steps"] == 2, "4 to 2 and 2 to 1; 8 to 4 was the warm-up round"


def test_a_product_is_timed_before_the_first_round_and_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def sentinel() -> float:
        calls.append("sentinel")
        return float(len(calls))

    info = timed(lambda: calls.append("round"), sentinel=sentinel)
    assert calls == ["sentinel", *["round"] * 4, "sentinel"]
    assert info["sentinel_seconds"] == [1.0, 6.0]
    device, released = CpuDevice(CPU), list[bool]()
    monkeypatch.setattr(device, "release_memory", lambda: released.append(True))
    assert product_seconds(device) > 0
    assert released == [True], "its memory goes back"


RAMP, ROUND, COMPILING = 0.3, 0.05, 40.0
TOLD_LATER = ("throttle_reasons", "sm_clock_mhz", "energy_joules")


class RampingDevice(QueueDevice):
    """Its clock rate rises from 345 to 1980 MHz once it has worked for its time; the first round compiles before."""

    warm_up_seconds, rounds = CudaDevice.warm_up_seconds, 0

    def work(self) -> None:
        self.rounds += 1
        self.now += COMPILING if self.rounds == 1 else 0.0
        self.launch(ROUND)

    def facts(self) -> dict[str, Any]:
        return {"sm_clock_mhz": 1980 if self.rounds * ROUND > RAMP else 345}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> RampingDevice:
    device = RampingDevice()
    for module in ("hardware.clock", "bench.loop", "interleaved.on_demand"):
        monkeypatch.setattr(f"perf_tests_suite.perf_tests.{module}.time", device)
    monkeypatch.setattr(loop, "drifting_facts", lambda torch_device, health: device.facts())
    return device


def test_a_device_that_waits_for_the_host_is_told(device: RampingDevice) -> None:
    work = 0.002
    for stall_seconds, is_flagged in ((0.02, True), (0.0, False)):

        def target(stall_seconds: float = stall_seconds) -> None:
            device.launch(work)
            device.now += stall_seconds
            device.launch(work)

        wall_seconds = 2 * work + stall_seconds - min(stall_seconds, work)
        info = timed(target, data=[wall_seconds] * 3, device=device)
        assert info["device_busy_seconds"] == pytest.approx(2 * work)
        assert ("waits_for_host" in info["flags"]) is is_flagged


@pytest.mark.parametrize("asked", [0, 2, 20])
def test_a_gpu_is_warmed_up_by_time_as_well_as_by_rounds(asked: int, device: RampingDevice) -> None:
    """And the progress line counts no round of the warm-up as a measured one."""
    numbers: list[int] = []
    health = RoundHealth(Mock(**{f"{name}.return_value": None for name in TOLD_LATER}))
    info = timed(device.work, 3, asked, device=device, on_round=numbers.append, health=health)
    ran = info["warmup_rounds_run"]
    assert ran == asked if asked != 2 else ran >= 1 + RAMP / ROUND
    assert numbers == [*(min(number, asked - 1) for number in range(ran)), *range(asked, asked + 3)]
    assert ("first_round_seconds" in info) == (asked > 0)
    if asked:
        assert (info["before"]["sm_clock_mhz"], info["after"]["sm_clock_mhz"]) == (1980, 1980)
        assert (info["first_setup_seconds"], info["first_round_seconds"]) == (0, pytest.approx(COMPILING + ROUND))


def test_a_side_of_the_gate_is_as_warm(device: RampingDevice) -> None:
    def serve(one_round: OneRound, warmup_seconds: Sequence[float]) -> None:
        assert device.facts() == {"sm_clock_mhz": 1980}
        assert min(warmup_seconds) == pytest.approx(ROUND)

    RoundsOnDemand(serve, Clock(device), device, 2)(device.work)


def test_work_inside_of_other_work_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that counts its case: otherwise the shares of a run add up to more than all of it."""
    anything: Any = None
    workbench = Workbench(anything, anything, anything, 2**40)
    readings = iter([0.0, 10.0, 14.0, 20.0])
    monkeypatch.setattr("perf_tests_suite.perf_tests.bench.workbench.time", Mock(perf_counter=lambda: next(readings)))
    with workbench.spending("passes"), workbench.spending("counting"):
        pass
    assert workbench.spent_seconds == dict.fromkeys(WORK, 0) | {"counting": 4, "passes": 16}
