"""Faults in `model/`, each with the place that it is planted in, and honest rewrites of such functions."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perf_tests_suite.model.attention import causal_mask
from perf_tests_suite.numerics_tests.harness.planting import Planted, Wrong, before, behind, once_made
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
    STEP,
    SWIGLU,
    TABLES,
    TURN,
    UPDATE,
    block,
    embedding,
    from_place,
    full_step,
    fused,
    inverse_root,
    linear,
    losses,
    model,
    naive,
    norm,
    of_attention,
    rotary_tables,
    swiglu,
    turn_by,
    turned,
    update,
    window,
)  # fmt: skip

# Faults that are more than a line.


def clip_each_alone(parameters: Any, foreach: bool | None) -> None:
    for parameter in parameters:
        nn.utils.clip_grad_norm_([parameter], 1.0)


def clip_by_torchs_choice(parameters: Any, foreach: bool | None) -> None:
    nn.utils.clip_grad_norm_(parameters, 1.0)


def fill_gradients(parameters: Any) -> None:
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def hide_nan(parameters: Any) -> None:
    for parameter in parameters:
        parameter.grad.nan_to_num_()


def scaler(**settings: Any) -> Wrong:
    """Plant a loss scaler of other settings."""

    def change(self: Any) -> None:
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision.scales_loss, **settings)

    return once_made(change)


def gradients_to_16_bits(real: Any) -> Any:
    def backward(self: Any, loss: Tensor) -> None:
        real(self, loss)
        for parameter in self.model.parameters() if self.precision.autocast_dtype else ():
            parameter.grad = parameter.grad.to(self.precision.autocast_dtype).float()

    return backward


def under_autocast(real: Any) -> Any:
    def backward(self: Any, loss: Tensor) -> None:
        with self.precision.autocast(self.device):
            real(self, loss)

    return backward


def rates(kept: Any) -> Wrong:
    """Plant a creation of state after which `kept(rates)` are the rates of the groups."""

    def create(real: Any) -> Any:
        def creating(self: Any) -> None:
            before = [group["lr"] for group in self.optimizer.param_groups]
            real(self)
            for group, rate in zip(self.optimizer.param_groups, kept(before), strict=True):
                group["lr"] = rate

        return creating

    return create


def moments_of_frozen(real: Any) -> Any:
    def create(self: Any) -> None:
        frozen = [one for one in self.model.parameters() if not one.requires_grad]
        for one in frozen:
            one.requires_grad_()
        real(self)
        for one in frozen:
            one.requires_grad_(requires_grad=False)

    return create


def a_step_counted(real: Any) -> Any:
    def create(self: Any) -> None:
        real(self)
        for state in self.optimizer.state.values():
            state["step"].fill_(1)

    return create


def group_settings(change: Any) -> Wrong:
    """Plant another list of the optimizer's groups: `change(parameters)`."""

    def make(self: Any) -> None:
        self.optimizer = type(self.optimizer)(change(list(self.model.parameters())), foreach=False)

    return once_made(make)


def halves_added_in_16_bits(x: Tensor, weight: Tensor) -> Tensor:
    even, odd = (F.linear(x[..., half::2], weight[:, half::2]) for half in (0, 1))
    return even + odd


def first_twice_when_long(real: Any) -> Any:
    return lambda blocks, x: real([*list(blocks)[: int(x.shape[1] > 64)], *blocks], x)


def seeded(real: Any) -> Any:
    def draw(self: Any) -> None:
        torch.manual_seed(0)
        real(self)

    return draw


def tokens_as_heads(attend: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q[:, :, None], k[:, :, None], v[:, :, None])[:, :, 0] if q.ndim == 3 else attend(q, k, v)


def by_sdpa(**settings: Any) -> Wrong:
    """Plant fused attention with other settings, evaluated in each call."""
    return fused(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **{n: s(q) for n, s in settings.items()}))


def half_detached(x: Tensor) -> Tensor:
    return (x + x.detach()) / 2


def drawn(std: float) -> Wrong:
    """Plant weights drawn with `std`."""
    return lambda real: lambda self: nn.init.normal_(next(self.parameters()), std=std)


ACROSS, FAR = "attention_is_within_its_bound_across_blocks", "first_token_is_seen_from_far_away"
LONG = "logits_of_a_long_sequence_err_at_most_twice_the_plain_formula"
FIRST_STEP, DRAWN, TABLE = ("first_step_is_that_of_float64", "every_weight_is_drawn_for_itself",
                            "precisions_are_what_their_names_say")  # fmt: skip
