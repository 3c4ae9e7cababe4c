"""RMSNorm and LayerNorm, in float32 for inputs of any dtype: range, accuracy, gradients.

Does bfloat16 still need a float32 norm? Yes: nothing overflows, and the error is still many times the bound.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.numerics_tests.harness import bounds, oracles, within
from perf_tests_suite.numerics_tests.harness.checks import assert_same_bits, assert_true, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.exercises import model_rms_norm
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, alike, recipes
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import LOW, U32

RMS = Callable[[Tensor, Tensor, float], Tensor]
"""(x, float32 weight, eps) to the normalised rows, in the dtype of x."""
Layer = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(x, float32 weight, float32 bias, eps) to the normalised rows, in the dtype of x."""


def torch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


def torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), eps)


def float32_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:], weight, bias, eps).to(x.dtype)


RMS_NORMS = {"model": model_rms_norm, "torch": torch_rms_norm}
LAYER_NORMS = {"torch": torch_layer_norm, "float32": float32_layer_norm}
ROWS = recipes(3, (2, 8, 33, 128), exponents=(-12, 10))
EPS = st.sampled_from([1e-5, 1e-6])


def weights_like(recipe: Recipe, number: int = 1) -> Tensor:
    """A float32 row that is also exact in the dtype of the recipe, of the size of trained norm weights."""
    return alike(recipe, number, shape=recipe.shape[-1:], exponent=0, spread=1).tensor().float()


def _check_rms(rms_norm: RMS, recipe: Recipe, eps: float) -> None:
    x, weight = recipe.tensor(), weights_like(recipe).to(device())
    exact, bound = within.rms_norm(recipe.dtype, x, weight, eps)
    reachable = exact.abs() < torch.finfo(recipe.dtype).max / 2
    result = rms_norm(x, weight, eps)
    assert_within(result.where(reachable, 0), exact.where(reachable, 0), bound, "bounds.rms_norm")


@claim("rms_norm", RMS_NORMS, recipe=ROWS, eps=EPS)
def test_rms_norm_is_within_its_bound(rms_norm: RMS, recipe: Recipe, eps: float) -> None:
    """|y| ((n/2 + 8) u32 + 2 u): one rounding of y, one of a weight applied in the output's dtype; ASNA 2e, 4.2."""
    _check_rms(rms_norm, recipe, eps)


def sizes_of_rows(*rows: int) -> list[tuple[int, int]]:
    """The widths of the models that are measured; and as many rows as a batch has tokens, narrow ones."""
    return [*((2, width) for width in sorted({config.d_model for config in SIZES.values()})), *((n, 8) for n in rows)]


@claim("rms_norm", RMS_NORMS)
def test_rms_norm_holds_for_the_widths_of_models(rms_norm: RMS) -> None:
    """The same bound, and that of the input's gradient, from 768 to 4,608 features and for 4,096 rows."""
    for shape in sizes_of_rows(4096):
        for dtype in (torch.float32, torch.bfloat16):
            _check_rms(rms_norm, Recipe(shape, dtype), 1e-5)
        _check_input_gradient(rms_norm, Recipe(shape, torch.float32))


@claim("rms_norm", {"model": model_rms_norm}, recipe=ROWS, eps=EPS)
def test_rms_norm_of_the_model_rounds_once(rms_norm: RMS, recipe: Recipe, eps: float) -> None:
    """|y| ((n/2 + 8) u32 + u) in x's dtype: weighted in float32, so only the last cast rounds; ASNA 2e, section 4.2.

    With weights kept in bfloat16 too.
    """
    x, weight = recipe.tensor(), weights_like(recipe).to(device()).bfloat16()
    if recipe.seed % 2:
        weight = weight.float()
    exact, result = oracles.rms_norm(x, weight, eps), rms_norm(x, weight, eps)
    assert_within(result, exact, bounds.rms_norm(exact, recipe.dtype), "bounds.rms_norm")
    assert_true(result.dtype == recipe.dtype, f"{recipe.dtype} became {result.dtype}")


# Of one sign, so that sums do not cancel and an error relative to the sum shows; and so many rows that a running sum
# over them in 16 bits, as the weight's gradient would be one, stands still.
GRADIENT_ROWS = recipes(2048, 4, exponents=(-1, 1), max_spread=1, plant=(), positive=True)


@claim("rms_norm", {"model": model_rms_norm}, cost=2, recipe=GRADIENT_ROWS)
def test_rms_norm_weight_gradient_sums_rows_in_float32(rms_norm: RMS, recipe: Recipe) -> None:
    """dw = sum over rows of g z, within gamma_N(u32) sum|g z| and the error of z itself; ASNA 2e, section 4.2."""
    x, upstream = recipe.tensor(), alike(recipe, 1, positive=True).tensor()
    weight = torch.ones(x.shape[-1], device=device(), requires_grad=True)
    (gradient,) = torch.autograd.grad(rms_norm(x, weight, 1e-5), weight, upstream)
    terms = upstream.double() * oracles.rms_norm(x, torch.ones_like(weight), 1e-5)
    bound = bounds.gamma(len(x) + x.shape[-1] + 10) * terms.abs().sum(0)
    assert_within(gradient, terms.sum(0), bound, bounds.ASNA)


