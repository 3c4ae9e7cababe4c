"""Fifty-eight of sixty faults that were written down before the tests were changed: what nobody wrote a test for.

Of the other two, rotary angles by a running sum stay within the bound and so stand among the honest rewrites, and
weights that FSDP2 gathers in bfloat16 meet float32 inputs and end in an error of torch.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.regions import region
from perf_tests_suite.numerics_tests.harness.planting import Planted, Wrong, before, behind
from tests.kill_matrix.wrong import (
    BACKWARD,
    BLOCK,
    BLOCKS,
    EMBED,
    FORWARD,
    LINEAR,
    LOSS,
    MADE,
    MODEL,
    NAIVE,
    NORM,
    SDPA,
    SOFTMAX,
    STATE,
    SWIGLU,
    TABLES,
    TRAINING,
    TURN,
    UPDATE,
    first_repeated,
    from_place,
    inverse_root,
    linear,
    losses,
    naive,
    norm,
    of_attention,
    rotary_tables,
    swiglu,
    turned,
    with_gradient,
)  # fmt: skip


def softmax_over_256(x: Tensor) -> Tensor:
    """The part of a row behind the last whole 256 is left out of the sum."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    width = x.shape[-1]
    return powers / powers[..., : width if width < 256 else width // 256 * 256].sum(-1, keepdim=True)


def softmax_with_a_constant_sum(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True).detach()


def by_one_newton_step(x: Tensor, eps: float) -> Tensor:
    square = x.square().mean(-1, keepdim=True) + eps
    guess = square.rsqrt().bfloat16().float()
    return guess * (1.5 - 0.5 * square * guess * guess)


def over_a_power_of_two(x: Tensor, eps: float) -> Tensor:
    return (x.square().sum(-1, keepdim=True) / 2 ** math.ceil(math.log2(x.shape[-1])) + eps).rsqrt()


def in_two_parts(x: Tensor, weight: Tensor) -> Tensor:
    """A float32 product of bfloat16 parts, without that of the two remainders."""
    if torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight)
    (x_high, x_low), (w_high, w_low) = (
        (whole.bfloat16().to(whole.dtype), whole - whole.bfloat16().to(whole.dtype)) for whole in (x, weight)
    )
    return F.linear(x_high, w_high) + F.linear(x_high, w_low) + F.linear(x_low, w_high)