PLAIN, GRADIENTS = (f"{of}_err_at_most_twice_the_plain_formula" for of in ("logits", "gradients"))
KEEPS_RATES = "creating_the_optimizer_state_keeps_rates_and_leaves_out_what_is_frozen"
CREATING = "creating_the_optimizer_state_changes_nothing_else"
CLIPS, MASK = "update_clips_to_norm_one_and_steps", "mask_beats_any_score"
INVISIBLE, OVERFLOW = "scaling_by_a_power_of_two_is_invisible", "overflow_skips_the_step_and_halves_the_scale"
IN_FLOAT32, OUTSIDE = "autocast_keeps_float32_where_it_sums", "autocast_ends_before_the_backward_pass"
DEFAULTS, PRECISION = "training_takes_torchs_defaults", "precision.PRECISIONS."
CLEARED_LATE = ("before-forward", "forward", "backward", "after-forward", "before-step", "update")

IN_MODEL = (
    Planted("update clips each tensor alone", CLIPS, UPDATE, update(clip=clip_each_alone)),
    Planted("clipping forgotten", CLIPS, UPDATE, update(clip=lambda parameters, foreach: None)),
    Planted("clipping before unscaling", INVISIBLE, UPDATE, update(unscale=False)),
    Planted("scale that is no power of two", INVISIBLE, MADE, scaler(init_scale=50_001.0)),
    Planted("step in spite of an overflow", OVERFLOW, UPDATE, update(step=lambda self: self.optimizer.step())),
    Planted("scale that never falls", OVERFLOW, UPDATE, update(rescale=lambda s: s.update(s.get_scale()))),
    Planted("gradients never cleared", "step_forgets_earlier_gradients_and_repeats",
            "training.Training.clear_gradients", lambda real: lambda self: None),
    Planted("eps of 1e-3 in every norm", "logits_err_at_most_twice_the_plain_formula", NORM,
            norm(lambda x, eps: inverse_root(x, 1e-3))),
    Planted("rotary tables read from their end", "rotary_is_a_turn_in_the_complex_plane", TURN,
            turned(lambda turn, self, x: turn_by(self, x, slice(-x.shape[-2], None)))),
    Planted("fp16 without loss scaling", TABLE, f"{PRECISION}fp16", lambda known: replace(known, scales_loss=False)),
    Planted("fp32 with TF32 products", TABLE, f"{PRECISION}fp32",
            lambda known: replace(known, float32_matmul_precision="high")),
    Planted("bf16 that casts to float16", TABLE, f"{PRECISION}bf16",
            lambda known: replace(known, autocast_dtype=torch.float16)),
    Planted("scale that doubles after 20 steps", TABLE, MADE, scaler(growth_interval=20)),
    Planted("fused attention takes tokens for heads", "attention_is_within_its_bound_without_heads", SDPA,
            of_attention(tokens_as_heads)),
    Planted("last checkpoint dropped", "checkpointing_changes_no_bit", MODEL,
            model(groups=lambda parts, size: [part for part in parts if len(part) == size])),
    Planted("attention that looks back 64 tokens", ACROSS, NAIVE, naive(visible=window(64))),
    Planted("fused attention over its first 128 keys", ACROSS, SDPA, of_attention(
        lambda attend, q, k, v: attend(q, k[..., :128, :], v[..., :128, :]))),
    Planted("attention that looks back 512 tokens", FAR, NAIVE, naive(visible=window(512))),
    Planted("attention that looks back 2048 tokens", FAR, NAIVE, naive(visible=window(2048))),
    Planted("mask with a graph alone", "attention_is_within_its_bound", SDPA,
            by_sdpa(is_causal=lambda q: torch.is_grad_enabled())),
    Planted("rate of the last group for all", KEEPS_RATES, STATE, rates(lambda kept: [kept[-1]] * len(kept))),
    Planted("moments of frozen parameters", KEEPS_RATES, STATE, moments_of_frozen),
    Planted("gradients that hide NaN", "update_hides_no_gradient_that_is_not_a_number", UPDATE,
            update(before=hide_nan)),
    Planted("first block twice beyond 64 tokens", LONG, BLOCKS, first_twice_when_long),
    Planted("residual stream clamped at 8", LONG, BLOCK, block(lambda x, attended: (x + attended).clamp(-8, 8))),
    Planted("logits narrowed to bfloat16 under fp16", "autocast_errs_at_most_twice_the_plain_formula", FORWARD,
            behind(lambda logits: logits.bfloat16().to(logits.dtype))),
    Planted("tokens clamped at 511", "each_token_of_a_large_vocabulary_has_its_own_row", FORWARD,
            before(lambda tokens: tokens.clamp(max=511))),
    Planted("step that updates twice", FIRST_STEP, STEP, full_step((*CLEARED_LATE, "update"))),
    Planted("after-forward that clears after backward", FIRST_STEP, STEP, full_step(CLEARED_LATE)),
    Planted("before-step that keeps gradients", FIRST_STEP, STEP,
            full_step(("before-forward", "forward", "after-forward", "backward", "update"))),
    Planted("step under autocast", OUTSIDE, STEP,
            full_step(inside=lambda training: training.precision.autocast(training.device))),
    Planted("embedding by an index", "training_repeats_to_the_bit_on_all_threads", EMBED,
            embedding(lambda tokens, table: table[tokens])),
    Planted("embeddings as narrow as GPT-2's", DRAWN, "transformer.Embedding.reset_parameters", drawn(0.02)),
    Planted("every layer from one seed", DRAWN, "transformer.Linear.reset_parameters", seeded),
    Planted("mask of -1e4", MASK, NAIVE, naive(hidden=-1e4)),
    Planted("mask of -6e4", MASK, NAIVE, naive(hidden=-6e4)),
    Planted("gradients rounded to the autocast dtype", IN_FLOAT32, BACKWARD, gradients_to_16_bits),
    Planted("residual stream in the autocast dtype", IN_FLOAT32, BLOCK,
            block(lambda x, attended: (x + attended).to(attended.dtype))),
    Planted("backward pass under autocast", OUTSIDE, BACKWARD, under_autocast),
    Planted("halves of a product added in 16 bits", "linear_rounds_once", LINEAR, linear(halves_added_in_16_bits)),
    Planted("clipping left to torch's choice", "update_issues_the_kernels_of_its_optimizer", UPDATE,
            update(clip=clip_by_torchs_choice)),
    Planted("weights too wide", "weights_are_drawn_as_wide_as_their_matrix_needs",
            "transformer.Linear.reset_parameters",
            lambda real: lambda self: nn.init.normal_(self.weight_OI, std=(3 / sum(self.weight_OI.shape)) ** 0.5)),
    Planted("loss without its cast", "loss_is_within_its_bound", LOSS, lambda real: F.cross_entropy),
    Planted("norm without its cast", "rms_norm_is_within_its_bound", NORM, norm(wide=lambda x: x)),
    Planted("norm that stays in float32", "rms_norm_of_the_model_rounds_once", NORM,
            lambda real: lambda self, x: self.weight_D * (x.float() * inverse_root(x.float(), self.eps))),
    Planted("learning rate left at 0", CREATING, STATE, rates(lambda kept: [0.0] * len(kept))),
    Planted("step that creating the state counts", CREATING, STATE, a_step_counted),
    Planted("parameters without a gradient decay", "update_leaves_what_has_no_gradient_alone", UPDATE,
            update(before=fill_gradients)),
    Planted("AdamW with amsgrad", DEFAULTS, MADE,
            once_made(lambda self: self.optimizer.param_groups[0].update(amsgrad=True))),
    Planted("head in bfloat16", PLAIN, MODEL, behind(lambda logits: logits.bfloat16().to(logits.dtype))),
    Planted("keys in reverse order", PLAIN, NAIVE, of_attention(lambda attend, q, k, v: attend(q, k.flip(-2), v))),
    Planted("attention branch detached", GRADIENTS, "transformer.MultiHeadAttention.forward", behind(half_detached)),
    Planted("embedding detached by half", GRADIENTS, EMBED, behind(half_detached)),
    Planted("feed-forward branch detached", "gradient_is_the_slope_in_a_random_direction", SWIGLU,
            behind(half_detached)),
    Planted("norm over the whole sequence", "logits_do_not_depend_on_later_tokens", NORM,
            behind(lambda x: x - 1e-3 * x.mean(1, keepdim=True))),
    Planted("statistics of the batch", "sequence_alone_is_as_exact_as_in_a_batch", NORM,
            behind(lambda x: x - 1e-3 * x.mean(0, keepdim=True) * (len(x) > 1))),
    Planted("tenth of the rate for some", DEFAULTS, MADE, group_settings(
        lambda parameters: [{"params": [p], "lr": 1e-3 if p.dim() > 1 else 1e-4} for p in parameters])),
)  # fmt: skip


