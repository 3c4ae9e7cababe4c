"""Sixty faults that were written down before the tests were changed: how much is seen that nobody wrote tests for."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn import functional as F

from model.regions import region
from numerics_tests.harness.planting import Wrong

Change = Callable[[Any], Any]


def of_output(change: Change) -> Wrong:
    """Plant `change` behind a function."""
    return lambda real: lambda *given, **named: change(real(*given, **named))


def of_input(change: Change) -> Wrong:
    """Plant `change` before a function, or a method, of one input."""
    return lambda real: lambda *given: real(*given[:-1], change(given[-1]))


def of_attention(change: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> Wrong:
    """Plant attention made of the right one: `change(attend, q, k, v)`."""
    return lambda real: lambda q, k, v: change(real, q, k, v)


def naive(
    scale: Callable[[Tensor], float] = lambda q: 1 / math.sqrt(q.shape[-1]),
    visible: Callable[[Tensor], Tensor] = lambda distance: distance >= 0,
    weights: Change = lambda p: p,
) -> Wrong:
    """Plant attention op by op with another scale of q, mask of (query - key), or change of its weights."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2], device=q.device)
        scores = (q @ k.mT * scale(q)).masked_fill(~visible(place[:, None] - place), -math.inf)
        return weights(torch.softmax(scores, -1)) @ v

    return lambda real: attend


