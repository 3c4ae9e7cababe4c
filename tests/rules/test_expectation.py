"""A time that the machine cannot reach is called impossible with its likeliest cause, and an honest one is not."""

from dataclasses import replace

import pytest
import torch

from model.training import optimizer_that_runs
from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.bench.outcomes import ImpossibleError
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.datasheets import GPUS, libraries_on
from perf_tests.predict.expectation import WALL_OVER_DEVICE, Expectation, expect, why_impossible
from tests.support.example_cases import CEILINGS as A_MACHINE
from tests.support.example_cases import attention_case, language_model_case
from tests.support.fake_device import LoopBenchmark, QueueDevice
from tests.support.launch import MODELS

RATE = 1e9
CEILINGS = replace(A_MACHINE, matmul_flops_per_second={"fp32": RATE, "bf16": RATE}, bytes_per_second=1e9)


@pytest.fixture(scope="module")
def forward() -> Expectation:
    return expect(language_model_case(), CEILINGS, None)


def test_the_least_work_of_a_counted_case_is_every_product_as_often_as_it_is_called(forward: Expectation) -> None:
    assert forward.counters is not None
    assert max(kernel.calls for kernel in forward.counters.kernels if kernel.flops) > 1
    assert forward.least_flops == {"fp32": forward.counters.executed_flops}


def seconds_at(share_of_rate: float, expectation: Expectation) -> list[float]:
    return [sum(expectation.least_flops.values()) / (share_of_rate * RATE)] * 10


def test_a_time_within_the_ceiling_and_its_margin_is_possible(forward: Expectation) -> None:
    assert why_impossible(forward, seconds_at(0.8, forward), [], None) is None
    assert why_impossible(forward, seconds_at(1.2, forward), [], None) is None


def test_a_time_beyond_both_is_impossible_and_the_sentence_has_figure_limit_and_cause(forward: Expectation) -> None:
    reason = why_impossible(forward, seconds_at(4.0, forward), [], lambda precision: RATE)
    assert reason is not None
    assert "TFLOP/s" in reason
    assert "1.25 x the best square product of this machine" in reason
    assert "a smaller batch" in reason


def test_a_ceiling_taken_on_a_busy_machine_is_taken_again_before_anybody_is_accused(forward: Expectation) -> None:
    asked: list[str] = []

    def measure_again(precision: str) -> float:
        asked.append(precision)
        return (RATE, RATE, 4 * RATE)[len(asked) - 1]

    assert why_impossible(forward, seconds_at(4.0, forward), [], measure_again) is None
    assert asked == ["fp32"] * 3


def test_a_gpu_is_held_to_its_datasheet_and_tf32_is_recognised() -> None:
    case = replace(language_model_case(), device="cuda")
    expectation = expect(case, CEILINGS, GPUS["A100-SXM-80GB"])
    flops = sum(expectation.least_flops.values())
    assert why_impossible(expectation, [flops / 19e12], [], None) is None
    reason = why_impossible(expectation, [flops / 60e12], [], None)
    assert reason is not None
    assert "the datasheet of A100-SXM-80GB" in reason
    assert "TF32 products under the name fp32" in reason
    beyond_tf32 = why_impossible(expectation, [flops / 200e12], [], None)
    assert beyond_tf32 is not None
    assert "TF32" not in beyond_tf32


def test_wall_time_may_be_a_little_below_device_time_and_no_more(forward: Expectation) -> None:
    """Events have a finite resolution."""
    for share, is_possible in ((0.99, True), (WALL_OVER_DEVICE - 0.01, False)):
        reason = why_impossible(forward, [share] * 3, [1.0] * 3, None)
        assert (reason is None) is is_possible


def test_what_cannot_be_counted_is_held_to_the_masked_half() -> None:
    """A compiler may leave out what the mask hides, and nothing else."""
    counted = expect(attention_case(), CEILINGS, None)
    compiled = expect(attention_case(attention="compiled"), CEILINGS, None)
    assert compiled.counters is None
    assert compiled.counters_reason is not None
    assert compiled.derived(1.0)["kernel_launches"] is None
    assert 2 * sum(compiled.least_flops.values()) == sum(counted.least_flops.values())