# Faults beyond the first tile, block, row or call.


def tiles_of_512_keys(scores: Tensor) -> Tensor:
    """The last of several tiles is left out."""
    tokens = scores.shape[-1]
    kept = tokens if tokens <= 512 else (tokens - 1) // 512 * 512
    weights = torch.softmax(scores[..., :kept], -1).nan_to_num()
    return F.pad(weights, (0, tokens - kept))


def chunks_of_512_queries(attend: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask of every chunk starts at position 0."""
    return torch.cat([attend(part, k[..., : part.shape[-2], :], v[..., : part.shape[-2], :])
                      for part in q.split(512, -2)], -2)  # fmt: skip


def places_in_bfloat16(real: Any) -> Any:
    def mask(tokens: int, device: torch.device) -> Tensor:
        place = torch.arange(tokens, device=device).bfloat16()
        return place[:, None] >= place[None, :]

    return mask


def sixty_four_heads(attend: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Batch x heads beyond 64 repeat the first."""
    flat = attend(q, k, v).flatten(0, -3)
    return flat[torch.arange(len(flat)) % 64].view(q.shape)


def keeps_its_first_mask(real: Any) -> Any:
    def build() -> Any:
        attend, first = real(), []

        def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            first.append(q.shape[-2])
            tokens, room = q.shape[-2], max(first[0] - q.shape[-2], 0)
            wide = [F.pad(x, (0, 0, 0, room)) for x in (q, k, v)]
            if tokens <= first[0]:
                return attend(*wide)[..., :tokens, :]
            seen = attend(*(x[..., : first[0], :] for x in (q, k, v)))
            return torch.cat((seen, v[..., first[0] :, :]), -2)

        return flex

    return build


def softmax_over_256(x: Tensor) -> Tensor:
    """What is behind the last of several 256 is left out of the sum."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    width = x.shape[-1]
    return powers / powers[..., : width if width < 512 else width // 256 * 256].sum(-1, keepdim=True)


def loss_in_parts(picked: Tensor, z: Tensor) -> Tensor:
    """A mean of the means of 128 tokens."""
    return torch.stack([part.mean() for part in picked.flatten().split(128)]).mean()


def maximum_of_1024(logits: Tensor, targets: Tensor) -> Tensor:
    z = logits.float() - logits.float()[..., :1024].amax(-1, keepdim=True)
    return (z.exp().sum(-1).log() - z.gather(-1, targets[..., None])[..., 0]).mean()


def normaliser_of_4096(picked: Tensor, z: Tensor) -> Tensor:
    return (picked - z.logsumexp(-1) + z[..., :4096].logsumexp(-1)).mean()


def eight_rows_at_once(picked: Tensor, z: Tensor) -> Tensor:
    """What is left over of groups of 8 rows is dropped."""
    return picked[: len(picked) // 8 * 8 or None].mean()


def detached_at_block_4(blocks: Any, x: Tensor) -> Tensor:
    for number, each in enumerate(blocks):
        x = each(x.detach() if number == 4 else x)
    return x


def tables_rounded_by_16_bits(turn: Any, self: Any, x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        self.cos_TK, self.signed_sin_TK = (table.to(x.dtype).float() for table in (self.cos_TK, self.signed_sin_TK))
    return turn(self, x)


def slower_each_step(real: Any) -> Any:
    def update(self: Any) -> None:
        real(self)
        for group in self.optimizer.param_groups:
            group["lr"] *= 1 - 1e-4

    return update


def loss_of_the_step_before(real: Any) -> Any:
    def step(self: Any, *given: Any) -> Tensor:
        last, self.last = getattr(self, "last", None), real(self, *given)
        return self.last if last is None else last

    return step


def small_gradients_kept(real: Any) -> Any:
    def clear(self: Any) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is None or float(parameter.grad.abs().max()) > 1e-3:
                parameter.grad = None

    return clear


def a_block_left_out_by_chance(real: Any) -> Any:
    return lambda blocks, x: real(list(blocks)[int(torch.rand(()) < 0.005) :], x)


def flushes_subnormals(real: Any) -> Any:
    return lambda self: (real(self), torch.set_flush_denormal(True))


HEADS, WIDE_NORM, WIDE_TURN = ("attention_holds_for_many_heads", "rms_norm_holds_for_the_widths_of_models",
                               "rotary_holds_for_the_widths_of_models")  # fmt: skip
TILES, PRODUCTS, LOSSES = ("attention_holds_beyond_its_tiles", "linear_holds_for_the_widths_of_models",
                           "loss_holds_for_many_words_and_tokens")  # fmt: skip
DEEP = "deep_model_errs_at_most_twice_the_plain_formula"
SIZED = (
    Planted("last of several tiles of 512 keys dropped", TILES, NAIVE, naive(softmax=tiles_of_512_keys)),
    Planted("chunks of 512 queries with a mask from 0", TILES, SDPA, of_attention(chunks_of_512_queries)),
    Planted("places of the mask in bfloat16", TILES, "attention.causal_mask", places_in_bfloat16),
    Planted("batch x heads beyond 64", HEADS, SDPA, of_attention(sixty_four_heads)),
    Planted("flex that keeps its first mask", "flex_is_causal_at_every_length", "attention._build_flex",
            keeps_its_first_mask),
    Planted("mean of squares of the first 1024", WIDE_NORM, NORM,
            norm(lambda x, eps: inverse_root(x[..., :1024], eps))),
    Planted("head turned up to a width of 64", WIDE_TURN, TURN, turned(
        lambda turn, self, x: torch.cat((turn(self, x)[..., :64], x[..., 64:]), -1))),
    Planted("terms beyond a multiple of 512 dropped", PRODUCTS, LINEAR, linear(
        lambda x, w: F.linear(x, w) if w.shape[1] < 512
        else F.linear(x[..., : w.shape[1] // 512 * 512], w[:, : w.shape[1] // 512 * 512]))),
    Planted("parts rounded to bfloat16 from 1024 terms on", PRODUCTS, LINEAR, linear(
        lambda x, w: F.linear(x, w) if w.shape[1] < 1024
        else torch.stack([F.linear(x[..., i : i + 512], w[:, i : i + 512]).bfloat16().to(x.dtype)
                          for i in range(0, w.shape[1], 512)]).sum(0))),
    Planted("softmax over a multiple of 256", "softmax_holds_for_long_rows", SOFTMAX, lambda real: softmax_over_256),
    Planted("loss of means of 128 tokens", LOSSES, LOSS, losses(loss_in_parts)),
    Planted("maximum of the first 1024 words", LOSSES, LOSS, lambda real: maximum_of_1024),
    Planted("normaliser of the first 4096 words", LOSSES, LOSS, losses(normaliser_of_4096)),
    Planted("last rows beyond a multiple of 8 dropped", LOSSES, LOSS, losses(eight_rows_at_once)),
    Planted("stream detached at block 4", DEEP, MODEL, model(run=detached_at_block_4)),
    Planted("rows beyond 32 are row 0", DEEP, MODEL,
            model(embedded=from_place(32, lambda rest: rest * 0, 0))),
    Planted("embeddings drawn uniformly", DRAWN, "transformer.Embedding.reset_parameters",
            lambda real: lambda self: nn.init.uniform_(self.weight_VD, -math.sqrt(3), math.sqrt(3))),
    Planted("rate that falls by 1e-4 a step", CLIPS, UPDATE, slower_each_step),
    Planted("loss of the step before", FIRST_STEP, STEP, loss_of_the_step_before),
    Planted("small gradients not cleared", "step_forgets_earlier_gradients_and_repeats",
            "training.Training.clear_gradients", small_gradients_kept),
    Planted("rotary tables rounded by 16-bit queries", "step_leaves_buffers_and_generator_alone", TURN,
            turned(tables_rounded_by_16_bits)),
    Planted("a block left out by chance", "step_leaves_buffers_and_generator_alone", BLOCKS,
            a_block_left_out_by_chance),
    Planted("precision that flushes subnormals", TABLE, "precision.Precision.apply", flushes_subnormals),
    Planted("norm in the format of its weight", "rms_norm_of_the_model_rounds_once", NORM,
            lambda real: lambda self, x: (self.weight_D * (x.to(self.weight_D.dtype)
                                                           * inverse_root(x.to(self.weight_D.dtype), self.eps))
                                          ).to(x.dtype)),
)  # fmt: skip
"""Errors that small inputs do not show, and some that only a second step, or the state that is left, does."""

# Honest rewrites.


def by_complex_numbers(turn: Any, self: Any, x: Tensor) -> Tensor:
    tokens = x.shape[-2]
    turns = torch.complex(self.cos_TK[:tokens, ::2], self.signed_sin_TK[:tokens, 1::2])
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


def in_float64(frequency: Tensor, position: Tensor) -> Tensor:
    width = 2 * len(frequency)
    return position.double()[:, None] * 10_000.0 ** -(torch.arange(0, width, 2).double() / width)


def by_variance(x: Tensor, eps: float) -> Tensor:
    variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    return (variance + mean.square() + eps).rsqrt()


def loss_of_all(loss: Any) -> Wrong:
    return lambda real: lambda logits, targets: loss(logits.float().flatten(0, -2), targets.flatten())


RMS, BOUND = "rms_norm_of_the_model_rounds_once", "attention_is_within_its_bound"
HONEST = (
    Planted("rotary tables in float64", "rotary_holds_far_out", TABLES, rotary_tables(in_float64)),
    Planted("rotary angles by a running sum", "rotary_holds_for_the_widths_of_models", TABLES,
            rotary_tables(lambda f, t: torch.cat((0 * f[None], f.expand(len(t) - 1, -1).cumsum(0))))),
    Planted("rotary by complex numbers", "rotary_is_a_turn_in_the_complex_plane", TURN, turned(by_complex_numbers)),
    Planted("rotary that casts back", "rotary_is_a_turn_in_the_complex_plane", TURN,
            turned(lambda turn, self, x: turn(self, x).to(x.dtype))),
    Planted("norm by F.rms_norm", RMS, NORM, lambda real: lambda self, x: F.rms_norm(
        x.float(), x.shape[-1:], self.weight_D, self.eps).to(x.dtype)),
    Planted("norm by a division", RMS, NORM, norm(lambda x, eps: 1 / inverse_root(x, eps).reciprocal())),
    Planted("norm by a variance", "rms_norm_input_gradient_is_within_its_bound", NORM, norm(by_variance)),
    Planted("loss by F.cross_entropy", "loss_is_within_its_bound", LOSS, loss_of_all(F.cross_entropy)),
    Planted("loss by log_softmax", "loss_gradient_is_probability_less_one_hot", LOSS,
            loss_of_all(lambda z, t: F.nll_loss(z.log_softmax(-1), t))),
    Planted("loss as Liger writes it", "loss_holds_for_many_words_and_tokens", LOSS,
            losses(lambda picked, z: picked.mean())),
    Planted("softmax of torch", "softmax_of_16_bits_is_within_its_bound", SOFTMAX,
            lambda real: lambda x: torch.softmax(x, -1)),
    Planted("softmax in float32", BOUND, NAIVE,
            naive(softmax=lambda scores: torch.softmax(scores.float(), -1).to(scores.dtype))),
    Planted("scaled queries", ACROSS, NAIVE, naive(
        scale=lambda q: 1.0, scored=lambda q, k: (q / math.sqrt(q.shape[-1])) @ k.mT)),
    Planted("mask by finfo.min", FAR, NAIVE, naive(hidden=torch.finfo(torch.float32).min)),
    Planted("fused attention with a mask", ACROSS, SDPA, by_sdpa(
        attn_mask=lambda q: causal_mask(q.shape[-2], q.device))),
    Planted("fused silu", "swiglu_is_within_its_running_bound", SWIGLU, swiglu(F.silu)),
    Planted("product by einsum", "linear_rounds_once", LINEAR,
            linear(lambda x, w: torch.einsum("...i,oi->...o", x, w))),
    Planted("products in float64", GRADIENTS, LINEAR,
            linear(lambda x, w: F.linear(x.double(), w.double()).to(x.dtype))),
    Planted("embedding by index_select", GRADIENTS, EMBED, embedding(
        lambda tokens, table: table.index_select(0, tokens.flatten()).view(*tokens.shape, -1))),
    Planted("attention by parts of the queries", ACROSS, NAIVE, of_attention(
        lambda attend, q, k, v: torch.cat([attend(q[..., :100, :], k[..., :100, :], v[..., :100, :]),
                                           attend(q, k, v)[..., 100:, :]], -2))),
    Planted("attention in float64", ACROSS, SDPA, of_attention(
        lambda attend, q, k, v: attend(q.double(), k.double(), v.double()).to(v.dtype))),
    Planted("update by hand", CLIPS, UPDATE, update()),
    Planted("step without marks", FIRST_STEP, STEP, full_step()),
)  # fmt: skip
"""Other ways to write a part, each with the claim that comes nearest to refusing it; none is a fault."""
