"""Whether what is the user's own can be measured, before anything is: a model without content and for real."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import naive_attention
from model.sizes import ModelConfig
from model.transformer import TransformerLM
from perf_tests.instruments.device_errors import is_out_of_memory
from perf_tests.instruments.torch_private import FakeTensorMode
from perf_tests.own.guard import LONGEST_SECONDS, OwnModelError, guarded
from perf_tests.own.model import OwnModel, facts_of
from perf_tests.own.optimizer import OwnOptimizer, check_a_step

SMALL_PARAMETERS = 100_000_000
"""A model of at most so many is built and run for the check; a larger one when its first case borrows it."""

SMALL_TO_STEP = 10_000_000
"""The same for the step of an optimizer of the user's own, which may multiply all the weights many times."""


def check_before_measuring(own: OwnModel, configs: Sequence[ModelConfig], device: torch.device) -> None:
    """Raises OwnModelError unless it is a language model under `configs`, of which the smallest comes first.

    The first and the last are played; the others, as every model, are checked when a case borrows them. The smallest
    runs on `device` too, unless it is large or memory runs out, which is an outcome of its cases.
    """
    for config in dict.fromkeys((configs[0], configs[-1])):
        if facts_of(own, config).why_not_played is None:
            _check_without_content(own, config)
    try:
        if (facts_of(own, configs[0]).parameters or 0) <= SMALL_PARAMETERS:
            model = own.build(configs[0], LONGEST_SECONDS).to(device)
            check_values_of(own.name, model, configs[0], device, LONGEST_SECONDS)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


def check_optimizer_before_measuring(
    own: OwnOptimizer, of_user: OwnModel | None, config: ModelConfig, device: torch.device
) -> None:
    """Raises OwnModelError unless it trains `of_user` under `config`, or else a narrow model of the suite's.

    A large model is given to it without content alone; it is tried when its first case borrows that model.
    """
    facts = None if of_user is None else facts_of(of_user, config)
    try:
        if of_user is None or facts is None:
            narrow = ModelConfig(32, 64, config.num_layers, 1, vocab_size=64, context_length=8)
            check_a_step(own, TransformerLM(narrow, naive_attention).to(device), device, LONGEST_SECONDS)
        elif (facts.parameters or math.inf) <= SMALL_TO_STEP:
            check_a_step(own, of_user.build(config, LONGEST_SECONDS).to(device), device, LONGEST_SECONDS)
        elif facts.why_not_played is None:
            with FakeTensorMode():
                own.build(of_user.build(config, LONGEST_SECONDS), LONGEST_SECONDS)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


@torch.no_grad()
def _check_without_content(own: OwnModel, config: ModelConfig) -> None:
    """Only of what came out: to fail on tensors without content, on a value read for example, is no fault."""
    with FakeTensorMode():
        model = own.build(config, LONGEST_SECONDS)
        tokens_BT = torch.zeros(1, config.context_length, dtype=torch.int64)
        try:
            with guarded("it cannot be played", LONGEST_SECONDS):
                output = model(tokens_BT)
        except OwnModelError:
            return
        check_output(own.name, model, tokens_BT, output, config.vocab_size)


@torch.no_grad()
def check_values_of(
    name: str, model: nn.Module, config: ModelConfig, device: torch.device, seconds: float | None = None
) -> None:
    """Raises OwnModelError unless the model, run on `device`, computes finite logits from all of its context."""
    tokens_BT = torch.randint(config.vocab_size, (1, config.context_length), device=device)
    given_BT = tokens_BT.clone()
    try:
        with guarded(f"--model {name} fails on tokens of shape {tuple(tokens_BT.shape)}", seconds), _same_draws(device):
            logits_BTV = model(tokens_BT)
    except OwnModelError as error:
        if "FakeTensor" not in str(error):
            raise
        raise OwnModelError(
            f"--model {name} keeps a tensor from one build to the next, in a global or a cache, so that one without "
            "content reaches this model; keep it in the module."
        ) from error
    check_output(name, model, tokens_BT, logits_BTV, config.vocab_size)
    if not torch.equal(tokens_BT, given_BT):
        raise OwnModelError(f"--model {name} changed its tokens in place; change a copy, because they are used again.")
    if not bool(torch.isfinite(logits_BTV).all()):
        raise OwnModelError(f"--model {name} returned logits that are not finite, from its initial weights.")
    if config.context_length == 1:
        return
    changed_BT = (tokens_BT + 1) % config.vocab_size
    changed_BT[:, -1] = tokens_BT[:, -1]
    with guarded(f"--model {name} fails at its second call", seconds), _same_draws(device):
        changed_logits_BTV = model(changed_BT)
    if torch.equal(changed_logits_BTV[:, -1], logits_BTV[:, -1]):
        raise OwnModelError(
            f"--model {name} ignores its context: the last logits do not depend on earlier tokens, "
            "so a figure for this context length would be wrong."
        )


@contextmanager
def _same_draws(device: torch.device) -> Iterator[None]:
    """Dropout draws the same in every call, so that two calls differ by their tokens alone."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def check_output(name: str, model: nn.Module, tokens_BT: Tensor, logits_BTV: Any, vocab_size: int) -> None:
    """Raises OwnModelError unless these are logits of the tokens, and all is in float32."""
    halves = {str(one.dtype) for one in model.parameters() if one.is_floating_point() and one.dtype != torch.float32}
    if halves:
        raise OwnModelError(
            f"--model {name} has parameters of {', '.join(sorted(halves))}; build them in float32 and choose the "
            "precision with --precision."
        )
    shape = tuple(tokens_BT.shape)
    wanted = (*shape, vocab_size)
    got = tuple(logits_BTV.shape) if isinstance(logits_BTV, Tensor) else type(logits_BTV).__name__
    if got != wanted:
        raise OwnModelError(
            f"--model {name} returned {got} for tokens of shape {shape}; it must return logits of shape {wanted}."
        )
    if logits_BTV.dtype != torch.float32:
        raise OwnModelError(f"--model {name} returned logits of {logits_BTV.dtype}; without autocast give float32.")
