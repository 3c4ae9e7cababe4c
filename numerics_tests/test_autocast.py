"""Autocast: each op of its table has the dtype that the table gives it, under the CPU's rules and under CUDA's; how it
behaves around the table: regions, errors, its cache of weights, gradients, custom functions.

On a machine without a GPU CUDA's rules run on the CPU, see cuda_autocast.py; on a GPU they are CUDA's own.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.numerics_tests.harness.checks import Watching, assert_same_bits, assert_true
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, alike, low_dtypes, recipes
from perf_tests_suite.numerics_tests.machine import autocast as table
from perf_tests_suite.numerics_tests.machine import cuda_autocast
from perf_tests_suite.numerics_tests.machine.autocast import GROUP_OF, OPS, torch_version
from perf_tests_suite.numerics_tests.machine.cuda_autocast import cuda_lists
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import LOW

Region = Callable[..., AbstractContextManager[Any]]
"""A maker of a region, as torch.autocast does: device type, dtype=, enabled=."""

VERSION = table.torch_version()
LOW_DTYPES = (torch.bfloat16, torch.float16)


def inputs(dtype: torch.dtype, rows: int = 4, columns: int = 4) -> tuple[Tensor, Tensor]:
    """A matrix of the dtype and one of float32, both away from zero."""
    a = torch.linspace(0.125, 2, rows * columns, dtype=torch.float64).reshape(rows, columns)
    return a.to(device(), dtype), a.flip(0).to(device(), torch.float32)


@pytest.mark.parametrize("op", OPS)
def test_op_has_the_dtype_of_the_table(op: str, rules: str) -> None:
    """Each op on float32, 16-bit and float64 inputs, inside and outside a region; the table names its sources."""
    wrong = []  # a line for each dtype, with and without autocast
    for low in LOW_DTYPES:
        for autocast_dtype in (low, None):
            for dtype in (torch.float32, low, torch.float64):
                expected = table.expected_dtype(rules, op, dtype, autocast_dtype, VERSION)
                a, b = inputs(dtype)
                with torch.autocast(device().type, dtype=low, enabled=autocast_dtype is not None):
                    found = OPS[op](a, b).dtype
                if found != expected:
                    wrong.append(f"{op}({dtype}) under {autocast_dtype}: {found}, the table says {expected}")
    assert not wrong


def one_of_each_group(ops: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
    """One op of every group of the table that `ops` has members of, so that no rule is left out of an example."""
    groups = sorted({GROUP_OF[op] for op in ops})
    return st.tuples(*(st.sampled_from([op for op in ops if GROUP_OF[op] == group]) for group in groups))


Nesting = list[tuple[bool, torch.dtype]]
regions = st.lists(st.tuples(st.booleans(), low_dtypes()), min_size=1, max_size=3)


@claim(
    "autocast",
    {"torch": torch.autocast},
    ops=one_of_each_group(sorted(OPS)),
    nesting=regions,
    shape=st.tuples(st.sampled_from([2, 4, 6]), st.sampled_from([2, 4, 5])),
    rules=st.sampled_from(cuda_autocast.RULES),
    dtype=st.sampled_from([torch.float32, "the region's", torch.float64]),
)
def test_innermost_region_decides_the_dtype(
    autocast: Region,
    ops: tuple[str, ...],
    nesting: Nesting,
    shape: tuple[int, int],
    rules: str,
    dtype: torch.dtype | str,
) -> None:
    """However regions nest, the innermost one is in force: its dtype, or nothing where it is disabled."""
    is_enabled, low = nesting[-1]
    rules = device().type if device().type == "cuda" else rules
    a, b = inputs(low if isinstance(dtype, str) else dtype, *shape)
    with cuda_autocast.in_force(rules, device()), ExitStack() as stack:
        for enabled, region_dtype in nesting:
            stack.enter_context(autocast(device().type, dtype=region_dtype, enabled=enabled))
        found = {op: OPS[op](a, b).dtype for op in ops}
    for op in ops:
        expected = table.expected_dtype(rules, op, a.dtype, low if is_enabled else None, VERSION)
        sentence = f"{op}({a.dtype}) gave {found[op]}, the table says {expected}"
        assert_true(found[op] == expected, sentence)


SEVERAL_OPERANDS = ("products", "small products", "with float32")
ONE_OPERAND = sorted(op for op in OPS if GROUP_OF[op] not in SEVERAL_OPERANDS and not op.endswith("(weight)"))
"""Ops that read `a` once, so that one cast by hand equals the region's, in both passes."""


