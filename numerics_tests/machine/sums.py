"""Ways to add: textbook algorithms, every reduction of PyTorch that a Transformer uses, and the order of additions.

Algorithms add the last dimension in the dtype of their input. Reductions come under two signatures: a product takes two
vectors (N,) to their dot product, a total one vector to its sum; the dtype stays.
"""

from collections.abc import Callable
from itertools import pairwise as neighbours

import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.numerics_tests.machine.environment import device

Product = Callable[[Tensor, Tensor], Tensor]
Total = Callable[[Tensor], Tensor]

# Algorithms. Higham, ASNA 2e, sections 4.1 to 4.3; Kahan, Comm. ACM 8 (1965); Blanchard, Higham and Mary,
# SISC 42 (2020), for the blocked one.


def sequential(x: Tensor) -> Tensor:
    """One running sum, first term to last."""
    total = torch.zeros_like(x[..., 0])
    for term in x.unbind(-1):
        total = total + term
    return total


def pairwise(x: Tensor) -> Tensor:
    """Sums of neighbours, then of neighbours of those; an odd one is kept for the next round."""
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        pairs = x[..., 0:even:2] + x[..., 1:even:2]
        x = torch.cat((pairs, x[..., even:]), dim=-1)
    return x[..., 0]


def running_sums(addend: Tensor, count: int, dtype: torch.dtype) -> list[float]:
    """The first `count` values of `total += addend`, `total` kept in `dtype`, as a training loop would write it."""
    total = torch.zeros((), dtype=dtype, device=addend.device)
    sums = []
    for _ in range(count):
        total += addend
        sums.append(total.item())
    return sums


# PyTorch's reductions.

PRODUCTS: dict[str, Product] = {
    "dot": torch.dot,
    "mv": lambda x, y: torch.mv(x[None].repeat(3, 1), y)[1],
    "mm": lambda x, y: torch.mm(x[None].repeat(2, 1), y[:, None].repeat(1, 3))[1, 2],
    "matmul": lambda x, y: (x[None] @ y[:, None])[0, 0],
    "bmm": lambda x, y: torch.bmm(x[None, None].repeat(2, 2, 1), y[None, :, None].repeat(2, 1, 3))[1, 1, 2],
    "linear": lambda x, y: F.linear(x[None].repeat(2, 1), y[None].repeat(3, 1))[1, 2],
    "addmm": lambda x, y: torch.addmm(x.new_zeros(2, 3), x[None].repeat(2, 1), y[:, None].repeat(1, 3))[1, 2],
    "einsum": lambda x, y: torch.einsum("bi,bi->b", x[None], y[None])[0],
}
"""Products of two vectors."""


def _mean(x: Tensor) -> Tensor:
    # Padded with zeros to a power of two, so that dividing and multiplying by it is exact.
    length = 1 << (len(x) - 1).bit_length()
    return F.pad(x, (0, length - len(x))).mean() * length


def _all_at_zero(x: Tensor) -> Tensor:
    """An index 0 for each term of `x`: what is added there is their sum."""
    return torch.zeros(len(x), dtype=torch.int64, device=x.device)


def _gradient(make: Callable[[Tensor], Tensor], at: Tensor, upstream: Tensor) -> Tensor:
    """Gradient at `at` of <make(at), upstream>, its first element."""
    leaf = at.requires_grad_()
    return torch.autograd.grad(make(leaf), leaf, upstream)[0].flatten()[0]


def _layer_norm_bias_gradient(x: Tensor) -> Tensor:
    rows, weight = torch.arange(4.0, device=x.device).to(x.dtype).expand(len(x), 4), x.new_ones(4).requires_grad_()
    upstream = x[:, None].expand(-1, 4)
    return _gradient(lambda bias: F.layer_norm(rows, (4,), weight, bias), x.new_zeros(4), upstream)


def _accumulated_gradient(x: Tensor) -> Tensor:
    leaf = x.new_zeros(1).requires_grad_()
    for term in x:
        (leaf * term).sum().backward()
    assert leaf.grad is not None
    return leaf.grad[0]


SUMS: dict[str, Total] = {
    "sum": lambda x: x.sum(),
    "sum(dim)": lambda x: x[None].repeat(3, 1).sum(1)[1],
    "sum(dim 0)": lambda x: x[:, None].repeat(1, 3).sum(0)[1],
    "mean": _mean,
    "cumsum": lambda x: x.cumsum(0)[-1],
    "scatter_add": lambda x: x.new_zeros(1).scatter_add_(0, _all_at_zero(x), x)[0],
    "index_add": lambda x: x.new_zeros(1).index_add_(0, _all_at_zero(x), x)[0],
    "index_put(accumulate)": lambda x: x.new_zeros(1).index_put_((_all_at_zero(x),), x, accumulate=True)[0],
    "gradient of a bias": lambda x: _gradient(
        lambda bias: F.linear(torch.ones_like(x)[:, None], x.new_ones(1, 1), bias), x.new_zeros(1), x[:, None]
    ),
    "gradient of a broadcast": lambda x: _gradient(lambda leaf: torch.ones_like(x) * leaf, x.new_zeros(1), x),
    "gradient of a weight": lambda x: _gradient(
        lambda weight: F.linear(torch.ones_like(x)[:, None], weight), x.new_zeros(1, 1), x[:, None]
    ),
    "gradient of an embedding": lambda x: _gradient(
        lambda table: F.embedding(_all_at_zero(x), table), x.new_zeros(2, 1), x[:, None]
    ),
    "gradient of an indexing": lambda x: _gradient(lambda table: table[_all_at_zero(x)], x.new_zeros(2, 1), x[:, None]),
    "gradient of a layer norm's bias": _layer_norm_bias_gradient,
    ".grad over microbatches": _accumulated_gradient,
    # Not `sequential` itself, which is also planted as a fault and must not be taken for this row.
    "Python loop": lambda x: sequential(x),
}
"""Sums of one vector."""

