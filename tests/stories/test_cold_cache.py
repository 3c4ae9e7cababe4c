"""Attention alone with cold caches: what is flushed, when, and how its rows differ from those with warm caches."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.bench.workbench import Workbench
from perf_tests.cases.case import Case
from perf_tests.hardware import device as cache_flush
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CacheFlush, CpuDevice, last_level_cache_bytes, listed_cache_bytes
from perf_tests.interleaved.on_demand import GatePlugin, RoundsOnDemand
from perf_tests.records.columns import cells_of
from perf_tests.records.store import Status, compare
from tests.support.example_cases import CPU, SETTINGS, attention_case, language_model_case
from tests.support.fake_device import LoopBenchmark
from tests.support.items import benchmark
from tests.support.launch import Launch, launched_once

WARM_UP, ROUNDS = 2, 3
MIB = 2**20

COLD = attention_case(cache="cold")

WARM_ROUND = ["set-up", "clock", "target", "clock"]
COLD_ROUND = ["set-up", "flush", "clock", "target", "clock"]

cold = launched_once("--cold-cache", "--phase=forward", "--kernels")


class SpyDevice(CpuDevice):
    def peak_allocated_bytes(self) -> int:
        return 1000


class SpyClock(Clock):
    """A clock, a benchmark that reads it, and rounds, all of which write down what they do."""

    def __init__(self) -> None:
        super().__init__(SpyDevice(CPU))
        self.ran: list[str] = []
        self.benchmark = LoopBenchmark()
        pedantic = self.benchmark.pedantic
        self.benchmark.pedantic = lambda target, **rounds: pedantic(self.around(target), **rounds)  # type: ignore[method-assign]
        self.flush: Any = Mock(bytes=64, side_effect=lambda: self.ran.append("flush"))

    def __call__(self) -> float:
        self.ran.append("clock")
        return super().__call__()

    def around(self, target: Callable[[], None]) -> Callable[[], None]:
        def timed() -> None:
            self()
            target()
            self()

        return timed

    def target(self) -> None:
        self.ran.append("target")

    def setup(self) -> None:
        self.ran.append("set-up")


@pytest.fixture
def clock() -> SpyClock:
    return SpyClock()


def test_caches_are_flushed_once_before_each_measured_round_and_outside_of_its_time(clock: SpyClock) -> None:
    row, device = Row(COLD), SpyDevice(CPU)
    measure = TimedMeasure(clock.benchmark, clock, device, ROUNDS, WARM_UP, row, flush=clock.flush)
    measure(clock.target, clock.setup)
    assert clock.ran == WARM_ROUND * WARM_UP + COLD_ROUND * ROUNDS


def test_the_buffer_is_no_part_of_the_peak(clock: SpyClock) -> None:
    TimedMeasure(clock.benchmark, clock, SpyDevice(CPU), 3, 1, Row(COLD), flush=clock.flush)(clock.target)
    assert clock.benchmark.extra_info["peak_allocated_bytes"] == 1000 - 64


def test_the_gate_flushes_before_each_round_that_it_asks_for(clock: SpyClock) -> None:
    def serve(one_round: Callable[[], object], seconds: Sequence[float]) -> None:
        clock.ran.clear()
        one_round()

    RoundsOnDemand(serve, clock, SpyDevice(CPU), 1, flush=clock.flush)(clock.target, clock.setup)
    assert clock.ran == COLD_ROUND


@pytest.mark.parametrize("case, is_flushed", [(COLD, True), (attention_case(), False), (language_model_case(), False)])
def test_a_worker_of_the_gate_flushes_for_cold_cases_alone(case: Case, is_flushed: bool) -> None:
    device = SpyDevice(CPU)
    plugin = GatePlugin(settings=SETTINGS, channel=Mock())
    measure: Any = plugin.measure(benchmark(case), Workbench(SETTINGS, device, Clock(device), 0))
    assert isinstance(measure.flush, CacheFlush) is is_flushed


def test_twice_the_last_level_cache_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_flush, "last_level_cache_bytes", lambda device: 3 * MIB // 2 + 1)
    flush = CacheFlush(CPU)
    flush()
    assert flush.bytes == 4 * MIB
    assert bool((flush._buffer == 1).all())


def test_the_cache_of_a_gpu_is_its_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=50 * MIB))
    assert last_level_cache_bytes(torch.device("cuda", 0)) == 50 * MIB


def test_the_cache_of_a_cpu_is_each_last_level_cache_of_its_own_processors_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    for processor, shared_by in enumerate(["0-1", "0-1", "2-3", "2-3", "4"]):
        for level, size in ((2, "512K"), (3, "4096K")):
            cache = tmp_path / f"cpu{processor}" / "cache" / f"index{level}"
            cache.mkdir(parents=True)
            for name, content in (("level", level), ("size", size), ("shared_cpu_list", shared_by)):
                (cache / name).write_text(f"{content}\n")
    assert listed_cache_bytes(tmp_path) == 2 * 4 * MIB


def test_a_cpu_whose_caches_are_not_listed_gets_a_stated_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listed_cache_bytes(tmp_path) == 0
    monkeypatch.setattr(cache_flush, "listed_cache_bytes", lambda _: 0)
    assert last_level_cache_bytes(CPU) == 256 * MIB


def test_timings_of_attention_alone_are_cold_and_passes_and_models_are_not(cold: Launch) -> None:
    assert cold.exit_code == 0, cold.output + cold.errors
    infos = {name: row["extra_info"] for name, row in cold.measured.items()}
    model, alone = "test_forward[tiny-ctx8-fp32-naive]", "test_attention_forward[d16-seq16-fp32-naive]"
    assert {name: info.get("cache") for name, info in infos.items()} == {model: None, alone: "cold"}
    assert {name: "flushed_bytes" in info for name, info in infos.items()} == {model: False, alone: True}
    assert infos[alone]["flushed_bytes"] >= 2 * last_level_cache_bytes(CPU)
    assert {row["identity"].get("cache") for row in cold.passes.values()} == {None}


def test_cold_and_warm_rows_never_compare_and_a_table_tells_them_apart(cold: Launch) -> None:
    rows = [{**row, "extra_info": {**row["extra_info"], "cache": None}} for row in cold.record["benchmarks"]]
    (attention,) = (row for row in compare({**cold.record, "benchmarks": rows}, cold.record) if "d16" in row.id)
    assert (attention.status, attention.explanation) == (Status.INCOMPARABLE, "cache was None, is 'cold'")
    assert "naive, cold cache" in {cell.implementation for cell in cells_of(cold.record)}
