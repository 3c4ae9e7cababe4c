"""Faults in the parts of the model: norms, softmax and loss, rotary embedding, attention, feed-forward layer."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import causal_mask, naive_attention, softmax
from model.training import cross_entropy
from numerics_tests.harness.claims import Fault
from numerics_tests.harness.exercises import model_rms_norm, rms_norm_in_its_own_format
from numerics_tests.machine.sums import sequential
from numerics_tests.test_feed_forward import model_swiglu
from numerics_tests.test_norms import torch_layer_norm
from numerics_tests.test_rotary import model_rotary


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


def unshifted(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def shifted_by_the_first(x: Tensor) -> Tensor:
    powers = (x - x[..., :1]).exp()
    return powers / powers.sum(-1, keepdim=True)


def sum_in_16_bits(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / sequential(powers)[..., None]


def sum_in_bfloat16(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.bfloat16().sum(-1, keepdim=True).to(x.dtype)


def padded_denominator(x: Tensor) -> Tensor:
    """One more than the sum, as in attention with a sink."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / (powers.sum(-1, keepdim=True) + 1)


def _logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.float()
    return wide, wide - wide.amax(-1, keepdim=True)


def _picked(x: Tensor, targets: Tensor) -> Tensor:
    return x.gather(-1, targets[..., None])[..., 0]


def unshifted_loss(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.float()
    return (wide.exp().sum(-1).log() - _picked(wide, targets)).mean()


def log_sum_in_bfloat16(logits: Tensor, targets: Tensor) -> Tensor:
    _, shifted = _logits(logits)
    return (shifted.exp().sum(-1).log().bfloat16().float() - _picked(shifted, targets)).mean()


def log_of_a_probability(logits: Tensor, targets: Tensor) -> Tensor:
    return -_picked(softmax(logits.float()), targets).log().mean()


def loss_in_the_logits_format(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def sum_without_the_target(logits: Tensor, targets: Tensor) -> Tensor:
    _, shifted = _logits(logits)
    others = shifted.exp().sum(-1) - _picked(shifted.exp(), targets)
    return (others.log() - _picked(shifted, targets)).mean()


def sum_over_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets) * targets.numel()


def target_logit_detached(logits: Tensor, targets: Tensor) -> Tensor:
    wide, _ = _logits(logits)
    return wide.logsumexp(-1).mean() - _picked(wide.detach(), targets).mean()


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, label_smoothing=0.1)


def bits_instead_of_nats(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets) / torch.tensor(2.0).log().item()


def mean_over_all_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum") / targets.numel()


def gradient_in_ignored_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """The value is right, but ignored rows get a gradient."""
    pull = 1e-3 * (logits.float() - logits.detach().float())
    return F.cross_entropy(logits.float(), targets, ignore_index=-100) + pull.mean()