def with_gradient(change: Change) -> Change:
    """The same tensor, whose gradient is changed on its way back."""

    def hooked(x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        y = x * 1
        y.register_hook(change)
        return y

    return hooked


def softmax_over_256(x: Tensor) -> Tensor:
    """The part of a row behind the last whole 256 is left out of the sum."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    width = x.shape[-1]
    return powers / powers[..., : width if width < 256 else width // 256 * 256].sum(-1, keepdim=True)


def softmax_with_a_constant_sum(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True).detach()


def from_place(start: int, change: Change, dim: int = -2) -> Change:
    """The tensor with a change from one place of a dimension on."""

    def changed(x: Tensor) -> Tensor:
        if x.shape[dim] <= start:
            return x
        return torch.cat((x.narrow(dim, 0, start), change(x.narrow(dim, start, x.shape[dim] - start))), dim)

    return changed


def first_repeated(most: int, dim: int) -> Change:
    """The first `most` places of a dimension, again and again."""
    return lambda x: x.index_select(dim, torch.arange(x.shape[dim], device=x.device) % most)


def rotary_tables(change: Callable[[Any, Tensor], Tensor]) -> Wrong:
    """Plant rotary tables of changed angles: `change(frequencies, positions)` gives (T, P)."""

    def planted(real: Any) -> Any:
        def make(self: Any, head_dim: int, context_length: int, theta: float = 10_000.0) -> None:
            real(self, head_dim, context_length, theta)
            frequency = theta ** -(torch.arange(0, head_dim, 2) / head_dim)
            angle = change(frequency, torch.arange(context_length))
            self.cos_TK = angle.cos().repeat_interleave(2, -1)
            sign = torch.tensor([-1.0, 1.0]).repeat(head_dim // 2)
            self.signed_sin_TK = angle.sin().repeat_interleave(2, -1) * sign

        return make

    return planted


def norm(inverse: Callable[[Tensor, float], Tensor], weight: Change = lambda w: w) -> Wrong:
    """Plant RMSNorm by another inverse root of float32 (x, eps), or with changed weights."""
    return lambda real: lambda self, x: (weight(self.weight_D) * (x.float() * inverse(x.float(), self.eps))).to(x.dtype)


def inverse_root(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def by_one_newton_step(x: Tensor, eps: float) -> Tensor:
    square = x.square().mean(-1, keepdim=True) + eps
    guess = square.rsqrt().bfloat16().float()
    return guess * (1.5 - 0.5 * square * guess * guess)


def over_a_power_of_two(x: Tensor, eps: float) -> Tensor:
    return (x.square().sum(-1, keepdim=True) / 2 ** math.ceil(math.log2(x.shape[-1])) + eps).rsqrt()


def linear(product: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """Plant a matrix by another product of (x, weight)."""
    return lambda real: lambda self, x: product(x, self.weight_OI)


def in_two_parts(x: Tensor, weight: Tensor) -> Tensor:
    """A float32 product of bfloat16 parts, without that of the two remainders."""
    if torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight)
    (x_high, x_low), (w_high, w_low) = (
        (whole.bfloat16().to(whole.dtype), whole - whole.bfloat16().to(whole.dtype)) for whole in (x, weight)
    )
    return F.linear(x_high, w_high) + F.linear(x_high, w_low) + F.linear(x_low, w_high)


def swiglu(gated: Change, hidden: Callable[[Tensor, Tensor], Tensor] = lambda g, h: g * h) -> Wrong:
    """Plant the feed-forward layer with another function of its gate, or another meeting of gate and input."""
    return lambda real: lambda self, x: self.down(hidden(gated(self.gate(x)), self.up(x)))


def reads_the_first_norm(real: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        with region(self.region):
            x = x + self.attention(self.attention_norm(x))
            return x + self.feed_forward(self.attention_norm(x))

    return forward


def loss(change: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """Plant a loss made of the losses (B, T) and float32 logits."""

    def planted(logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.float()
        return change(logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0], logits)

    return lambda real: planted


def without_targets_of_zero(real: Any) -> Any:
    return lambda logits, targets: F.cross_entropy(
        logits.float().flatten(0, -2), targets.flatten().where(targets.flatten() != 0, -100)
    ).nan_to_num(0.0)


def clamped_probabilities(real: Any) -> Any:
    return lambda logits, targets: (
        -logits.float().softmax(-1).gather(-1, targets[..., None]).clamp(min=1e-7).log().mean()
    )


def smoothed_under_autocast(real: Any) -> Any:
    def of_training(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
        plain = real(self, logits, targets)
        if self.precision.autocast_dtype is None:
            return plain
        return 0.999 * plain - 0.001 * logits.float().log_softmax(-1).mean()

    return of_training


def gradients(change: Callable[[Any, Any], None]) -> Wrong:
    """Plant an update before which `change(training, parameter)` has seen each parameter with a gradient."""

    def planted(real: Any) -> Any:
        def update(self: Any) -> None:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    change(self, parameter)
            real(self)

        return update

    return planted


def mean_with_the_last(training: Any, parameter: Any) -> None:
    kept = vars(training).setdefault("last", {})
    last = kept.get(parameter, parameter.grad)
    kept[parameter] = parameter.grad.clone()
    parameter.grad = (parameter.grad + last) / 2


def skips_outliers(real: Any) -> Any:
    def update(self: Any) -> None:
        scale = self.loss_scale()
        squares = [p.grad.square().sum() for p in self.model.parameters() if p.grad is not None]
        if squares and float(torch.stack(squares).sum().sqrt()) / scale > 100:
            self.clear_gradients()
            return
        real(self)

    return update


def second_beta_falls(real: Any) -> Any:
    def update(self: Any) -> None:
        self.updates = getattr(self, "updates", 0) + 1
        for group in self.optimizer.param_groups:
            group["betas"] = (0.9, 0.999 if self.updates <= 10 else 0.95)
        real(self)

    return update


def embedding_without_decay(real: Any) -> Any:
    def make(self: Any, model: Any, *given: Any, **named: Any) -> None:
        real(self, model, *given, **named)
        named_parameters = dict(model.named_parameters())
        if (table := named_parameters.get("embedding.weight_VD")) is not None:
            (group,) = self.optimizer.param_groups
            group["params"] = [one for one in group["params"] if one is not table]
            self.optimizer.add_param_group({"params": [table], "weight_decay": 0.0})

    return make


def half_of_a_large_loss(real: Any) -> Any:
    return lambda self, loss: real(self, torch.where(loss.detach() > 8, loss / 2, loss))


def without_autocast_in_evaluation(real: Any) -> Any:
    return lambda self, tokens: real(self, tokens) if self.model.training else self.model(tokens)


def half_of_the_group_backwards(real: Any) -> Any:
    return lambda blocks, x: real(blocks if len(blocks) != 2 else list(blocks)[::-1], x)


def drawn_by_depth(real: Any) -> Any:
    def make(self: Any, number: int, config: Any, *given: Any) -> None:
        real(self, number, config, *given)
        with torch.no_grad():
            for matrix in (self.attention.output, self.feed_forward.down):
                matrix.weight_OI.mul_((2 * config.num_layers) ** -0.5)

    return make


def no_small_gradients(real: Any) -> Any:
    def spread(model: Any) -> Any:
        found = real(model)
        for gradient in found:
            gradient.mul_(gradient.abs() > 1e-4 * gradient.abs().max())
        return found

    return spread


def never_back_to_highest(real: Any) -> Any:
    return lambda self: real(self) if self.float32_matmul_precision != "highest" else None


def rotary_of(change: Callable[[Any, Any, Tensor], Tensor]) -> Wrong:
    """Plant rotary embedding made of the right one: `change(turn, module, x)`."""
    return lambda real: lambda self, x: change(real, self, x)


SOFTMAX, NAIVE, SDPA = "attention.softmax", "attention.naive_attention", "attention.sdpa_attention"
TABLES, TURN = "transformer.RotaryEmbedding.__init__", "transformer.RotaryEmbedding.forward"
NORM, LINEAR, EMBED = ("transformer.RMSNorm.forward", "transformer.Linear.forward", "transformer.Embedding.forward")
SWIGLU, BLOCK, MODEL = "transformer.SwiGLU.forward", "transformer.Block.forward", "transformer.TransformerLM.forward"
LOSS, UPDATE = "training.cross_entropy", "training.Training.update"

HELD_OUT: tuple[tuple[str, str, Wrong], ...] = (
    ("probabilities below 2^-24 are none", SOFTMAX, of_output(lambda p: F.threshold(p, 2.0**-24, 0.0))),
    ("softmax leaves out what is behind the last 256", SOFTMAX, lambda real: softmax_over_256),
    ("softmax with a sum that has no gradient", SOFTMAX, lambda real: softmax_with_a_constant_sum),
    ("scale of the scores in bfloat16", NAIVE,
     naive(scale=lambda q: float(torch.tensor(1 / math.sqrt(q.shape[-1])).bfloat16()))),
    ("queries that do not see their own key", NAIVE,
     naive(visible=lambda d: (d > 0) | ((d == 0) & (d.amax(-1, keepdim=True) == 0)))),
    ("window of 1000 tokens", NAIVE, naive(visible=lambda d: (d >= 0) & (d < 1000))),
    ("keys of the first sequence for all", NAIVE,
     of_attention(lambda attend, q, k, v: attend(q, k[:1].expand_as(k), v))),
    ("values of head 8 for all beyond", NAIVE,
     of_attention(lambda attend, q, k, v: attend(q, k, from_place(8, lambda x: x[:, :1].expand_as(x), 1)(v)
                                                 if v.ndim == 4 else v))),
    ("one weight in ten thousand dropped", NAIVE, naive(weights=lambda p: F.dropout(p, 1e-4) * (1 - 1e-4))),
    ("gradient of the values in bfloat16", NAIVE, of_attention(lambda attend, q, k, v: attend(
        q, k, with_gradient(lambda g: g.bfloat16().to(g.dtype))(v)))),
    ("gradient of queries from 512 on too large", NAIVE, of_attention(lambda attend, q, k, v: attend(
        with_gradient(from_place(512, lambda g: g * (1 + 2.0**-8)))(q), k, v))),
    ("fused attention with keys through float16", SDPA, of_attention(lambda attend, q, k, v: attend(
        q, k.half().to(k.dtype) if k.dtype == torch.bfloat16 else k, v))),
    ("fused attention of 16 sequences at most", SDPA, of_attention(
        lambda attend, q, k, v: first_repeated(16, 0)(attend(q, k, v)))),
    ("flex with a window of 64 keys", "attention._is_causal",
     lambda real: lambda b, h, query, key: (query >= key) & (query - key < 64)),
    ("rotary positions that stop at 511", TABLES,
     rotary_tables(lambda f, t: t.clamp(max=511)[:, None] * f)),
    ("rotary positions modulo 1000", TABLES, rotary_tables(lambda f, t: (t % 1000)[:, None] * f)),
    ("rotary frequencies of the width less 2", TABLES,
     rotary_tables(lambda f, t: t[:, None] * f ** (2 * len(f) / max(1, 2 * len(f) - 2)))),
    ("rotary angles by a running sum", TABLES,
     rotary_tables(lambda f, t: torch.cat((0 * f[None], f.expand(len(t) - 1, -1).cumsum(0))))),
    ("half of the heads turned", TURN, rotary_of(lambda turn, self, x: torch.cat(
        (turn(self, x[:, : x.shape[1] // 2]), x[:, x.shape[1] // 2 :].float()), 1) if x.ndim == 4 else turn(self, x))),
    ("odd heads turned backwards", TURN, rotary_of(lambda turn, self, x: torch.where(
        (torch.arange(x.shape[1], device=x.device) % 2 == 1)[:, None, None], 2 * x * self.cos_TK[: x.shape[-2]]
        - turn(self, x), turn(self, x)) if x.ndim == 4 else turn(self, x))),
    ("turned in bfloat16 beyond 256 tokens", TURN, of_output(from_place(256, lambda x: x.bfloat16().to(x.dtype)))),
    ("mean of squares over a power of two", NORM, norm(over_a_power_of_two)),
    ("eps twice", NORM, norm(lambda x, eps: inverse_root(x, 2 * eps))),
    ("norm weights without their sign", NORM, norm(inverse_root, weight=torch.abs)),
    ("gradient of norm weights halved", NORM, norm(inverse_root, weight=with_gradient(lambda g: g / 2))),
    ("norm of inputs clamped at 1e4", NORM, of_input(lambda x: x.clamp(-1e4, 1e4))),
    ("inverse root by one Newton step", NORM, norm(by_one_newton_step)),
    ("norm of rows beyond 2048 by the first", NORM, norm(lambda x, eps: from_place(
        2048, lambda y: y[:1].expand_as(y), 0)(inverse_root(x, eps).flatten(0, -2)).view(*x.shape[:-1], 1))),
    ("words beyond 8192 repeat", LINEAR, linear(lambda x, w: first_repeated(8192, -1)(F.linear(x, w)))),
    ("products of two bfloat16 parts", LINEAR, linear(in_two_parts)),
    ("square matrices transposed", LINEAR,
     linear(lambda x, w: F.linear(x, w.T if w.shape[0] == w.shape[1] else w))),
    ("weights through float16 without a graph", LINEAR,
     linear(lambda x, w: F.linear(x, w if torch.is_grad_enabled() else w.half().to(w.dtype)))),
    ("products in bfloat16 beyond 1024 rows", LINEAR, linear(lambda x, w: F.linear(x, w) if x[..., 0].numel() <= 1024
                                                             else F.linear(x.bfloat16(), w.bfloat16()).to(x.dtype))),
    ("no gradient for word 0", EMBED,
     lambda real: lambda self, tokens: F.embedding(tokens, self.weight_VD, padding_idx=0)),
    ("words modulo 8192", EMBED, of_input(lambda tokens: tokens % 8192)),
    ("gate that ends at 20", SWIGLU, swiglu(lambda g: F.silu(g.clamp(max=20)))),
    ("sigmoid of the gate in float16", SWIGLU, swiglu(lambda g: g * g.sigmoid().half().to(g.dtype))),
    ("gate with half of its slope", SWIGLU, swiglu(lambda g: g * g.sigmoid().detach())),
    ("hidden features beyond 2048 without a gate", SWIGLU, swiglu(F.silu, lambda g, h: from_place(
        2048, lambda one: one * 0 + 1, -1)(g) * h)),
    ("feed-forward reads the norm of attention", BLOCK, reads_the_first_norm),
    ("no last norm beyond 512 tokens", MODEL, lambda real: lambda self, tokens: real(self, tokens)
     if tokens.shape[-1] <= 512 else self.head(self.embedding(tokens))),
    ("sequences beyond 16 are the first again", MODEL, of_output(first_repeated(16, 0))),
    ("last logits of the batch repeat the ones before", MODEL, of_output(lambda logits: torch.cat(
        (logits.flatten(0, 1)[:-1], logits.flatten(0, 1)[-2:-1])).view_as(logits))),
    ("a group of two blocks runs backwards", "transformer.run_blocks", half_of_the_group_backwards),
    ("output matrices drawn by depth", "transformer.Block.__init__", drawn_by_depth),
    ("loss without the last token of a row", LOSS,
     loss(lambda each, z: each[..., :-1].mean() if each.ndim > 1 else each.mean())),
    ("loss without targets of 0", LOSS, without_targets_of_zero),
    ("loss with a penalty on its logarithm", LOSS, loss(lambda each, z: each.mean() + 1e-5 * z.logsumexp(-1).mean())),
    ("loss of probabilities clamped at 1e-7", LOSS, clamped_probabilities),
    ("loss smoothed under autocast", "training.Training.loss", smoothed_under_autocast),
    ("gradients of a loss above 8 halved", "training.Training.backward", half_of_a_large_loss),
    ("step left out where the norm is above 100", UPDATE, skips_outliers),
    ("embedding does not decay", "training.Training.__init__", embedding_without_decay),
    ("second beta falls after ten updates", UPDATE, second_beta_falls),
    ("gradients averaged with the last ones", UPDATE, gradients(mean_with_the_last)),
    ("evaluation without autocast", "training.Training.forward", without_autocast_in_evaluation),
    ("moments that do not start at 0", "training.Training.create_optimizer_state", lambda real: lambda self: (
        real(self), [state["exp_avg_sq"].fill_(1e-12) for state in self.optimizer.state.values()])),
    ("mode of products that never goes back", "precision.Precision.apply", never_back_to_highest),
    ("small gradients are not sent", "parallel.gradients", no_small_gradients),
    ("weights gathered in bfloat16", "parallel.fsdp2", lambda real: lambda model, ranks, train, policy=None: real(
        model, ranks, train, replace(policy or MixedPrecisionPolicy(), param_dtype=torch.bfloat16))),
)  # fmt: skip
"""Name, place and what takes it."""
