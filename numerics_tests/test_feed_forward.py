"""SwiGLU: the error of three products and a gate, carried along step by step."""

from collections.abc import Callable

import torch
from torch import Tensor

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.model.transformer import SwiGLU
from perf_tests_suite.numerics_tests.harness import oracles, within
from perf_tests_suite.numerics_tests.harness.checks import assert_at_most_twice, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, alike, recipes

FeedForward = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(x, gate, up, down), weights (out, in), to the output."""

ROWS = recipes(3, (4, 33), dtypes=(torch.float32,), exponents=(-3, 2), max_spread=2, plant=(0.0, 1.0, -30.0, 100.0))
HIDDEN = 24


def model_swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    with torch.device("meta"):
        layer = SwiGLU(x.shape[-1], gate.shape[0])
    weights = {"gate.weight_OI": gate, "up.weight_OI": up, "down.weight_OI": down}
    return torch.func.functional_call(layer, weights, (x,))


def operands(recipe: Recipe, hidden: int = HIDDEN) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width = recipe.shape[-1]
    gate, up = (alike(recipe, n, shape=(hidden, width), exponent=-2, spread=1).tensor() for n in (1, 2))
    down = alike(recipe, 3, shape=(width, hidden), exponent=-2, spread=1).tensor()
    return recipe.tensor(), gate, up, down


def check_bound(feed_forward: FeedForward, tensors: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    exact, allowed = within.swiglu(torch.float32, *tensors)
    assert_within(feed_forward(*tensors), exact, allowed, "running error, ASNA 2e, 3.3")


@claim("feed_forward", {"model": model_swiglu}, recipe=ROWS)
def test_swiglu_is_within_its_running_bound(feed_forward: FeedForward, recipe: Recipe) -> None:
    """Products within gamma_n |x||W|, the gate within its slope of what reaches it; ASNA 2e, sections 3.3 and 3.5."""
    check_bound(feed_forward, operands(recipe))


@claim("feed_forward", {"model": model_swiglu})
def test_swiglu_holds_for_the_widths_of_models(feed_forward: FeedForward) -> None:
    """The same bound for hidden layers of 512 to 12,288 features, on a narrow stream."""
    for hidden in sorted({config.d_ff for config in SIZES.values()}):
        check_bound(feed_forward, operands(Recipe((2, 8), torch.float32), hidden))


@claim("feed_forward", {"model": model_swiglu}, cost=2, recipe=ROWS)
def test_swiglu_gradients_are_those_of_float64(feed_forward: FeedForward, recipe: Recipe) -> None:
    """Every gradient, by the rule of at most twice the same formula in float32 by torch's own silu."""

    def plain(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def gradients(function: FeedForward, dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in operands(recipe)]
        return list(torch.autograd.grad(function(*leaves).sum(), leaves))

    mine, baseline = (gradients(function, torch.float32) for function in (feed_forward, plain))
    exact = gradients(oracles.swiglu, torch.float64)
    for three in zip(mine, baseline, exact, strict=True):
        assert_at_most_twice(*three, roundings=HIDDEN + recipe.shape[-1])
