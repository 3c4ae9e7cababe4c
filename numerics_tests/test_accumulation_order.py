"""The order in which this machine's kernels add; `pytest numerics_tests -k order -s` prints it."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from numerics_tests.harness.checks import assert_true
from numerics_tests.harness.claims import claim
from numerics_tests.machine.sums import PRODUCTS, SUMS, Product, Total, Tree, pairwise, sequential, tree_of, written

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
