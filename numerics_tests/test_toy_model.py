"""The classic exercise: the dtype of each part of a small model under mixed precision, on a CPU and on CUDA."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.numerics_tests.harness.exercises import cross_entropy, toy_dtypes
from perf_tests_suite.numerics_tests.machine.autocast import torch_version
from perf_tests_suite.numerics_tests.machine.environment import device


def squares(logits_BV: Tensor) -> Tensor:
    return F.mse_loss(logits_BV, torch.zeros_like(logits_BV))


def total(logits_BV: Tensor) -> Tensor:
    return logits_BV.sum()


def average(logits_BV: Tensor) -> Tensor:
    return logits_BV.mean()


Losses = dict[Callable[[Tensor], Tensor], tuple[str, ...]]

FLOAT32_INSIDE: Losses = {
    cross_entropy: ("cpu", "cuda"),
    squares: ("cpu", "cuda"),
    total: ("cuda",),
    average: (),
}
"""The rules under which each loss is float32 inside a region; outside each has the dtype of the logits.

Published with float32 losses (cross-entropy, and a sum on CUDA) and with a float16 one, taken outside.
"""


@pytest.mark.filterwarnings(
    # A float32 weight beside a 16-bit input makes rms_norm warn and take its composite path, which is tested here.
    "ignore:Mismatch dtype between input and weight:UserWarning"
)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("loss", FLOAT32_INSIDE, ids=lambda loss: loss.__name__)
def test_toy_model_has_the_known_dtypes(
    loss: Callable[[Tensor], Tensor], norm: str, low: torch.dtype, rules: str
) -> None:
    """Parameters and gradients float32, products in 16 bits, the norm by device, the loss by function and place."""
    seen = toy_dtypes(loss, norm, low, device())
    # RMSNorm joined CUDA's list with torch 2.12. Published answers are CUDA's; on a CPU the norm says float16.
    is_listed = rules == "cuda" and (norm == "layer" or torch_version() >= (2, 12))
    of_norm = torch.float32 if is_listed else low
    assert (seen["fc1"], seen["norm"], seen["logits"]) == (low, of_norm, low)
    assert seen["loss"] == (torch.float32 if rules in FLOAT32_INSIDE[loss] else low)
    assert seen["loss outside"] == low
    assert (seen["parameters"], seen["gradients"]) == (torch.float32, torch.float32)
