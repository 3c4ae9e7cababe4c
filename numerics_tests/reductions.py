"""Every reduction of PyTorch that a Transformer uses, under two signatures.

A product takes two vectors (N,) to their dot product, a total one vector to its sum; the dtype stays.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor, Tensor], Tensor]
Total = Callable[[Tensor], Tensor]


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


def _index_add(x: Tensor) -> Tensor:
    return x.new_zeros(1).index_add_(0, torch.zeros(len(x), dtype=torch.int64, device=x.device), x)[0]


def _scatter_add(x: Tensor) -> Tensor:
    return x.new_zeros(1).scatter_add_(0, torch.zeros(len(x), dtype=torch.int64, device=x.device), x)[0]


def _index_put(x: Tensor) -> Tensor:
    index = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    return x.new_zeros(1).index_put_((index,), x, accumulate=True)[0]


def _gradient(of: Tensor, loss: Tensor, upstream: Tensor) -> Tensor:
    return torch.autograd.grad(loss, of, upstream)[0]


def _bias_gradient(x: Tensor) -> Tensor:
    bias = x.new_zeros(1).requires_grad_()
    return _gradient(bias, F.linear(torch.ones_like(x)[:, None], x.new_ones(1, 1), bias), x[:, None])[0]


def _broadcast_gradient(x: Tensor) -> Tensor:
    leaf = x.new_zeros(1).requires_grad_()
    return _gradient(leaf, torch.ones_like(x) * leaf, x)[0]


def _weight_gradient(x: Tensor) -> Tensor:
    weight = x.new_zeros(1, 1).requires_grad_()
    return _gradient(weight, F.linear(torch.ones_like(x)[:, None], weight), x[:, None])[0, 0]


def _embedding_gradient(x: Tensor) -> Tensor:
    table = x.new_zeros(2, 1).requires_grad_()
    tokens = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    return _gradient(table, F.embedding(tokens, table), x[:, None])[0, 0]


def _indexing_gradient(x: Tensor) -> Tensor:
    table = x.new_zeros(2, 1).requires_grad_()
    tokens = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    return _gradient(table, table[tokens], x[:, None])[0, 0]


def _layer_norm_bias_gradient(x: Tensor) -> Tensor:
    weight, bias = x.new_ones(4).requires_grad_(), x.new_zeros(4).requires_grad_()
    rows = torch.arange(4.0, device=x.device).to(x.dtype).expand(len(x), 4)
    return _gradient(bias, F.layer_norm(rows, (4,), weight, bias), x[:, None].expand(-1, 4))[0]


def _accumulated_gradient(x: Tensor) -> Tensor:
    leaf = x.new_zeros(1).requires_grad_()
    for term in x:
        (leaf * term).sum().backward()
    assert leaf.grad is not None
    return leaf.grad[0]


def _python_loop(x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for term in x:
        total = total + term
    return total


SUMS: dict[str, Total] = {
    "sum": lambda x: x.sum(),
    "sum(dim)": lambda x: x[None].repeat(3, 1).sum(1)[1],
    "sum(dim 0)": lambda x: x[:, None].repeat(1, 3).sum(0)[1],
    "mean": _mean,
    "cumsum": lambda x: x.cumsum(0)[-1],
    "scatter_add": _scatter_add,
    "index_add": _index_add,
    "index_put(accumulate)": _index_put,
    "gradient of a bias": _bias_gradient,
    "gradient of a broadcast": _broadcast_gradient,
    "gradient of a weight": _weight_gradient,
    "gradient of an embedding": _embedding_gradient,
    "gradient of an indexing": _indexing_gradient,
    "gradient of a layer norm's bias": _layer_norm_bias_gradient,
    ".grad over microbatches": _accumulated_gradient,
    "Python loop": _python_loop,
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
"""Which sums keep their running total in the dtype of their input.

The CPU's were found by running test_reductions.py on torch 2.13, x86-64. The GPU's are what its atomics suggest and
have not been run; test_reductions.py only holds the CPU to this table.
"""
