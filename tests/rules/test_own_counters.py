"""Counters, FLOPs and state of a model or an optimizer of one's own are of those, or null with the reason."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from model.precision import PRECISIONS
from model.training import Training, cross_entropy
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import Room
from perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests.predict import costs as cuda_rules
from perf_tests.predict.costs import tensors_in
from perf_tests.predict.counters import (
    counters_of,
    counters_or_reason,
    needed_bytes,
    pass_flops,
    products_outside,
    update_flops,
)
from perf_tests.predict.counting import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests.predict.expectation import expect
from perf_tests.predict.ledger import user_grid
from perf_tests.predict.step import TargetMachine, predict_step
from perf_tests.user_code.model import UserModel
from tests.support.example_cases import CEILINGS, CPU, SETTINGS, TOY, build, language_model_case, random_tokens
from tests.support.launch import MODELS, ROOT

PLANTED = "tests.support.planted_optimizers"
MUON = f"{ROOT}/examples/muon.py:build"


def of(factory: str, phase: str = "forward", **changes: object) -> LanguageModelCase:
    optimizer = "loop" if phase in ("optimizer", "full_step") else None
    changes = {"model": f"{MODELS}:{factory}", "attention": "own", "optimizer": optimizer, **changes}
    return language_model_case(TOY, phase=phase, **changes)


@pytest.mark.parametrize("factory", ["Healthy", "GroupedHeads", "Tied"])
def test_flops_are_those_that_pytorch_counts_of_the_real_model(factory: str) -> None:
    model, tokens_BT = UserModel(f"{MODELS}:{factory}").build(TOY), random_tokens()
    with FlopCounterMode(display=False) as forward:
        logits_BTV = model(tokens_BT)
    loss = cross_entropy(logits_BTV, tokens_BT)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    square = 4 * 2 * TOY.context_length**2 * TOY.d_model if factory == "GroupedHeads" else 0
    # PyTorch has no formula for the CPU's fused kernel: two products forward, four backward.
    wanted = {"forward": forward.get_total_flops() + square, "backward": backward.get_total_flops() + 2 * square}
    assert pass_flops(of(factory)) == wanted
    whole = counters_of(of(factory, "full_step")).model_flops
    assert whole == sum(wanted.values())


@pytest.mark.parametrize("kind", ["Conv1d", "ConvTranspose1d"])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_the_backward_pass_of_a_grouped_convolution_is_twice_its_forward_pass(kind: str, groups: int) -> None:
    name = "tests.support.planted_parts:Convolving"
    case = language_model_case(TOY, model=name, model_arguments=(f"groups={groups}", f"kind={kind}"), attention="own")
    positions = TOY.context_length + 2 * (kind == "ConvTranspose1d")
    head, mixing = (2 * case.tokens * 8 * TOY.vocab_size, 2 * case.batch_size * positions * 8 * (8 // groups) * 3)
    assert pass_flops(case) == {"forward": head + mixing, "backward": 2 * (head + mixing)}


def test_a_convolution_of_what_needs_no_gradient_has_one_product_backward() -> None:
    name = "tests.support.planted_parts:ConvolvingFrozen"
    case = language_model_case(TOY, model=name, attention="own")
    head, mixing = 2 * case.tokens * 8 * TOY.vocab_size, 2 * case.batch_size * TOY.context_length * 8 * 8 * 3
    assert pass_flops(case) == {"forward": head + mixing, "backward": 2 * head + mixing}


def test_our_model_as_ones_own_is_counted_as_ours() -> None:
    for phase in ("inference", "forward", "backward", "full_step"):
        optimizer = "loop" if phase == "full_step" else None
        ours = counters_of(language_model_case(phase=phase, optimizer=optimizer), all_layers=True)
        assert counters_of(of("Healthy", phase)) == ours


def test_an_operation_that_may_multiply_and_has_no_formula_is_named() -> None:
    known = {"aten.mm"}
    assert products_outside(["aten.mm", "aten.add", "aten.cummax", "aten._unsafe_view"], known) == []
    assert products_outside(["aten._grouped_mm", "theirs.kernel"], known) == ["aten._grouped_mm", "theirs.kernel"]


def test_flops_that_nobody_can_count_are_null() -> None:
    counters = counters_of(of("WithAnRnn"))
    assert (counters.model_flops, counters.executed_flops) == (None, None)
    assert counters.peak_bytes > 0


def test_a_row_of_a_model_that_cannot_be_played_says_why_and_states_no_figure() -> None:
    derived = expect(of("ReadsAValue"), CEILINGS, None).derived(1.0)
    assert {
        derived[name] for name in ("executed_flops", "predicted_peak_bytes", "roofline_seconds", "bound", "mfu")
    } == {None}
    assert derived["counters_reason"].startswith(f"{MODELS}:ReadsAValue cannot be played")


def test_the_ledger_of_ones_own_model_has_the_axes_of_the_run() -> None:
    settings = replace(SETTINGS, model=f"{MODELS}:Healthy", attentions=("own",), contexts=(8, 16))
    grid = user_grid(settings)
    assert list(grid) == ["tiny-ctx8-fp32-own", "tiny-ctx16-fp32-own"]
    assert {case.device for cases in grid.values() for case in cases} == {"cuda"}
    assert len(grid["tiny-ctx8-fp32-own"]) == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_grouped_queries_run_by_cudas_rules(dtype: torch.dtype) -> None:
    with FakeTensorMode(), cuda_rules.CudaRules():
        query, key = torch.zeros(2, 8, 16, 32, dtype=dtype), torch.zeros(2, 2, 16, 32, dtype=dtype)
        output = F.scaled_dot_product_attention(query, key, key, is_causal=True, scale=0.5, enable_gqa=True)
    assert output.shape == query.shape


def test_a_module_keeps_its_hooks_and_parameters() -> None:
    model = UserModel(f"{MODELS}:OutputObject").build(TOY)
    assert isinstance(model, nn.Module)
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight", "head.weight", "head.bias"]


def stepping(optimizer: str, phase: str = "full_step", **changes: object) -> LanguageModelCase:
    """A case of the reference with an optimizer of one's own."""
    name = optimizer if ":" in optimizer else f"{PLANTED}:{optimizer}"
    return language_model_case(TOY, phase=phase, optimizer=name, **changes)


