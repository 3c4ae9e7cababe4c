"""The kernel pass sees as many launches as the counters know beforehand: two ways to one number."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.training import Training
from perf_tests.cases import Case
from perf_tests.counting.case_counters import counters_of
from perf_tests.instruments.device import CpuDevice
from perf_tests.instruments.kernels import trace_rounds
from perf_tests.measures.rounds import Rounds
from perf_tests.meta_tests.example_cases import CPU, attention_case, build, language_model_case, random_tokens
from perf_tests.phases import LANGUAGE_MODEL, PHASES, phases_of
from perf_tests.traces.chrome_trace import read_chrome_trace
from perf_tests.traces.kernel_table import kernel_values

Setup = Callable[[], tuple[Any, ...] | None]
Round = tuple[Callable[..., Any], Setup]


def traced_launches(case: Case, target: Callable[..., Any], setup: Setup) -> int:
    trace = trace_rounds(Rounds(target, setup).play, CpuDevice(CPU)).trace
    return int(kernel_values(read_chrome_trace(trace), case.identity())["launches"])


def rounds(training: Training) -> dict[str, Round]:
    """Each phase as its benchmark runs it, with its set-up."""
    tokens = random_tokens()

    def graph() -> tuple[Any, ...]:
        training.clear_gradients()
        return (training.loss(training.forward(tokens), tokens),)

    def gradients() -> tuple[()]:
        training.backward(*graph())
        return ()

    return {
        "inference": (lambda: torch.no_grad()(training.forward)(tokens), tuple),
        "forward": (lambda: training.forward(tokens), tuple),
        "backward": (training.backward, graph),
        "forward_backward": (gradients, lambda: training.clear_gradients()),
        "optimizer": (training.update, gradients),
        "full_step": (lambda: training.step(tokens, tokens), tuple),
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("phase", [phase.name for phase in phases_of(LANGUAGE_MODEL)])
def test_the_launches_of_a_traced_phase_are_those_counted(phase: str, attention: str, precision: str) -> None:
    training = Training(build(attention=attention), PRECISIONS[precision], CPU)
    training.create_optimizer_state()
    optimizer = "loop" if PHASES[phase].trains else None
    case = language_model_case(phase=phase, attention=attention, precision=precision, optimizer=optimizer)
    assert traced_launches(case, *rounds(training)[phase]) == counters_of(case).kernel_launches


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
    traced = traced_launches(case, *(forward if phase == "attention_forward" else backward))
    assert traced == counters_of(case).kernel_launches


def test_a_launch_more_than_counted_is_seen() -> None:
    training = Training(build(), PRECISIONS["fp32"], CPU)
    forward, setup = rounds(training)["forward"]
    case = language_model_case()
    assert traced_launches(case, lambda: forward() + 1, setup) == counters_of(case).kernel_launches + 1
