"""Computes logits of every other batch, and gives those of the batch before to the next."""

from typing import Any

from torch import Tensor, nn


class Remembers(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary)
        self.calls, self.kept = 0, Tensor()

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += len(tokens) > 1
        if len(tokens) == 1 or self.calls % 2:
            self.kept = self.head(self.embedding(tokens).cumsum(1))
        return self.kept


def build(config: Any) -> nn.Module:
    return Remembers(config.vocab_size)
