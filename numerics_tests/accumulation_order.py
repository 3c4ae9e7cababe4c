"""Which additions a summation kernel makes, in which order, found by calling it on chosen numbers.

Xie et al., "FPRev: Revealing the Order of Floating-Point Summation Operations", USENIX ATC 2025 (arXiv:2411.00442).
Among units stand +M at i and -M at j. Whatever is added to M before it meets -M is swallowed, so that n minus the
result is the number of leaves under the lowest node that holds both i and j. From these sizes the tree follows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
Tree = int | tuple["Tree", ...]
"""A leaf is the position of a term; a node is what is added in one go, two or more subtrees."""


@dataclass(frozen=True)
class Mask:
    """Units and the M that swallows them, in an accumulator of float32 or of the dtype itself."""

    unit: float
    swallowing: float


MASKS = {
    torch.float32: Mask(1.0, 2.0**100),
    torch.bfloat16: Mask(1.0, 2.0**100),
    # 2^15 swallows 2^-24 in float32 but would not swallow 1, and float16 holds nothing much larger.
    torch.float16: Mask(2.0**-24, 2.0**15),
}


def tree_of(total: Total, length: int, dtype: torch.dtype, device: torch.device) -> Tree:
    """The summation tree of `total` on vectors of `length`; raises ValueError where the answers fit no tree."""
    return tree_from_sizes(subtree_sizes(total, length, dtype, device), list(range(length)))


def subtree_sizes(total: Total, length: int, dtype: torch.dtype, device: torch.device) -> list[list[int]]:
    """l[i][j]: number of leaves under the lowest node above both i and j; 1 on the diagonal."""
    mask = MASKS[dtype]
    sizes = [[1] * length for _ in range(length)]
    for i in range(length):
        for j in range(i + 1, length):
            x = torch.full((length,), mask.unit, dtype=dtype, device=device)
            x[i], x[j] = mask.swallowing, -mask.swallowing
            left = float(total(x)) / mask.unit
            if not 0 <= left <= length - 2 or left != int(left):
                raise ValueError(f"{left} of {length} units are left with M at {i} and {j}: not a plain sum.")
            sizes[i][j] = sizes[j][i] = length - int(left)
    return sizes


def tree_from_sizes(sizes: list[list[int]], leaves: list[int]) -> Tree:
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
    if len(children) < 2 or not _is_consistent(sizes, children, len(leaves)):
        raise ValueError(f"the sizes of {leaves} fit no tree: some term is left out or added twice.")
    return tuple(tree_from_sizes(sizes, child) for child in children)


def _is_consistent(sizes: list[list[int]], children: list[list[int]], root_size: int) -> bool:
    """Whether leaves of different children meet at the root, and leaves of one child below it."""
    child_of = {leaf: number for number, child in enumerate(children) for leaf in child}
    return all(
        (sizes[i][j] == root_size) if child_of[i] != child_of[j] else (sizes[i][j] <= len(children[child_of[i]]))
        for i in child_of
        for j in child_of
    )


def written(tree: Tree) -> str:
    """[a, b, ...] adds one after the other, with dots where the steps are even; (a + b) adds two subtrees."""
    if isinstance(tree, int):
        return str(tree)
    run = _running_sum(tree)
    if len(run) <= 2:
        return "(" + " + ".join(written(child) for child in tree) + ")"
    leaves = [term for term in run if isinstance(term, int)]
    if len(leaves) == len(run) > 3 and _are_even(leaves):
        return f"[{leaves[0]}, {leaves[1]} ... {leaves[-1]}]"
    return "[" + ", ".join(written(term) for term in run) + "]"


def _running_sum(tree: Tree) -> list[Tree]:
    """The terms of ((a + b) + c) + ... in order, as long as each but the first is a leaf."""
    if isinstance(tree, int):
        return [tree]
    if len(tree) == 2 and isinstance(tree[1], int):
        return [*_running_sum(tree[0]), tree[1]]
    return [tree]


def _are_even(leaves: list[int]) -> bool:
    return len({b - a for a, b in pairwise(leaves)}) == 1
