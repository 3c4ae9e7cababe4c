"""Of several checkpoints the best is named by the rule, and its peak is the allocator's."""

import gc
import json
from dataclasses import replace

import pytest

from model.sizes import ModelConfig
from perf_tests.__main__ import main
from perf_tests.hardware.datasheets import Room
from perf_tests.phases import FULL_STEP
from perf_tests.predict.counters import counters_of
from perf_tests.predict.step import CheckpointChoice, TargetMachine, choose_checkpoint, worthwhile_checkpoints
from tests.support.allocator_peak import PEAK_LIMIT, predicted_and_measured
from tests.support.example_cases import CEILINGS, language_model_case

CONFIG = ModelConfig(d_model=64, d_ff=256, num_layers=6, num_heads=4, vocab_size=50, context_length=128)
CASE = language_model_case(CONFIG, phase="full_step", size="six layers", batch_size=4, optimizer="loop")


def machine(room_bytes: int = 10**12) -> TargetMachine:
    return TargetMachine("this CPU", "cpu", Room(room_bytes, "made up"), CEILINGS, False)


def test_the_checkpoint_that_is_named_is_the_allocators_best() -> None:
    peaks = {one: step_peaks(one) for one in ("none", "block", "2", "6")}
    assert max(abs(predicted / measured - 1) for predicted, measured in peaks.values()) <= PEAK_LIMIT
    named = str(choose_checkpoint(CASE, list(peaks), machine()).smallest.case.identity()["checkpoint"])
    assert named == "block"
    assert peaks[named][1] <= min(measured for _, measured in peaks.values()) * (1 + PEAK_LIMIT)


def step_peaks(checkpoint: str) -> tuple[int, int]:
    """Predicted and measured bytes of a full step."""
    found = predicted_and_measured(replace(CASE, checkpoint=checkpoint))[FULL_STEP]
    gc.collect()  # a model in training is a cycle: without this two of them would stand side by side
    return found


def test_what_lies_between_the_offered_numbers_is_never_smaller() -> None:
    assert worthwhile_checkpoints(6) == ["none", "attention", "block", "2", "3", "6"]
    peaks = {n: counters_of(replace(CASE, checkpoint=str(n))).peak_bytes for n in (3, 4, 5)}
    assert peaks[3] <= peaks[4] <= peaks[5]  # two checkpoints each


def choice_in(room_bytes: int) -> CheckpointChoice:
    return choose_checkpoint(CASE, ["none", "block", "6"], machine(room_bytes))


def name(choice: CheckpointChoice) -> str | None:
    fastest = choice.fastest_that_fits
    return None if fastest is None else str(fastest.case.identity()["checkpoint"])


def test_the_fastest_that_fits_recomputes_only_where_it_must() -> None:
    peaks = {step.case.identity()["checkpoint"]: step.peak_bytes for step in choice_in(10**12).steps}
    assert peaks["block"] < peaks["6"] <= peaks["none"]
    assert name(choice_in(10**12)) == "none"
    assert name(choice_in(Room.bytes_for(peaks["block"]))) == "block"
    assert name(choice_in(peaks["block"] - 1)) is None


def test_of_equal_peaks_the_fastest_is_named() -> None:
    """Where the optimizer holds the most, recomputing saves nothing."""
    deep_in_parameters = replace(CASE, batch_size=1, context_length=2, config=replace(CONFIG, context_length=2))
    choice = choose_checkpoint(deep_in_parameters, ["block", "none"], machine())
    assert {step.peak_part for step in choice.steps} == {"optimizer"}
    assert choice.smallest.case.identity()["checkpoint"] == "none"


def test_several_blocks_can_be_better_than_one() -> None:
    """Many thin layers: what is kept between blocks outweighs what one block saves."""
    config = ModelConfig(d_model=64, d_ff=2, num_layers=36, num_heads=1, vocab_size=2, context_length=64)
    case = replace(CASE, config=config, context_length=64, batch_size=16, attention="sdpa")
    choice = choose_checkpoint(case, ["block", "2", "4"], machine())
    assert choice.smallest.case.identity()["checkpoint"] == "2"


def printed(capsys: pytest.CaptureFixture[str], *words: str, gpu: str = "T4") -> tuple[int, str]:
    code = main(["predict", "--size", "tiny", "--context", "64", "--gpu", gpu, *words])
    return code, capsys.readouterr().out


def test_predict_names_the_best_of_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, "--checkpoint", "none,block")
    lines = text.splitlines()
    assert code == 0
    assert [line.split()[1] for line in lines if line.startswith("--checkpoint")] == ["none", "block"]
    assert lines[-1].startswith("fastest that fits: --checkpoint none, ")
    assert max(map(len, lines[3:6])) <= 120


def test_where_no_checkpoint_fits_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    small = "memory=0.5GiB,bandwidth=300GB/s,fp32=10"
    code, text = printed(capsys, "--checkpoint", "all", "--batch-size", "64", gpu=small)
    assert code == 1
    assert text.splitlines()[-1] == "fastest that fits: none"


def test_the_best_checkpoint_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, "--checkpoint", "all", "--json")
    data = json.loads(text)
    assert (code, data["fastest_that_fits"]) == (0, "none")
    assert [row["identity"]["checkpoint"] for row in data["checkpoints"]] == ["none", "attention", "block", "2"]
    assert data["smallest_peak"] in ("none", "attention", "block", "2")
