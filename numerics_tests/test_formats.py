"""What number formats hold and lose, from float32 to FP8, MXFP8 and NVFP4, and what 16-bit states do to training."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.numerics_tests.harness import bounds
from perf_tests_suite.numerics_tests.harness.checks import assert_same_bits, assert_true, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.exercises import train_by_chance
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, alike, float32_patterns, recipes
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import BF16, FORMATS, FP16, Format
from perf_tests_suite.numerics_tests.machine.narrow import (
    E2M1,
    E4M3,
    E4M3_MAX,
    E5M2,
    E8M0,
    Blocked,
    codes_of,
    mxfp8,
    nearest,
    nvfp4,
)

by_name = pytest.mark.parametrize("a_format", FORMATS, ids=lambda a_format: a_format.name)


@by_name
def test_constants_agree_with_torch(a_format: Format) -> None:
    """torch.finfo is an independent table of the same constants."""
    info = torch.finfo(a_format.dtype)
    assert (info.max, info.smallest_normal) == (a_format.max, 2.0**a_format.min_exponent)
    assert info.eps == 2 * a_format.unit_roundoff


@pytest.mark.parametrize("a_format", [FP16, BF16], ids=lambda a_format: a_format.name)
def test_overflow_starts_half_a_unit_beyond_the_maximum(a_format: Format) -> None:
    """65519.99 is still 65504 in float16, 65520 is infinite; IEEE 754-2019, section 4.3.1."""
    edge = torch.tensor(a_format.overflows_from, dtype=torch.float32, device=device())
    below = torch.nextafter(edge, torch.zeros_like(edge))
    assert edge.to(a_format.dtype) == torch.inf
    assert below.to(a_format.dtype).item() == a_format.max


@pytest.mark.parametrize("a_format", [FP16, BF16], ids=lambda a_format: a_format.name)
def test_half_the_smallest_subnormal_rounds_to_zero(a_format: Format) -> None:
    """A tie goes to even, and 0 is even; a little more than half survives. Nothing is flushed."""
    half = torch.tensor(a_format.min_subnormal / 2, dtype=torch.float64, device=device())
    assert half.float().to(a_format.dtype) == 0
    assert (1.01 * half).float().to(a_format.dtype).item() == a_format.min_subnormal


@by_name
def test_integers_end_at_two_to_the_precision(a_format: Format) -> None:
    """2048 + 1 is 2048 in float16, 256 + 1 is 256 in bfloat16, and the step before is exact."""
    last = torch.tensor(float(a_format.consecutive_integers_to), dtype=a_format.dtype, device=device())
    assert last + 1 == last
    assert (last - 1) + 1 == last
    assert last - 1 != last


@pytest.mark.parametrize(
    "base, power, is_lost",
    [(FP16, -11, True), (FP16, -10, False), (BF16, -8, True), (BF16, -7, False)],
    ids=["fp16-11", "fp16-10", "bf16-8", "bf16-7"],
)
def test_update_below_half_a_unit_is_lost(base: Format, power: int, is_lost: bool) -> None:
    """1 + d is 1 exactly when d <= u, the tie included: half the distance to the next number."""
    one = torch.ones((), dtype=base.dtype, device=device())
    assert bool(one + 2.0**power == one) == is_lost
    # Below a power of two the numbers lie twice as close.
    assert bool(one - 2.0 ** (power - 1) == one) == is_lost


Cast = Callable[[Tensor], Tensor]


def nearest_bfloat16(x: Tensor) -> Tensor:
    """float32 to bfloat16 in integers: add just under half of the dropped part, one more if the kept part is odd."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF
    pattern = torch.where(x.isnan(), 0x7FC0, rounded)
    # Patterns from 2^15 on are the negative ones of an int16.
    return torch.where(pattern >= 2**15, pattern - 2**16, pattern).short().view(torch.bfloat16)


@claim("cast", {"torch": lambda x: x.bfloat16()}, x=float32_patterns(near=BF16))
def test_cast_to_bfloat16_is_the_integer_rule(cast: Cast, x: Tensor) -> None:
    """Exact: round to nearest, ties to even, on bit patterns of every class; IEEE 754-2019, section 4.3.1."""
    assert_same_bits(cast(x.to(device())).cpu(), nearest_bfloat16(x), "IEEE 754-2019, section 4.3.1")


