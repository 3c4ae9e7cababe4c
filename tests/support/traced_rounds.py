"""Rounds of each phase, as its benchmark runs them, and what the kernel pass sees of one of them on the CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench.loop import Rounds
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.passes.kernels import trace_rounds
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.traces import kernels, trace
from tests.support.example_cases import CPU

Setup = Callable[[], tuple[Any, ...] | None]
Round = tuple[Callable[..., Any], Setup]


def rounds(training: Training, tokens: Tensor) -> dict[str, Round]:
    """Each phase with its set-up."""

    def graph() -> tuple[Any, ...]:
        training.clear_gradients()
        return (training.loss(training.forward(tokens), tokens),)

    def gradients() -> tuple[()]:
        training.clear_gradients()
        logits_BTV = training.forward(tokens)  # held until the end
        training.backward(training.loss(logits_BTV, tokens))
        return ()

    return {
        "inference": (lambda: torch.no_grad()(training.forward)(tokens), tuple),
        "forward": (lambda: training.forward(tokens), tuple),
        "backward": (training.backward, graph),
        "forward_backward": (gradients, lambda: training.clear_gradients()),
        "optimizer": (training.update, gradients),
        "full_step": (lambda: training.step(tokens, tokens), tuple),
    }


def traced_values(case: Case, target: Callable[..., Any], setup: Setup) -> Json:
    traced = trace_rounds(Rounds(target, setup).run_round, CpuDevice(CPU))
    return kernels.kernel_values(trace.read_chrome_trace(traced.trace), case.identity(), traced.plain_seconds, 1e11)
