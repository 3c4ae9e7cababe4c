"""Which fused kernel runs is chosen in silence; here it is seen."""

from functools import partial

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from model.attention import ATTENTION, naive_attention, sdpa_attention
from perf_tests.hardware.device import sdpa_backend
from tests.support.example_cases import CPU

SHAPE = (2, 64, 16)


def test_a_call_without_a_head_dimension_takes_the_math_path() -> None:
    """The reason for the extra dimension in `sdpa_attention`; if this fails, drop it there."""
    without = partial(scaled_dot_product_attention, is_causal=True)
    assert sdpa_backend(without, SHAPE, torch.float32, CPU, records_graph=True) == "math"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("records_graph", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, (2, 4, 64, 16)], ids=["alone", "heads"])
def test_our_call_takes_a_fused_kernel(shape: tuple[int, ...], records_graph: bool, dtype: torch.dtype) -> None:
    assert sdpa_backend(ATTENTION["sdpa"].build(), shape, dtype, CPU, records_graph) == "flash"


def test_a_forced_math_path_is_reported_as_math() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert sdpa_backend(sdpa_attention, SHAPE, torch.float32, CPU, records_graph=True) == "math"


def test_attention_without_the_fused_call_has_no_backend() -> None:
    assert sdpa_backend(naive_attention, SHAPE, torch.float32, CPU, records_graph=False) is None
