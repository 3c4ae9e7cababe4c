"""Adding 0.01 a thousand times: the error of the number, the error of the additions, and where the sum stops."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from perf_tests_suite.numerics_tests.harness.checks import assert_same_bits, assert_true
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.exercises import (
    stops_at,
)
from perf_tests_suite.numerics_tests.harness.strategies import low_dtypes
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import BF16, FORMAT_OF, FP16, Format

RunningSum = Callable[[Tensor, int, torch.dtype], Tensor]
"""(addends, how often each is added, dtype of the accumulator) to the totals."""


def add_one_by_one(addends: Tensor, count: int, accumulator: torch.dtype) -> Tensor:
    totals, addends = torch.zeros_like(addends, dtype=accumulator), addends.to(accumulator)
    for _ in range(count):
        totals += addends
    return totals


def add_at_once(addends: Tensor, count: int, accumulator: torch.dtype) -> Tensor:
    return addends[:, None].expand(-1, count).sum(dim=-1, dtype=accumulator)


@claim(
    "running_sum",
    {"loop": add_one_by_one, "torch.sum": add_at_once},
    bits=st.lists(st.integers(1, 0x7BFF), min_size=1, max_size=8),
    dtype=low_dtypes(),
    share=st.floats(0, 1),
)
def test_float32_sums_of_one_16_bit_value_are_exact(
    running_sum: RunningSum, bits: list[int], dtype: torch.dtype, share: float
) -> None:
    """n copies of a p-bit number are exact in 24 bits while n <= 2^(24 - p): every partial sum is m x 2^e, m < 2^24.

    8192 copies for float16, 65536 for bfloat16 (run to 8192 here). Elementary; cf. Higham, ASNA 2e, section 2.2.
    """
    addends = torch.tensor(bits, dtype=torch.int16).view(dtype)
    addends = torch.where(addends.float() < 2.0**60, addends, 1.0).to(dtype)
    limit = min(2 ** (24 - FORMAT_OF[dtype].precision), 2**13)
    count = 1 + round(share * (limit - 1))
    # bfloat16 reaches below what float32 holds without subnormals; multiples of a subnormal are exact too.
    totals = running_sum(addends.to(device()), count, torch.float32)
    assert_same_bits(totals.cpu(), (addends.double() * count).float(), "n m < 2^24")
    assert_true(bool((totals.cpu().double() == addends.double() * count).all()), "the sum was rounded")


@pytest.mark.parametrize("a_format", [FP16, BF16], ids=["fp16", "bf16"])
def test_float32_sums_of_one_16_bit_value_are_exact_to_a_limit(a_format: Format) -> None:
    """The largest significand 2^p - 1 fits 2^(24 - p) times into 2^24, and a few times more does not."""
    largest = torch.tensor([2.0**a_format.precision - 1], dtype=a_format.dtype, device=device())
    limit = 2 ** (24 - a_format.precision)
    assert add_at_once(largest, limit, torch.float32).item() == limit * largest.item()
    # Odd and beyond 2^24, where float32 holds even numbers only.
    beyond = limit + limit // int(largest.item()) + 1
    beyond += 1 - beyond % 2
    assert beyond * largest.item() > 2**24
    assert add_at_once(largest, beyond, torch.float32).item() != beyond * largest.item()


@claim("running_sum", {"loop": add_one_by_one}, cost=4, mantissas=st.lists(st.floats(1, 1.999), min_size=4, max_size=8))
def test_sums_in_the_format_stop_growing(running_sum: RunningSum, mantissas: list[float]) -> None:
    """A running sum of x > 0 in precision p stands still at the first 2^e with x <= 2^(e - p), and stays there.

    From round to nearest alone; so 0.01 stops at 32 in float16 and at 4 in bfloat16, and ones at 2048 and 256.
    """
    for a_format in (FP16, BF16):
        scaled = torch.tensor([0.01, 1.0, *(m * 2.0**-9 for m in mantissas)], dtype=a_format.dtype)
        expected = torch.tensor([stops_at(x, a_format.precision) for x in scaled.tolist()], dtype=a_format.dtype)
        enough = 2 * a_format.consecutive_integers_to
        totals = running_sum(scaled.to(device()), enough, a_format.dtype)
        assert_same_bits(totals.cpu(), expected, "round to nearest, ties to even")


def test_a_dimension_decides_what_a_sum_is_kept_in() -> None:
    """A float32 scalar does not lift a float16 vector: only a 0-dim tensor against a 0-dim one promotes.

    PyTorch, "Tensor Attributes", type promotion: a tensor without dimensions counts for less than one with.
    """
    one_dim, no_dim = torch.zeros(1, dtype=torch.float16), torch.zeros((), dtype=torch.float16)
    assert (no_dim + torch.tensor(1.0)).dtype == torch.float32
    assert (one_dim + torch.tensor(1.0)).dtype == torch.float16
