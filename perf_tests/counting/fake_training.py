"""A case's training step played on fake tensors: each of its parts counted once, whichever phases are made of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

import model as model_package
from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import MultiHeadAttention, TransformerLM, blocks_per_checkpoint
from perf_tests.instruments.counters import (
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    Counting,
    PartCounters,
)
from perf_tests.instruments.cuda_rules import follow_rules
from perf_tests.instruments.layer_extrapolation import NotOfEqualLayersError, extrapolated
from perf_tests.instruments.torch_private import FakeTensorMode

MODEL_SOURCE = Path(model_package.__file__).parent
HOST = torch.device("cpu")

Parts = dict[str, PartCounters]


@dataclass(frozen=True)
class PassShape:
    """What the passes through a language model depend on."""

    config: ModelConfig
    context_length: int
    batch_size: int
    precision: str
    attention: str
    checkpoint: str
    target: str
    """Device type whose rules are played, "cuda" or "cpu"."""


@dataclass(frozen=True)
class UpdateShape:
    """What an update depends on: no input, no context."""

    config: ModelConfig
    optimizer: str
    scales_loss: bool
    target: str


@dataclass(frozen=True)
class AttentionShape:
    """What attention alone depends on."""

    head_dim: int
    sequence_length: int
    batch_size: int
    precision: str
    attention: str
    target: str


@lru_cache(maxsize=256)
def inference(shape: PassShape, all_layers: bool = False) -> Parts:
    """Counters of `inference`, from a few layers unless all are asked for; weights and batch are there at the start."""
    return from_few_layers(count_inference, shape, 2, all_layers)


@lru_cache(maxsize=256)
def passes(shape: PassShape, all_layers: bool = False) -> Parts:
    """Counters of `forward`, `loss` and `backward`, from a few layers unless all are asked for.

    Nothing is held beside weights and batch at the start; the logits are let go of after the loss.
    """
    return from_few_layers(count_passes, shape, 1, all_layers)


def from_few_layers(count: Callable[[PassShape], Parts], shape: PassShape, few: int, all_layers: bool) -> Parts:
    """What `count` finds at the shape's depth, from `few` layers and one more.

    The first layer of an inference differs: the caller still holds what went into it. So that needs at least two.
    Blocks that share a checkpoint count as one layer; those left over stay behind them, as the model has them.
    """
    blocks = max(1, blocks_per_checkpoint(shape.checkpoint))
    layers, left_over = divmod(shape.config.num_layers, blocks)
    if all_layers or layers <= few + 1:
        return count(shape)
    depths = (few * blocks + left_over, (few + 1) * blocks + left_over)
    less, more = (count(replace(shape, config=replace(shape.config, num_layers=depth))) for depth in depths)
    try:
        return {name: extrapolated(less[name], more[name], layers - few) for name in less}
    except NotOfEqualLayersError:
        return count(shape)


def count_inference(shape: PassShape) -> Parts:
    """`inference`, with every layer of the shape."""
    with playing(shape.target, shape.precision) as counting:
        training, tokens_BT, _ = _model_and_batch(shape, counting)
        with counting.part("inference"), torch.no_grad():
            training.forward(tokens_BT)
        return counting.finished()


def count_passes(shape: PassShape) -> Parts:
    """`forward`, `loss` and `backward`, with every layer of the shape."""
    with playing(shape.target, shape.precision) as counting:
        training, tokens_BT, targets_BT = _model_and_batch(shape, counting)
        with counting.part("forward"):
            logits_BTV = training.forward(tokens_BT)
        with counting.part("loss"):
            loss = training.loss(logits_BTV, targets_BT)
        del logits_BTV
        with counting.part("backward"):
            training.backward(loss)
        counting.register(gradients_of(training), GRADIENTS)
        return counting.finished()


def _model_and_batch(shape: PassShape, counting: Counting) -> tuple[Training, Tensor, Tensor]:
    training = fake_training(shape.config, shape.attention, shape.checkpoint, shape.precision, "loop", shape.target)
    counting.claim(PARAMETERS)
    tokens_BT, targets_BT = (fake_tokens(shape.batch_size, shape.context_length) for _ in range(2))
    counting.claim(INPUTS)
    make_loss_scale(training)
    counting.claim(OPTIMIZER_STATE)
    return training, tokens_BT, targets_BT


@lru_cache(maxsize=256)
def updates(shape: UpdateShape) -> Parts:
    """Counters of `first_update`, which makes the optimizer's state, and of `update`, which finds it there.

    Nothing is held beside weights, gradients and state.
    """
    precision = "fp16" if shape.scales_loss else "fp32"
    with playing(shape.target, precision) as counting:
        training = fake_training(shape.config, "naive", "none", precision, shape.optimizer, shape.target)
        counting.claim(PARAMETERS)
        make_loss_scale(training)
        counting.claim(OPTIMIZER_STATE)
        for parameter in training.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        counting.claim(GRADIENTS)
        with counting.part("first_update"):
            training.update()
        counting.claim(OPTIMIZER_STATE)
        with counting.part("update"):
            training.update()
        return counting.finished()


@lru_cache(maxsize=256)
def attention_passes(shape: AttentionShape) -> Parts:
    """Counters of `attention_forward` and `attention_backward`; query, key, value and output gradient are there."""
    precision = PRECISIONS[shape.precision]
    with playing(shape.target, shape.precision) as counting:
        size = (shape.batch_size, shape.sequence_length, shape.head_dim)
        leaves = [torch.zeros(size).requires_grad_() for _ in range(3)]
        gradient_BTK = torch.zeros(size)
        counting.claim(INPUTS)
        attention = ATTENTION[shape.attention].build()
        with counting.part("attention_forward"), precision.autocast(HOST):
            output_BTK = attention(*leaves)
        cast_gradient_BTK = gradient_BTK.to(output_BTK.dtype)
        with counting.part("attention_backward"):
            output_BTK.backward(cast_gradient_BTK)
        counting.register((leaf.grad for leaf in leaves if leaf.grad is not None), GRADIENTS)
        return counting.finished()


@contextmanager
def playing(target: str, precision: str) -> Iterator[Counting]:
    """Fake tensors that are counted by the rules of `target`, with a graph even where the caller records none.

    Raises RuntimeError inside of autocast, whose copies of the weights would outlive the passes counted.
    """
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("counters cannot be taken inside of torch.autocast; leave it first.")
    float32_rate = "fp32" if PRECISIONS[precision].float32_matmul_precision == "highest" else "tf32"
    with torch.enable_grad(), FakeTensorMode(), Counting(target, float32_rate, MODEL_SOURCE) as counting:
        yield counting


def fake_training(
    config: ModelConfig, attention: str, checkpoint: str, precision: str, optimizer: str, target: str
) -> Training:
    """A model in training on the host, to be played by the rules of `target`."""
    model = TransformerLM(config, ATTENTION[attention].build(), checkpoint)
    if target == "cuda" and checkpoint != "none":
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                follow_rules(module)
    return Training(model, PRECISIONS[precision], HOST, optimizer)


def fake_tokens(batch_size: int, context_length: int) -> Tensor:
    return torch.zeros(batch_size, context_length, dtype=torch.int64)


def make_loss_scale(training: Training) -> None:
    """A scaler makes its scale when it is first used."""
    training.scaler.scale(torch.zeros(()))


def gradients_of(training: Training) -> list[Tensor]:
    return [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]
