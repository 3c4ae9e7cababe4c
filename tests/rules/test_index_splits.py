"""Launches of kernels on tensors that 32 bits cannot address, against numbers worked out by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests.predict.counters import counters_of
from perf_tests.predict.counting import Counting
from tests.support.example_cases import attention_case

GIB = 2**30


def launches_of(function: Callable[[Tensor], object], gib: float, dtype: torch.dtype = torch.float32) -> int:
    """On a square-ended tensor of so many GiB."""
    with FakeTensorMode(), Counting("cuda") as counting:
        x = torch.empty(int(gib * GIB) // dtype.itemsize // 2**20, 2**10, 2**10, dtype=dtype)
        with counting.part("call"):
            function(x)
        return counting.finished()["call"].kernels.total()


@pytest.mark.parametrize(
    "gib, dtype, launches",
    [(2, torch.float32, 1), (2.5, torch.float32, 2), (8, torch.float32, 4), (9, torch.float32, 8),
     (4, torch.bfloat16, 2)],
)  # fmt: skip
def test_an_elementwise_kernel_is_halved_until_each_part_has_2_gib_at_most(
    gib: float, dtype: torch.dtype, launches: int
) -> None:
    assert launches_of(torch.exp, gib, dtype) == launches


@pytest.mark.parametrize(
    "function, launches",
    [
        pytest.param(lambda x: x + x[:1], 4, id="a broadcast argument"),
        pytest.param(lambda x: x.mul_(2), 4, id="in place"),
        pytest.param(lambda x: x.sum(-1), 4, id="a reduction of the rows"),
        pytest.param(lambda x: x.sum(0), 4, id="a reduction of the batch"),
        pytest.param(torch.zeros_like, 4, id="a fill"),
        pytest.param(lambda x: x.new_zeros(10, 7), 1, id="a small fill that takes its dtype from it"),
        pytest.param(lambda x: x.to(torch.bfloat16), 4, id="a cast"),
        pytest.param(lambda x: x.clone(), 1, id="a plain copy"),
        pytest.param(lambda x: x.transpose(1, 2).contiguous(), 4, id="a copy into another layout"),
        pytest.param(lambda x: x.gather(-1, torch.zeros(1, 1, 1, dtype=torch.int64).expand(*x.shape[:2], 1)), 4 + 1,
                     id="a look-up along rows, and its index"),
        pytest.param(lambda x: x.softmax(-1), 1, id="a softmax"),
        pytest.param(lambda x: x @ x, 1, id="a product"),
        pytest.param(lambda x: x[: len(x) // 2].exp(), 2, id="half of a tensor"),
    ],
)  # fmt: skip
def test_of_8_gib_each_kind_of_kernel_has_its_launches(function: Callable[[Tensor], object], launches: int) -> None:
    assert launches_of(function, 8) == launches


def test_more_elements_than_32_bits_count_split_even_bytes() -> None:
    assert launches_of(torch.logical_not, 2, torch.bool) == 2


def test_naive_attention_at_16384_launches_seven_kernels_four_times_each() -> None:
    """Scale, mask, maximum, subtraction, exponential, sum and division, of a square of 8 GiB."""
    short, long = (counters_of(attention_case(device="cuda", sequence_length=length)) for length in (256, 16384))
    assert long.kernel_launches == short.kernel_launches + 7 * 3
    on_cpu = counters_of(attention_case(sequence_length=16384))
    assert (long.bytes_touched, short.kernel_launches) == (on_cpu.bytes_touched, on_cpu.kernel_launches)
