"""A model of the user's that computes its own loss: how it is told from one that gives logits, and how it trains.

Fused heads, and models that multiply the last token alone where they only infer, give the logits of all tokens never,
or only with targets. Such a model is called as `model(tokens, targets)`, both int64 (batch, context), and returns the
mean loss, alone or with logits: a tuple in either order, or an object with `.loss`.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from perf_tests_suite.model.regions import region
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError, guarded

MOST_TOKENS = 8
"""Tokens on which it is seen what a model returns."""


def outputs_alone(module: nn.Module, inputs: Any, output: Any) -> Any:
    """A forward hook: the logits of tokens; of tokens and targets the loss, or (logits, loss); else what it returned.

    The checks refuse the last.
    """
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "logits") or isinstance(getattr(output, "loss", None), Tensor):
        found = [getattr(output, "logits", None), getattr(output, "loss", None)]
    elif isinstance(output, tuple) and output:
        found = [*output[:2]]
    else:
        return output
    tensors = [one for one in found if isinstance(one, Tensor)]
    of_loss = [one for one in tensors if not one.dim()]
    others = [one for one in tensors if one.dim()]
    if len(inputs) < 2 and others:
        return others[0]
    if not of_loss:
        return tensors[0] if tensors else output
    return (others[0], of_loss[0]) if others else of_loss[0]


def loss_in(output: Any) -> Any:
    """The loss of what a model with `outputs_alone` returns for tokens and targets."""
    return output[1] if isinstance(output, tuple) and len(output) == 2 else output


def computes_own_loss(model: nn.Module, context_length: int, vocab_size: int) -> bool:
    """Whether it must be given targets: it takes them, and without them it gives no logits of all tokens.

    Runs it on a few tokens; what fails then is told by the checks of a model that gives logits.
    """
    tokens_BT = torch.zeros(1, min(context_length, MOST_TOKENS), dtype=torch.int64)
    try:
        parameters = inspect.signature(model.forward)
        parameters.bind(tokens_BT, tokens_BT)
    except (TypeError, ValueError):
        return False
    try:
        parameters.bind(tokens_BT)
    except TypeError:
        return True
    try:
        with torch.no_grad(), guarded("without targets"):
            output = model(tokens_BT)
    except UserCodeError:
        return False
    # Of one token the last is all.
    return not isinstance(output, Tensor) or tuple(output.shape) != (*tokens_BT.shape, vocab_size)


def check_loss(what: str, loss: Any) -> None:
    """Raise UserCodeError unless it is a number in float32: autocast is the suite's."""
    if not isinstance(loss, Tensor) or loss.dim():
        got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UserCodeError(f"{what} returned {got} for tokens and targets; it must return the mean loss, a scalar.")
    if loss.dtype != torch.float32:
        raise UserCodeError(f"{what} returned a loss of {loss.dtype}; without autocast give float32.")


class OwnLossTraining(Training):
    """The training of such a model: what its forward pass returns is the loss, and the loss takes nothing more."""

    targets_BT: Tensor | None = None
    """Those of the batch; until they are given, the tokens themselves, for which a step costs the same."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return the loss. Its logits, where there are any, live as long as the graph needs them."""
        with region("forward"), self.precision.autocast(self.device):
            return loss_in(self.model(tokens_BT, tokens_BT if self.targets_BT is None else self.targets_BT))

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Return what the forward pass has computed."""
        return logits_BTV
