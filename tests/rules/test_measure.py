"""What is written down when code is generated in the wrong place."""

from collections import Counter

import pytest

from perf_tests.bench import loop as timed
from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.hardware.clock import Clock, product_seconds
from perf_tests.hardware.device import CpuDevice
from tests.support.example_cases import CPU, language_model_case
from tests.support.fake_device import LoopBenchmark


@pytest.mark.parametrize("warmup_rounds, generated_in_round, is_flagged", [(1, 0, False), (2, 3, True), (0, 0, True)])
def test_code_generated_in_a_measured_round_is_flagged(
    warmup_rounds: int, generated_in_round: int, is_flagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = rounds = 0

    def target() -> None:
        nonlocal graphs, rounds
        graphs += rounds in (0, generated_in_round)
        rounds += 1

    monkeypatch.setattr(timed, "count_compilations", lambda: Counter(graphs=graphs, cache_misses=graphs))
    device, benchmark = CpuDevice(CPU), LoopBenchmark()
    row = Row(language_model_case())
    TimedMeasure(benchmark, Clock(device), device, 3, warmup_rounds, row)(target)
    assert ("recompiled" in benchmark.extra_info["flags"]) == is_flagged
    assert benchmark.extra_info["suggested_warmup_rounds"] is None
    assert (benchmark.extra_info["compile_seconds"] is None) == (warmup_rounds == 0)


def test_slow_first_measured_rounds_are_flagged_with_what_to_warm_up_with() -> None:
    device, benchmark = CpuDevice(CPU), LoopBenchmark()
    benchmark.stats = {"median": 1.0, "data": [3.0, 1.5, *(1.0 + 0.001 * (place % 3) for place in range(8))]}
    TimedMeasure(benchmark, Clock(device), device, 10, 5, Row(language_model_case()))(lambda: None)
    assert "short_warmup" in benchmark.extra_info["flags"]
    assert benchmark.extra_info["suggested_warmup_rounds"] == 7


@pytest.mark.parametrize("where, is_kept", [("cpu", True), ("cuda", False)])
def test_cpu_time_is_left_out_where_the_thread_that_waits_for_the_device_spins(where: str, is_kept: bool) -> None:
    device, benchmark = CpuDevice(CPU), LoopBenchmark()
    TimedMeasure(benchmark, Clock(device), device, 3, 1, Row(language_model_case(device=where)))(lambda: None)
    assert (benchmark.extra_info["cpu_seconds"] is not None) == is_kept


def test_a_product_is_timed_before_the_first_round_and_after_the_last() -> None:
    device, benchmark, calls = CpuDevice(CPU), LoopBenchmark(), list[str]()

    def sentinel() -> float:
        calls.append("sentinel")
        return float(len(calls))

    row = Row(language_model_case())
    TimedMeasure(benchmark, Clock(device), device, 3, 1, row, sentinel=sentinel)(lambda: calls.append("round"))
    assert calls == ["sentinel", *["round"] * 4, "sentinel"]
    assert benchmark.extra_info["sentinel_seconds"] == [1.0, 6.0]


def test_the_product_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device, released = CpuDevice(CPU), list[bool]()
    monkeypatch.setattr(device, "release_memory", lambda: released.append(True))
    assert product_seconds(device) > 0
    assert released == [True]
