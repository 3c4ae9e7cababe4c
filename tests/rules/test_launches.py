"""The kernel pass sees as many launches as the counters know beforehand: two ways to one number."""

from typing import Any

import pytest
import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.training import Training
from perf_tests.phases import LANGUAGE_MODEL, PHASES, phases_of
from perf_tests.predict.counters import counters_of
from tests.support.example_cases import CPU, attention_case, build, language_model_case, random_tokens
from tests.support.traced_rounds import Round, rounds, traced_values


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("phase", [phase.name for phase in phases_of(LANGUAGE_MODEL)])
def test_the_launches_of_a_traced_phase_are_those_counted(phase: str, attention: str, precision: str) -> None:
    training = Training(build(attention=attention), PRECISIONS[precision], CPU)
    training.create_optimizer_state()
    optimizer = "loop" if PHASES[phase].trains else None
    case = language_model_case(phase=phase, attention=attention, precision=precision, optimizer=optimizer)
    traced = traced_values(case, *rounds(training, random_tokens())[phase])
    assert traced["launches"] == counters_of(case).kernel_launches


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("phase", ["attention_forward", "attention_backward"])
def test_the_launches_of_traced_attention_are_those_counted(phase: str, attention: str) -> None:
    case = attention_case(phase=phase, attention=attention, sequence_length=16, batch_size=2)
    attend = ATTENTION[attention].build()
    leaves = [torch.randn(2, 16, 16, requires_grad=True) for _ in range(3)]

    def graph() -> tuple[Any, ...]:
        for leaf in leaves:
            leaf.grad = None
        output_BTK = attend(*leaves)
        return output_BTK, torch.ones_like(output_BTK)

    forward: Round = (lambda: attend(*leaves), tuple)
    backward: Round = (lambda output_BTK, gradient_BTK: output_BTK.backward(gradient_BTK), graph)
    traced = traced_values(case, *(forward if phase == "attention_forward" else backward))
    assert traced["launches"] == counters_of(case).kernel_launches


def test_a_launch_more_than_counted_is_seen() -> None:
    training = Training(build(), PRECISIONS["fp32"], CPU)
    forward, setup = rounds(training, random_tokens())["forward"]
    case = language_model_case()
    assert traced_values(case, lambda: forward() + 1, setup)["launches"] == counters_of(case).kernel_launches + 1