def training_of(case: LanguageModelCase) -> Training:
    model = build(case.config)
    training = Training(model, PRECISIONS["fp32"], CPU)
    assert case.user_optimizer is not None
    case.user_optimizer.put_into(training, model)
    return training


@pytest.mark.parametrize("optimizer", [MUON, "Nested", "torch.optim:Adagrad", "torch.optim:SGD"])
def test_state_is_what_pytorch_keeps(optimizer: str) -> None:
    case = stepping(optimizer)
    training, counters = training_of(case), counters_of(case)
    training.create_optimizer_state()
    state = sum(tensor.nbytes for tensor in tensors_in(training.optimizer.state.values()))
    assert counters.parts[-1].bytes_by_category.get(OPTIMIZER_STATE, 0) == state


def test_the_first_step_makes_the_state_that_later_ones_find() -> None:
    first, later = (counters_of(stepping(MUON, phase)) for phase in ("first_step", "full_step"))
    assert first.kernel_launches > later.kernel_launches
    assert first.parts[0].bytes_by_category.get(OPTIMIZER_STATE, 0) == 0


def test_products_of_the_step_are_executed_flops_and_no_model_flops() -> None:
    """Newton-Schulz: of a matrix (M, N), M at most N, two products of M M N and one of M M M, five times."""
    counters = counters_of(stepping(MUON, "optimizer"))
    d, f = TOY.d_model, TOY.d_ff
    pairs = TOY.num_layers * [(d, d)] * 4 + TOY.num_layers * [(d, f)] * 3
    assert counters.executed_flops == sum(5 * 2 * (2 * m * m * n + m**3) for m, n in pairs)
    assert update_flops(stepping(MUON, "full_step")) == counters.executed_flops
    assert counters.model_flops is None
    full, ours = counters_of(stepping(MUON)), counters_of(language_model_case(phase="full_step", optimizer="loop"))
    assert full.model_flops == ours.model_flops


