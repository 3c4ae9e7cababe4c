"""Parameters without `requires_grad` have no gradient and no optimizer state, in no step, figure or check."""

from dataclasses import replace
from pathlib import Path

import pytest

from model.precision import PRECISIONS
from model.training import Training
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import Room
from perf_tests.predict.costs import tensors_in
from perf_tests.predict.counters import counters_of
from perf_tests.predict.counting import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests.predict.step import TargetMachine, predict_step
from perf_tests.user_code.model import OwnModel, check_optimizer_before_measuring
from perf_tests.user_code.optimizer import OwnOptimizer
from tests.support.allocator_peak import above_standing, allocator_peak_bytes, rounds
from tests.support.example_cases import CEILINGS, CPU, TOY, language_model_case, random_tokens
from tests.support.launch import launch

PLANTED = "tests.support.planted_parts"
FROZEN = f"{PLANTED}:FrozenEmbedding"
WIDTH = 32
TRAINABLE = TOY.vocab_size * (WIDTH + 1)
ALL = TRAINABLE + TOY.vocab_size * WIDTH
TENSORS = 2
"""Of the head, each with a step count in float32."""


def of(phase: str, **changes: object) -> LanguageModelCase:
    optimizer = "loop" if phase in ("optimizer", "full_step") else None
    changes = {"model": FROZEN, "attention": "own", "optimizer": optimizer, **changes}
    return language_model_case(TOY, phase=phase, **changes)


def training_of() -> Training:
    return Training(OwnModel(FROZEN).build(TOY), PRECISIONS["fp32"], CPU, "loop")


def test_the_predicted_peak_of_a_full_step_is_what_pytorch_keeps() -> None:
    training, tokens_BT, counters = training_of(), random_tokens(), counters_of(of("full_step"))
    play = rounds(training, tokens_BT)["full_step"]
    play()
    state = sum(tensor.nbytes for tensor in tensors_in(training.optimizer.state.values()))
    assert state == 4 * (2 * TRAINABLE + TENSORS)
    held = counters.parts[-1].bytes_by_category
    assert (held[PARAMETERS], held[GRADIENTS], held[OPTIMIZER_STATE]) == (4 * ALL, 4 * TRAINABLE, state)
    training.clear_gradients()
    assert above_standing(counters) == pytest.approx(allocator_peak_bytes(play), rel=0.01, abs=64)


def test_state_is_made_for_what_trains_alone() -> None:
    training = training_of()
    training.create_optimizer_state()
    made = sum(tensor.nbytes for tensor in tensors_in(training.optimizer.state.values()))
    assert made == 4 * (2 * TRAINABLE + TENSORS)


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "full_step"])
def test_every_counter_is_that_of_a_model_where_they_are_buffers(phase: str) -> None:
    frozen, buffered = (counters_of(of(phase, model=f"{PLANTED}:{name}Embedding")) for name in ("Frozen", "Buffered"))
    assert replace(frozen, parameters=buffered.parameters) == buffered


def test_what_certainly_exists_are_weights_and_three_numbers_for_each_that_trains() -> None:
    predicted = predict_step(of("full_step"), TargetMachine("planted", "cpu", Room(10, "planted"), CEILINGS, False))
    assert predicted.unavoidable_bytes == 4 * (ALL + 3 * TRAINABLE)
    case = of("full_step")
    assert case.least_bytes == 4 * (ALL + 3 * TRAINABLE + case.tokens * TOY.vocab_size)


def test_an_optimizer_of_ones_own_is_tried_on_gradients_of_what_trains() -> None:
    own = OwnOptimizer(f"{PLANTED}:RefusesFrozen")
    check_optimizer_before_measuring(own, OwnModel(FROZEN), TOY, CPU)


def test_the_backward_pass_the_update_and_the_step_are_measured(tmp_path: Path) -> None:
    ran = launch(tmp_path, f"--model={FROZEN}", "--phase=backward,optimizer,full_step", "-k", "not attention")
    assert ran.exit_code == 0, ran.output
    assert len(ran.measured) == 3