def in_region(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    with torch.autocast(operands[0].device.type, dtype=low):
        return call(*operands)


InRegion = Callable[..., Tensor]
"""(op, autocast dtype, operands) to the result inside a region."""


def assert_same_way_there_and_back(
    result: Tensor, expected: Tensor, leaves: list[Tensor], by_hand: list[Tensor]
) -> None:
    """Raise AssertionError unless two ways to compute the same agree in result and gradients, bit for bit."""
    assert_same_bits(result, expected, "casting by hand")
    expected.float().sum().backward()
    result.float().sum().backward()
    for leaf, other in zip(leaves, by_hand, strict=True):
        assert leaf.grad is not None, "no gradient came through"
        assert other.grad is not None
        assert_same_bits(leaf.grad, other.grad, "gradient of casting by hand")


@claim(
    "run",
    {"autocast": in_region},
    ops=one_of_each_group(ONE_OPERAND),
    recipe=recipes((2, 4, 6), (3, 4), dtypes=(torch.float32,), exponents=(-2, 1), max_spread=1, plant=()),
    low=low_dtypes(),
    starts_low=st.booleans(),
)
def test_autocast_is_casting_by_hand(
    run: InRegion, ops: tuple[str, ...], recipe: Recipe, low: torch.dtype, starts_low: bool
) -> None:
    """Bit for bit, result and gradient: autocast adds casts and nothing else; pytorch, test/test_autocast.py."""
    leaf = recipe.tensor().to(low if starts_low else torch.float32)
    other = torch.ones_like(leaf, dtype=torch.float32)
    for op in ops:
        by_hand, by_region = leaf.clone().requires_grad_(), leaf.clone().requires_grad_()
        cast = table.cast_by_hand(device().type, op, by_hand, low, VERSION)
        result = run(OPS[op], low, by_region, other)
        assert_same_way_there_and_back(result, OPS[op](cast, other), [by_region], [by_hand])


TWO_OPERANDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": F.linear,
    "matmul": lambda x, y: x @ y.T,
    "bmm": lambda x, y: torch.bmm(x[None], y.T[None]),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "addmm": lambda x, y: torch.addmm(x.new_zeros(()), x, y.T),
}


@claim(
    "run",
    {"autocast": in_region},
    op=st.sampled_from(sorted(TWO_OPERANDS)),
    recipe=recipes((2, 5), 8, dtypes=(torch.float32,), exponents=(-2, 1), max_spread=1, plant=()),
    low=low_dtypes(),
)
def test_product_in_a_region_is_that_of_cast_operands(run: InRegion, op: str, recipe: Recipe, low: torch.dtype) -> None:
    """Activations and weights are each cast, multiplied in 16 bits, and their gradients cast back: bit for bit."""
    operands = [recipe.tensor(), alike(recipe, 1, shape=(3, 8)).tensor()]
    by_hand, by_region = ([x.clone().requires_grad_() for x in operands] for _ in range(2))
    expected = TWO_OPERANDS[op](*(x.to(low) for x in by_hand))
    result = run(TWO_OPERANDS[op], low, *by_region)
    assert_same_way_there_and_back(result, expected, by_region, by_hand)


def test_header_and_table_agree() -> None:
    """The installed header is the authority on CUDA: ops in its lists have the rule of their list in the table."""
    lists = cuda_lists()
    rule_of = {"low": table.Rule.LOW, "float32": table.Rule.FLOAT32, "set dtype": table.Rule.FLOAT32}
    listed = {name.partition(".")[0]: rule for group, rule in rule_of.items() for name in lists[group]}
    for op in OPS:
        row = table.row_for("cuda", op, VERSION)
        if op in listed:
            assert row.rule == listed[op], f"the header lists {op} as {listed[op]}, the table as {row.rule}"
    is_listed = "rms_norm" in lists["float32"]
    assert is_listed == (VERSION >= (2, 12))