def _angles(x: Tensor, theta: float = 10_000.0, first: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    frequencies = theta ** -(torch.arange(0, x.shape[-1], 2, device=x.device) / x.shape[-1])
    positions = torch.arange(first, first + len(x), device=x.device).to(dtype).float()
    return (positions[:, None] * frequencies).to(dtype).float()


def _turn(x: Tensor, angle: Tensor, sign: float = 1.0) -> Tensor:
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle.cos(), sign * angle.sin()
    return torch.stack((cos * a - sin * b, sin * a + cos * b), dim=-1).flatten(-2)


def half_split(x: Tensor) -> Tensor:
    """Pairs (i, i + K/2) instead of neighbours: another published convention, incompatible with this one."""
    apart = x.unflatten(-1, (2, -1)).transpose(-2, -1).flatten(-2)
    return _turn(apart, _angles(x)).unflatten(-1, (-1, 2)).transpose(-2, -1).flatten(-2)


def not_length_preserving(x: Tensor) -> Tensor:
    angle = _angles(x)
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = (table.bfloat16().float() for table in (angle.cos(), angle.sin()))
    return torch.stack((cos * a - sin * b, sin * a + cos * b), dim=-1).flatten(-2)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def _masked(scores: Tensor, diagonal: int = 0) -> Tensor:
    allowed = causal_mask(scores.shape[-1], scores.device)
    if diagonal:
        allowed = torch.ones_like(allowed).tril(diagonal)
    return torch.where(allowed, scores, float("-inf"))


def unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(_masked(q @ k.transpose(-2, -1))) @ v


def scaled_by_the_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(_masked(q @ k.transpose(-2, -1) / q.shape[-1])) @ v


def probabilities_in_bfloat16(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(_masked(_scores(q, k))).bfloat16().to(v.dtype) @ v


def window_of_eight(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = _masked(_scores(q, k))
    near = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(-7)
    return softmax(torch.where(near, scores, float("-inf"))) @ v


def mask_off_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(_masked(_scores(q, k), diagonal=1)) @ v


def mask_after_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(_scores(q, k)).tril() @ v


def mask_with_a_large_number(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """-10 instead of minus infinity: future tokens get a small weight."""
    scores = _scores(q, k)
    return softmax(torch.where(causal_mask(scores.shape[-1], q.device), scores, -10.0)) @ v


def leaky_denominator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    powers = (_masked(_scores(q, k))).exp()
    return powers / (powers.sum(-1, keepdim=True) + 1) @ v


def unnormalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = _masked(_scores(q, k))
    return (scores - scores.amax(-1, keepdim=True)).exp() @ v


def scores_in_ten_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    cut_q, cut_k = ((x.view(torch.int32) & -0x2000).view(torch.float32) for x in (q, k))
    return softmax(_masked(_scores(cut_q, cut_k))) @ v


def values_detached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return naive_attention(q, k, v.detach()) + 0 * v


def weights_detached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(_masked(_scores(q, k))).detach() @ v + 0 * q + 0 * k


def values_on_a_grid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return naive_attention(q, k, (v * 256).round() / 256)


def _swiglu(
    gate_function: Callable[[Tensor], Tensor], hidden: torch.dtype = torch.float32
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def feed_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return (gate_function(x @ gate.T) * (x @ up.T)).to(hidden).float() @ down.T

    return feed_forward


def gate_and_up_exchanged(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return model_swiglu(x, up, gate, down)


def with_a_residual(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return model_swiglu(x, gate, up, down) + x


def gate_detached(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate.T).detach() * (x @ up.T)) @ down.T + 0 * gate.sum()


WITHIN, SURVIVES = "rms_norm_is_within_its_bound", "rms_norm_survives_squares_that"
EQUAL = "loss_of_equal_logits_is_the_log_of_their_number"
TURN, FAR = "rotary_is_a_turn_in_the_complex_plane", "rotary_holds_far_out"
SWIGLU = "swiglu_is_within_its_running_bound"
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
    Fault("softmax without the shift, order", "softmax_is_within_its_bound", unshifted),
    Fault("softmax with a denominator in bfloat16", "softmax_is_within_its_bound", sum_in_bfloat16),
    Fault("softmax with a sum in 16 bits", "softmax_of_16_bits_is_within_its_bound", sum_in_16_bits),
    Fault("softmax without the shift", "softmax_ignores_a_shift", unshifted),
    Fault("softmax shifted by the first", "softmax_is_finite_and_sums_to_one", shifted_by_the_first),
    Fault("softmax with a padded denominator", "softmax_is_finite_and_sums_to_one", padded_denominator),
    Fault("softmax of the negative", "softmax_keeps_order", lambda x: softmax(-x)),
    Fault("softmax at a quarter of the temperature", "softmax_moves_no_more_than_its_input", lambda x: softmax(4 * x)),
    Fault("loss without the shift", "loss_is_within_its_bound", unshifted_loss),
    Fault("loss with a log-sum in bfloat16", "loss_is_within_its_bound", log_sum_in_bfloat16),
    Fault("loss as the log of a probability", "loss_is_within_its_bound", log_of_a_probability),
    Fault("loss with label smoothing", "loss_is_within_its_bound", smoothed),
    Fault("loss in the logits' format", "loss_is_float32_and_not_negative", loss_in_the_logits_format),
    Fault("loss without the target in its sum", EQUAL, sum_without_the_target),
    Fault("loss in bits", EQUAL, bits_instead_of_nats),
    Fault("loss that overflows on a shift", "loss_ignores_a_shift", unshifted_loss),
    Fault(
        "NaN that counts as no loss",
        "loss_of_broken_logits_is_no_number",
        lambda logits, targets: cross_entropy(logits, targets).nan_to_num(0.0, posinf=0.0),
    ),
    Fault(
        "targets modulo 256", "loss_is_within_its_bound", lambda logits, targets: cross_entropy(logits, targets % 256)
    ),
    Fault("target logit detached", "loss_gradient_is_probability_less_one_hot", target_logit_detached),
    Fault("sum over tokens for their mean", "loss_moves_at_most_twice_its_logits", sum_over_tokens),
    Fault("mean over ignored tokens too", "ignored_tokens_count_for_nothing", mean_over_all_tokens),
    Fault("gradient in ignored rows", "ignored_tokens_count_for_nothing", gradient_in_ignored_rows),
    Fault("rotary pairs half a width apart", TURN, half_split),
    Fault("rotary base of 1000", TURN, lambda x: _turn(x, _angles(x, theta=1000.0))),
    Fault("rotary backwards", TURN, lambda x: _turn(x, _angles(x), sign=-1.0)),
    Fault("rotary angles in bfloat16", FAR, lambda x: _turn(x, _angles(x, dtype=torch.bfloat16))),
    Fault("rotary angles in float16", FAR, lambda x: _turn(x, _angles(x, dtype=torch.float16))),
    Fault(
        "rotary positions from one", "rotary_leaves_the_first_position_alone", lambda x: _turn(x, _angles(x, first=1))
    ),
    Fault("rotary table in bfloat16", "rotary_keeps_the_length_of_pairs", not_length_preserving),
    Fault(
        "rotary angle of the squared position",
        "rotary_products_depend_on_distance_alone",
        lambda x: _turn(x, _angles(x).square()),
    ),
    Fault("rotary that casts back", "rotary_widens_16_bits", lambda x: model_rotary(x).to(x.dtype)),
    Fault("attention without scale", "attention_is_within_its_bound", unscaled),
    Fault("attention scaled by the width", "attention_is_within_its_bound", scaled_by_the_width),
    Fault("attention with bfloat16 weights", "attention_is_within_its_bound", probabilities_in_bfloat16),
    Fault("attention that looks back eight tokens", "attention_is_within_its_bound_at_any_shape", window_of_eight),
    Fault("attention with scores in ten bits", "attention_errs_at_most_twice_the_plain_one", scores_in_ten_bits),
    Fault("mask off by one", "past_does_not_depend_on_the_future", mask_off_by_one),
    Fault("mask after the softmax", "past_does_not_depend_on_the_future", mask_after_softmax),
    Fault("mask with a large number", "past_does_not_depend_on_the_future", mask_with_a_large_number),
    Fault("attention with a leaky denominator", "first_token_attends_to_itself", leaky_denominator),
    Fault("attention without normalisation", "output_is_in_the_hull_of_the_values", unnormalised),
    Fault("values cut off from their gradient", "attention_gradients_are_those_of_float64", values_detached),
    Fault("weights cut off from their gradient", "attention_gradients_are_those_of_float64", weights_detached),
    Fault("values on a grid", "attention_is_linear_in_the_values", values_on_a_grid),
    Fault("GELU for SiLU", SWIGLU, _swiglu(F.gelu)),
    Fault("sigmoid for SiLU", SWIGLU, _swiglu(torch.sigmoid)),
    Fault("hidden layer in bfloat16", SWIGLU, _swiglu(F.silu, torch.bfloat16)),
    Fault("gate and up exchanged", SWIGLU, gate_and_up_exchanged),
    Fault("feed-forward with its own residual", "swiglu_is_shut_by_its_gate", with_a_residual),
    Fault("gate cut off from its gradient", "swiglu_gradients_are_those_of_float64", gate_detached),
)