@claim("cast", {"torch": lambda x: x.half()}, x=float32_patterns(near=FP16))
def test_cast_to_float16_is_numpys(cast: Cast, x: Tensor) -> None:
    """Exact: NumPy's float16 is a separate implementation, in integers, of the same rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        expected = torch.from_numpy(x.numpy().astype(np.float16))
    assert_same_bits(cast(x.to(device())).cpu(), expected, "IEEE 754-2019, section 4.3.1")


@given(x=float32_patterns(near=FP16))
def test_every_16_bit_number_is_a_float32(x: Tensor) -> None:
    """Widening is exact, so low precision enters where a value is narrowed and nowhere else."""
    for a_format in (FP16, BF16):
        low = x.to(a_format.dtype)
        assert_same_bits(low.float().to(a_format.dtype), low, "IEEE 754-2019, section 5.4.2")


FORMAT_8 = {
    # e4m3fn gives its last exponent to numbers: one NaN a sign and no infinity.
    E4M3: Format("e4m3fn", E4M3, precision=4, min_exponent=-6, max_exponent=8),
    E5M2: Format("e5m2", E5M2, precision=3, min_exponent=-14, max_exponent=15),
}
by_format = pytest.mark.parametrize("a_format", FORMAT_8.values(), ids=lambda a_format: a_format.name)


@by_format
def test_constants_of_fp8_agree_with_torch(a_format: Format) -> None:
    """arXiv:2209.05433, table 1: 448 and 57344, smallest numbers 2^-9 and 2^-16."""
    info, codes = torch.finfo(a_format.dtype), codes_of(a_format.dtype)
    assert info.max == codes[-1] == {E4M3: 448, E5M2: 57344}[a_format.dtype]
    assert codes[1] == a_format.min_subnormal == {E4M3: 2.0**-9, E5M2: 2.0**-16}[a_format.dtype]
    assert (info.smallest_normal, info.eps) == (2.0**a_format.min_exponent, 2 * a_format.unit_roundoff)


@by_format
def test_overflow_of_fp8(a_format: Format) -> None:
    """e5m2 overflows to infinity; e4m3fn has none, and what is beyond 464 becomes 448 or NaN, infinity itself too.

    A saturating cast hides an overflow that a loss scaler would have seen. The older of PyTorch's casts gave NaN.
    """
    beyond = torch.tensor(
        [480.0, 1e9, math.inf] if a_format.dtype == E4M3 else [61440.0, 1e9, math.inf], device=device()
    )
    found = beyond.to(a_format.dtype).float()
    print(f"\n{a_format.name} on {device().type}: {beyond.tolist()} become {found.tolist()}")
    if a_format.dtype == E5M2:
        assert (found == math.inf).all()
    else:
        assert (found == E4M3_MAX).all() or found.isnan().all()
    # Half a unit beyond the maximum, and the tie that goes to it.
    tie = torch.tensor([464.0, -464.0] if a_format.dtype == E4M3 else [61439.0, -61439.0], device=device())
    assert tie.to(a_format.dtype).float().abs().tolist() == [torch.finfo(a_format.dtype).max] * 2


Narrow = Callable[[Tensor, torch.dtype], Tensor]


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).float()


@claim("narrow", {"torch": cast}, dtype=st.sampled_from([E4M3, E5M2]), data=st.data())
def test_cast_to_fp8_is_to_the_nearest(narrow: Narrow, dtype: torch.dtype, data: st.DataObject) -> None:
    """Exact, ties to even, subnormals kept; IEEE 754-2019, section 4.3.1, against a table of all 256 codes."""
    x = data.draw(float32_patterns(near=FORMAT_8[dtype]))
    x = torch.where(x.abs() <= torch.finfo(dtype).max, x, 1.0)
    expected = nearest(x.double(), codes_of(dtype)).float()
    assert_same_bits(narrow(x.to(device()), dtype).cpu(), expected, "IEEE 754-2019, section 4.3.1")


def test_scales_in_e8m0_are_powers_of_two_without_a_sign() -> None:
    """Every code is 2^(code - 127), the last NaN; a cast rounds up from 1.5 on, loses the sign, and has no zero."""
    codes = torch.arange(256, dtype=torch.uint8).view(E8M0).float()
    assert_same_bits(codes[:255], torch.ldexp(torch.ones(255), torch.arange(-127, 128)), "MX 1.0, section 5.4.1")
    assert codes[255].isnan()
    x = torch.tensor([1.0, 1.49, 1.5, 2.99, 3.0, -4.0, 0.0], device=device())
    assert x.to(E8M0).float().tolist() == [1, 1, 2, 2, 4, 4, 2.0**-127]


Product = Callable[[Tensor, Tensor, float, float], Tensor]
"""(x (M, K), w (N, K), their scales) to x w^T, from both divided by their scales in e4m3fn; float32."""


def emulated(x: Tensor, w: Tensor, x_scale: float, w_scale: float) -> Tensor:
    return (x / x_scale).to(E4M3).float() @ (w / w_scale).to(E4M3).float().T * (x_scale * w_scale)


def scaled_mm(x: Tensor, w: Tensor, x_scale: float, w_scale: float) -> Tensor:
    scales = [torch.tensor(scale, device=x.device) for scale in (x_scale, w_scale)]
    whole = F.ScalingType.TensorWise
    a, b = (x / x_scale).to(E4M3), (w / w_scale).to(E4M3).T
    return F.scaled_mm(a, b, scales[0], whole, scales[1], whole, output_dtype=torch.float32)


PRODUCTS = {"emulated": emulated, **({"torch": scaled_mm} if hasattr(F, "scaled_mm") else {})}  # since torch 2.10
ROWS = recipes(16, (32, 64), dtypes=(torch.float32,), exponents=(-12, 12), max_spread=6, plant=())


@claim("product", PRODUCTS, cost=2, recipe=ROWS)
def test_scaled_product_is_within_its_bound(product: Product, recipe: Recipe) -> None:
    """Each factor is off by u |x| + s 2^-10, and float32 adds gamma_K of all terms: ASNA 2e, section 4.2.

    With s = max|x| / 448 nothing saturates; what falls below 2^-9 s is off by half of that at most.
    """
    x, w = recipe.tensor(), alike(recipe, 1).tensor()
    scales = [float(of.abs().max()) / E4M3_MAX for of in (x, w)]
    u, half = FORMAT_8[E4M3].unit_roundoff, FORMAT_8[E4M3].min_subnormal / 2
    # Dividing by the scale rounds once in float32 before the cast: u and a little.
    off_x, off_w = (1.01 * u * of.double().abs() + half * scale for of, scale in zip((x, w), scales, strict=True))
    wide_x, wide_w = x.double().abs(), w.double().abs()
    allowed = off_x @ wide_w.T + wide_x @ off_w.T + off_x @ off_w.T
    allowed += bounds.gamma(x.shape[-1] + 2) * ((wide_x + off_x) @ (wide_w + off_w).T)
    assert_within(product(x, w, *scales), x.double() @ w.double().T, allowed, "two roundings to e4m3fn")


Quantize = Callable[[Tensor], Blocked]
BLOCKS = recipes((1, 3), 96, dtypes=(torch.float32,), exponents=(-20, 20), max_spread=8, plant=(0.0, 1.0, 448.0, 6.0))


@claim("quantize", {"MXFP8": mxfp8}, recipe=BLOCKS)
def test_mxfp8_is_the_nearest_with_the_scale_of_its_block(quantize: Quantize, recipe: Recipe) -> None:
    """Exact: the scale is a power of two below the block's largest by 2^8, each element the nearest e4m3fn; MX, 6.3."""
    x, made = recipe.tensor(), quantize(recipe.tensor())
    blocks = x.double().unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1)
    scales = torch.where(largest > 0, 2.0 ** (largest.log2().floor() - 8), 1.0)
    assert_same_bits(made.scales.double(), scales, "MX 1.0, section 6.3")
    expected = nearest(blocks / scales[..., None], codes_of(E4M3)) * scales[..., None]
    assert_same_bits(made.value(), expected.flatten(-2), "MX 1.0, section 6.3")


