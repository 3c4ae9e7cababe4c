"""One measured pass of a host narrows the ranges of others there; what nothing explains is refused with why."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.perf_tests.hardware.datasheets import Room, gpu_named
from perf_tests_suite.perf_tests.hardware.limits import Spread, ceilings_of, predicted_time
from perf_tests_suite.perf_tests.predict.calibration import (
    HOST_OF_PRECISION,
    KNOWN_DEVICE,
    LIKE_HOST,
    OTHER_DEVICE,
    OTHER_HOST,
    Calibration,
    calibration_of,
    recorded_passes,
    told_by,
    typed_pass,
)
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.step import TargetMachine, parts_of, predict_case
from tests.support.example_cases import language_model_case
from tests.support.synthetic import record, timed, write_record

MACHINE = TargetMachine("H100-SXM", "cuda", Room(10**12, "made up"), ceilings_of(gpu_named("H100")), True)
CASE = language_model_case(phase="forward", device="cuda")
PARTS = parts_of(CASE, counters_of(CASE))


def seconds_of(host: float = 1.0, device: float = 1.0) -> float:
    spread = Spread((host,) * 3, (device,) * 3)
    return predicted_time(PARTS, MACHINE.ceilings, spread=spread).seconds


def measured(seconds: float, name: str = "it") -> Any:
    return replace(typed_pass("forward tiny 64 fp32=1ms", MACHINE), case=CASE, seconds=seconds, name=name)


def test_a_time_tells_launches_where_it_is_clearly_longer_than_kernels_and_else_the_device() -> None:
    told, figure = told_by(seconds_of(host=3.0), PARTS, MACHINE.ceilings)
    assert (told, round(figure, 3)) == ("host", 3.0)
    slow = replace(MACHINE.ceilings, bytes_per_second=1e6)
    told, figure = told_by(1.1 * predicted_time(PARTS, slow).kernel_seconds, PARTS, slow)
    assert (told, round(figure, 1)) == ("device", 1.1)


def test_a_range_is_narrowest_for_a_like_pass_and_without_a_figure_of_the_host_that_of_any() -> None:
    known = Calibration({("forward", "bf16"): 2.0}, None, ())
    for phase, precision, (low, high) in (
        ("forward", "bf16", LIKE_HOST), ("backward", "bf16", HOST_OF_PRECISION), ("forward", "fp32", OTHER_HOST),
    ):  # fmt: skip
        assert known.spread(phase, precision) == Spread(
            (2 * low, 2.0, 2 * high), (OTHER_DEVICE[0], 1.0, OTHER_DEVICE[1])
        )
    of_device = Calibration({}, 1.5, ()).spread("forward", "fp32")
    assert of_device == Spread(None, (1.5 * KNOWN_DEVICE[0], 1.5, 1.5 * KNOWN_DEVICE[1]))


def test_only_a_calibrated_machine_has_other_ranges_and_they_say_how_wide_they_were() -> None:
    known = replace(MACHINE, calibration=calibration_of([measured(seconds_of(host=2.0))], MACHINE))
    plain, narrow = (predict_case(CASE, machine) for machine in (MACHINE, known))
    assert plain.without_calibration is None
    assert narrow.without_calibration == plain.time
    assert narrow.time.seconds == pytest.approx(seconds_of(host=2.0))
    assert narrow.time.high_seconds / narrow.time.low_seconds == pytest.approx(LIKE_HOST[1] / LIKE_HOST[0], rel=0.01)
    assert plain.time.high_seconds / plain.time.low_seconds == pytest.approx(4, rel=0.01)


def test_what_nothing_explains_and_what_contradicts_itself_is_refused() -> None:
    for seconds, cause in (
        (seconds_of(host=20.0), "a busy machine"),
        (seconds_of() / 1e3, "another card or precision"),
    ):
        with pytest.raises(ValueError, match=f"it calibrates nothing: H100-SXM is predicted .* Most likely {cause}"):
            calibration_of([measured(seconds)], MACHINE)
    pair = [measured(seconds_of(host=1.0), "the first"), measured(seconds_of(host=3.0), "the second")]
    with pytest.raises(ValueError, match=r"the first and the second contradict each other: .* 3\.0 x as long"):
        calibration_of(pair, MACHINE)
    # Of one pass even where one time tells launches and the other kernels.
    pair_of_kinds = [typed_pass(f"full_step small 512 bf16={milliseconds}ms", MACHINE) for milliseconds in (41, 240)]
    with pytest.raises(ValueError, match=r"in 41 ms and .* in 240 ms contradict each other: .* 5\.9 x as long"):
        calibration_of(pair_of_kinds, MACHINE)
    other = replace(pair[1], case=replace(CASE, precision="bf16"))
    assert len(calibration_of([pair[0], other], MACHINE).hosts) == 2
    with pytest.raises(ValueError, match="computes while it launches"):
        calibration_of(pair, replace(MACHINE, ceilings=replace(MACHINE.ceilings, launches_overlap=False)))


@pytest.mark.parametrize("text, words", [
    ("full_step small", "is not of the form 'full_step small 512 bf16=41.2ms'"),
    ("optimizer small 512 fp32=3ms", "optimizer says nothing of a model's launches; calibrate with forward"),
    ("attention_forward small 512 fp32=3ms", "says nothing of a model's launches"),
    ("warm small 512 fp32=3ms", "warm is unknown"), ("forward smal 512 fp32=3ms", "'smal' is unknown"),
    ("forward small 512 fp64=3ms", "--measured: precision 'fp64' is unknown"),
])  # fmt: skip
def test_a_time_that_is_typed_wrongly_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        typed_pass(text, MACHINE)


def test_a_typed_time_is_of_the_pass_that_it_names() -> None:
    found = typed_pass(" full_step  tiny 64 bf16 = 41.2 ms", MACHINE, "loop")
    case = found.case
    assert (case.phase, case.size, case.context_length, case.precision) == ("full_step", "tiny", 64, "bf16")
    assert (case.batch_size, case.optimizer, round(found.seconds, 6)) == (4, "loop", 0.0412)


def record_on(path: Path, gpu: str | None, flags: Sequence[str] = (), phase: str = "forward") -> Path:
    row = timed(seconds=[0.1] * 3, **{**CASE.identity(), "phase": phase})
    row["extra_info"]["flags"] = [*flags]
    return write_record(path, record([row], gpu=None if gpu is None else {"name": gpu}))


@pytest.mark.parametrize("gpu, flags, phase, words", [
    (None, [], "forward", "was recorded on a CPU, .*; calibrate H100-SXM with a record of that card"),
    ("NVIDIA A100-SXM4-80GB", [], "forward", "was recorded on NVIDIA A100-SXM4-80GB; calibrate H100-SXM"),
    ("NVIDIA H100 80GB HBM3", ["busy_machine"], "forward", r"is flagged \(busy machine\); measure it again"),
    ("NVIDIA H100 80GB HBM3", [], "optimizer", "has no row that calibrates"),
])  # fmt: skip
def test_a_record_of_another_card_a_cpu_a_busy_machine_or_an_optimizer_is_refused(
    gpu: str | None, flags: list[str], phase: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        recorded_passes(record_on(tmp_path / "record.json", gpu, flags, phase), MACHINE)


def test_a_record_of_the_card_gives_each_of_its_passes(tmp_path: Path) -> None:
    (found,) = recorded_passes(record_on(tmp_path / "record.json", "NVIDIA H100 80GB HBM3"), MACHINE)
    assert (found.case, round(found.seconds, 6)) == (CASE, 0.1)
