"""A language model small enough to train in milliseconds, and helpers for its tests."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from model.attention import AttentionFunction, naive_attention
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from numerics_tests import oracles
from numerics_tests.under_test import GIVEN

# No two dimensions of a tensor are equal (3 rows of 12 tokens, 2 heads of width 8), so none can be taken for another.
CONFIG = ModelConfig(d_model=16, d_ff=32, num_layers=2, num_heads=2, vocab_size=29, context_length=12)
BATCH = 3


def model(
    device: torch.device,
    seed: int = 0,
    attention: AttentionFunction = naive_attention,
    config: ModelConfig = CONFIG,
    checkpoint: str = "none",
) -> TransformerLM:
    """Parameters drawn from `seed`, the same on every device; norm weights away from 1, which would hide them.

    The model of --model in its place, where one is given.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed is slow, see profiles.py
        if GIVEN.model is not None:
            return GIVEN.build(config).to(device)  # type: ignore[return-value]  # the claims that run on it call it alone
        made = TransformerLM(config, attention, checkpoint)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if name.endswith("weight_D"):
                    parameter.uniform_(0.5, 1.5)
    return made.to(device)


def training(device: torch.device, precision: str = "fp32", seed: int = 0, optimizer: str = "default") -> Training:
    return Training(model(device, seed), PRECISIONS[precision], device, optimizer)


def tokens(device: torch.device, seed: int = 0, batch: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CONFIG.vocab_size, (batch, CONFIG.context_length), generator=generator).to(device)


def gradients(of: torch.nn.Module) -> dict[str, Tensor]:
    """Every gradient by name; raises ValueError for a parameter that got none."""
    found = {}
    for name, parameter in of.named_parameters():
        if parameter.grad is None:
            raise ValueError(f"{name} has no gradient.")
        found[name] = parameter.grad
    return found


def exact_logits(of: nn.Module, state: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """By the oracle with the parameters `state` in float64; of a model of the user's by its own code on them."""
    if GIVEN.model is None:
        return oracles.transformer_logits(state, tokens, CONFIG.num_layers, CONFIG.num_heads)
    logits: Tensor = torch.func.functional_call(deepcopy(of).double(), dict(state), (tokens,))
    return logits


def in_float64(of: torch.nn.Module) -> dict[str, Tensor]:
    """Its parameters as float64 leaves, for the oracles."""
    return {name: parameter.detach().double().requires_grad_() for name, parameter in of.named_parameters()}
