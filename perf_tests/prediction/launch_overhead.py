"""How long the host takes from one kernel launch to the next, in a model so narrow that its kernels take no time.

A chain of bare operations would understate it: between two launches of a real model lie its modules, views and
autograd's bookkeeping.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.cases import LanguageModelCase
from perf_tests.counting.case_counters import counters_of
from perf_tests.instruments.device import Device

NARROW = ModelConfig(d_model=16, d_ff=16, num_layers=8, num_heads=2, vocab_size=16, context_length=4)

_ROUNDS = 20

Result = TypeVar("Result")


def launch_seconds(device: Device) -> tuple[float, float]:
    """Seconds for each launch of an eager forward pass, and of an eager backward pass."""
    torch_device = device.torch_device
    model = TransformerLM(NARROW, ATTENTION["naive"].build()).to(torch_device)
    training = Training(model, PRECISIONS["fp32"], torch_device)
    tokens_BT = torch.zeros(1, NARROW.context_length, dtype=torch.int64, device=torch_device)

    fastest_forward = fastest_backward = float("inf")
    for _ in range(_ROUNDS):
        training.clear_gradients()
        output, seconds = _timed(lambda: training.forward(tokens_BT).sum(), device)
        fastest_forward = min(fastest_forward, seconds)
        _, seconds = _timed(partial(training.backward, output), device)
        fastest_backward = min(fastest_backward, seconds)
    return (
        fastest_forward / _launches("forward", torch_device),
        fastest_backward / _launches("backward", torch_device),
    )


def _timed(work: Callable[[], Result], device: Device) -> tuple[Result, float]:
    device.synchronize()
    start = time.perf_counter()
    result = work()
    device.synchronize()
    return result, time.perf_counter() - start


def _launches(phase: str, device: torch.device) -> int:
    case = LanguageModelCase(
        phase=phase, size="narrow", config=NARROW, context_length=NARROW.context_length, batch_size=1,
        precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer=None,
        device=device.type, model="ours",
    )  # fmt: skip
    launches = counters_of(case).kernel_launches
    assert launches is not None
    return launches
