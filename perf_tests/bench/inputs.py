"""The inputs of a benchmark: tokens, or query, key and value; and the fixtures of its axes."""

from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Random tokens and, for each, the one that follows; int64, both (B, T)."""

    tokens_BT: Tensor
    targets_BT: Tensor


@dataclass(frozen=True)
class AttentionInputs:
    """Random query, key and value, leaves of a fresh graph, and the gradient of the output; (B, T, K), float32."""

    q_BTK: Tensor
    k_BTK: Tensor
    v_BTK: Tensor
    gradient_BTK: Tensor

    def forget_gradients(self) -> None:
        for leaf in (self.q_BTK, self.k_BTK, self.v_BTK):
            leaf.grad = None


def axis(name: str) -> Any:
    """A fixture with the value of this axis that the plugin parametrized."""

    @pytest.fixture(name=name)
    def value(request: pytest.FixtureRequest) -> str | int:
        return request.param

    return value
