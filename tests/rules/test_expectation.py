"""A time that the machine cannot reach is called impossible with its likeliest cause, and an honest one is not."""

import re
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.bench.loop import RowBuilder, TimedMeasure
from perf_tests_suite.perf_tests.bench.outcomes import ImpossibleError
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.datasheets import GPUS, libraries_on
from perf_tests_suite.perf_tests.predict.expectation import WALL_OVER_DEVICE, Expectation, expect, why_impossible
from perf_tests_suite.perf_tests.records.measured import Measured
from tests.support.example_cases import CEILINGS as A_MACHINE
from tests.support.example_cases import attention_case, language_model_case
from tests.support.fake_device import LoopBenchmark, QueueDevice
from tests.support.launch import MODELS

RATE = 1e9
CEILINGS = replace(A_MACHINE, matmul_flops_per_second={"fp32": RATE, "bf16": RATE}, bytes_per_second=1e9)
A100 = GPUS["A100-SXM-80GB"]


@pytest.fixture(scope="module")
def forward() -> Expectation:
    return expect(language_model_case(), CEILINGS, None)


def derived_of(expectation: Expectation, median_seconds: float) -> Any:
    return expectation.derived(Measured(), median_seconds)


def seconds_at(share_of_rate: float, expectation: Expectation) -> list[float]:
    return [sum(expectation.least_flops.values()) / (share_of_rate * RATE)] * 10


def test_a_time_beyond_ceiling_and_margin_is_impossible_with_figure_limit_and_cause(forward: Expectation) -> None:
    """By the products alone, as often as each is called: every cache beats this machine's memory."""
    assert forward.counters is not None
    assert max(kernel.calls for kernel in forward.counters.kernels if kernel.flops) > 1
    assert forward.least_flops == {"fp32": forward.counters.executed_flops}
    for share, is_over in ((0.9, False), (1.2, True)):
        seconds = seconds_at(share, forward)
        assert why_impossible(forward, seconds, [], None) is None
        assert forward.is_over_ceiling(seconds[0]) is is_over
        assert derived_of(forward, seconds[0]).roofline_fraction > 1
    reason = str(why_impossible(forward, seconds_at(4.0, forward), [], lambda precision: RATE))
    assert re.search(r"TFLOP/s.* 1.25 x the best square product of this machine.* a smaller batch", reason)


def test_a_ceiling_taken_on_a_busy_machine_is_taken_again_before_anybody_is_accused(forward: Expectation) -> None:
    measured_again = Mock(side_effect=[RATE, RATE, 4 * RATE])
    assert why_impossible(forward, seconds_at(4.0, forward), [], measured_again) is None
    assert [one.args for one in measured_again.call_args_list] == [("fp32",)] * 3


def test_a_gpu_is_held_to_its_datasheet_and_tf32_is_recognised() -> None:
    expectation = expect(language_model_case(device="cuda"), CEILINGS, A100)
    flops = sum(expectation.least_flops.values())
    slow, in_tf32, beyond = (why_impossible(expectation, [flops / rate], [], None) for rate in (19e12, 60e12, 200e12))
    assert slow is None
    assert "the datasheet of A100-SXM-80GB" in str(in_tf32)
    assert "TF32 products under the name fp32" in str(in_tf32)
    assert "TF32" not in str(beyond)


def test_hoppers_tensor_rates_are_stated_below_its_highest_clock_and_its_fp32_rate_at_it() -> None:
    for precision, possible, impossible in (("bf16", 1060, 1090), ("fp32", 66, 68)):
        expectation = expect(attention_case(device="cuda", precision=precision), None, GPUS["H100-SXM"])
        flops = sum(expectation.least_flops.values())
        assert why_impossible(expectation, [flops / (possible * 1e12)], [], None) is None
        assert why_impossible(expectation, [flops / (impossible * 1e12)], [], None) is not None


def test_wall_time_may_be_a_little_below_device_time_and_no_more(forward: Expectation) -> None:
    """Events have a finite resolution."""
    for share, is_possible in ((0.99, True), (WALL_OVER_DEVICE - 0.01, False)):
        assert (why_impossible(forward, [share] * 3, [1.0] * 3, None) is None) is is_possible


