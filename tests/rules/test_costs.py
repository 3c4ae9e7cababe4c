"""What one operation costs: bytes, FLOPs and launches worked out by hand, by CUDA's rules played on CPU tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests.hardware.limits import KernelCost
from perf_tests.hardware.torch_private import FakeTensorMode, operator
from perf_tests.predict.costs import CudaRules, multi_tensor_launches, touched_elements_bytes
from perf_tests.predict.counters import counters_of
from perf_tests.predict.counting import Counting
from tests.support.example_cases import attention_case


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


def test_an_operation_costs_what_it_computes_reads_and_writes() -> None:
    for name, (function, cost) in COSTS.items():
        assert kernels_of(function) == {cost: 1}, name


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


def test_lists_of_tensors_are_cut_into_launches_as_cuda_does() -> None:
    """A launch takes 110 tensors of a list, 64 of two, 36 of four, and 320 blocks of 65,536 elements."""
    for elements, depth, launches in (
        ([1] * 110, 1, 1), ([1] * 111, 1, 2), ([1] * 64, 2, 1), ([1] * 37, 4, 2), ([320 * 65536], 1, 1),
        ([320 * 65536 + 1], 1, 2), ([321 * 65536, 1, 1], 1, 2), ([0, 0], 1, 0), ([], 1, 0),
    ):  # fmt: skip
        assert multi_tensor_launches(elements, depth) == launches, (len(elements), depth)


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


def test_under_autocast_each_operation_has_cudas_dtype_and_without_it_nothing_is_cast() -> None:
    x = torch.ones(4, 4, dtype=HALF)
    with CudaRules():
        with torch.autocast("cpu", dtype=HALF):
            found = {name: function(x).dtype for name, (function, _) in DTYPES.items()}
        assert x.exp().dtype == HALF
    assert found == {name: dtype for name, (_, dtype) in DTYPES.items()}


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
