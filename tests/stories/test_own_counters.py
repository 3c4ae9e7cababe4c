"""Counters, peaks, FLOPs and predictions of a model of one's own are of that model, or null with the reason."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from model.precision import PRECISIONS
from model.training import Training, cross_entropy
from perf_tests.__main__ import main
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import Room
from perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests.predict import costs as cuda_rules
from perf_tests.predict.counters import counters_of, pass_flops, products_outside
from perf_tests.predict.expectation import expect
from perf_tests.predict.ledger import own_grid
from perf_tests.predict.step import TargetMachine, predict_step
from perf_tests.user_code.model import OwnModel
from tests.support.allocator_peak import above_standing, allocator_peak_bytes, rounds
from tests.support.example_cases import CEILINGS, CPU, SETTINGS, TOY, language_model_case, random_tokens
from tests.support.launch import MODELS


def of(factory: str, phase: str = "forward", **changes: object) -> LanguageModelCase:
    optimizer = "loop" if phase in ("optimizer", "full_step") else None
    changes = {"model": f"{MODELS}:{factory}", "attention": "own", "optimizer": optimizer, **changes}
    return language_model_case(TOY, phase=phase, **changes)


@pytest.mark.parametrize("factory", ["Healthy", "GroupedHeads", "Tied"])
def test_flops_are_those_that_pytorch_counts_of_the_real_model(factory: str) -> None:
    model, tokens_BT = OwnModel(f"{MODELS}:{factory}").build(TOY), random_tokens()
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


@pytest.mark.parametrize("factory", ["GroupedHeads", "Tied", "OutputObject"])
@pytest.mark.parametrize("phase", ["forward", "backward", "full_step"])
def test_the_predicted_peak_is_the_allocators(factory: str, phase: str) -> None:
    case = of(factory, phase)
    assert case.own is not None
    training = Training(case.own.build(TOY), PRECISIONS["fp32"], CPU, "loop")
    play = rounds(training, random_tokens())[phase]
    play()
    training.clear_gradients()
    assert above_standing(counters_of(case)) == pytest.approx(allocator_peak_bytes(play), rel=0.01, abs=64)


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


def test_a_prediction_names_the_largest_batch_that_fits() -> None:
    case = of("Tied", "full_step")

    def peak_bytes(batch_size: int) -> int:
        return counters_of(replace(case, batch_size=batch_size)).peak_bytes

    room = Room(round(peak_bytes(23) * 1.05), "planted")
    predicted = predict_step(case, TargetMachine("planted", "cpu", room, CEILINGS, False))
    assert predicted.largest_batch == 23
    assert predicted.unavoidable_bytes == 4 * 4 * TOY.vocab_size * 4


def test_a_prediction_asks_for_a_size_only_where_the_factory_does(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "--context", "8", "--gpu", "A100-80GB", "--model"]
    assert main([*asked, f"{MODELS}:Averaging"]) == 0
    assert capsys.readouterr().out.startswith(f"A training step of planted_models ({MODELS}:Averaging) at context 8")
    assert main([*asked, f"{MODELS}:Healthy"]) == 2
    assert "asks for d_model, d_ff, num_layers, num_heads; give the shape with --size" in capsys.readouterr().err


def test_the_ledger_of_ones_own_model_has_the_axes_of_the_run() -> None:
    settings = replace(SETTINGS, model=f"{MODELS}:Healthy", attentions=("own",), contexts=(8, 16))
    grid = own_grid(settings)
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
    model = OwnModel(f"{MODELS}:OutputObject").build(TOY)
    assert isinstance(model, nn.Module)
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight", "head.weight", "head.bias"]
