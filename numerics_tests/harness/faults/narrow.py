"""Faults in casts to 8 and 4 bits, in scaled products, and in training with rounded weights."""

from dataclasses import replace

import torch
from torch import Tensor

from numerics_tests.harness.claims import Fault
from numerics_tests.machine.narrow import E4M3, E4M3_MAX, Blocked, mxfp8, nvfp4
from numerics_tests.test_narrow_formats import cast, emulated


def truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    low = cast(x, dtype)
    return torch.where(low.abs() > x.abs(), cast(x * (1 - 2.0**-3), dtype), low)


def flushed(x: Tensor, dtype: torch.dtype) -> Tensor:
    low = cast(x, dtype)
    return torch.where(low.abs() < torch.finfo(dtype).smallest_normal, low * 0, low)


def twice_rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return cast(x.bfloat16().float(), dtype)


def scaled_too_high(x: Tensor, w: Tensor, x_scale: float, w_scale: float) -> Tensor:
    return (
        (x / x_scale * 2).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3).float()
        @ (w / w_scale).to(E4M3).float().T
        * (x_scale * w_scale / 2)
    )


def without_tensor_scale(x: Tensor) -> Blocked:
    return replace(nvfp4(x), tensor_scale=1.0)


def to_nearest(weights: Tensor, change: float, steps: int, generator: torch.Generator) -> Tensor:
    for _ in range(steps):
        weights = (weights.float() - change).bfloat16()
    return weights


def mxfp8_rounded_up(x: Tensor) -> Blocked:
    """The scale's exponent by ceil, as some recipes have it: no saturation, but another format."""
    made = mxfp8(x * 2)
    return replace(made, elements=mxfp8(x).elements / 2, scales=made.scales)


def larger_steps(x: Tensor) -> Blocked:
    made = nvfp4(x)
    return replace(made, elements=made.elements.round())


CAST, MX = "cast_to_fp8_is_to_the_nearest", "mxfp8_is_the_nearest_with_the_scale_of_its_block"
NV = "nvfp4_errs_by_half_a_step_of_its_block"
FAULTS = (
    Fault("FP8 by truncation", CAST, truncated),
    Fault("FP8 without subnormals", CAST, flushed),
    Fault("FP8 by way of bfloat16", CAST, twice_rounded),
    Fault("FP8 product that saturates", "scaled_product_is_within_its_bound", scaled_too_high),
    Fault("FP8 product of unscaled factors", "scaled_product_is_within_its_bound",
          lambda x, w, x_scale, w_scale: emulated(x, w, 1.0, 1.0)),
    Fault("MXFP8 scale one too high", MX, mxfp8_rounded_up),
    Fault("NVFP4 without the tensor's scale", NV, without_tensor_scale),
    Fault("NVFP4 without halves", NV, larger_steps),
    Fault("bfloat16 weights rounded to nearest", "weights_rounded_by_chance_train_without_bias", to_nearest),
)  # fmt: skip
