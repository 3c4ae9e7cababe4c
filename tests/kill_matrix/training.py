"""Faults in the optimizer, in clipping, in loss scaling and in the step as a whole."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.training import Mark, Training, ignore_mark
from perf_tests_suite.numerics_tests.harness import tiny
from perf_tests_suite.numerics_tests.harness.exercises import scaled_backward
from perf_tests_suite.numerics_tests.test_invariance import wide_model
from perf_tests_suite.numerics_tests.test_optimizer import BETAS, DECAY, EPS, RATE, Clip, torch_clip
from perf_tests_suite.numerics_tests.test_why_mixed_precision import mixed_update
from tests.kill_matrix.judging import Fault
from tests.kill_matrix.layers import mask_off_by_one, unscaled

ROUND_NOTHING: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731, a named default


def adamw(
    corrected: bool = True,
    eps_inside: bool = False,
    coupled: bool = False,
    betas: tuple[float, float] = BETAS,
    keep_second: Callable[[Tensor], Tensor] = ROUND_NOTHING,
    count: Callable[[int], float] = float,
    decays: Callable[[Tensor], bool] = lambda parameter: True,
) -> Callable[[Tensor, list[Tensor], int], Tensor]:
    """AdamW in float64, so that the planted change is the only error."""

    def steps(parameter: Tensor, gradients: list[Tensor], done: int) -> Tensor:
        p = parameter.double()
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        for number, gradient in enumerate(gradients, start=done + 1):
            step, decay = count(number), DECAY if decays(parameter) else 0.0
            g = gradient.double() + (decay * p if coupled else 0)
            p = p if coupled else p * (1 - RATE * decay)
            m = betas[0] * m + (1 - betas[0]) * g
            v = keep_second(betas[1] * v + (1 - betas[1]) * g.square())
            c1, c2 = ((1 - beta**step) if corrected else 1.0 for beta in betas)
            root = (v / c2 + EPS).sqrt() if eps_inside else (v / c2).sqrt() + EPS
            p = p - RATE * (m / c1) / root
        return p.float()

    return steps


def clip(norm_of: Callable[[list[Tensor]], Tensor], most: float = 1.0) -> Clip:
    """Clipping by another norm, which may lengthen gradients up to `most` times."""

    def scaled(gradients: list[Tensor], largest: float) -> Tensor:
        norm = norm_of(gradients)
        for gradient in gradients:
            gradient.mul_(min(most, float(largest / (norm + 1e-6))))
        return norm

    return scaled


class Weights16(Training):
    """Weights kept in bfloat16 between steps, without a float32 master copy."""

    def step(self, tokens_BT: Tensor, targets_BT: Tensor, mark: Mark = ignore_mark) -> Tensor:
        self.keep_in(torch.float32)
        loss = super().step(tokens_BT, targets_BT, mark)
        self.keep_in(torch.bfloat16)
        return loss

    def keep_in(self, dtype: torch.dtype) -> None:
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(dtype)


class NeverUpdates(Training):
    """A detached step: the optimizer holds copies, so the model does not change."""

    def update(self) -> None:
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        super().update()
        with torch.no_grad():
            for parameter, kept in zip(self.model.parameters(), before, strict=True):
                parameter.copy_(kept)


class FreshNoise(Training):
    """Stochastic rounding without a seed: no two runs agree."""

    def step(self, tokens_BT: Tensor, targets_BT: Tensor, mark: Mark = ignore_mark) -> Tensor:
        loss = super().step(tokens_BT, targets_BT, mark)
        noise = torch.Generator().manual_seed(torch.seed())
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1e-6 * torch.randn(parameter.shape, generator=noise).to(parameter.device))
        return loss


def noisy_model() -> tuple[nn.Module, int]:
    model, longest = wide_model()
    model.get_submodule("norm").register_forward_hook(lambda _, __, output: F.dropout(output, 0.1))
    return model, longest


def accumulate(
    weigh: Callable[[int, int, int], float], clear: bool = False
) -> Callable[[Training, list[Tensor]], None]:
    """Microbatches weighted by `weigh(its tokens, all tokens, number of microbatches)`."""

    def fill(training: Training, microbatches: list[Tensor]) -> None:
        total = sum(tokens.numel() for tokens in microbatches)
        for tokens in microbatches:
            if clear:
                training.clear_gradients()
            loss = training.loss(training.forward(tokens), tiny.targets_of(tokens))
            training.backward(loss * weigh(tokens.numel(), total, len(microbatches)))

    return fill


def rounded_by_a_coin(x: Tensor, generator: torch.Generator) -> Tensor:
    """Round up or down with probability 1/2 each, regardless of the nearer neighbour."""
    up = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int32) * 0xFFFF
    return ((x.view(torch.int32) + up) & -0x10000).view(torch.float32).bfloat16()


ADAMW, CLIP = "adamw_is_within_its_bound", "clipping_scales_to_the_norm"
LOGITS, GRADIENTS = "logits_err_at_most_twice_the_plain_formula", "gradients_err_at_most_twice_the_plain_formula"
MICROBATCHES = "microbatches_accumulate_to_the_whole_batch"
SLOPE, LATER = "gradient_is_the_slope_in_a_random_direction", "logits_do_not_depend_on_later_tokens"
FAULTS = (
    Fault("AdamW without bias correction", ADAMW, adamw(corrected=False)),
    Fault("AdamW with eps inside the root", ADAMW, adamw(eps_inside=True)),
    Fault("AdamW with coupled decay", ADAMW, adamw(coupled=True)),
    Fault("AdamW with exchanged betas", ADAMW, adamw(betas=(0.999, 0.9))),
    Fault("AdamW with a bfloat16 second moment", ADAMW, adamw(keep_second=lambda v: v.bfloat16().double())),
    Fault("AdamW without decay on matrices", ADAMW, adamw(decays=lambda parameter: parameter.dim() < 2)),
    Fault("AdamW without decay on vectors", ADAMW, adamw(decays=lambda parameter: parameter.dim() > 1)),
    Fault("bias correction dropped after 100 steps", ADAMW, adamw(count=lambda n: n if n <= 100 else math.inf)),
    Fault("step counter that stops at 2048", ADAMW, adamw(count=lambda n: min(n, 2048))),
    Fault("clipping of matrices alone", CLIP,
          lambda gradients, largest: torch_clip([gradient for gradient in gradients if gradient.dim() > 1], largest)),
    Fault("AdamW in float64", "foreach_is_the_loop_to_the_bit", adamw()),
    Fault("clipping of each tensor alone", CLIP,
          lambda gradients, largest: torch.stack([torch_clip([one], largest) for one in gradients]).norm()),
    Fault("clipping by the largest element", CLIP,
          clip(lambda gradients: torch.stack([gradient.abs().max() for gradient in gradients]).max())),
    Fault("clipping that always rescales", CLIP,
          clip(lambda gradients: torch.cat([one.flatten() for one in gradients]).norm(), most=torch.inf)),
    Fault("loss scaling lost", "scaling_saves_gradients_that_float16_would_lose",
          lambda x, weight, upstream: scaled_backward(x, weight, upstream, scale=1.0)),
    Fault("attention without scale in the model", LOGITS, lambda seed: tiny.model(seed, unscaled)),
    Fault("mask off by one in the model", LATER, lambda seed: tiny.model(seed, mask_off_by_one)),
    Fault("dropout in a kernel", "invariance_of_an_attention",
          lambda q, k, v: F.dropout(naive_attention(q, k, v), 0.1)),
    Fault("dropout in a model", "invariance_of_the_model", noisy_model),
    Fault("weights kept in bfloat16", "step_keeps_parameters_gradients_and_moments_in_float32", Weights16),
    Fault("noise without a seed", "step_forgets_earlier_gradients_and_repeats", FreshNoise),
    Fault("mean of microbatch means", MICROBATCHES, accumulate(lambda own, total, count: 1 / count)),
    Fault("microbatches not divided", MICROBATCHES, accumulate(lambda own, total, count: 1.0)),
    Fault("gradients cleared between microbatches", MICROBATCHES, accumulate(lambda o, t, c: o / t, clear=True)),
    Fault("copy updated instead of its master", "copy_follows_its_master",
          lambda master, change, steps, low: (
              master - steps * change, mixed_update(master.to(low), change, steps, low)[1])),
    Fault("rounding to nearest", "stochastic_rounding_is_right_on_average", lambda x, generator: x.bfloat16()),
    Fault("rounding by a coin", "stochastic_rounding_is_right_on_average", rounded_by_a_coin),
    Fault("step that leaves the weights alone", "autocast_trains_like_float32", NeverUpdates),
)  # fmt: skip
