"""Muon: momentum, made orthogonal, for the matrices inside a model; AdamW for the rest.

    perf-tests run --phase optimizer,full_step --optimizer examples/muon.py:build

The update is Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024
(https://kellerjordan.github.io/posts/muon), with the scale of Liu et al., "Muon is Scalable for LLM Training", 2025
(arXiv:2502.16982), section 2.2: with it one learning rate and one weight decay suit both kinds of parameters.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic a X + b (X X^T) X + c (X X^T)^2 X, chosen by Jordan et al. to grow small singular values
fast; five iterations bring those from 0.01 to 1 between 0.68 and 1.14."""
ITERATIONS = 5
RMS_OF_ADAMW = 0.2
"""The usual root mean square of AdamW's update (Liu et al., section 2.2), which Muon's is scaled to."""


def build(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Embedding, output head, norms and biases go to AdamW, as Jordan et al. advise."""
    hidden: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in named_parameters:
        is_hidden = parameter.ndim == 2 and not any(word in name for word in ("embed", "wte", "wpe", "head"))
        (hidden if is_hidden else rest).append(parameter)
    return Muon(hidden, rest)


def orthogonal(matrix: Tensor) -> Tensor:
    """U V^T of `matrix` (M, N) = U S V^T, nearly: singular values near 1, in bfloat16, by Newton-Schulz iterations."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix).bfloat16()
    x = x / x.norm().clamp(min=1e-7)  # the iteration needs singular values of at most 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


class Muon(Optimizer):
    """`hidden` matrices by Muon with Nesterov's momentum, `rest` by AdamW (Loshchilov and Hutter, arXiv:1711.05101)."""

    def __init__(
        self,
        hidden: list[nn.Parameter],
        rest: list[nn.Parameter],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        groups = [{"params": hidden, "is_hidden": True}, {"params": rest, "is_hidden": False}]
        known = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__([group for group in groups if group["params"]], known)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            direction = self._by_muon if group["is_hidden"] else self._by_adamw
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction(parameter, parameter.grad, group), alpha=-group["lr"])
        return loss

    def _by_muon(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state, momentum = self.state[parameter], group["momentum"]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(gradient, 1 - momentum)
        ahead = gradient.lerp(state["momentum"], momentum)
        return orthogonal(ahead).to(parameter.dtype) * (RMS_OF_ADAMW * max(parameter.shape) ** 0.5)

    def _by_adamw(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state.update(steps=0, first=torch.zeros_like(parameter), second=torch.zeros_like(parameter))
        state["steps"] += 1
        state["first"].lerp_(gradient, 1 - beta1)
        state["second"].lerp_(gradient.square(), 1 - beta2)
        first = state["first"] / (1 - beta1 ** state["steps"])
        second = state["second"] / (1 - beta2 ** state["steps"])
        return first / (second.sqrt() + group["eps"])
