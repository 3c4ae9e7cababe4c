"""Counts of what is the user's own: its failures as one sentence, and the model FLOPs of a model that is not known."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.hardware.torch_private import (
    DataDependentOutputException,
    chunked_cross_entropy,
    operator,
)
from perf_tests_suite.perf_tests.phases import FORWARD_PASSES
from perf_tests_suite.perf_tests.predict.costs import FUSED_ATTENTION, linear_cross_entropy_flops
from perf_tests_suite.perf_tests.predict.counters import WITH_EXECUTED_FLOPS, NotCountedError, products_outside
from perf_tests_suite.perf_tests.predict.fake_run import fake_run, fake_training
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError, guarded


@contextmanager
def guarded_count(case: Case) -> Iterator[None]:
    """Guard a block that runs the case's own code on fake tensors. Raises NotCountedError."""
    what = f"{' with '.join(case.user_code)} cannot be run on fake tensors"
    try:
        with guarded(what):
            yield
    except UserCodeError as error:
        reads = isinstance(error.__cause__, DataDependentOutputException)
        sentence = f"{what}: it reads a value of one" if reads else str(error).rstrip(".")
        if "Expected inputs of BF16" in str(error.__cause__):  # of torch's grouped product
            sentence += (
                "; a model of transformers is counted with --model-arg experts_implementation=batched_mm, whose "
            )
            sentence += "peak is many times a dense model's"
        raise NotCountedError(f"{sentence}.") from error


# Model FLOPs of a user's model: PyTorch's FlopCounterMode over one step on fake tensors.
#
# Fused attention counts over the full T x T square, without the scores that its backward pass computes again, as the
# formula of our own model does; what a checkpoint inside the model recomputes counts as part of its backward pass.


Shape = Sequence[int]


def model_flops(case: Case, kernels: Iterable[KernelCost]) -> int | None:
    """Those of a round that launches these kernels; None where an operation's are not known."""
    if not isinstance(case, LanguageModelCase) or case.user_model is None:
        return case.model_flops
    names = {kernel.name for kernel in kernels}
    timed = [name.replace("inference", "forward") for name in case.phase_row.timed if name in FORWARD_PASSES]
    if not timed or products_outside(names, {*map(str, flop_registry), *WITH_EXECUTED_FLOPS}):
        return None
    flops = pass_flops(replace(case, phase="forward", optimizer=None))
    return sum(flops[name] for name in timed)


@lru_cache(maxsize=64)
def pass_flops(case: LanguageModelCase) -> dict[str, int]:
    """FLOPs of the `forward` and the `backward` pass of `case`, whatever its phase."""
    formulas: dict[Any, Callable[..., int]] = {operator("convolution_backward"): _convolution_backward}
    for name, (_, query, _) in FUSED_ATTENTION.items():
        formulas[operator(name.removeprefix("aten."))] = partial(_attention, query, 1 + name.endswith("_backward"))
    if (chunked := chunked_cross_entropy()) is not None:
        formulas[chunked] = linear_cross_entropy_flops
    with fake_run(case.device, case.precision) as counting:
        training = fake_training(case)
        counting.guesses_values = False
        tokens_BT = torch.zeros(case.batch_size, case.context_length, dtype=torch.int64)
        forward, backward = (FlopCounterMode(display=False, custom_mapping=formulas) for _ in range(2))
        with forward:
            logits_BTV = training.forward(tokens_BT)
        loss = training.loss(logits_BTV, tokens_BT)
        with backward:
            training.backward(loss)
        return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def _attention(query: int, times: int, *shapes: Any, **named: Any) -> int:
    """Scores and output, and backward a gradient for each factor of both; fewer heads of keys cost as many products."""
    *batch, queries, width = shapes[query]
    keys, value_width = shapes[query + 2][-2:]
    return times * 2 * math.prod(batch) * queries * keys * (width + value_width)


def _convolution_backward(grad_out: Shape, x: Shape, weight: Shape, *others: Any, **_: Any) -> int:
    """The products of the forward pass, once for each gradient asked for, of input and weight.

    PyTorch's own formula leaves the groups out of the gradient of the weight.
    """
    _bias, _stride, _padding, _dilation, is_transposed, _output_padding, _groups, wanted = others[:8]
    batch, _channels, *positions = x if is_transposed else grad_out
    return sum(wanted[:2]) * 2 * batch * math.prod(positions) * math.prod(weight)
