"""The cost of one operation, against numbers worked out by hand and against PyTorch's own FLOP counter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests.hardware.limits import KernelCost
from perf_tests.hardware.torch_private import operator
from perf_tests.predict.costs import multi_tensor_launches, touched_elements_bytes
from perf_tests.predict.counting import Counting


def kernels_of(
    function: Callable[[], object], target: str = "cpu", float32_rate: str = "fp32"
) -> dict[KernelCost, int]:
    """What one call launches; its tensors are made outside."""
    with Counting(target, float32_rate) as counting:
        with counting.part("call"):
            function()
        return dict(counting.finished()["call"].kernels)


LEFT, RIGHT, TEN = torch.zeros(3, 5), torch.zeros(5, 7), torch.zeros(10)
TABLE, ROWS = torch.zeros(1000, 4), torch.tensor([1, 2])

COSTS: dict[str, tuple[Callable[[], object], KernelCost]] = {
    "a product, 2mnk": (
        lambda: LEFT @ RIGHT,
        KernelCost("aten.mm", 2 * 3 * 5 * 7, 4 * (15 + 35 + 21), "fp32", summed=5),
    ),
    "in-place work reads and writes": (lambda: TEN.add_(1), KernelCost("aten.add_", 0, 80, "")),
    "a fill only writes": (lambda: TEN.zero_(), KernelCost("aten.zero_", 0, 40, "")),
    "a look-up reads its rows": (lambda: TABLE[ROWS], KernelCost("aten.index", 0, 2 * 2 * 16 + 2 * 8, "")),
}


@pytest.mark.parametrize("name", COSTS)
def test_an_operation_costs_what_it_computes_reads_and_writes(name: str) -> None:
    function, cost = COSTS[name]
    assert kernels_of(function) == {cost: 1}


def test_the_rate_is_that_of_the_factors() -> None:
    half = torch.zeros(4, 4, dtype=torch.bfloat16)
    assert [kernel.rate for kernel in kernels_of(lambda: half @ half)] == ["bf16"]
    single = torch.zeros(4, 4)
    assert [kernel.rate for kernel in kernels_of(lambda: single @ single, float32_rate="tf32")] == ["tf32"]


def test_views_and_empty_blocks_launch_nothing() -> None:
    x = torch.zeros(4, 6)
    assert kernels_of(lambda: x.view(3, 8).t().t().unsqueeze(0).expand(5, 3, 8)[1].detach()) == {}
    assert kernels_of(lambda: torch.empty(9)) == {}


def test_an_expanded_dimension_is_read_once() -> None:
    assert touched_elements_bytes(torch.zeros(1, 4).expand(100, 4)) == 16
    assert touched_elements_bytes(torch.zeros(0, 4)) == 0


@pytest.mark.parametrize("is_causal, pairs", [(True, 6 * 7 // 2), (False, 36)])
def test_fused_attention_skips_what_the_causal_mask_hides(is_causal: bool, pairs: int) -> None:
    """Two products going forward; five going back, for the scores are computed again."""
    q, k, v = (torch.zeros(2, 3, 6, 8, requires_grad=True) for _ in range(3))
    out: list[Tensor] = []
    forward = kernels_of(lambda: out.append(F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)))
    backward = kernels_of(lambda: out[0].backward(out[0].detach()))
    square_product = 2 * 2 * 3 * pairs * 8
    assert sum(kernel.flops for kernel in forward) == 2 * square_product
    assert sum(kernel.flops for kernel in backward) == 5 * square_product


@pytest.mark.parametrize(
    "elements, depth, launches",
    [
        ([1] * 110, 1, 1),  # as many small tensors as one launch takes
        ([1] * 111, 1, 2),
        ([1] * 64, 2, 1),
        ([1] * 37, 4, 2),
        ([320 * 65536], 1, 1),  # as many blocks as one launch takes
        ([320 * 65536 + 1], 1, 2),
        ([321 * 65536, 1, 1], 1, 2),
        ([0, 0], 1, 0),
        ([], 1, 0),
    ],
)
def test_lists_of_tensors_are_cut_into_launches_as_cuda_does(elements: list[int], depth: int, launches: int) -> None:
    assert multi_tensor_launches(elements, depth) == launches


def test_a_list_operation_is_one_launch_a_tensor_on_a_cpu_and_loses_no_byte_on_a_gpu() -> None:
    tensors = [torch.zeros(7) for _ in range(111)]
    on_cpu = kernels_of(lambda: operator("_foreach_mul_").Scalar(tensors, 2.0))
    on_gpu = kernels_of(lambda: operator("_foreach_mul_").Scalar(tensors, 2.0), target="cuda")
    assert sum(on_cpu.values()) == 111
    assert sum(on_gpu.values()) == 2
    for kernels in (on_cpu, on_gpu):
        assert sum(kernel.bytes * calls for kernel, calls in kernels.items()) == 2 * 7 * 4 * 111


SQUARE, COLUMN, STACK = torch.zeros(4, 6), torch.zeros(4, 1), torch.zeros(2, 4, 6)


@pytest.mark.parametrize(
    "function, elements",
    [
        pytest.param(lambda: SQUARE + 1, 0, id="a number is kept"),
        pytest.param(lambda: SQUARE * SQUARE, 0, id="equally dense"),
        pytest.param(lambda: SQUARE.t() * SQUARE.t(), 0, id="both transposed"),
        pytest.param(lambda: STACK.view(2, 24) * STACK.view(1, 2, 24), 0, id="one dense block after merging"),
        pytest.param(lambda: SQUARE - COLUMN, 24, id="a column is broadcast"),
        pytest.param(lambda: STACK * SQUARE, 48, id="a matrix is broadcast over a stack"),
        pytest.param(lambda: SQUARE.t().contiguous(), 24, id="a transposed copy"),
        pytest.param(lambda: SQUARE.sum(-1), 0, id="a sum has a kernel of its own"),
        pytest.param(lambda: SQUARE @ SQUARE.t(), 0, id="so has a product"),
    ],
)
def test_only_kernels_of_unequally_dense_tensors_address_each_element(
    function: Callable[[], object], elements: int
) -> None:
    (kernel,) = kernels_of(function, target="cuda")
    assert kernel.strided_elements == elements
    assert [kernel.strided_elements for kernel in kernels_of(function)] == [0], "a CPU is not modelled so"
