"""Attention alone with cold caches: what is flushed, when, and how its rows differ from those with warm caches."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.bench.workbench import Workbench
from perf_tests.cases.case import Case
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CacheFlush, CpuDevice, last_level_cache_bytes
from perf_tests.interleaved.on_demand import GatePlugin, RoundsOnDemand
from perf_tests.records.columns import cells_of
from perf_tests.records.store import Status, compare
from tests.support.example_cases import CPU, SETTINGS, attention_case, language_model_case
from tests.support.fake_device import LoopBenchmark
from tests.support.items import benchmark
from tests.support.launch import Launch, launched_once

COLD = attention_case(cache="cold")
cold = launched_once("--cold-cache", "--phase=forward", "--kernels")


class SpyClock(Clock):
    """A clock, a benchmark that reads it, and rounds, all of which write down what they do."""

    def __init__(self) -> None:
        super().__init__(CpuDevice(CPU))
        self.ran: list[str] = []
        self.flush: Any = Mock(bytes=64, side_effect=lambda: self.ran.append("flush"))
        self.target, self.setup = (lambda: self.ran.append("target")), (lambda: self.ran.append("set-up"))

    def __call__(self) -> float:
        self.ran.append("clock")
        return super().__call__()

    def pedantic(self, target: Callable[[], None], **rounds: Any) -> None:
        def timed() -> None:
            self()
            target()
            self()

        LoopBenchmark().pedantic(timed, **rounds)


def test_caches_are_flushed_once_before_each_measured_round_and_outside_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the gate before each round that it asks for; the buffer is no part of the peak."""
    monkeypatch.setattr(CpuDevice, "peaks", lambda device: (1000, None, None))
    warm_round = ["set-up", "clock", "target", "clock"]
    cold_round = ["set-up", "flush", *warm_round[1:]]
    clock, fixture, device = SpyClock(), LoopBenchmark(), CpuDevice(CPU)
    fixture.pedantic = clock.pedantic  # type: ignore[method-assign]
    TimedMeasure(fixture, clock, device, 3, 2, Row(COLD), flush=clock.flush)(clock.target, clock.setup)
    assert clock.ran == warm_round * 2 + cold_round * 3
    assert fixture.extra_info["peak_allocated_bytes"] == 1000 - 64

    def serve(one_round: Callable[[], object], seconds: Sequence[float]) -> None:
        clock.ran.clear()
        one_round()

    RoundsOnDemand(serve, clock, device, 1, flush=clock.flush)(clock.target, clock.setup)
    assert clock.ran == cold_round


@pytest.mark.parametrize("case, is_flushed", [(COLD, True), (attention_case(), False), (language_model_case(), False)])
def test_a_worker_of_the_gate_flushes_for_cold_cases_alone(case: Case, is_flushed: bool) -> None:
    device = CpuDevice(CPU)
    plugin = GatePlugin(settings=SETTINGS, channel=Mock())
    measure: Any = plugin.measure(benchmark(case), Workbench(SETTINGS, device, Clock(device), 0))
    assert isinstance(measure.flush, CacheFlush) is is_flushed


def test_timings_of_attention_alone_are_cold_and_no_others_and_never_compare_with_warm_ones(cold: Launch) -> None:
    assert cold.exit_code == 0, cold.output + cold.errors
    infos = {name: row["extra_info"] for name, row in cold.measured.items()}
    model, alone = "test_forward[tiny-ctx8-fp32-naive]", "test_attention_forward[d16-seq16-fp32-naive]"
    assert {name: info.get("cache") for name, info in infos.items()} == {model: None, alone: "cold"}
    assert infos[alone]["flushed_bytes"] >= 2 * last_level_cache_bytes(CPU)
    assert "flushed_bytes" not in infos[model]
    assert {row["identity"].get("cache") for row in cold.passes.values()} == {None}
    rows = [{**row, "extra_info": {**row["extra_info"], "cache": None}} for row in cold.record["benchmarks"]]
    (attention,) = (row for row in compare({**cold.record, "benchmarks": rows}, cold.record) if "d16" in row.id)
    assert (attention.status, attention.explanation) == (Status.INCOMPARABLE, "cache was None, is 'cold'")
    assert "naive, cold cache" in {cell.implementation for cell in cells_of(cold.record)}
