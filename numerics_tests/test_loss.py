"""Cross-entropy: float32 for logits of any dtype, exact to an absolute bound, and so is its gradient."""

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from model.training import cross_entropy as model_cross_entropy
from numerics_tests.harness import bounds, oracles
from numerics_tests.harness.checks import assert_true, assert_within
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, alike, integers, recipes
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import U32

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (N, V) and targets (N,) to the mean loss in nats."""


def torch_cross_entropy(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    return F.cross_entropy(logits_NV.float(), targets_N)


LOSSES = {"model": model_cross_entropy, "torch": torch_cross_entropy}
GAPS = (0.0, 30.0, -30.0, 88.8, -104.0, 1e4, -1e4)
LOGITS = recipes((1, 4, 33), (2, 17, 257), exponents=(-4, 5), plant=GAPS)


def targets_for(recipe: Recipe) -> Tensor:
    """Random ones, of which the first is the last of the vocabulary: beyond 255 where there are so many."""
    generator = torch.Generator().manual_seed(recipe.seed)
    targets = torch.randint(recipe.shape[-1], recipe.shape[:-1], generator=generator)
    targets[0] = recipe.shape[-1] - 1
    return targets.to(device())


def mean_bound(logits: Tensor, targets: Tensor) -> Tensor:
    """Bound of the mean loss: the mean of the token bounds, and one more sum over tokens."""
    losses = oracles.token_losses(logits, targets)
    target_logit = logits.double().gather(-1, targets[..., None])[..., 0]
    each = bounds.cross_entropy(logits.double(), target_logit, losses)
    return each.mean() + bounds.gamma(losses.numel() + 1) * losses.abs().mean()


@claim("loss", LOSSES, recipe=LOGITS)
def test_loss_is_within_its_bound(loss: Loss, recipe: Recipe) -> None:
    """Absolute: u32 (V + 10 + log V + 2 |m - z_t| + 2 |loss|), averaged; bounds.cross_entropy and ASNA 2e, 4.2."""
    logits, targets = recipe.tensor(), targets_for(recipe)
    exact = oracles.token_losses(logits, targets).mean()
    assert_within(loss(logits, targets), exact, mean_bound(logits, targets), "bounds.cross_entropy")


@claim("loss", LOSSES, recipe=LOGITS)
def test_loss_is_float32_and_not_negative(loss: Loss, recipe: Recipe) -> None:
    """16-bit logits give a float32 loss: at a loss of 8 a bfloat16 one could only move in steps of 1/16."""
    value = loss(recipe.tensor(), targets_for(recipe))
    assert_true(value.dtype == torch.float32, f"the loss is {value.dtype}")
    assert_true(bool(value >= 0) and bool(value.isfinite()), f"the loss is {value}")


@claim("loss", LOSSES, height=st.floats(-100, 100, width=16), vocabulary=st.sampled_from([2, 17, 1000]))
def test_loss_of_equal_logits_is_the_log_of_their_number(loss: Loss, height: float, vocabulary: int) -> None:
    """Equal logits give ln V at any value: bounds.cross_entropy, and 2 u32 of their height for a loss that adds it.

    log sum exp z - z_t, as fused kernels write it, rounds a sum as large as the logits are high.
    """
    logits = torch.full((3, vocabulary), height, device=device())
    exact = torch.tensor(math.log(vocabulary), dtype=torch.float64, device=device())
    targets = torch.zeros(3, dtype=torch.int64, device=device())
    assert_within(loss(logits, targets), exact, mean_bound(logits, targets) + 2 * U32 * abs(height), "ln V")


@claim("loss", LOSSES, seed=st.integers(0, 2**32 - 1), shift=st.integers(-(2**20), 2**20))
def test_loss_ignores_a_shift(loss: Loss, seed: int, shift: int) -> None:
    """CE(z + c) = CE(z): integers below 2^24 are exact, and a loss that adds them up rounds by 2 u32 of them."""
    z = integers(seed, 30, 5, 17).float().to(device())
    targets = torch.arange(5, device=device())
    allowed = mean_bound(z, targets) + 2 * U32 * (z + shift).abs().max().double()
    assert_within(loss(z + shift, targets), oracles.token_losses(z, targets).mean(), allowed, "bounds.cross_entropy")


@claim("loss", LOSSES, recipe=LOGITS, bad=st.sampled_from([math.nan, math.inf]))
def test_loss_of_broken_logits_is_no_number(loss: Loss, recipe: Recipe, bad: float) -> None:
    """NaN or infinity among the logits leaves no finite loss, on which training would go on."""
    logits, targets = recipe.tensor(), targets_for(recipe)
    logits[0, 0] = bad
    assert_true(not bool(loss(logits, targets).isfinite()), "a broken logit gives a finite loss")


@claim("loss", LOSSES, recipe=LOGITS)
def test_loss_gradient_is_probability_less_one_hot(loss: Loss, recipe: Recipe) -> None:
    """dz = (softmax(z) - onehot) / N, each element within the bound of softmax and three roundings.

    Blanchard, Higham and Higham, IMA JNA 41 (2021). exp(z - m - log S) adds u32 (gap + log n) once more.
    """
    logits, targets = recipe.tensor().requires_grad_(), targets_for(recipe)
    (gradient,) = torch.autograd.grad(loss(logits, targets), logits)
    z = logits.detach().double()
    probabilities = oracles.softmax(z)
    onehot = F.one_hot(targets, z.shape[-1]).double()
    tokens = targets.numel()
    exact = (probabilities - onehot) / tokens
    u, eta = bounds.rounding(recipe.dtype)
    inner = 2 * bounds.softmax(z, probabilities, torch.float32) + 4 * U32
    assert_within(gradient, exact, inner / tokens + u * exact.abs() + eta, "p - onehot")


@claim("loss", LOSSES, recipe=LOGITS, power=st.integers(-8, 0))
def test_loss_moves_at_most_twice_its_logits(loss: Loss, recipe: Recipe, power: int) -> None:
    """|CE(z + e) - CE(z)| <= 2 max|e|, and rounding: the gradient p - onehot has 1-norm at most 2.

    Why bfloat16 logits of size Z cost at most 2^-7 Z of loss.
    """
    x, targets = recipe.tensor().float(), targets_for(recipe)
    moved = x + alike(recipe, 1, exponent=power, spread=0, dtype=torch.float32).tensor()
    change = (loss(moved, targets).double() - loss(x, targets).double()).abs()
    allowed = 2 * (moved.double() - x.double()).abs().max() + mean_bound(x, targets) + mean_bound(moved, targets)
    assert_within(change, torch.zeros_like(change), allowed, "1-norm of the gradient")


def mean_over_valid(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    return F.cross_entropy(logits_NV.float(), targets_N, ignore_index=-100)


@claim("loss", {"torch": mean_over_valid}, recipe=recipes(6, (3, 17), exponents=(-2, 3)), ignored=st.integers(1, 5))
def test_ignored_tokens_count_for_nothing(loss: Loss, recipe: Recipe, ignored: int) -> None:
    """The mean is over valid tokens, and the gradient of an ignored row is 0 to the bit; CrossEntropyLoss' page."""
    logits, targets = recipe.tensor().requires_grad_(), targets_for(recipe)
    targets[:ignored] = -100
    value = loss(logits, targets)
    valid, kept = logits.detach()[ignored:], targets[ignored:]
    exact = oracles.token_losses(valid, kept).mean()
    assert_within(value, exact, mean_bound(valid, kept), "mean over valid tokens")
    (gradient,) = torch.autograd.grad(value, logits)
    assert_true(bool((gradient[:ignored] == 0).all()), "an ignored row has a gradient")


def test_sum_of_many_losses_needs_float32() -> None:
    """16384 losses of ln 10000 sum to 150 904, beyond float16's 65504; the mean of the model stays exact."""
    logits = torch.zeros(16384, 10, dtype=torch.float16)
    targets = torch.zeros(16384, dtype=torch.int64)
    losses = torch.full((16384,), math.log(10_000), dtype=torch.float16)
    assert losses.sum() == torch.inf
    bound = mean_bound(logits, targets)
    exact = torch.tensor(math.log(10), dtype=torch.float64)
    assert_within(model_cross_entropy(logits, targets), exact, bound, "ln V")
