"""Models with one unusual part each, which a figure or a check must not overlook, and an optimizer for one of them."""

from typing import Any

from torch import Tensor, nn
from torch.optim import SGD

from model.sizes import ModelConfig
from tests.support.planted_models import Averaging


class FrozenEmbedding(Averaging):
    """Trains its head alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, width=32)
        self.embedding.requires_grad_(False)


class BufferedEmbedding(FrozenEmbedding):
    """The same model, where the frozen matrix is not a parameter."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        weight = self.embedding.weight.detach()
        del self.embedding.weight
        self.embedding.register_buffer("weight", weight)


class RefusesFrozen(SGD):
    """Descent that never expects the gradient of a frozen parameter."""

    def __init__(self, named_parameters: list[tuple[str, nn.Parameter]]) -> None:
        super().__init__([parameter for _, parameter in named_parameters], lr=0.1, foreach=False)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        if any(parameter.grad is not None and not parameter.requires_grad for parameter in parameters):
            raise ValueError("a frozen parameter has a gradient")
        super().step()


class Convolving(Averaging):
    """Its tokens are mixed by a convolution in groups, which may be a transposed one."""

    def __init__(self, config: ModelConfig, groups: int = 1, kind: str = "Conv1d") -> None:
        super().__init__(config, width=8)
        self.mixing = getattr(nn, kind)(8, 8, 3, groups=groups, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        mixed = self.mixing(nn.functional.pad(self.embedding(tokens_BT).mT, (2, 0)))[..., : tokens_BT.shape[1]]
        return self.head(mixed.mT)


class ConvolvingFrozen(Convolving):
    """Its convolution's input needs no gradient."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding.requires_grad_(False)


class Dropping(Averaging):
    """Drops out a half of each token, which it predicts the next from alone."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.embedding(tokens_BT), training=self.training))


class DroppingOfAll(Averaging):
    """Drops out a half of the mean of all tokens so far."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(tokens_BT), training=self.training)
