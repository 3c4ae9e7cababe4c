"""Cross-entropy: float32 for logits of any dtype, exact to an absolute bound, and so is its gradient."""

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.training import cross_entropy as model_cross_entropy
from perf_tests_suite.numerics_tests.harness import bounds, oracles, within
from perf_tests_suite.numerics_tests.harness.checks import assert_true, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, recipes
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import U32

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (..., V) and targets (...,) to the mean loss in nats, float32."""


def torch_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


LOSSES = {"model": model_cross_entropy, "torch": torch_cross_entropy}
GAPS = (0.0, 30.0, -30.0, 88.8, -104.0, 1e4, -1e4)
LOGITS = recipes((1, 4, 33), (2, 17, 257), exponents=(-4, 5), plant=GAPS)


def targets_for(recipe: Recipe) -> Tensor:
    """Random ones, of which the first is the last of the vocabulary: beyond 255 where there are so many."""
    generator = torch.Generator().manual_seed(recipe.seed)
    targets = torch.randint(recipe.shape[-1], recipe.shape[:-1], generator=generator)
    targets[0] = recipe.shape[-1] - 1
    return targets.to(device())


@claim("loss", LOSSES, recipe=LOGITS)
def test_loss_is_within_its_bound(loss: Loss, recipe: Recipe) -> None:
    """Absolute: u32 (V + 10 + log V + 2 |m - z_t| + 2 |loss|), averaged; bounds.cross_entropy and ASNA 2e, 4.2."""
    _check_loss(loss, recipe)


def _check_loss(loss: Loss, recipe: Recipe) -> None:
    logits, targets = recipe.tensor(), targets_for(recipe)
    exact, allowed = within.cross_entropy(torch.float32, logits, targets)
    assert_within(loss(logits, targets), exact, allowed, "bounds.cross_entropy")


@claim("loss", LOSSES)
def test_loss_holds_for_many_words_and_tokens(loss: Loss) -> None:
    """The same bounds, of the loss and its gradient, for 10,000 words and 4,096 tokens, and for uneven numbers of
    rows.
    """
    for shape in ((1, 3, 10_000), (3, 130, 29), (9, 20, 29), (4, 1024, 7)):
        recipe = Recipe(shape, torch.float32, exponent=2, planted=((5000, 200.0),))  # beyond exp's largest, far out
        _check_loss(loss, recipe)
        _check_gradient(loss, recipe)


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
    _check_gradient(loss, recipe)


def _check_gradient(loss: Loss, recipe: Recipe) -> None:
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


def mean_over_valid(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    return F.cross_entropy(logits_NV.float(), targets_N, ignore_index=-100)


@claim("loss", {"torch": mean_over_valid}, recipe=recipes(6, (3, 17), exponents=(-2, 3)), ignored=st.integers(1, 5))
def test_ignored_tokens_count_for_nothing(loss: Loss, recipe: Recipe, ignored: int) -> None:
    """The mean is over valid tokens, and the gradient of an ignored row is 0 to the bit; CrossEntropyLoss' page."""
    logits, targets = recipe.tensor().requires_grad_(), targets_for(recipe)
    targets[:ignored] = -100
    value = loss(logits, targets)
    exact, allowed = within.cross_entropy(torch.float32, logits.detach()[ignored:], targets[ignored:])
    assert_within(value, exact, allowed, "mean over valid tokens")
    (gradient,) = torch.autograd.grad(value, logits)
    assert_true(bool((gradient[:ignored] == 0).all()), "an ignored row has a gradient")


def test_sum_of_many_losses_needs_float32() -> None:
    """16384 losses of ln 10000 sum to 150 904, beyond float16's 65504; the mean of the model stays exact."""
    logits = torch.zeros(16384, 10, dtype=torch.float16)
    targets = torch.zeros(16384, dtype=torch.int64)
    losses = torch.full((16384,), math.log(10_000), dtype=torch.float16)
    assert losses.sum() == torch.inf
    _, bound = within.cross_entropy(torch.float32, logits, targets)
    exact = torch.tensor(math.log(10), dtype=torch.float64)
    assert_within(model_cross_entropy(logits, targets), exact, bound, "ln V")
