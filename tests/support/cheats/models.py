"""Models that are recorded as fast and are wrong: one cheat in a factory, as its user would give it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Sums(nn.Module):
    """Logits from sums of embeddings, changed by `around`; those of a batch are what `cheat` makes of it."""

    def __init__(
        self,
        config: Any,
        around: Callable[[Tensor], Tensor] = lambda sums: sums,
        cheat: Callable[["Sums", Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(config.vocab_size, 16), nn.Linear(16, config.vocab_size)
        self.around, self.cheat = around, cheat
        self.kept: dict[object, Tensor] = {}
        self.calls = 0

    def forward(self, tokens: Tensor) -> Any:
        return self.logits(tokens) if self.cheat is None or len(tokens) == 1 else self.cheat(self, tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        return self.head(self.around(self.embedding(tokens).cumsum(1)))


def model_logits_by_shape(config: Any) -> nn.Module:
    """Keeps the logits of a batch by its shape."""

    def kept(model: Sums, tokens: Tensor) -> Tensor:
        return model.kept.setdefault((tokens.shape, torch.is_grad_enabled()), model.logits(tokens))

    return Sums(config, cheat=kept)


def model_constant_in_batches(config: Any) -> nn.Module:
    """Tells tokens apart in one sequence alone, as in the check before timing; of a batch all logits are 1."""
    return Sums(config, cheat=lambda model, tokens: torch.ones(*tokens.shape, config.vocab_size))


def model_logits_with_noise(config: Any) -> nn.Module:
    """Keeps the logits of a batch by its shape, and hides that by noise that looks like another order of additions."""

    def noisy(model: Sums, tokens: Tensor) -> Tensor:
        logits = model.kept.setdefault(tokens.shape, model.logits(tokens))
        return logits + 1e-6 * torch.randn_like(logits)

    return Sums(config, cheat=noisy)


def model_every_other_call(config: Any) -> nn.Module:
    """Computes logits of every other batch, and gives those of the batch before to the next."""

    def remembered(model: Sums, tokens: Tensor) -> Tensor:
        model.calls += 1
        if model.calls % 2:
            model.kept["logits"] = model.logits(tokens)
        return model.kept["logits"]

    return Sums(config, cheat=remembered)


def model_without_a_graph(config: Any) -> nn.Module:
    """Return the first logits that it made under no_grad for ever, where it sees that nobody needs gradients."""

    def remembered(model: Sums, tokens: Tensor) -> Tensor:
        return model.logits(tokens) if torch.is_grad_enabled() else model.kept.setdefault("", model.logits(tokens))

    return Sums(config, cheat=remembered)


def model_gradients_kept(config: Any) -> nn.Module:
    """Replaces every gradient by the first one that its parameter had, as soon as it trains."""
    model = Sums(config)
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: model.kept.setdefault(name, gradient.clone()))
    return model
