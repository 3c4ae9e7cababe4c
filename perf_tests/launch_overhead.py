"""How long the host takes from one kernel launch to the next, in a model so narrow that its kernels take no time.

A chain of bare operations would understate it: between two launches of a real model lie its modules, views and
autograd's bookkeeping.
"""

import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.case_counters import counters_of
from perf_tests.cases import LanguageModelCase
from perf_tests.instruments.device import Device
from perf_tests.instruments.roofline import best_seconds

NARROW = ModelConfig(d_model=16, d_ff=16, num_layers=8, num_heads=2, vocab_size=16, context_length=4)


def launch_seconds(device: Device) -> tuple[float, float]:
    """Seconds for each launch of an eager forward pass, and of an eager backward pass."""
    torch_device = device.torch_device
    model = TransformerLM(NARROW, ATTENTION["naive"].build()).to(torch_device)
    training = Training(model, PRECISIONS["fp32"], torch_device)
    tokens_BT = torch.zeros(1, NARROW.context_length, dtype=torch.int64, device=torch_device)

    def forward_and_backward() -> None:
        training.clear_gradients()
        training.backward(training.forward(tokens_BT).sum())

    forward_seconds = best_seconds(lambda: training.forward(tokens_BT), device)
    both_seconds = best_seconds(forward_and_backward, device)
    backward_seconds = max(both_seconds - forward_seconds, 0.0)
    return (
        forward_seconds / _launches("forward", torch_device),
        backward_seconds / _launches("backward", torch_device),
    )


def _launches(phase: str, device: torch.device) -> int:
    case = LanguageModelCase(
        phase=phase, size="narrow", config=NARROW, context_length=NARROW.context_length, batch_size=1,
        precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer=None,
        device=device.type, model="ours",
    )  # fmt: skip
    launches = counters_of(case).kernel_launches
    assert launches is not None
    return launches
