"""The smallest model of one's own: `--model examples/averaging.py:build --model-arg width=64`."""

import torch
from torch import Tensor, nn

from perf_tests_suite.model.sizes import ModelConfig


class Averaging(nn.Module):
    """int64 tokens (B, T) to logits (B, T, V), from the mean of all embeddings so far."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        counts_T1 = torch.arange(1, tokens_BT.shape[1] + 1, device=tokens_BT.device)[:, None]
        logits_BTV: Tensor = self.head(self.embedding(tokens_BT).cumsum(1) / counts_T1)
        return logits_BTV


def build(config: ModelConfig, width: int | None = None) -> nn.Module:
    """The factory; `--model-arg width=64` makes it narrower than the size asked for."""
    return Averaging(config.vocab_size, width or config.d_model)
