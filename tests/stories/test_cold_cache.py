"""Attention alone with cold caches: what is flushed, when, and how its rows differ from those with warm caches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.bench import loop, workbench
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.device import CacheFlush, CpuDevice, last_level_cache_bytes
from perf_tests_suite.perf_tests.interleaved.on_demand import GatePlugin, OneRound, RoundsOnDemand
from perf_tests_suite.perf_tests.records import columns, store
from tests.support.example_cases import CPU, SETTINGS, attention_case, language_model_case
from tests.support.fake_device import LoopBenchmark
from tests.support.items import benchmark
from tests.support.launch import launch

COLD = attention_case(cache="cold")


class SpyClock(Clock):
    """A clock that a benchmark reads around each round, and rounds; all write down what they do."""

    def __init__(self) -> None:
        super().__init__(CpuDevice(CPU))
        self.ran: list[str] = []
        self.flush: Any = Mock(bytes=64, side_effect=lambda: self.ran.append("flush"))
        self.work = (lambda: self.ran.append("target")), (lambda: self.ran.append("set-up"))

    def __call__(self) -> float:
        self.ran.append("clock")
        return super().__call__()

    def pedantic(self, target: Callable[[], None], **rounds: Any) -> None:
        def timed() -> None:
            self()
            target()
            self()

        LoopBenchmark().pedantic(timed, **rounds)


def test_room_is_made_after_the_warm_up_and_caches_flushed_before_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the gate before each round that it asks for; outside of the time of the round."""
    warm_round = ["set-up", "clock", "target", "clock"]
    cold_round = ["set-up", "flush", *warm_round[1:]]
    clock, fixture, device = SpyClock(), LoopBenchmark(), CpuDevice(CPU)
    monkeypatch.setattr(device, "make_room", lambda: clock.ran.append("room"))
    monkeypatch.setattr(fixture, "pedantic", clock.pedantic)
    loop.TimedMeasure(fixture, clock, device, 3, 2, loop.RowBuilder(COLD), flush=clock.flush)(*clock.work)
    assert clock.ran == [*warm_round * 2, "room", *cold_round * 3]
    clock.ran.clear()

    def serve(one_round: OneRound, warmup_seconds: Sequence[float]) -> None:
        one_round()

    RoundsOnDemand(serve, clock, device, 1, flush=clock.flush)(*clock.work)
    assert clock.ran == [*cold_round, "room", *cold_round]


@pytest.mark.parametrize("case, is_flushed", [(COLD, True), (attention_case(), False), (language_model_case(), False)])
def test_a_worker_of_the_gate_flushes_for_cold_cases_alone(case: Case, is_flushed: bool) -> None:
    device = CpuDevice(CPU)
    plugin = GatePlugin(settings=SETTINGS, channel=Mock())
    measure: Any = plugin.measure(benchmark(case), workbench.Workbench(SETTINGS, device, Clock(device), 0))
    assert isinstance(measure.flush, CacheFlush) is is_flushed


def test_timings_of_attention_alone_are_cold_and_no_others_and_never_compare_with_warm_ones(tmp_path: Path) -> None:
    cold = launch(tmp_path, "--cold-cache", "--phase=forward", "--kernels", exits=0)
    infos = {name: row["extra_info"] for name, row in cold.measured.items()}
    model, alone = "test_forward[tiny-ctx8-fp32-naive]", "test_attention_forward[d16-seq16-fp32-naive]"
    assert {name: info.get("cache") for name, info in infos.items()} == {model: None, alone: "cold"}
    assert infos[alone]["flushed_bytes"] >= 2 * last_level_cache_bytes(CPU)
    assert "flushed_bytes" not in infos[model]
    assert {row["identity"].get("cache") for row in cold.passes.values()} == {None}
    rows = [{**row, "extra_info": {**row["extra_info"], "cache": None}} for row in cold.record["benchmarks"]]
    (attention,) = (row for row in store.compare({**cold.record, "benchmarks": rows}, cold.record) if "d16" in row.id)
    assert (attention.status, attention.explanation) == (store.Status.INCOMPARABLE, "cache was None, is 'cold'")
    assert "naive, cold cache" in {cell.implementation for cell in columns.cells_of(cold.record)}