IN_INPUT_DTYPE = {
    "cpu": {
        *("index_add", "index_put(accumulate)", "gradient of an embedding", "gradient of an indexing"),
        *("gradient of a layer norm's bias", ".grad over microbatches", "Python loop"),
    },
    # Atomic additions, and a Python loop on any device.
    "cuda": {"index_add", "index_put(accumulate)", "scatter_add", ".grad over microbatches", "Python loop"},
}
"""Sums that keep their running total in the dtype of their input.

The CPU's were found by running test_reductions.py on torch 2.13, x86-64. The GPU's are what its atomics suggest and
have not been run; test_reductions.py only holds the CPU to this table.
"""

# The order of additions, found by calling a kernel on chosen numbers: Xie et al., "FPRev: Revealing the Order of
# Floating-Point Summation Operations", USENIX ATC 2025 (arXiv:2411.00442). Among units stand +M at i and -M at j.
# Whatever is added to M before it meets -M is swallowed, so that n minus the result is the number of leaves under the
# lowest node that holds both i and j. From these sizes the tree follows.

Tree = int | tuple["Tree", ...]
"""A leaf is the position of a term; a node is what is added in one go, two or more subtrees."""

MASKS = {
    torch.float32: (1.0, 2.0**100),
    torch.bfloat16: (1.0, 2.0**100),
    # 2^15 swallows 2^-24 in float32 but would not swallow 1, and float16 holds nothing much larger.
    torch.float16: (2.0**-24, 2.0**15),
}
"""The unit and the M that swallows it, in an accumulator of float32 or of the dtype itself."""


def tree_of(total: Total, length: int, dtype: torch.dtype) -> Tree:
    """The summation tree of `total` on vectors of `length`; raises ValueError where the answers fit no tree."""
    unit, swallowing = MASKS[dtype]
    # sizes[i][j]: number of leaves under the lowest node above both i and j; 1 on the diagonal.
    sizes = [[1] * length for _ in range(length)]
    for i in range(length):
        for j in range(i + 1, length):
            x = torch.full((length,), unit, dtype=dtype, device=device())
            x[i], x[j] = swallowing, -swallowing
            left = float(total(x)) / unit
            if not 0 <= left <= length - 2 or left != int(left):
                raise ValueError(f"{left} of {length} units are left with M at {i} and {j}: not a plain sum.")
            sizes[i][j] = sizes[j][i] = length - int(left)
    return _tree_over(sizes, list(range(length)))


def _tree_over(sizes: list[list[int]], leaves: list[int]) -> Tree:
    """The tree over `leaves`; its root holds all of them, so leaves that meet earlier share a child."""
    if len(leaves) == 1:
        return leaves[0]
    children: list[list[int]] = []
    for leaf in leaves:
        for child in children:
            if sizes[child[0]][leaf] < len(leaves):
                child.append(leaf)
                break
        else:
            children.append([leaf])
    # Leaves of different children must meet at the root, and leaves of one child below it.
    child_of = {leaf: child for child in children for leaf in child}
    is_consistent = all(
        sizes[i][j] <= len(child_of[i]) if child_of[i] is child_of[j] else sizes[i][j] == len(leaves)
        for i in leaves
        for j in leaves
    )
    if len(children) < 2 or not is_consistent:
        raise ValueError(f"the sizes of {leaves} fit no tree: some term is left out or added twice.")
    return tuple(_tree_over(sizes, child) for child in children)


def written(tree: Tree) -> str:
    """[a, b, ...] adds one after the other, with dots where the steps are even; (a + b) adds two subtrees."""
    if isinstance(tree, int):
        return str(tree)
    run = _running_sum(tree)
    if len(run) <= 2:
        return "(" + " + ".join(written(child) for child in tree) + ")"
    leaves = [term for term in run if isinstance(term, int)]
    is_even = len({b - a for a, b in neighbours(leaves)}) == 1
    if len(leaves) == len(run) > 3 and is_even:
        return f"[{leaves[0]}, {leaves[1]} ... {leaves[-1]}]"
    return "[" + ", ".join(written(term) for term in run) + "]"


def _running_sum(tree: Tree) -> list[Tree]:
    """The terms of ((a + b) + c) + ... in order, as long as each but the first is a leaf."""
    if isinstance(tree, int):
        return [tree]
    if len(tree) == 2 and isinstance(tree[1], int):
        return [*_running_sum(tree[0]), tree[1]]
    return [tree]
