"""A language model small enough to train in milliseconds, or the user's in its place, and what its tests share."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perf_tests_suite.model.attention import AttentionFunction, naive_attention
from perf_tests_suite.model.precision import PRECISIONS, Precision
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.numerics_tests.harness import oracles
from perf_tests_suite.numerics_tests.harness.checks import InFloat32WhereFloat64Lacks
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.perf_tests.cases.options import typed_or
from perf_tests_suite.perf_tests.user_code.attention import function_of
from perf_tests_suite.perf_tests.user_code.given import UserModel, is_configuration, is_user_function
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from perf_tests_suite.perf_tests.user_code.model import build_model, configured_shape

# No two dimensions of a tensor are equal (3 rows of 12 tokens, 2 heads of width 8), so none can be taken for another.
CONFIG = ModelConfig(d_model=16, d_ff=32, num_layers=2, num_heads=2, vocab_size=29, context_length=12)
BATCH = 3

MakeTraining = Callable[[nn.Module, Precision, torch.device], Training]
TRAININGS: dict[str, MakeTraining] = {"model": Training}
"""The references of claims on a training step."""


@dataclass
class Given:
    """What the user gives in place of the suite's own: functions with --attention, or a model with --model."""

    attentions: tuple[str, ...] = ()
    """Names or files, as typed."""
    model: UserModel | None = None

    def __bool__(self) -> bool:
        return bool(self.attentions or self.model)

    def build(self, config: ModelConfig) -> nn.Module:
        """The model in evaluation mode, because no step repeats with dropout. Raises UserCodeError."""
        assert self.model is not None
        if is_configuration(self.model.name):
            config = configured_shape(self.model, config.context_length)
        return build_model(self.model, config).eval()

    def take(self, config: pytest.Config) -> None:
        """Read the options; raises pytest.UsageError for what cannot be imported or built, and for both at once."""
        self.attentions = typed_or(config, "--attention", ())
        name = typed_or(config, "--model", None)
        self.model = None if name is None else UserModel(name, typed_or(config, "--model-arg", ()))
        if self.attentions and self.model:
            raise pytest.UsageError("numerics_tests takes --attention or --model, not both; run it once for each.")
        try:
            for attention in filter(is_user_function, self.attentions):
                function_of(attention)
            if self.model:
                self.build(CONFIG)
        except UserCodeError as error:
            raise pytest.UsageError(str(error)) from error


GIVEN = Given()


def model(
    seed: int = 0,
    attention: AttentionFunction = naive_attention,
    config: ModelConfig = CONFIG,
    checkpoint: str = "none",
) -> TransformerLM:
    """A model with parameters drawn from `seed`, the same on every device; the one of --model where that is given."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed is slow, see TorchGenerator in conftest
        if GIVEN.model is not None:
            return GIVEN.build(config).to(device())  # type: ignore[return-value]  # the claims that run on it call it alone
        made = TransformerLM(config, attention, checkpoint)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if name.endswith("weight_D"):
                    parameter.uniform_(0.5, 1.5)  # a norm's weights of 1 would hide whether they are applied
    return made.to(device())


def training(precision: str = "fp32", seed: int = 0, **settings: Any) -> Training:
    """A tiny model in training; `settings` are further arguments of `Training`."""
    return Training(model(seed), PRECISIONS[precision], device(), **settings)


def tokens(seed: int = 0, batch: int = BATCH) -> Tensor:
    """Random int64 tokens (batch, 12)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CONFIG.vocab_size, (batch, CONFIG.context_length), generator=generator).to(device())


def targets_of(tokens_BT: Tensor) -> Tensor:
    """The next token of each; of the last one, the first."""
    return tokens_BT.roll(-1, -1)


def filled_gradients(of: Training, tokens_BT: Tensor) -> dict[str, Tensor]:
    """The gradients by name after one backward pass over cleared ones."""
    of.clear_gradients()
    of.backward(of.loss(of.forward(tokens_BT), targets_of(tokens_BT)))
    return gradients(of.model)


def gradients(of: nn.Module) -> dict[str, Tensor]:
    """Every gradient by name; raises AssertionError for a parameter that got none."""
    found = {}
    for name, parameter in of.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient: the backward pass did not reach it"
        found[name] = parameter.grad
    return found


def exact_logits(of: nn.Module, state: Mapping[str, Tensor], tokens_BT: Tensor) -> Tensor:
    """Logits by the oracle with the parameters `state` in float64; of a user's model by its own code on them."""
    if GIVEN.model is None:
        assert isinstance(of, TransformerLM)
        return oracles.transformer_logits(state, tokens_BT, of.config.num_layers, of.config.num_heads)
    with _wide_enough():
        logits: Tensor = torch.func.functional_call(deepcopy(of).double(), dict(state), (tokens_BT,))
    return logits


def _wide_enough() -> AbstractContextManager[object]:
    """The context of a user's code in float64."""
    return nullcontext() if GIVEN.model is None else InFloat32WhereFloat64Lacks()  # type: ignore[no-untyped-call]  # torch's


def by_the_formula(
    of: nn.Module, tokens_BT: Tensor, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits by the oracle with parameters of `dtype`, and their gradients by name, over `scale`, of as much loss."""
    state = {name: parameter.detach().to(dtype).requires_grad_() for name, parameter in of.named_parameters()}
    logits = exact_logits(of, state, tokens_BT)
    with torch.autocast(device().type, enabled=False), _wide_enough():  # a caller's region is one of a forward pass
        loss = oracles.token_losses(logits, targets_of(tokens_BT), dtype).mean() * scale
        found = torch.autograd.grad(loss, list(state.values()))
    return logits.detach(), {name: gradient / scale for name, gradient in zip(state, found, strict=True)}


def in_float64(of: nn.Module) -> dict[str, Tensor]:
    """Parameters as float64 leaves, for the oracles."""
    return {name: parameter.detach().double().requires_grad_() for name, parameter in of.named_parameters()}
