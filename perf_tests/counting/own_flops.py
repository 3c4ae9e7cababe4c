"""Model FLOPs of a user's model: PyTorch's FlopCounterMode over one step on tensors without content.

Fused attention counts over the full T x T square, without the scores that its backward pass computes again, as the
formula of our own model does; what a checkpoint inside the model recomputes counts as part of its backward pass.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.counting.fake_training import fake_training, playing
from perf_tests.instruments.kernel_cost import FUSED_ATTENTION, MATRIX_PRODUCTS
from perf_tests.instruments.torch_private import operator

_WORDS_OF_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linear", "bilinear",
    "trilinear", "convolution", "conv1d", "conv2d", "conv3d", "attention", "lstm", "gru", "rnn", "cdist", "addr",
    "cholesky", "eig", "eigh", "geqrf", "inv", "inverse", "lstsq", "lu", "qr", "solve", "svd",
}  # fmt: skip
"""Words of an operation's name that say it multiplies matrices, or factorises one."""

Shape = Sequence[int]

_SMALL = ("aten", "prim", "prims")
"""Namespaces whose operations are known by name; any other may multiply."""


@lru_cache(maxsize=64)
def pass_flops(case: LanguageModelCase) -> dict[str, int]:
    """FLOPs of the `forward` and the `backward` pass of `case`, whatever its phase."""
    with playing(case.device, case.precision) as counting:
        training = fake_training(case.config, "own", "none", case.precision, "loop", case.device, case.own)
        counting.guesses_values = False
        tokens_BT = torch.zeros(case.batch_size, case.context_length, dtype=torch.int64)
        forward, backward = (FlopCounterMode(display=False, custom_mapping=_formulas()) for _ in range(2))
        with forward:
            logits_BTV = training.forward(tokens_BT)
        loss = training.loss(logits_BTV, tokens_BT)
        with backward:
            training.backward(loss)
        return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def products_outside(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Of operations by name, those that multiply matrices, or might, and are not `known`."""
    return sorted(name for name in set(names) - set(known) if _may_multiply(name))


def names_with_executed_flops() -> set[str]:
    return {*MATRIX_PRODUCTS, *FUSED_ATTENTION}


def names_with_model_flops() -> set[str]:
    return {str(packet) for packet in flop_registry} | names_with_executed_flops()


def _may_multiply(name: str) -> bool:
    namespace, _, operation = name.partition(".")
    return namespace not in _SMALL or not _WORDS_OF_PRODUCTS.isdisjoint(operation.split("_"))


def _formulas() -> dict[Any, Callable[..., int]]:
    attention = {
        operator(name.removeprefix("aten.")): _attention_formula(query, 2 if name.endswith("_backward") else 1)
        for name, (_, query, _) in FUSED_ATTENTION.items()
    }
    return {**attention, operator("convolution_backward"): _convolution_backward}


def _attention_formula(query: int, times: int) -> Callable[..., int]:
    """Scores and output, and backward a gradient for each factor of both; fewer heads of keys cost as many products."""

    def flops(*shapes: Any, **named: Any) -> int:
        *batch, queries, width = shapes[query]
        keys, value_width = shapes[query + 2][-2:]
        return times * 2 * math.prod(batch) * queries * keys * (width + value_width)

    return flops


def _convolution_backward(grad_out: Shape, x: Shape, weight: Shape, *others: Any, **_: Any) -> int:
    """The products of the forward pass, once for each gradient asked for, of input and weight.

    PyTorch's own formula leaves the groups out of the gradient of the weight.
    """
    _bias, _stride, _padding, _dilation, is_transposed, _output_padding, _groups, wanted = others[:8]
    batch, _channels, *positions = x if is_transposed else grad_out
    return sum(wanted[:2]) * 2 * batch * math.prod(positions) * math.prod(weight)
