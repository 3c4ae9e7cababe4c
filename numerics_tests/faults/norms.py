"""Faults in RMSNorm and LayerNorm."""

import torch
from torch import Tensor
from torch.nn import functional as F

from numerics_tests.claims import Fault
from numerics_tests.exercises import model_rms_norm, rms_norm_in_its_own_format
from numerics_tests.test_norms import torch_layer_norm


def _rms(x: Tensor, weight: Tensor, inverse: Tensor) -> Tensor:
    return (weight * (x.float() * inverse)).to(x.dtype)


def eps_outside_the_root(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _rms(x, weight, 1 / (x.float().square().mean(-1, keepdim=True).sqrt() + eps))


def eps_of_another_library(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model_rms_norm(x, weight, 1e-5 if eps == 1e-6 else 1e-6)


def one_degree_of_freedom_less(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x_float32 = x.float()
    return _rms(x, weight, (x_float32.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps).rsqrt())


def mean_taken_off(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model_rms_norm(x - x.float().mean(-1, keepdim=True).to(x.dtype), weight, eps)


def inverse_in_bfloat16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    inverse = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
    return _rms(x, weight, inverse.bfloat16().float())


def cast_before_the_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The order of several published Llama models: two roundings instead of one."""
    return (weight * model_rms_norm(x, torch.ones_like(weight), eps)).to(x.dtype)


def squares_before_the_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _rms(x, weight, (x.square().float().mean(-1, keepdim=True) + eps).rsqrt())


def fixed_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model_rms_norm(x, weight, 1e-5)


def no_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model_rms_norm(x, weight, 0.0)


def offset(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model_rms_norm(x + eps, weight, eps)


def weight_in_16_bits(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model_rms_norm(x, weight.to(x.dtype).float(), eps)


def statistics_detached(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _rms(x, weight, (x.detach().float().square().mean(-1, keepdim=True) + eps).rsqrt())


def _layer(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    return ((x.float() - mean) * (variance + eps).rsqrt() * weight + bias).to(x.dtype)


def one_pass_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean = x.float().mean(-1, keepdim=True)
    variance = (x.float().square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return _layer(x, weight, bias, mean, variance, eps)


def unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return _layer(x, weight, bias, wide.mean(-1, keepdim=True), wide.var(-1, keepdim=True), eps)


def mean_in_16_bits(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    wide = x.float()
    mean = x.mean(-1, keepdim=True).float()
    return _layer(x, weight, bias, mean, wide.var(-1, keepdim=True, correction=0), eps)


def bias_in_16_bits(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:], weight, bias.to(x.dtype).float(), eps).to(x.dtype)


WITHIN, SURVIVES = "rms_norm_is_within_its_bound", "rms_norm_survives_squares_that"
FAULTS = (
    Fault("eps outside the root", WITHIN, eps_outside_the_root),
    Fault("eps of another library", WITHIN, eps_of_another_library),
    Fault("n - 1 in the mean square", WITHIN, one_degree_of_freedom_less),
    Fault("mean taken off", WITHIN, mean_taken_off),
    Fault("inverse root in bfloat16", WITHIN, inverse_in_bfloat16),
    Fault("cast before the weight", "rms_norm_of_the_model_rounds_once", cast_before_the_weight),
    Fault("norm in its own format, large", f"{SURVIVES}_overflow", rms_norm_in_its_own_format),
    Fault("squares before the cast, large", f"{SURVIVES}_overflow", squares_before_the_cast),
    Fault("norm in its own format, small", f"{SURVIVES}_underflow", rms_norm_in_its_own_format),
    Fault("squares before the cast, small", f"{SURVIVES}_underflow", squares_before_the_cast),
    Fault("eps that cannot be set", "rms_norm_ignores_scale", fixed_eps),
    Fault("no eps", "rms_norm_is_odd_and_keeps_zero", no_eps),
    Fault("offset before the norm", "rms_norm_is_odd_and_keeps_zero", offset),
    Fault("weight in 16 bits", "rms_norm_weight_gradient_sums_rows_in_float32", weight_in_16_bits),
    Fault("statistics detached", "rms_norm_input_gradient_is_within_its_bound", statistics_detached),
    Fault("variance in one pass", "layer_norm_survives_a_large_mean", one_pass_variance),
    Fault("variance over n - 1", "layer_norm_is_within_its_bound", unbiased_variance),
    Fault("mean in 16 bits", "layer_norm_is_within_its_bound", mean_in_16_bits),
    Fault("bias in 16 bits", "layer_norm_bias_gradient_sums_rows_in_float32", bias_in_16_bits),
    Fault("torch's 16-bit kernel on a CPU", "layer_norm_bias_gradient_sums_rows_in_float32", torch_layer_norm),
)
