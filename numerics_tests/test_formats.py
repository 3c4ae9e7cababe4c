"""The formats are what their table says, and a cast rounds to nearest, ties to even."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from numerics_tests.harness.checks import assert_same_bits
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import float32_patterns
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import BF16, FORMATS, FP16, Format

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
