"""Models for `--model` that plant what an expedition looks for; else they are the suite's own Transformer."""

import time

import torch
from torch import Tensor

from model.attention import ATTENTION
from model.sizes import ModelConfig
from model.transformer import TransformerLM

SLEEP_SECONDS = 0.02
"""As long as a pass of small takes on a large GPU, and shorter than a queue of work is held."""


class Unknown(TransformerLM):
    """The suite's model, of which no closed form says beforehand that it will not fit."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, ATTENTION["naive"].build())


class Sleeps(Unknown):
    """The host sleeps before each pass over a batch, while the device has nothing to do."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if len(tokens_BT) > 1:  # not while the suite checks the model, on a batch of 1
            time.sleep(SLEEP_SECONDS)
        return super().forward(tokens_BT)


class AssertsAt256(Unknown):
    """At context 256 an index on the GPU is out of range, which makes the device unusable for this process."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if tokens_BT.is_cuda and len(tokens_BT) > 1 and self.config.context_length == 256:
            tokens_BT = tokens_BT + torch.full_like(tokens_BT, self.config.vocab_size)
        return super().forward(tokens_BT)