def test_adamw_as_ones_own_is_counted_as_adamw() -> None:
    """With torch's own arguments; the learning rate is not counted."""
    for phase in ("optimizer", "full_step"):
        assert counters_of(stepping("torch.optim:AdamW", phase)) == counters_of(
            language_model_case(phase=phase, optimizer="loop")
        )


def test_a_scaler_that_reads_its_overflow_hides_no_counter() -> None:
    assert counters_of(stepping("Descent", precision="fp16")).kernel_launches > 0


@pytest.mark.parametrize(
    "optimizer, device, words",
    [
        ("ReadsAValue", "cpu", "cannot be played on tensors without content: it reads a value of one."),
        ("EverySecondStep", "cpu", "the second and the third step of .* differ"),
        ("torch.optim:SGD", "cuda", "lets PyTorch choose `foreach` by the device"),
    ],
)
def test_where_the_step_cannot_be_counted_its_phases_are_null_with_the_reason(
    optimizer: str, device: str, words: str
) -> None:
    for phase in ("optimizer", "full_step"):
        counters, reason = counters_or_reason(stepping(optimizer, phase, device=device))
        assert counters is None
        assert re.search(words, reason or "")
    assert counters_or_reason(replace(stepping(optimizer, device=device), phase="backward", optimizer=None))[1] is None


def test_an_uncounted_case_is_not_refused_for_moments_that_it_may_not_have() -> None:
    uncounted, parameters = stepping("ReadsAValue"), TOY.parameters
    logits = uncounted.tokens * TOY.vocab_size
    assert needed_bytes(uncounted) == 4 * (2 * parameters + logits)


PARTS = "tests.support.planted_parts"
FROZEN = f"{PARTS}:FrozenEmbedding"
WIDTH = 32
TRAINABLE = TOY.vocab_size * (WIDTH + 1)
ALL = TRAINABLE + TOY.vocab_size * WIDTH
TENSORS = 2
"""Of the head, each with a step count in float32."""


def with_frozen(phase: str, **changes: object) -> LanguageModelCase:
    optimizer = "loop" if phase in ("optimizer", "full_step") else None
    changes = {"model": FROZEN, "attention": "own", "optimizer": optimizer, **changes}
    return language_model_case(TOY, phase=phase, **changes)


def frozen_training() -> Training:
    return Training(UserModel(FROZEN).build(TOY), PRECISIONS["fp32"], CPU, "loop")


def test_what_is_held_at_the_peak_of_a_full_step_is_what_pytorch_keeps() -> None:
    training = frozen_training()
    training.create_optimizer_state()
    state = sum(tensor.nbytes for tensor in tensors_in(training.optimizer.state.values()))
    assert state == 4 * (2 * TRAINABLE + TENSORS)
    held = counters_of(with_frozen("full_step")).parts[-1].bytes_by_category
    assert (held[PARAMETERS], held[GRADIENTS], held[OPTIMIZER_STATE]) == (4 * ALL, 4 * TRAINABLE, state)


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "full_step"])
def test_every_counter_is_that_of_a_model_where_they_are_buffers(phase: str) -> None:
    frozen, buffered = (
        counters_of(with_frozen(phase, model=f"{PARTS}:{name}Embedding")) for name in ("Frozen", "Buffered")
    )
    assert replace(frozen, parameters=buffered.parameters) == buffered


def test_what_certainly_exists_are_weights_and_three_numbers_for_each_that_trains() -> None:
    predicted = predict_step(
        with_frozen("full_step"), TargetMachine("planted", "cpu", Room(10, "planted"), CEILINGS, False)
    )
    assert predicted.unavoidable_bytes == 4 * (ALL + 3 * TRAINABLE)
    case = with_frozen("full_step")
    assert case.least_bytes == 4 * (ALL + 3 * TRAINABLE + case.tokens * TOY.vocab_size)
