"""Replaces every gradient by the first one that its parameter had, as soon as it trains."""

from typing import Any

from torch import Tensor, nn


def build(config: Any) -> nn.Module:
    model = nn.Sequential(nn.Embedding(config.vocab_size, 16), Sums(), nn.Linear(16, config.vocab_size))
    for parameter in model.parameters():
        kept: list[Tensor] = []

        def first(gradient: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(gradient.clone())
            return kept[0]

        parameter.register_hook(first)
    return model


class Sums(nn.Module):
    def forward(self, embedded: Tensor) -> Tensor:
        return embedded.cumsum(1)
