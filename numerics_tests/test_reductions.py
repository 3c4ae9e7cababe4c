"""What a sum is worth: each reduction of PyTorch that a Transformer uses against the bound of its accumulator, how fast
errors of algorithms grow, and the order in which kernels add; `pytest numerics_tests -k order -s` prints it.
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from perf_tests_suite.numerics_tests.harness import bounds
from perf_tests_suite.numerics_tests.harness.checks import assert_true, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, alike, recipes
from perf_tests_suite.numerics_tests.machine.environment import FLAGS, device
from perf_tests_suite.numerics_tests.machine.formats import FORMAT_OF, LOW, Format
from perf_tests_suite.numerics_tests.machine.sums import (
    IN_INPUT_DTYPE,
    PRODUCTS,
    SUMS,
    Product,
    Total,
    Tree,
    pairwise,
    sequential,
    tree_of,
    written,
)

LENGTHS = (1, 4, 33, 128)
"""Short enough for the bounds to bite: the error of a long sum stays far below its worst case."""

TAME = (0.0, -0.0, 1.0, -1.0, 2.0**-14, 255.0, 257.0)
"""Planted values whose products cannot overflow float16."""


@claim("product", PRODUCTS, cost=2, recipe=recipes(LENGTHS, exponents=(-3, 2), max_spread=3, plant=TAME))
def test_product_is_within_the_bound_of_float32_accumulation(product: Product, recipe: Recipe) -> None:
    """gamma_n(u32) sum|x y| and one rounding to the output; Higham, ASNA 2e, section 4.2, in any order."""
    x, y = recipe.tensor(), alike(recipe, 1).tensor()
    terms = x.double() * y.double()
    bound = bounds.sum_in_float32(terms.sum(), terms.abs().sum(), len(x), x.dtype)
    assert_within(product(x, y), terms.sum(), bound, bounds.ASNA)


@claim("total", SUMS, cost=2, recipe=recipes(LENGTHS, exponents=(-3, 2), max_spread=3, plant=TAME))
def test_sum_is_within_the_bound_of_its_accumulator(total: Total, recipe: Recipe) -> None:
    """gamma_n(u) sum|x|, with u of float32, or of the input where the table says so; ASNA 2e, section 4.2."""
    x = recipe.tensor()
    exact, magnitudes = x.double().sum(), x.double().abs().sum()
    bound = bounds.sum_in_float32(exact, magnitudes, len(x), x.dtype)
    if any(total is SUMS[name] for name in IN_INPUT_DTYPE[device().type]):
        bound = bounds.gamma(len(x), FORMAT_OF[recipe.dtype].unit_roundoff) * magnitudes
    assert_within(total(x), exact, bound, bounds.ASNA)


@pytest.mark.parametrize("a_format", LOW, ids=lambda a_format: a_format.name)
def test_map_of_sums_that_accumulate_in_low_precision(a_format: Format) -> None:
    """The map, printed with -s; on a CPU it must be the recorded one, so that a change of kernel is noticed."""
    in_input_dtype = set()
    print()
    for name, total in SUMS.items():
        # So many ones are beyond where either format stops, also where several threads sum a part each.
        count = 2**12 if name in ("Python loop", ".grad over microbatches") else 2**15
        if float(total(torch.ones(count, dtype=a_format.dtype, device=device()))) != count:
            in_input_dtype.add(name)
        accumulator = a_format.name if name in in_input_dtype else "float32"
        print(f"{a_format.name}  {name:32} accumulates in {accumulator}")
    assert device().type != "cpu" or in_input_dtype == IN_INPUT_DTYPE["cpu"]


@pytest.mark.parametrize("name", ["sum", "mean", "cumsum"])
def test_number_of_threads_moves_a_long_sum_within_its_bound(name: str) -> None:
    """Each thread sums a part, so that bits may change with their number; gamma_n(u32) sum|x| holds in any order.

    Higham, ASNA 2e, section 4.2. Long enough to be split: at::internal::GRAIN_SIZE is 32768.
    """
    x = torch.randn(2**18, generator=torch.Generator().manual_seed(0))
    exact, magnitudes = x.double().sum(), x.double().abs().sum()
    bound = bounds.sum_in_float32(exact, magnitudes, len(x), x.dtype)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            assert_within(SUMS[name](x), exact, bound, f"{bounds.ASNA}, {threads} threads")
    finally:
        torch.set_num_threads(before)


def test_bound_on_a_gpu_allows_for_parts_rounded_to_16_bits() -> None:
    """Four parts of 32 products, each rounded to bfloat16: some of 200 draws are beyond the bound of one sum."""
    beyond = 0
    for seed in range(200):
        x, y = (
            Recipe((128,), torch.bfloat16, seed=seed, positive=True, planted=()).tensor() for seed in (seed, seed + 999)
        )
        terms = (x.double() * y.double()).unflatten(0, (4, bounds.TERMS_OF_A_PART))
        split = terms.sum(-1).bfloat16().double().sum().bfloat16().double()
        of = terms.sum(), terms.abs().sum(), 128, torch.bfloat16
        assert_within(split, terms.sum(), bounds.sum_in_float32(*of, on_gpu=True), bounds.ASNA)
        beyond += bool((split - terms.sum()).abs() > bounds.sum_in_float32(*of, on_gpu=False))
    assert beyond


def test_void_bound_is_refused() -> None:
    """gamma_n is void from n u = 1 on, and raises."""
    with pytest.raises(ValueError, match="gamma_256 is void"):
        bounds.gamma(256, LOW[1].unit_roundoff)


Sum = Callable[[Tensor], Tensor]
"""Sums the last dimension in the dtype of the input."""


FEW_TERMS = recipes(4, (5, 33, 64, 200), exponents=(-4, 1), max_spread=2, plant=(0.0, 200.0, -200.0))


@claim("total", {"sequential": sequential}, cost=2, recipe=FEW_TERMS)
def test_sequential_sum_is_within_its_bound(total: Sum, recipe: Recipe) -> None:
    """(n - 1) u sum|x| in each format, by which running sums of other tests are judged; Higham, ASNA 2e, (4.4)."""
    x = recipe.tensor()
    exact, magnitudes = x.double().sum(-1), x.double().abs().sum(-1)
    # No absolute term: terms are multiples of the smallest subnormal, so a sum that is subnormal is exact.
    relative = bounds.gamma(x.shape[-1] - 1, FORMAT_OF[recipe.dtype].unit_roundoff)
    assert_within(total(x), exact, relative * magnitudes, "ASNA 2e, section 4.2, sequential")


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


@claim("total", {"torch.sum": lambda x: x.sum(-1)})
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


def test_bfloat16_sum_stands_still_where_pairs_go_on() -> None:
    """A running bfloat16 sum of U[0, 1] has stopped before 1024 terms: most of the terms are lost, not a few bits.

    It stops at 2^e <= 2^8 x the largest term, so at 256 of the about 512 it should reach: an error of half the
    sum, 2^7 u. In pairs, ten roundings follow one another.
    """
    x = uniform_rows(1024, torch.bfloat16)
    assert 2**6 < mean_error(sequential, x) < 2**8
    assert mean_error(pairwise, x) < 10


LENGTH = 16
Probe = Callable[[Total, int, torch.dtype], Tree]


def times_ones(product: Product) -> Total:
    """The sum that `product` is with a vector of ones."""
    return lambda x: product(x, torch.ones_like(x))


# No scatter_add: on a GPU it adds in the order in which its threads arrive.
KERNELS: dict[str, Total] = {
    **{name: SUMS[name] for name in ("sum", "sum(dim 0)", "cumsum", "gradient of a bias")},
    **{name: times_ones(product) for name, product in PRODUCTS.items()},
}


def in_lanes(x: Tensor) -> Tensor:
    """Four strided running sums, added in pairs at the end: what vector units do."""
    lanes = [sequential(x[lane::4]) for lane in range(4) if lane < len(x)]
    return pairwise(torch.stack(lanes))


def running(leaves: list[int]) -> Tree:
    tree: Tree = leaves[0]
    for leaf in leaves[1:]:
        tree = (tree, leaf)
    return tree


def in_pairs(trees: list[Tree]) -> Tree:
    while len(trees) > 1:
        even = len(trees) // 2 * 2
        trees = [*((a, b) for a, b in zip(trees[0:even:2], trees[1:even:2], strict=True)), *trees[even:]]
    return trees[0]


KNOWN: dict[str, tuple[Total, Callable[[int], Tree]]] = {
    "sequential": (sequential, lambda n: running(list(range(n)))),
    "pairwise": (pairwise, lambda n: in_pairs(list(range(n)))),
    "lanes": (in_lanes, lambda n: in_pairs([running(list(range(lane, n, 4))) for lane in range(min(4, n))])),
    "backwards": (lambda x: sequential(x.flip(0)), lambda n: running(list(range(n))[::-1])),
}


def normal(tree: Tree) -> object:
    """The tree with the children of each node unordered: a + b is b + a."""
    return tree if isinstance(tree, int) else frozenset(normal(child) for child in tree)


@claim("probe", {"probe": tree_of}, cost=2, length=st.integers(2, 12), algorithm=st.sampled_from(sorted(KNOWN)))
def test_order_of_a_known_algorithm_is_recovered(probe: Probe, length: int, algorithm: str) -> None:
    """Exact: on sums whose tree is known, in each format, the probe gives that tree and no other."""
    total, expected = KNOWN[algorithm]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tree = probe(total, length, dtype)
        assert_true(
            normal(tree) == normal(expected(length)),
            f"{algorithm} over {length} {dtype} terms came out as {written(tree)}",
        )


@claim("total", KERNELS)
def test_order_of_a_kernel_is_a_tree_that_never_changes(total: Total) -> None:
    """Every term is added once, and a second call adds in the same order; arXiv:2411.00442."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        try:
            first, second = (tree_of(total, LENGTH, dtype) for _ in range(2))
        except ValueError as error:
            raise AssertionError(f"{dtype}: {error}") from error
        assert_true(first == second, f"{dtype}: first {written(first)}, then {written(second)}")


@pytest.mark.parametrize("name", KERNELS)
def test_order_is_printed(name: str) -> None:
    """One line for each kernel and format: [..] is a running sum, (a + b) adds two subtrees, and so on."""
    print()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tree = tree_of(KERNELS[name], LENGTH, dtype)
        print(f"{name:18} {str(dtype)[6:]:9} {written(tree)}")
        assert sorted(int(word) for word in _leaves(tree)) == list(range(LENGTH))


def _leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for child in tree for leaf in _leaves(child)]


def test_order_of_a_small_tree_is_written_shortly() -> None:
    """A running sum shows its ends, anything else its brackets."""
    assert written(running([0, 2, 4, 6, 8])) == "[0, 2 ... 8]"
    assert written(((0, 1), (2, 3))) == "((0 + 1) + (2 + 3))"


def test_flags_and_threads_are_those_that_the_bounds_assume(pytestconfig: pytest.Config) -> None:
    """One thread unless told otherwise, because waiting for a second one takes longer than such small tensors do."""
    assert {flag.name: flag.read() for flag in FLAGS} == {flag.name: flag.pinned for flag in FLAGS}
    assert torch.get_num_threads() == int(pytestconfig.getoption("--threads") or 1)