@claim("quantize", {"NVFP4": nvfp4}, recipe=BLOCKS)
def test_nvfp4_errs_by_half_a_step_of_its_block(quantize: Quantize, recipe: Recipe) -> None:
    """|x - q| <= s / 4 below 2 s, s / 2 to 4 s, s up to 6 s, where s = max / 6 of 16 neighbours, rounded by 2^-4 of it.

    A scale rounded down leaves the largest element at up to 6.4 s, which saturates: still within s. Blocks whose scale
    is below the format's least are 0.
    """
    x, made = recipe.tensor(), quantize(recipe.tensor())
    blocks = x.double().unflatten(-1, (-1, 16))
    tensor_scale = float(x.abs().max()) / (E4M3_MAX * 6) or 1.0
    ideal = blocks.abs().amax(-1, keepdim=True) / 6
    step = ideal * (1 + 2.0**-4) + tensor_scale * 2.0**-10
    size = blocks.abs() / step
    allowed = step * torch.where(size <= 1.8, 0.25, torch.where(size <= 3.6, 0.5, 1.0)) + 6 * tensor_scale * 2.0**-10
    assert_within(made.value(), x.double(), allowed.flatten(-2), "arXiv:2509.25149, section 2")
    assert_true(bool(torch.isin(made.elements.abs().float().cpu(), E2M1).all()), "an element is no number of e2m1")


Train = Callable[[Tensor, float, int, torch.Generator], Tensor]
"""(bfloat16 weights, change per step, steps, generator) to the weights afterwards."""


@claim("train", {"stochastic": train_by_chance}, cost=4, seed=st.integers(0, 2**32 - 1), power=st.integers(-14, -10))
def test_weights_rounded_by_chance_train_without_bias(train: Train, seed: int, power: int) -> None:
    """Each of 64 steps is below half a unit of 1 and lost when rounded to nearest; by chance the mean moves by all.

    4096 weights; each step is a draw within one unit of 2^-8, so the mean is off by at most 6 units sqrt(steps / 4096)
    / 2, once in 10^9. Connolly, Higham and Mary, SISC 43 (2021).
    """
    steps, count = 64, 4096
    moved = train(torch.ones(count, dtype=torch.bfloat16), 2.0**power, steps, torch.Generator().manual_seed(seed))
    off = float(moved.double().mean() - (1 - steps * 2.0**power))
    allowed = 6 * 2.0**-8 * math.sqrt(steps / count) / 2
    assert_true(abs(off) <= allowed, f"the mean is off by {off:.3g}, {allowed:.3g} allowed")
