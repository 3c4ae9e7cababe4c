"""Factories for --model: one that is fine, and the ways in which another can be wrong."""

import torch
from torch import Tensor, nn

from model.sizes import ModelConfig


class Averaging(nn.Module):
    """Logits from the mean of all embeddings so far; it cannot draw its weights again."""

    def __init__(self, config: ModelConfig, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.head = nn.Linear(width, config.vocab_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        embedded = self.embedding(tokens_BT)
        counts = torch.arange(1, tokens_BT.shape[1] + 1, device=tokens_BT.device)[:, None]
        return self.head(embedded.cumsum(1) / counts)


class Bigram(Averaging):
    """Logits from the last token alone."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.head(self.embedding(tokens_BT))


class LastTokenOnly(Averaging):
    """Logits of shape (B, V), of the last token."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return super().forward(tokens_BT)[:, -1]


class Wrapped(Averaging):
    """Logits inside a tuple, as some libraries return them."""

    def forward(self, tokens_BT: Tensor) -> tuple[Tensor]:  # type: ignore[override]
        return (super().forward(tokens_BT),)


def not_a_module(config: ModelConfig) -> dict[str, int]:
    return {"d_model": config.d_model}


def raises(config: ModelConfig) -> nn.Module:
    raise KeyError("hidden_size")


def runs_out_of_memory(config: ModelConfig) -> nn.Module:
    raise MemoryError


class Unrunnable(Averaging):
    def forward(self, tokens_BT: Tensor) -> Tensor:
        raise TypeError("an attention mask is missing")
