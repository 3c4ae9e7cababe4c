"""What one operation costs: bytes, FLOPs and launches worked out by hand, by CUDA's rules on CPU tensors."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.hardware.torch_private import FakeTensorMode, operator
from perf_tests_suite.perf_tests.predict.costs import (
    LINEAR_CROSS_ENTROPY,
    accumulator_bytes,
    launches_of,
    multi_tensor_launches,
)
from perf_tests_suite.perf_tests.predict.counting import Counting
from perf_tests_suite.perf_tests.predict.cuda_rules import CudaRules, op_lists

HALF, FLOAT = torch.bfloat16, torch.float32


def kernels_of(
    function: Callable[[], object], target: str = "cpu", float32_rate: str = "fp32"
) -> dict[KernelCost, int]:
    """What one call launches; its tensors are made outside."""
    with Counting(target, float32_rate) as counting:
        with counting.part("call"):
            function()
        return dict(counting.finished()["call"].kernels)


LEFT, RIGHT, TEN, HALVES = torch.zeros(3, 5), torch.zeros(5, 7), torch.zeros(10), torch.zeros(4, 4, dtype=HALF)
TABLE, ROWS, PLACES = torch.zeros(1000, 4), torch.tensor([1, 2]), torch.zeros(2, 4, dtype=torch.int64)
WRITTEN = torch.ones(2, 4)

COSTS: dict[str, tuple[Callable[[], object], KernelCost | None]] = {
    "a product, 2mnk": (lambda: LEFT @ RIGHT, KernelCost("aten.mm", 210, 4 * (15 + 35 + 21), "tf32", summed=5, side=3)),
    "in half precision": (lambda: HALVES @ HALVES, KernelCost("aten.mm", 128, 2 * 48, "bf16", summed=4, side=4)),
    "in-place work reads and writes": (lambda: TEN.add_(1), KernelCost("aten.add_", 0, 80, "")),
    "a fill only writes": (lambda: TEN.zero_(), KernelCost("aten.zero_", 0, 40, "")),
    "a look-up reads its rows": (lambda: TABLE[ROWS], KernelCost("aten.index", 0, 2 * 2 * 16 + 2 * 8, "")),
    "rows are written": (lambda: TABLE.scatter_(0, PLACES, WRITTEN), KernelCost("aten.scatter_", 0, 64 + 2 * 32, "")),
    "and added to": (lambda: TABLE.scatter_add_(0, PLACES, WRITTEN), KernelCost("aten.scatter_add_", 0, 64 + 96, "")),
    "an expanded dimension is read once": (lambda: TEN.expand(9, 10).exp(), KernelCost("aten.exp", 0, 40 + 360, "")),
    "nothing has no bytes": (lambda: torch.zeros(0, 4).neg_(), KernelCost("aten.neg_", 0, 0, "")),
    "a view": (lambda: LEFT.view(5, 3).t().unsqueeze(0).expand(5, 3, 5)[1].detach(), None),
    "an empty block": (lambda: torch.empty(9), None),
}


def test_an_operation_costs_what_it_computes_reads_and_writes() -> None:
    for name, (function, cost) in COSTS.items():
        found = kernels_of(function, float32_rate="tf32")
        assert found.get(cost) == 1 if cost else found == {}, name


@pytest.mark.parametrize("is_causal, pairs", [(True, 6 * 7 // 2), (False, 36)])
def test_fused_attention_skips_what_the_causal_mask_hides(is_causal: bool, pairs: int) -> None:
    """Two products going forward; five going back, for the scores are computed again."""
    q, k, v = (torch.zeros(2, 3, 6, 8, requires_grad=True) for _ in range(3))
    out: list[Tensor] = []
    forward = kernels_of(lambda: out.append(F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)))
    backward = kernels_of(lambda: out[0].backward(out[0].detach()))
    assert {kernel.rate for kernel in (*forward, *backward) if kernel.flops} == {"fp32"}
    flops = [sum(kernel.flops for kernel in part) for part in (forward, backward)]
    assert flops == [products * 2 * 2 * 3 * pairs * 8 for products in (2, 5)]


@pytest.mark.parametrize("queries, keys, pairs", [(3, 6, 1 + 2 + 3), (6, 3, 1 + 2 + 3 + 3 + 3 + 3), (1, 9, 1)])
def test_a_causal_query_sees_the_keys_up_to_its_own_place(queries: int, keys: int, pairs: int) -> None:
    """As in `F.scaled_dot_product_attention`, where the masks of fewer or more queries begin in the first row too."""
    q, k = torch.zeros(2, 3, queries, 8), torch.zeros(2, 3, keys, 8)
    attention = operator("_scaled_dot_product_flash_attention_for_cpu").default
    (cost,) = (one for one in kernels_of(lambda: attention(q, k, k, 0.0, True)) if one.flops)
    assert cost.flops == 2 * 2 * 2 * 3 * pairs * 8


def test_a_fused_backward_pass_in_16_bits_accumulates_in_float32_in_whole_tiles() -> None:
    name, query = "aten._scaled_dot_product_flash_attention_backward", torch.empty(2, 3, 129, 33)
    assert accumulator_bytes(name, (query, query)) == 4 * 2 * 3 * 256 * (64 + 1)
    assert accumulator_bytes(name.replace("flash", "efficient"), (query, query)) == 0


def test_lists_of_tensors_are_cut_into_launches_as_cuda_does() -> None:
    """A launch takes 110 tensors of a list, 64 of two, 36 of four, and 320 blocks of 65,536 elements."""
    for elements, depth, launches in (
        ([1] * 110, 1, 1), ([1] * 111, 1, 2), ([1] * 64, 2, 1), ([1] * 37, 4, 2), ([320 * 65536], 1, 1),
        ([320 * 65536 + 1], 1, 2), ([321 * 65536, 1, 1], 1, 2), ([0, 0], 1, 0), ([], 1, 0),
        # What continues in the next launch takes a place there too.
        ([320 * 65536 + 1, *[1] * 109], 1, 2), ([320 * 65536 + 1, *[1] * 110], 1, 3),
    ):  # fmt: skip
        assert multi_tensor_launches(elements, depth) == launches, (len(elements), depth)
    tensors = [torch.zeros(7) for _ in range(111)]
    for target, launches in (("cpu", 111), ("cuda", 2)):
        kernels = kernels_of(lambda: operator("_foreach_mul_").Scalar(tensors, 2.0), target)
        assert sum(kernels.values()) == launches
        assert sum(kernel.bytes * calls for kernel, calls in kernels.items()) == 2 * 7 * 4 * 111, "no byte is lost"


def test_an_operation_on_lists_has_as_many_lists_as_it_reads_and_writes() -> None:
    """A launch takes 110 tensors of one list and 64 of two; a norm writes no list beside its partial sums."""
    tensors = [torch.zeros(7) for _ in range(110)]
    for name, launches in (("_foreach_norm", 1), ("_foreach_neg_", 1), ("_foreach_neg", 2), ("_foreach_add_", 2)):
        lists = (tensors, tensors) if name == "_foreach_add_" else (tensors,)
        assert launches_of(f"aten.{name}", lists, on_cuda=True) == launches, name


SQUARE, COLUMN, STACK = torch.zeros(4, 6), torch.zeros(4, 1), torch.zeros(2, 4, 6)
STRIDED: dict[str, tuple[Callable[[], object], int]] = {
    "a number is kept": (lambda: SQUARE + 1, 0),
    "equally dense": (lambda: SQUARE * SQUARE, 0),
    "both transposed": (lambda: SQUARE.t() * SQUARE.t(), 0),
    "one dense block after merging": (lambda: STACK.view(2, 24) * STACK.view(1, 2, 24), 0),
    "a column is broadcast": (lambda: SQUARE - COLUMN, 24),
    "a matrix is broadcast over a stack": (lambda: STACK * SQUARE, 48),
    "a transposed copy": (lambda: SQUARE.t().contiguous(), 24),
    "a sum has a kernel of its own": (lambda: SQUARE.sum(-1), 0),
    "so has a product": (lambda: SQUARE @ SQUARE.t(), 0),
}


def test_only_kernels_of_unequally_dense_tensors_address_each_element_and_only_on_a_gpu() -> None:
    for name, (function, elements) in STRIDED.items():
        found = [[one.strided_elements for one in kernels_of(function, target)] for target in ("cuda", "cpu")]
        assert found == [[elements], [0]], name


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
    "a sum of whole numbers": (lambda x: x.long().sum(-1), torch.int64),
}


def test_under_autocast_each_operation_has_cudas_dtype_and_without_it_nothing_is_cast() -> None:
    x = torch.ones(4, 4, dtype=HALF)
    with CudaRules():
        with torch.autocast("cpu", dtype=HALF):
            found = {name: function(x).dtype for name, (function, _) in DTYPES.items()}
        assert x.exp().dtype == HALF
    assert found == {name: dtype for name, (_, dtype) in DTYPES.items()}
    with pytest.raises(ValueError, match="lists its operators in another way"):
        op_lists("")


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
        own = [x for x in saved if x.untyped_storage() not in known and x.numel() > 2]
        assert {tuple(x.shape) for x in own} == {(2, 4, rows), (2, 4, 100, 64)}
        out.sum().backward()
        assert q.grad is not None
        grouped = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=True, scale=0.5, enable_gqa=True)
        assert grouped.shape == out.shape == q.shape


EFFICIENT = "aten._scaled_dot_product_efficient_attention"
MASKED = [
    # the mask, how many heads share keys, and the kernel with products
    ((100, 100), torch.bool, 1, EFFICIENT),
    ((2, 1, 100, 100), FLOAT, 1, EFFICIENT),
    ((100, 100), torch.bool, 2, "aten.bmm"),
]


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("shape, kind, heads, operator_name", MASKED)
def test_masked_attention_runs_the_efficient_kernel_on_the_square_and_grouped_math(
    shape: tuple[int, ...], kind: torch.dtype, heads: int, operator_name: str, dtype: torch.dtype
) -> None:
    """16 bits come by autocast, which casts the mask too; 100 keys are no multiple of what the kernel aligns to."""
    with FakeTensorMode():
        q = torch.zeros(2, 4, 100, 64, requires_grad=True)
        k, v = (torch.zeros(2, 4 // heads, 100, 64, requires_grad=True) for _ in range(2))
        mask, outputs = torch.zeros(shape, dtype=kind), []

        def attend() -> None:
            with torch.autocast("cpu", dtype=HALF, enabled=dtype == HALF):
                outputs.append(F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=heads == 2))

        parts = kernels_of(attend, "cuda"), kernels_of(lambda: outputs[0].sum().backward(), "cuda")
    assert outputs[0].shape == q.shape
    assert {kernel.name for kernel in parts[0] if kernel.flops} == {operator_name}
    square = 2 * 8 * 100 * 100 * 64
    products = [sum(kernel.flops * calls for kernel, calls in part.items()) / square for part in parts]
    assert products == [2, 5 if heads == 1 else 4]


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


SPLITS: dict[str, tuple[float, torch.dtype, Callable[[Tensor], object], int]] = {
    "2 GiB": (2, FLOAT, torch.exp, 1),
    "halved": (2.5, FLOAT, torch.exp, 2),
    "until each part has 2 GiB at most": (9, FLOAT, torch.exp, 8),
    "in 16 bits": (4, HALF, torch.exp, 2),
    "more elements than 32 bits count": (2, torch.bool, torch.logical_not, 2),
    "a broadcast argument": (8, FLOAT, lambda x: x + x[:1], 4),
    "in place": (8, FLOAT, lambda x: x.mul_(2), 4),
    "a reduction of the rows": (8, FLOAT, lambda x: x.sum(-1), 4),
    "a reduction of the batch": (8, FLOAT, lambda x: x.sum(0), 4),
    "a fill": (8, FLOAT, torch.zeros_like, 4),
    "a small fill that takes its dtype from it": (8, FLOAT, lambda x: x.new_zeros(10, 7), 1),
    "a cast": (8, FLOAT, lambda x: x.to(HALF), 4),
    "a plain copy": (8, FLOAT, lambda x: x.clone(), 1),
    "a copy into another layout": (8, FLOAT, lambda x: x.transpose(1, 2).contiguous(), 4),
    "a look-up along rows, and its index": (
        8, FLOAT, lambda x: x.gather(-1, torch.zeros(1, 1, 1, dtype=torch.int64).expand(*x.shape[:2], 1)), 4 + 1
    ),
    "a softmax": (8, FLOAT, lambda x: x.softmax(-1), 1),
    "a product": (8, FLOAT, lambda x: x @ x, 1),
    "half of a tensor": (8, FLOAT, lambda x: x[: len(x) // 2].exp(), 2),
}  # fmt: skip


def test_a_kernel_is_split_where_32_bits_do_not_index_its_tensors() -> None:
    for name, (gib, dtype, function, launches) in SPLITS.items():
        with FakeTensorMode(), Counting("cuda") as counting:
            x = torch.empty(int(gib * 2**30) // dtype.itemsize // 2**20, 2**10, 2**10, dtype=dtype)
            with counting.part("call"):
                function(x)
            assert counting.finished()["call"].kernels.total() == launches, name


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch before 2.13 has no linear_cross_entropy.")
def test_head_and_loss_in_chunks_count_their_products_where_they_run() -> None:
    """Logits alone without gradients, and in a forward pass those of both gradients too, or of one."""
    options = vars(nn.modules)["linear_cross_entropy_options"].LinearCrossEntropyOptions()
    places = torch.zeros(4096, dtype=torch.int64)
    for of_input, of_weight, products in ((False, False, 1), (True, True, 3), (True, False, 2)):
        x, weight = torch.zeros(4096, 8, requires_grad=of_input), torch.zeros(100, 8, requires_grad=of_weight)
        loss = partial(vars(F)["linear_cross_entropy"], x, weight, places, options=options)
        counted = kernels_of(loss)
        flops = sum(calls * cost.flops for cost, calls in counted.items() if cost.name == LINEAR_CROSS_ENTROPY)
        assert flops == products * 2 * 4096 * 8 * 100