def test_an_operation_that_cannot_be_counted_takes_no_case_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: object, **_: object) -> None:
        raise NotImplementedError("aten.new")

    monkeypatch.setattr("perf_tests.predict.counters.counters_of", fail)
    expectation = expect(language_model_case(), CEILINGS, None)
    assert expectation.counters_reason == "counting failed: NotImplementedError: aten.new"
    assert expectation.derived(1.0)["bound"] is None


def test_of_a_model_that_cannot_be_played_nothing_is_sure() -> None:
    expectation = expect(language_model_case(model=f"{MODELS}:ReadsAValue", attention="own"), CEILINGS, None)
    assert expectation.least_flops == {}
    assert expectation.model_flops is None
    assert why_impossible(expectation, [1e-12], [], None) is None
    assert "cannot be played" in str(expectation.counters_reason)


def test_derived_figures_follow_from_counters_and_ceilings(forward: Expectation) -> None:
    derived = forward.derived(1.0)
    assert derived["launching_seconds"] == derived["kernel_launches"] * CEILINGS.launch_seconds
    assert derived["memory_ceiling_gigabytes_per_second"] == CEILINGS.bytes_per_second / 1e9


@pytest.mark.parametrize("share, is_over", [(0.9, False), (1.1, True)])
def test_over_the_ceiling_is_a_matter_of_arithmetic_alone(share: float, is_over: bool, forward: Expectation) -> None:
    """The memory of this machine is so slow that every cache beats it."""
    (seconds, *_) = seconds_at(share, forward)
    assert forward.derived(seconds)["roofline_fraction"] > 1
    assert forward.is_over_ceiling(seconds) == is_over


def test_the_predicted_peak_of_a_row_has_the_workspaces_of_its_gpu() -> None:
    case, hopper = attention_case(device="cuda"), libraries_on(9, "2.13.0", {})
    without, with_them = (expect(case, None, None, of).derived(1.0)["predicted_peak_bytes"] for of in (None, hopper))
    assert with_them == without + 32 * 2**20


def test_mfu_is_model_flops_over_the_datasheet_peak() -> None:
    case = language_model_case()
    expectation = expect(case, None, GPUS["A100-SXM-80GB"])
    assert expectation.derived(1e-3)["mfu"] == pytest.approx(case.forward_flops / 1e-3 / 19.5e12)
    assert expectation.derived(1e-3)["roofline_seconds"] is None


def test_an_optimizer_multiplies_no_matrices_and_is_never_accused_of_it() -> None:
    optimizer = optimizer_that_runs("default", torch.device("cpu"))
    expectation = expect(language_model_case(phase="optimizer", optimizer=optimizer), CEILINGS, None)
    assert expectation.counters is not None
    assert why_impossible(expectation, [1e-12], [], None) is None


@pytest.mark.parametrize("deaf", [False, True])
def test_a_device_that_is_not_waited_for_makes_a_case_impossible(deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds of a second each; a deaf device lets the clock be read while the work is still queued."""
    device = QueueDevice()
    monkeypatch.setattr("perf_tests.hardware.clock.time", device)
    clock, benchmark = Clock(device), LoopBenchmark()
    seconds: list[float] = []
    benchmark.stats = {"median": 0.0 if deaf else 1.0, "data": seconds}

    def timed() -> None:
        start = clock()
        device.launch(1.0)
        seconds.append(clock() - start)

    expectation = expect(language_model_case(), CEILINGS, None)
    row = Row(language_model_case(), expectation=expectation, measure_ceiling_again=lambda precision: RATE)
    measure = TimedMeasure(benchmark, clock, device, 10, 0, row)
    if deaf:
        monkeypatch.setattr(device, "synchronize", lambda: None)
        with pytest.raises(ImpossibleError, match="the clock was read before the device finished"):
            measure(timed)
    else:
        monkeypatch.setattr(device, "allocated_bytes", lambda: 512)
        measure(timed)
        assert benchmark.extra_info["allocated_before_bytes"] == 512
    assert seconds[:10] == [benchmark.stats["median"]] * 10
