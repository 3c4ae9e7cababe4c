"""Faults in rotary embedding, attention and the feed-forward layer."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import causal_mask, naive_attention, softmax
from numerics_tests.claims import Fault
from numerics_tests.test_feed_forward import model_swiglu
from numerics_tests.test_rotary import model_rotary


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


TURN, FAR = "rotary_is_a_turn_in_the_complex_plane", "rotary_holds_far_out"
SWIGLU = "swiglu_is_within_its_running_bound"
FAULTS = (
    Fault("rotary pairs half a width apart", TURN, half_split),
    Fault("rotary base of 1000", TURN, lambda x: _turn(x, _angles(x, theta=1000.0))),
    Fault("rotary backwards", TURN, lambda x: _turn(x, _angles(x), sign=-1.0)),
    Fault("rotary angles in bfloat16", FAR, lambda x: _turn(x, _angles(x, dtype=torch.bfloat16))),
    Fault("rotary angles in float16", FAR, lambda x: _turn(x, _angles(x, dtype=torch.float16))),
    Fault(
        "rotary positions from one",
        "rotary_leaves_the_first_position_alone",
        lambda x: _turn(x, _angles(x, first=1)),
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