def test_what_is_not_counted_is_held_to_the_masked_half_and_ones_own_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler may leave out what the mask hides, and nothing else; no reason costs a case its time."""
    counted, compiled = (expect(attention_case(attention=name), CEILINGS, None) for name in ("naive", "compiled"))
    own = expect(language_model_case(model=f"{MODELS}:ReadsAValue", attention="own"), CEILINGS, None)
    optimizer = expect(language_model_case(phase="optimizer", optimizer="loop"), CEILINGS, None)
    for found in (own, optimizer):
        assert (found.least_flops, why_impossible(found, [1e-12], [], None)) == ({}, None)
    assert (own.counters, own.model_flops) == (None, None)
    assert optimizer.counters is not None

    fails = Mock(side_effect=NotImplementedError("aten.new"))
    monkeypatch.setattr("perf_tests_suite.perf_tests.predict.counters.counters_of", fails)
    unknown = expect(language_model_case(), CEILINGS, None)
    figures = "executed_flops kernel_launches predicted_peak_bytes roofline_seconds roofline_fraction bound"
    for found, reason in ((compiled, "fuses"), (own, "it reads a value"), (unknown, "NotImplementedError: aten.new")):
        derived = derived_of(found, 1.0)
        assert {getattr(derived, name) for name in figures.split()} == {None}
        assert reason in derived.counters_reason
    assert 2 * sum(compiled.least_flops.values()) == sum(counted.least_flops.values())


def test_derived_figures_follow_from_counters_ceilings_and_datasheet(forward: Expectation) -> None:
    """MFU is model FLOPs over the datasheet's peak; a predicted peak has the workspaces of its GPU."""
    derived, case = derived_of(forward, 1.0), language_model_case()
    assert derived.launching_seconds == derived.kernel_launches * CEILINGS.launch_seconds
    assert derived.memory_ceiling_gigabytes_per_second == CEILINGS.bytes_per_second / 1e9
    assert derived.sustained_matmul_tflops_per_second == RATE / 1e12
    backward = derived_of(expect(language_model_case(phase="backward"), CEILINGS, None), 1.0)
    assert backward.launching_seconds == backward.kernel_launches * CEILINGS.backward_launch_seconds
    of_a100 = derived_of(expect(case, None, A100), 1e-3)
    assert of_a100.mfu == pytest.approx(case.forward_flops / 1e-3 / 19.5e12)
    assert (of_a100.roofline_seconds, derived.mfu) == (None, None)
    alone, hopper = attention_case(device="cuda"), libraries_on(9, "2.13.0", {})
    peaks = [derived_of(expect(alone, None, None, libraries), 1.0).predicted_peak_bytes for libraries in (None, hopper)]
    assert peaks[1] - peaks[0] == 32 * 2**20


def test_a_device_that_is_not_waited_for_makes_a_case_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds of a second each, whose clock is read while the work is still queued."""
    device, benchmark = QueueDevice(), LoopBenchmark()
    monkeypatch.setattr("perf_tests_suite.perf_tests.hardware.clock.time", device)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    clock, seconds = Clock(device), list[float]()
    benchmark.stats = {"median": 0.0, "data": seconds}

    def timed() -> None:
        start = clock()
        device.launch(1.0)
        seconds.append(clock() - start)

    expectation = expect(language_model_case(), CEILINGS, None)
    row = RowBuilder(language_model_case(), expectation=expectation, measure_ceiling_again=lambda precision: RATE)
    with pytest.raises(ImpossibleError, match="the clock was read before the device finished"):
        TimedMeasure(benchmark, clock, device, 10, 0, row)(timed)


def test_what_caches_may_serve_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention on 8 x 256 x 256 scores, of 2 MiB; on 8 x 2048 x 2048, of 128 MiB, a cache of 4 MiB excuses little."""
    monkeypatch.setattr(
        "perf_tests_suite.perf_tests.predict.expectation.last_level_cache_bytes", lambda device: 4 * 2**20
    )
    slow_memory = replace(CEILINGS, matmul_flops_per_second={"fp32": 1e15}, bytes_per_second=1e9)
    for length, is_excused in ((256, True), (2048, False)):
        found = expect(attention_case(sequence_length=length), slow_memory, None)
        whole = derived_of(found, 1.0).roofline_fraction
        over: Any = found.over_roofline(1.0)
        assert (over < 0.05 * whole) == is_excused
        assert is_excused or over > 0.9 * whole


def test_ceilings_are_measured_again_before_a_function_of_the_users_is_accused_by_its_roofline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perf_tests_suite.perf_tests.predict.expectation.last_level_cache_bytes", lambda device: 0)
    case, users = attention_case(), attention_case(attention="kernels/flash.py:attend")
    expectation = replace(expect(case, CEILINGS, None), case=users)
    seconds = derived_of(expectation, 1.0).roofline_seconds / 1.6
    for again, is_refused in ((1e9, True), (4e9, False)):
        ceilings = replace(CEILINGS, matmul_flops_per_second={"fp32": again}, bytes_per_second=again)
        measured_again = Mock(return_value=ceilings)
        over: Any = RowBuilder(users, expectation=expectation, ceilings_again=measured_again)._over_roofline(seconds)
        assert (over > 1.25, measured_again.call_count) == (is_refused, 5 if is_refused else 1)
    ours = RowBuilder(case, expectation=replace(expectation, case=case))
    assert ours._over_roofline(seconds) == pytest.approx(1.6)
