"""The algorithm decides how fast errors grow: sequential, pairwise, blocked, Kahan, or PyTorch's own."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from numerics_tests.harness import bounds
from numerics_tests.harness.checks import assert_true, assert_within
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, recipes
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import FORMAT_OF
from numerics_tests.machine.sums import blocked, kahan, pairwise, sequential

Sum = Callable[[Tensor], Tensor]
"""Sums the last dimension in the dtype of the input."""


def _within(algorithm: str, total: Sum, recipe: Recipe) -> None:
    x = recipe.tensor()
    exact, magnitudes = x.double().sum(-1), x.double().abs().sum(-1)
    relative = bounds.sum_by_algorithm(algorithm, x.shape[-1], FORMAT_OF[recipe.dtype].unit_roundoff)
    # No absolute term: terms are multiples of the smallest subnormal, so a sum that is subnormal is exact.
    assert_within(total(x), exact, relative * magnitudes, f"ASNA 2e, section 4.2, {algorithm}")


# Far from overflow: the sums of up to 257 terms below 2^5 x 2^3 stay under 65504.
POSITIVE = recipes(
    4, (5, 33, 64, 257), exponents=(-4, 1), max_spread=1, plant=(), dtypes=(torch.float16, torch.float32), positive=True
)
FEW_TERMS = recipes(4, (5, 33, 64, 200), exponents=(-4, 1), max_spread=2, plant=(0.0, 200.0, -200.0))


@claim("total", {"sequential": sequential}, cost=2, recipe=FEW_TERMS)
def test_sequential_sum_is_within_its_bound(total: Sum, recipe: Recipe) -> None:
    """(n - 1) u sum|x|; Higham, ASNA 2e, (4.4)."""
    _within("sequential", total, recipe)


@claim("total", {"pairwise": pairwise}, recipe=FEW_TERMS)
def test_pairwise_sum_is_within_its_bound(total: Sum, recipe: Recipe) -> None:
    """ceil(log2 n) u sum|x|; Higham, ASNA 2e, (4.6)."""
    _within("pairwise", total, recipe)


@claim("total", {"blocked": blocked}, cost=2, recipe=FEW_TERMS)
def test_blocked_sum_is_within_its_bound(total: Sum, recipe: Recipe) -> None:
    """(b - 1 + n/b - 1) u sum|x|; Blanchard, Higham and Mary, SISC 42 (2020)."""
    _within("blocked", total, recipe)


@claim("total", {"kahan": kahan}, cost=2, recipe=POSITIVE)
def test_kahan_sum_is_within_its_bound(total: Sum, recipe: Recipe) -> None:
    """(2 u + O(n u^2)) sum|x|: the number of terms hardly counts; Higham, ASNA 2e, section 4.3."""
    _within("kahan", total, recipe)


def uniform_rows(length: int, dtype: torch.dtype) -> Tensor:
    """Two hundred rows of U[0, 1], where rounding errors add up instead of cancelling."""
    generator = torch.Generator().manual_seed(length)
    return torch.rand(200, length, generator=generator, dtype=torch.float64).to(dtype)


def mean_error(total: Sum, x: Tensor) -> float:
    """Mean |error| / sum|x| in units of u."""
    exact = x.double().sum(-1)
    return float(((total(x).double() - exact).abs() / exact).mean()) / FORMAT_OF[x.dtype].unit_roundoff


def growth(total: Sum) -> float:
    """Slope of log error over log n, from n = 64 to n = 2048, in float32 on U[0, 1]."""
    lengths = (64, 256, 1024, 2048)
    errors = [math.log(mean_error(total, uniform_rows(n, torch.float32))) for n in lengths]
    logs = torch.tensor([math.log(n) for n in lengths])
    centred = logs - logs.mean()
    return float((centred * torch.tensor(errors)).sum() / centred.square().sum())


@claim("total", {"torch.sum": lambda x: x.sum(-1), "pairwise": pairwise, "kahan": kahan})
def test_error_of_a_good_sum_does_not_grow_with_length(total: Sum) -> None:
    """Sequential errors grow like sqrt(n), slope 1/2, and these must stay under 1/4, the middle between 1/2 and 0.

    Random roundings add up like a random walk: Higham and Mary, SISC 41 (2019). Pairwise grows with
    sqrt(log n) only. The rows are seeded, so the slope is one number per machine.
    """
    slope = growth(lambda x: total(x.to(device())).cpu())
    assert_true(slope < 0.25, f"error grows with n to the power of {slope:.2f}, it should not grow")


def test_error_of_a_sequential_sum_grows_with_the_root_of_its_length() -> None:
    """Slope 1/2, between a constant error and the worst case n; Higham and Mary, SISC 41 (2019)."""
    assert 0.25 < growth(sequential) < 0.75


def test_bfloat16_sum_stands_still_where_blocks_go_on() -> None:
    """A running bfloat16 sum of U[0, 1] has stopped before 1024 terms: most of the terms are lost, not a few bits.

    It stops at 2^e <= 2^8 x the largest term, so at 256 of the about 512 it should reach: an error of half the
    sum, 2^7 u. In blocks of 32 no running sum gets that far.
    """
    x = uniform_rows(1024, torch.bfloat16)
    assert 2**6 < mean_error(sequential, x) < 2**8
    assert mean_error(blocked, x) < bounds.sum_by_algorithm("blocked", 1024, 1e-9) / 1e-9