def test_cuda_rules_leave_nothing_behind() -> None:
    """The CPU's own rules are back after the emulation, and after an error inside it."""
    a = torch.ones(2, 2, dtype=torch.bfloat16)

    def fail() -> None:
        with cuda_autocast.on_the_cpu(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.softmax(a, -1).dtype == torch.float32
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        fail()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.softmax(a, -1).dtype == torch.bfloat16


AUTOCAST = {"torch": torch.autocast}
MATRIX = recipes((2, 5), 4, dtypes=(torch.float32,), exponents=(-2, 2), max_spread=1, plant=())


def casts_of(weight: Tensor, run: Callable[[], object]) -> int:
    """How often `run` casts `weight`, counted as PyTorch's own test_autocast.py does."""
    is_cast: list[bool] = []
    with Watching(lambda name, arguments: is_cast.append(name == "aten::_to_copy" and arguments[0] is weight)):
        run()
    return sum(is_cast)


@claim("autocast", AUTOCAST, cost=4, recipe=MATRIX, uses=st.integers(2, 4), low=low_dtypes())
def test_weight_is_cast_once_in_a_region(autocast: Region, recipe: Recipe, uses: int, low: torch.dtype) -> None:
    """A leaf that needs a gradient is cast once however often it is used; ATen/autocast_mode.h, cached_cast."""
    weight, x = recipe.tensor().requires_grad_(), recipe.tensor()
    with autocast(device().type, dtype=low):
        casts = casts_of(weight, lambda: [F.linear(x, weight) for _ in range(uses)])
    assert_true(casts == 1, f"the weight was cast {casts} times in one region")


def test_weight_changed_inside_a_region_is_stale() -> None:
    """The cache does not notice an update in place: why a region holds one forward pass and not a training loop."""
    weight, x = torch.ones(2, 2, device=device(), requires_grad=True), torch.ones(2, 2, device=device())
    with torch.autocast(device().type, dtype=torch.bfloat16):
        before = F.linear(x, weight)
        with torch.no_grad():
            weight.mul_(3)
        assert torch.equal(F.linear(x, weight), before)
    with torch.autocast(device().type, dtype=torch.bfloat16):
        assert torch.equal(F.linear(x, weight), 3 * before)


@claim("autocast", AUTOCAST, cost=2, low=low_dtypes(), depth=st.integers(1, 3))
def test_error_inside_leaves_no_region_behind(autocast: Region, low: torch.dtype, depth: int) -> None:
    """An exception leaves the state as it was before, through any depth of nesting."""
    before = (torch.is_autocast_enabled(device().type), torch.get_autocast_dtype(device().type))

    def fail(levels: int) -> None:
        with autocast(device().type, dtype=low):
            if levels == 1:
                raise KeyError("planted")
            fail(levels - 1)

    with pytest.raises(KeyError, match="planted"):
        fail(depth)
    after = (torch.is_autocast_enabled(device().type), torch.get_autocast_dtype(device().type))
    # A leaked state must not reach the next test.
    torch.set_autocast_enabled(device().type, before[0])
    assert_true(after == before, f"autocast was {before} before the error and {after} after")


@claim("autocast", AUTOCAST, recipe=MATRIX, low=low_dtypes())
def test_gradient_has_the_range_of_the_autocast_dtype(autocast: Region, recipe: Recipe, low: torch.dtype) -> None:
    """W.grad is float32 but was computed in 16 bits: each of its values is one of that format, bit for bit."""
    x = recipe.tensor()
    weight = recipe.tensor().requires_grad_()
    with autocast(device().type, dtype=low):
        F.linear(x, weight).float().sum().backward()
    assert weight.grad is not None
    assert_true(weight.grad.dtype == torch.float32, f"W.grad is {weight.grad.dtype}")
    assert_same_bits(weight.grad.to(low).float(), weight.grad, "backward of a cast is a cast")


def test_forward_without_gradients_does_not_spoil_the_next() -> None:
    """A weight first cast under no_grad must get a gradient later in the region; pytorch/pytorch#65766."""
    weight, x = torch.ones(2, 2, device=device(), requires_grad=True), torch.ones(2, 2, device=device())
    with torch.autocast(device().type, dtype=torch.bfloat16):
        with torch.no_grad():
            F.linear(x, weight)
        result = F.linear(x, weight)
    if torch_version() <= (2, 10) and not result.requires_grad:
        pytest.xfail("this torch is older than the fix, pytorch/pytorch#165068.")
    result.float().sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("low", [a_format.dtype for a_format in LOW], ids=["fp16", "bf16"])
def test_low_precision_input_stays_low_in_a_disabled_region(low: torch.dtype) -> None:
    """enabled=False means "no more casts", not "back to float32": a result from outside must be cast by hand."""
    x = torch.ones(2, 2, device=device())
    with torch.autocast(device().type, dtype=low):
        inside = x @ x
        with torch.autocast(device().type, enabled=False):
            assert (x @ x).dtype == torch.float32
            assert (inside @ inside).dtype == low
            assert (inside.float() @ x).dtype == torch.float32


@claim(
    "loss",
    {"cross_entropy": F.cross_entropy},
    recipe=recipes(4, (3, 17), dtypes=(torch.float16, torch.bfloat16), exponents=(-2, 3), plant=(0.0, 30.0, -30.0)),
)
def test_cross_entropy_in_a_region_is_that_of_float32_logits(loss: Any, recipe: Recipe) -> None:
    """Bit for bit: the region casts 16-bit logits to float32 before anything else; autocast's list of float32 ops."""
    logits = recipe.tensor()
    targets = torch.arange(len(logits), device=device()) % logits.shape[-1]
    with torch.autocast(device().type, dtype=recipe.dtype):
        inside = loss(logits, targets)
    assert_same_bits(inside, F.cross_entropy(logits.float(), targets), "amp.html, ops that autocast to float32")