@claim("rms_norm", RMS_NORMS, recipe=recipes(3, (4, 33), dtypes=(torch.float32,), exponents=(-3, 3)))
def test_rms_norm_input_gradient_is_within_its_bound(rms_norm: RMS, recipe: Recipe) -> None:
    """dx = (w g - z mean(z w g)) / rms: each of the two terms is off by (n + 20) u32 of its size; ASNA 2e, 3.1.

    The size of z there is |z| + |mean z|, because a mean square from a variance adds both again on its way back.
    """
    _check_input_gradient(rms_norm, recipe)


def _check_input_gradient(rms_norm: RMS, recipe: Recipe) -> None:
    x, upstream = recipe.tensor().requires_grad_(), alike(recipe, 1).tensor()
    weight = weights_like(recipe).to(device())
    (gradient,) = torch.autograd.grad(rms_norm(x, weight, 1e-5), x, upstream)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(oracles.rms_norm(wide, weight, 1e-5), wide, upstream.double())
    z = oracles.rms_norm(x.detach(), torch.ones_like(weight), 1e-5)
    inverse_rms = (x.detach().double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    pulled = (weight.double() * upstream.double()).abs()
    sizes = z.abs() + z.mean(-1, keepdim=True).abs()
    size = inverse_rms * (pulled + sizes * (z.abs() * pulled).mean(-1, keepdim=True))
    assert_within(gradient, exact, (x.shape[-1] + 20) * U32 * size + 2.0**-126, "bounds, product rule")


def _check_layer(layer_norm: Layer, recipe: Recipe, x: Tensor, eps: float) -> None:
    weight, bias = weights_like(recipe).to(x.device), weights_like(recipe, 2).to(x.device)
    exact, bound = within.layer_norm(recipe.dtype, x, weight, bias, eps)
    assert_within(layer_norm(x, weight, bias, eps), exact, bound, "bounds.layer_norm")


@claim("layer_norm", LAYER_NORMS, recipe=recipes(3, (8, 33, 128), exponents=(-6, 6)), eps=EPS)
def test_layer_norm_is_within_its_bound(layer_norm: Layer, recipe: Recipe, eps: float) -> None:
    """u |y| + (n + 10) u32 [(1 + |z|)(1 + kappa)|w| + |b|]; ASNA 2e, section 1.9, two-pass or Welford."""
    _check_layer(layer_norm, recipe, recipe.tensor(), eps)


@claim("layer_norm", LAYER_NORMS)
def test_layer_norm_holds_for_the_widths_of_models(layer_norm: Layer) -> None:
    """The same bound from 768 to 4,608 features and for 4,096 rows."""
    for shape in sizes_of_rows(4096):
        for dtype in (torch.float32, torch.bfloat16):
            recipe = Recipe(shape, dtype)
            _check_layer(layer_norm, recipe, recipe.tensor(), 1e-5)


FLAT_ROWS = recipes(3, (8, 33), dtypes=(torch.float32,), exponents=(-8, -3), max_spread=1, plant=())


@claim("layer_norm", LAYER_NORMS, recipe=FLAT_ROWS, shift=st.sampled_from([-100.0, 100.0, 1000.0]), eps=EPS)
def test_layer_norm_survives_a_large_mean(layer_norm: Layer, recipe: Recipe, shift: float, eps: float) -> None:
    """The same bound far from zero, where E[x^2] - E[x]^2 loses every digit; ASNA 2e, section 1.9."""
    _check_layer(layer_norm, recipe, recipe.tensor() + shift, eps)


@claim("layer_norm", {"float32": float32_layer_norm}, cost=2, recipe=GRADIENT_ROWS)
def test_layer_norm_bias_gradient_sums_rows_in_float32(layer_norm: Layer, recipe: Recipe) -> None:
    """db = sum of the upstream gradients within gamma_N(u32) sum|g|: ASNA 2e, section 4.2.

    On a CPU torch's own kernel sums in the dtype of its input: 4096 ones make 256 to 512 in bfloat16. The planted
    fault for this claim is that kernel.
    """
    x, upstream = recipe.tensor(), alike(recipe, 1, positive=True).tensor()
    width = x.shape[-1]
    weight = torch.ones(width, device=device())
    bias = torch.zeros(width, device=device(), requires_grad=True)
    (gradient,) = torch.autograd.grad(layer_norm(x, weight, bias, 1e-5), bias, upstream)
    exact = upstream.double().sum(0)
    bound = bounds.gamma(len(x)) * upstream.double().abs().sum(0)
    assert_within(gradient, exact, bound, bounds.ASNA)


@pytest.mark.parametrize("low", [a.dtype for a in LOW], ids=["fp16", "bf16"])
def test_rms_norm_of_the_model_computes_in_float32_under_autocast(low: torch.dtype) -> None:
    """Bit for bit what it gives outside a region, on any device's rules: its cast is explicit."""
    x, weight = Recipe((2, 16), low, seed=1).tensor(), torch.ones(16, device=device())
    outside = model_rms_norm(x, weight, 1e-5)
    with torch.autocast(device().type, dtype=low):
        assert_same_bits(model_rms_norm(x, weight, 1e-5), outside, "the cast is explicit")
