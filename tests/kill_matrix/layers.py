"""Faults in the parts of the model: norms, softmax and loss, rotary embedding, attention, feed-forward layer."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.attention import causal_mask, naive_attention, softmax
from perf_tests_suite.model.training import cross_entropy
from perf_tests_suite.numerics_tests.harness.exercises import model_rms_norm, rms_norm_in_its_own_format
from perf_tests_suite.numerics_tests.machine.sums import sequential
from perf_tests_suite.numerics_tests.test_feed_forward import FeedForward, model_swiglu
from perf_tests_suite.numerics_tests.test_norms import RMS, Layer, torch_layer_norm
from tests.kill_matrix.judging import Fault


def mean(x: Tensor) -> Tensor:
    return x.float().mean(-1, keepdim=True)


def rms_norm(inverse: Callable[[Tensor, float], Tensor]) -> RMS:
    """RMSNorm by another inverse root of (x, eps)."""
    return lambda x, weight, eps: (weight * (x.float() * inverse(x, eps))).to(x.dtype)


def layer_norm(center: Callable[[Tensor], Tensor], variance: Callable[[Tensor], Tensor]) -> Layer:
    """LayerNorm by another mean or variance of x."""
    return lambda x, w, b, eps: ((x.float() - center(x)) * (variance(x) + eps).rsqrt() * w + b).to(x.dtype)


def powers(x: Tensor) -> Tensor:
    return (x - x.amax(-1, keepdim=True)).exp()


def over_sum(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


def unshifted(x: Tensor) -> Tensor:
    return over_sum(x.exp())


def shifted(logits: Tensor) -> Tensor:
    return logits.float() - logits.float().amax(-1, keepdim=True)


def picked(x: Tensor, targets: Tensor) -> Tensor:
    return x.gather(-1, targets[..., None])[..., 0]


def unshifted_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.float().exp().sum(-1).log() - picked(logits.float(), targets)).mean()


def sum_without_the_target(logits: Tensor, targets: Tensor) -> Tensor:
    others = shifted(logits).exp().sum(-1) - picked(shifted(logits).exp(), targets)
    return (others.log() - picked(shifted(logits), targets)).mean()


def gradient_in_ignored_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """The right value, with a gradient in ignored rows."""
    pull = 1e-3 * (logits.float() - logits.detach().float())
    return F.cross_entropy(logits.float(), targets, ignore_index=-100) + pull.mean()


def angles(x: Tensor, theta: float = 10_000.0, first: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    frequencies = theta ** -(torch.arange(0, x.shape[-1], 2, device=x.device) / x.shape[-1])
    positions = torch.arange(first, first + len(x), device=x.device).to(dtype).float()
    return (positions[:, None] * frequencies).to(dtype).float()


def turn(
    x: Tensor,
    angle: Tensor,
    sign: float = 1.0,
    table: torch.dtype = torch.float32,
    step: torch.dtype = torch.float32,
) -> Tensor:
    """Rotary embedding with its table, or each step, kept in another format."""
    a, b = x.to(step).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle.cos().to(table).to(step), sign * angle.sin().to(table).to(step)
    return torch.stack((cos * a - sin * b, sin * a + cos * b), dim=-1).flatten(-2)


def half_split(x: Tensor) -> Tensor:
    """Pairs (i, i + K/2) instead of neighbours: another published convention, incompatible with this one."""
    apart = x.unflatten(-1, (2, -1)).transpose(-2, -1).flatten(-2)
    return turn(apart, angles(x)).unflatten(-1, (-1, 2)).transpose(-2, -1).flatten(-2)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def masked(x: Tensor, hidden: float = -math.inf) -> Tensor:
    return torch.where(causal_mask(x.shape[-1], x.device), x, hidden)


def unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(masked(q @ k.transpose(-2, -1))) @ v


def window_of_eight(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    near = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(-7)
    return softmax(torch.where(near, masked(scores(q, k)), float("-inf"))) @ v


def mask_off_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    allowed = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril(1)
    return softmax(scores(q, k).masked_fill(~allowed, -math.inf)) @ v


def leaky_denominator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = masked(scores(q, k)).exp()
    return weights / (weights.sum(-1, keepdim=True) + 1) @ v


def scores_in_ten_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    cut_q, cut_k = ((x.float().view(torch.int32) & -0x2000).view(torch.float32).to(x.dtype) for x in (q, k))
    return softmax(masked(scores(cut_q, cut_k))) @ v


def swiglu(gated: Callable[[Tensor], Tensor], hidden: torch.dtype = torch.float32) -> FeedForward:
    """The feed-forward layer with another function of its gate, or a narrower hidden layer."""
    return lambda x, gate, up, down: (gated(x @ gate.T) * (x @ up.T)).to(hidden).float() @ down.T


WITHIN = "rms_norm_is_within_its_bound"
LAYER, SOFTMAX = "layer_norm_is_within_its_bound", "softmax_is_within_its_bound"
IGNORED, LOSS = "ignored_tokens_count_for_nothing", "loss_is_within_its_bound"
TURN, FAR = "rotary_is_a_turn_in_the_complex_plane", "rotary_holds_far_out"
ATTENTION, FUTURE = "attention_is_within_its_bound", "past_does_not_depend_on_the_future"
OF_FLOAT64, SWIGLU = "attention_gradients_are_those_of_float64", "swiglu_is_within_its_running_bound"
FAULTS = (
    Fault("eps outside the root", WITHIN, rms_norm(lambda x, eps: 1 / (mean(x.float().square()).sqrt() + eps))),
    Fault("eps of another library", WITHIN,
          lambda x, weight, eps: model_rms_norm(x, weight, 1e-5 if eps == 1e-6 else 1e-6)),
    Fault("n - 1 in the mean square", WITHIN,
          rms_norm(lambda x, eps: (x.float().square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps).rsqrt())),
    Fault("mean taken off", WITHIN, lambda x, weight, eps: model_rms_norm(x - mean(x).to(x.dtype), weight, eps)),
    Fault("inverse root in bfloat16", WITHIN,
          rms_norm(lambda x, eps: (mean(x.float().square()) + eps).rsqrt().bfloat16().float())),
    # The order of several published Llama models: two roundings instead of one.
    Fault("cast before the weight", "rms_norm_of_the_model_rounds_once",
          lambda x, weight, eps: (weight * model_rms_norm(x, torch.ones_like(weight), eps)).to(x.dtype)),
    Fault("norm in its own format", WITHIN, rms_norm_in_its_own_format),
    Fault("squares before the cast", WITHIN, rms_norm(lambda x, eps: (mean(x.square()) + eps).rsqrt())),
    Fault("eps that cannot be set", WITHIN, lambda x, weight, eps: model_rms_norm(x, weight, 1e-5)),
    Fault("no eps", WITHIN, lambda x, weight, eps: model_rms_norm(x, weight, 0.0)),
    Fault("offset before the norm", WITHIN,
          lambda x, weight, eps: model_rms_norm(x + eps, weight, eps)),
    Fault("weight in 16 bits", "rms_norm_weight_gradient_sums_rows_in_float32",
          lambda x, weight, eps: model_rms_norm(x, weight.to(x.dtype).float(), eps)),
    Fault("statistics detached", "rms_norm_input_gradient_is_within_its_bound",
          rms_norm(lambda x, eps: (mean(x.detach().float().square()) + eps).rsqrt())),
    Fault("variance in one pass", "layer_norm_survives_a_large_mean",
          layer_norm(mean, lambda x: (mean(x.float().square()) - mean(x).square()).clamp(min=0))),
    Fault("variance over n - 1", LAYER, layer_norm(mean, lambda x: x.float().var(-1, keepdim=True))),
    Fault("statistics of the first 1024", "layer_norm_holds_for_the_widths_of_models",
          layer_norm(lambda x: mean(x[..., :1024]),
                     lambda x: x[..., :1024].float().var(-1, keepdim=True, correction=0))),
    Fault("mean in 16 bits", LAYER,
          layer_norm(lambda x: x.mean(-1, keepdim=True).float(),
                     lambda x: x.float().var(-1, keepdim=True, correction=0))),
    Fault("bias in 16 bits", "layer_norm_bias_gradient_sums_rows_in_float32",
          lambda x, w, b, eps: F.layer_norm(x.float(), x.shape[-1:], w, b.to(x.dtype).float(), eps).to(x.dtype)),
    Fault("torch's 16-bit kernel on a CPU", "layer_norm_bias_gradient_sums_rows_in_float32", torch_layer_norm),
    Fault("softmax without the shift", SOFTMAX, unshifted),
    Fault("softmax with a denominator in bfloat16", SOFTMAX,
          lambda x: powers(x) / powers(x).bfloat16().sum(-1, keepdim=True).to(x.dtype)),
    Fault("softmax with a sum in 16 bits", "softmax_of_16_bits_is_within_its_bound",
          lambda x: powers(x) / sequential(powers(x))[..., None]),
    Fault("softmax shifted by the first", SOFTMAX, lambda x: over_sum((x - x[..., :1]).exp())),
    # One more than the sum, as in attention with a sink.
    Fault("softmax with a padded denominator", SOFTMAX, lambda x: powers(x) / (powers(x).sum(-1, keepdim=True) + 1)),
    Fault("softmax of the negative", SOFTMAX, lambda x: softmax(-x)),
    Fault("softmax at a quarter of the temperature", SOFTMAX, lambda x: softmax(4 * x)),
    Fault("loss without the shift", LOSS, unshifted_loss),
    Fault("loss with a log-sum in bfloat16", LOSS,
          lambda z, t: (shifted(z).exp().sum(-1).log().bfloat16().float() - picked(shifted(z), t)).mean()),
    Fault("loss as the log of a probability", LOSS, lambda z, t: -picked(softmax(z.float()), t).log().mean()),
    Fault("loss with label smoothing", LOSS, lambda z, t: F.cross_entropy(z.float(), t, label_smoothing=0.1)),
    Fault("loss in the logits' format", LOSS, F.cross_entropy),
    Fault("loss without the target in its sum", LOSS, sum_without_the_target),
    Fault("loss in bits", LOSS, lambda z, t: cross_entropy(z, t) / math.log(2)),
    Fault("NaN that counts as no loss", "loss_of_broken_logits_is_no_number",
          lambda z, t: cross_entropy(z, t).nan_to_num(0.0, posinf=0.0)),
    Fault("targets modulo 256", LOSS, lambda z, t: cross_entropy(z, t % 256)),
    Fault("target logit detached", "loss_gradient_is_probability_less_one_hot",
          lambda z, t: z.float().logsumexp(-1).mean() - picked(z.float().detach(), t).mean()),
    Fault("sum over tokens for their mean", LOSS,
          lambda z, t: cross_entropy(z, t) * t.numel()),
    Fault("mean over ignored tokens too", IGNORED,
          lambda z, t: F.cross_entropy(z.float(), t, ignore_index=-100, reduction="sum") / t.numel()),
    Fault("gradient in ignored rows", IGNORED, gradient_in_ignored_rows),
    Fault("rotary pairs half a width apart", TURN, half_split),
    Fault("rotary base of 1000", TURN, lambda x: turn(x, angles(x, theta=1000.0))),
    Fault("rotary backwards", TURN, lambda x: turn(x, angles(x), sign=-1.0)),
    Fault("rotary angles in bfloat16", FAR, lambda x: turn(x, angles(x, dtype=torch.bfloat16))),
    Fault("rotary angles in float16", FAR, lambda x: turn(x, angles(x, dtype=torch.float16))),
    Fault("rotary positions from one", TURN,
          lambda x: turn(x, angles(x, first=1))),
    Fault("rotary table in bfloat16", TURN,
          lambda x: turn(x, angles(x), table=torch.bfloat16)),
    Fault("rotary angle of the squared position", TURN,
          lambda x: turn(x, angles(x).square())),
    Fault("rotary rounded to bfloat16 at its end", TURN, lambda x: turn(x, angles(x)).bfloat16()),
    Fault("rotary in the format of its input", TURN, lambda x: turn(x, angles(x), step=x.dtype)),
    Fault("attention without scale", ATTENTION, unscaled),
    Fault("attention scaled by the width", ATTENTION,
          lambda q, k, v: softmax(masked(q @ k.transpose(-2, -1) / q.shape[-1])) @ v),
    Fault("attention with bfloat16 weights", ATTENTION,
          lambda q, k, v: softmax(masked(scores(q, k))).bfloat16().to(v.dtype) @ v),
    Fault("attention that looks back eight tokens", f"{ATTENTION}_across_blocks", window_of_eight),
    Fault("attention with scores in ten bits", ATTENTION, scores_in_ten_bits),
    Fault("mask off by one", FUTURE, mask_off_by_one),
    Fault("mask after the softmax", FUTURE, lambda q, k, v: softmax(scores(q, k)).tril() @ v),
    # Future tokens get a small weight.
    Fault("mask with a large number", FUTURE, lambda q, k, v: softmax(masked(scores(q, k), hidden=-10.0)) @ v),
    Fault("attention with a leaky denominator", ATTENTION, leaky_denominator),
    Fault("attention without normalisation", ATTENTION,
          lambda q, k, v: powers(masked(scores(q, k))) @ v),
    Fault("values cut off from their gradient", OF_FLOAT64,
          lambda q, k, v: naive_attention(q, k, v.detach()) + 0 * v),
    Fault("weights cut off from their gradient", OF_FLOAT64,
          lambda q, k, v: softmax(masked(scores(q, k))).detach() @ v + 0 * q + 0 * k),
    Fault("values on a grid", ATTENTION,
          lambda q, k, v: naive_attention(q, k, (v * 256).round() / 256)),
    Fault("GELU for SiLU", SWIGLU, swiglu(F.gelu)),
    Fault("sigmoid for SiLU", SWIGLU, swiglu(torch.sigmoid)),
    Fault("hidden layer in bfloat16", SWIGLU, swiglu(F.silu, torch.bfloat16)),
    Fault("gate and up exchanged", SWIGLU, lambda x, gate, up, down: model_swiglu(x, up, gate, down)),
    Fault("feed-forward with its own residual", SWIGLU,
          lambda x, gate, up, down: model_swiglu(x, gate, up, down) + x),
    Fault("gate cut off from its gradient", "swiglu_gradients_are_those_of_float64",
          lambda x, gate, up, down: (F.silu(x @ gate.T).detach() * (x @ up.T)) @ down.T + 0 * gate.sum()),
)  # fmt: skip
