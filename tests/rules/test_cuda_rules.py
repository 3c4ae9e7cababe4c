"""CUDA's autocast list and its choice of fused kernel, played on CPU tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests.hardware.torch_private import FakeTensorMode, operator
from perf_tests.predict.costs import CudaRules

HALF = torch.bfloat16
FLOAT = torch.float32

DTYPES: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype]] = {
    "a product": (lambda x: x @ x, HALF),
    "linear": (lambda x: F.linear(x, x), HALF),
    "exp": (lambda x: x.exp(), FLOAT),
    "pow": (lambda x: x.pow(2), FLOAT),
    "the power operator": (lambda x: x**2, FLOAT),
    "rsqrt": (lambda x: torch.rsqrt(x), FLOAT),
    "log": (lambda x: x.log(), FLOAT),
    "sum": (lambda x: x.sum(-1), FLOAT),
    "softmax": (lambda x: x.softmax(-1), FLOAT),
    "functional softmax": (lambda x: F.softmax(x, dim=-1), FLOAT),
    "sum in a dtype of its own": (lambda x: x.sum(-1, dtype=HALF), HALF),
    "a sigmoid": (lambda x: x.sigmoid(), HALF),
    "a maximum": (lambda x: x.amax(-1), HALF),
    "a mean": (lambda x: x.mean(-1), HALF),
}


@pytest.mark.parametrize("name", DTYPES)
def test_under_autocast_each_operation_has_cudas_dtype(name: str) -> None:
    function, dtype = DTYPES[name]
    x = torch.ones(4, 4, dtype=HALF)
    with CudaRules(), torch.autocast("cpu", dtype=HALF):
        assert function(x).dtype == dtype


def test_without_autocast_nothing_is_cast() -> None:
    with CudaRules():
        assert torch.ones(4, dtype=HALF).exp().dtype == HALF


@pytest.mark.parametrize("dtype, rows", [(HALF, 100), (FLOAT, 128)])
def test_fused_attention_saves_its_output_and_one_number_a_row(dtype: torch.dtype, rows: int) -> None:
    """The memory-efficient kernel, which float32 takes, keeps rows in multiples of 32."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    with CudaRules(), FakeTensorMode():
        q, k, v = (torch.zeros(2, 4, 100, 64, dtype=dtype, requires_grad=True) for _ in range(3))
        known = [tensor.untyped_storage() for tensor in (q, k, v)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert out.shape == q.shape
        own = [x for x in saved if x.untyped_storage() not in known and x.numel() > 2]
        assert {tuple(x.shape) for x in own} == {(2, 4, rows), (2, 4, 100, 64)}
        out.sum().backward()
        assert q.grad is not None


@pytest.mark.parametrize("is_transposed", [False, True])
def test_cudnns_attention_which_hopper_prefers_makes_what_flash_makes(is_transposed: bool) -> None:
    """Output and log-sum-exp of equal bytes and layout, so that it is counted as flash."""
    with FakeTensorMode():
        q = torch.zeros(2, 4, 128, 64, dtype=HALF, requires_grad=True)
        q = q.transpose(1, 2) if is_transposed else q
        flash = operator("_scaled_dot_product_flash_attention")(q, q, q, 0.0, True)[:2]
        cudnn = operator("_scaled_dot_product_cudnn_attention")(q, q, q, None, True, 0.0, True)[:2]
    assert flash[0].stride() == cudnn[0].stride()
    assert [x.untyped_storage().nbytes() for x in flash] == [x.untyped_storage().nbytes() for x in cudnn]


def test_attention_with_a_mask_is_refused() -> None:
    q = torch.zeros(1, 1, 8, 8)
    with CudaRules(), pytest.raises(NotImplementedError, match="mask"):
        F.scaled_dot_product_attention(q, q, q, torch.zeros(8, 8))