def reads_the_first_norm(real: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        with region(self.region):
            x = x + self.attention(self.attention_norm(x))
            return x + self.feed_forward(self.attention_norm(x))

    return forward


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


HELD_OUT = (
    Planted("probabilities below 2^-24 are none", "softmax_is_within_its_bound",
            SOFTMAX, behind(lambda p: F.threshold(p, 2.0**-24, 0.0))),
    Planted("softmax leaves out what is behind the last 256", "softmax_holds_for_long_rows",
            SOFTMAX, lambda real: softmax_over_256),
    Planted("softmax with a sum that has no gradient", "attention_gradients_are_those_of_float64",
            SOFTMAX, lambda real: softmax_with_a_constant_sum),
    Planted("scale of the scores in bfloat16", "attention_holds_beyond_its_tiles",
            NAIVE,
            naive(scale=lambda q: float(torch.tensor(1 / math.sqrt(q.shape[-1])).bfloat16()))),
    Planted("queries that do not see their own key", "attention_is_within_its_bound",
            NAIVE,
            naive(visible=lambda d: (d > 0) | ((d == 0) & (d.amax(-1, keepdim=True) == 0)))),
    Planted("window of 1000 tokens", "attention_holds_beyond_its_tiles",
            NAIVE, naive(visible=lambda d: (d >= 0) & (d < 1000))),
    Planted("keys of the first sequence for all", "attention_is_within_its_bound",
            NAIVE,
            of_attention(lambda attend, q, k, v: attend(q, k[:1].expand_as(k), v))),
    Planted("values of head 8 for all beyond", "attention_holds_for_many_heads",
            NAIVE,
            of_attention(lambda attend, q, k, v: attend(q, k, from_place(8, lambda x: x[:, :1].expand_as(x), 1)(v)
                                                 if v.ndim == 4 else v))),
    Planted("one weight in ten thousand dropped", "attention_is_within_its_bound_across_blocks",
            NAIVE,
            naive(softmax=lambda scores: F.dropout(torch.softmax(scores, -1), 1e-4) * (1 - 1e-4))),
    Planted("gradient of the values in bfloat16", "attention_gradients_are_those_of_float64",
            NAIVE, of_attention(lambda attend, q, k, v: attend(
        q, k, with_gradient(lambda g: g.bfloat16().to(g.dtype))(v)))),
    Planted("gradient of queries from 512 on too large", "attention_holds_beyond_its_tiles",
            NAIVE, of_attention(lambda attend, q, k, v: attend(
        with_gradient(from_place(512, lambda g: g * (1 + 2.0**-8)))(q), k, v))),
    Planted("fused attention with keys through float16", "attention_holds_for_many_heads",
            SDPA, of_attention(lambda attend, q, k, v: attend(
        q, k.half().to(k.dtype) if k.dtype == torch.bfloat16 else k, v))),
    Planted("fused attention of 16 sequences at most", "attention_holds_for_many_heads",
            SDPA, of_attention(
        lambda attend, q, k, v: first_repeated(16, 0)(attend(q, k, v)))),
    Planted("flex with a window of 64 keys", "flex_is_causal_at_every_length",
            "attention._is_causal",
            lambda real: lambda b, h, query, key: (query >= key) & (query - key < 64)),
    Planted("rotary positions that stop at 511", "rotary_holds_for_the_widths_of_models",
            TABLES,
            rotary_tables(lambda f, t: t.clamp(max=511)[:, None] * f)),
    Planted("rotary positions modulo 1000", "rotary_holds_for_the_widths_of_models",
            TABLES, rotary_tables(lambda f, t: (t % 1000)[:, None] * f)),
    Planted("rotary frequencies of the width less 2", "rotary_is_a_turn_in_the_complex_plane",
            TABLES,
            rotary_tables(lambda f, t: t[:, None] * f ** (2 * len(f) / max(1, 2 * len(f) - 2)))),
    Planted("half of the heads turned", "logits_err_at_most_twice_the_plain_formula",
            TURN, turned(lambda turn, self, x: torch.cat(
        (turn(self, x)[..., : x.shape[-3] // 2, :, :], x[..., x.shape[-3] // 2 :, :, :].float()), -3)
        if x.ndim > 3 else turn(self, x))),
    Planted("odd heads turned backwards", "logits_err_at_most_twice_the_plain_formula",
            TURN, turned(lambda turn, self, x: torch.where(
        (torch.arange(x.shape[-3], device=x.device) % 2 == 1)[:, None, None], 2 * x * self.cos_TK[: x.shape[-2]]
        - turn(self, x), turn(self, x)) if x.ndim > 3 else turn(self, x))),
    Planted("turned in bfloat16 beyond 256 tokens", "rotary_is_a_turn_in_the_complex_plane",
            TURN,
            behind(from_place(256, lambda x: x.bfloat16().to(x.dtype)))),
    Planted("mean of squares over a power of two", "rms_norm_is_within_its_bound",
            NORM, norm(over_a_power_of_two)),
    Planted("eps twice", "rms_norm_is_within_its_bound",
            NORM, norm(lambda x, eps: inverse_root(x, 2 * eps))),
    Planted("norm weights without their sign", "rms_norm_is_within_its_bound",
            NORM, norm(inverse_root, weight=torch.abs)),
    Planted("gradient of norm weights halved", "rms_norm_weight_gradient_sums_rows_in_float32",
            NORM, norm(inverse_root, weight=with_gradient(lambda g: g / 2))),
    Planted("norm of inputs clamped at 1e4", "rms_norm_is_within_its_bound",
            NORM, before(lambda x: x.clamp(-1e4, 1e4))),
    Planted("inverse root by one Newton step", "rms_norm_is_within_its_bound",
            NORM, norm(by_one_newton_step)),
    Planted("norm of rows beyond 2048 by the first", "rms_norm_holds_for_the_widths_of_models",
            NORM, norm(lambda x, eps: from_place(
        2048, lambda y: y[:1].expand_as(y), 0)(inverse_root(x, eps).flatten(0, -2)).view(*x.shape[:-1], 1))),
    Planted("words beyond 8192 repeat", "linear_holds_for_the_widths_of_models",
            LINEAR, linear(lambda x, w: first_repeated(8192, -1)(F.linear(x, w)))),
    Planted("products of two bfloat16 parts", "linear_holds_for_the_widths_of_models",
            LINEAR, linear(in_two_parts)),
    Planted("square matrices transposed", "logits_err_at_most_twice_the_plain_formula",
            LINEAR,
            linear(lambda x, w: F.linear(x, w.T if w.shape[0] == w.shape[1] else w))),
    Planted("weights through float16 without a graph", "linear_holds_for_the_widths_of_models",
            LINEAR,
            linear(lambda x, w: F.linear(x, w if torch.is_grad_enabled() else w.half().to(w.dtype)))),
    Planted("products in bfloat16 beyond 1024 rows", "linear_holds_for_the_widths_of_models",
            LINEAR, linear(lambda x, w: F.linear(x, w) if x[..., 0].numel() <= 1024
                           else F.linear(x.bfloat16(), w.bfloat16()).to(x.dtype))),
    Planted("no gradient for word 0", "gradients_err_at_most_twice_the_plain_formula",
            EMBED,
            lambda real: lambda self, tokens: F.embedding(tokens, self.weight_VD, padding_idx=0)),
    Planted("words modulo 8192", "each_token_of_a_large_vocabulary_has_its_own_row",
            EMBED, before(lambda tokens: tokens % 8192)),
    Planted("gate that ends at 20", "swiglu_is_within_its_running_bound",
            SWIGLU, swiglu(lambda g: F.silu(g.clamp(max=20)))),
    Planted("sigmoid of the gate in float16", "swiglu_is_within_its_running_bound",
            SWIGLU, swiglu(lambda g: g * g.sigmoid().half().to(g.dtype))),
    Planted("gate with half of its slope", "swiglu_gradients_are_those_of_float64",
            SWIGLU, swiglu(lambda g: g * g.sigmoid().detach())),
    Planted("hidden features beyond 2048 without a gate", "swiglu_holds_for_the_widths_of_models",
            SWIGLU, swiglu(F.silu, lambda g, h: from_place(
        2048, lambda one: one * 0 + 1, -1)(g) * h)),
    Planted("feed-forward reads the norm of attention", "logits_err_at_most_twice_the_plain_formula",
            BLOCK, reads_the_first_norm),
    Planted("no last norm beyond 512 tokens", "deep_model_errs_at_most_twice_the_plain_formula",
            MODEL, lambda real: lambda self, tokens: real(self, tokens)
            if tokens.shape[-1] <= 512 else self.head(self.embedding(tokens))),
    Planted("sequences beyond 16 are the first again", "deep_model_errs_at_most_twice_the_plain_formula",
            MODEL, behind(first_repeated(16, 0))),
    Planted("last logits of the batch repeat the ones before", "logits_err_at_most_twice_the_plain_formula",
            MODEL, behind(lambda logits: torch.cat(
        (logits.flatten(0, 1)[:-1], logits.flatten(0, 1)[-2:-1])).view_as(logits))),
    Planted("a group of two blocks runs backwards", "checkpointing_changes_no_bit",
            BLOCKS, half_of_the_group_backwards),
    Planted("output matrices drawn by depth", "every_weight_is_drawn_for_itself",
            "transformer.Block.__init__", drawn_by_depth),
    Planted("loss without the last token of a row", "loss_holds_for_many_words_and_tokens",
            LOSS,
            losses(lambda each, z: each[..., :-1].mean() if each.ndim > 1 else each.mean())),
    Planted("loss without targets of 0", "loss_is_within_its_bound",
            LOSS, without_targets_of_zero),
    Planted("loss with a penalty on its logarithm", "loss_is_within_its_bound",
            LOSS,
            losses(lambda each, z: each.mean() + 1e-5 * z.logsumexp(-1).mean())),
    Planted("loss of probabilities clamped at 1e-7", "loss_is_within_its_bound",
            LOSS, clamped_probabilities),
    Planted("loss smoothed under autocast", "loss_of_a_training_is_within_its_bound",
            f"{TRAINING}loss", smoothed_under_autocast),
    Planted("gradients of a loss above 8 halved", "each_token_of_a_large_vocabulary_has_its_own_row",
            BACKWARD, half_of_a_large_loss),
    Planted("step left out where the norm is above 100", "update_clips_to_norm_one_and_steps",
            UPDATE, skips_outliers),
    Planted("embedding does not decay", "first_step_is_that_of_float64",
            MADE, embedding_without_decay),
    Planted("second beta falls after ten updates", "autocast_trains_like_float32",
            UPDATE, second_beta_falls),
    Planted("gradients averaged with the last ones", "update_clips_to_norm_one_and_steps",
            UPDATE, gradients(mean_with_the_last)),
    Planted("evaluation without autocast", "step_leaves_buffers_and_generator_alone",
            FORWARD, without_autocast_in_evaluation),
    Planted("moments that do not start at 0", "creating_the_optimizer_state_changes_nothing_else",
            STATE, lambda real: lambda self: (
        real(self), [state["exp_avg_sq"].fill_(1e-12) for state in self.optimizer.state.values()])),
    Planted("mode of products that never goes back", "precisions_are_what_their_names_say",
            "precision.Precision.apply", never_back_to_highest),
    Planted("small gradients are not sent", "two_ranks_give_the_mean_of_their_chunks_to_the_bit",
            "parallel.gradients", no_small_gradients),
)  # fmt: skip
