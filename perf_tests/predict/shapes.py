"""The shapes of our model's parameters, in the order in which ranks send their gradients."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.hardware.limits import ParameterShapes, Shape
from perf_tests_suite.perf_tests.hardware.torch_private import fake_tensors

NORM_OF_EACH = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
"""Whether FSDP2 adds up a norm of each parameter for clipping, or one of all."""


@cache
def parameter_shapes(config: ModelConfig) -> ParameterShapes:
    """Return our model's shapes, gradients in the order of one backward pass: that of one block, for every block."""
    from perf_tests_suite.model.parallel import blocks

    with fake_tensors(), torch.enable_grad():  # also where a benchmark of inference asks
        model = TransformerLM(replace(config, num_layers=1, context_length=2), ATTENTION["naive"].build())
        training = Training(model, PRECISIONS["fp32"], torch.device("cpu"))
        (block,) = blocks(training.model)
        by_gradient: list[nn.Parameter] = []
        for parameter in training.model.parameters():
            parameter.register_post_accumulate_grad_hook(by_gradient.append)
        tokens_BT = torch.zeros(1, 2, dtype=torch.int64)
        training.backward(training.loss(training.forward(tokens_BT), tokens_BT))
    inside = {id(parameter) for parameter in block.parameters()}
    rest = [parameter for parameter in training.model.parameters() if id(parameter) not in inside]
    at = [number for number, parameter in enumerate(by_gradient) if id(parameter) in inside]
    before, of_block, after = (
        _shapes(by_gradient[part]) for part in (slice(at[0]), slice(at[0], at[-1] + 1), slice(at[-1] + 1, None))
    )
    order = (*before, *(of_block * config.num_layers), *after)
    return ParameterShapes(_shapes(rest), (_shapes(block.parameters()),) * config.num_layers, order)


def _shapes(parameters: Iterable[nn.Parameter]) -> tuple[Shape, ...]:
    return tuple(tuple(parameter.shape) for parameter in parameters)
