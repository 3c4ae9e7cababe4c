"""A training step and its parts, each with one definition: forward, loss, backward, update.

Shapes: B batch, T tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .precision import Precision
from .regions import region

OPTIMIZERS = ("default", "loop", "foreach", "fused")
"""Implementations of AdamW's update; `default` is PyTorch's choice for the device."""

ZERO_GRAD = ("before-forward", "after-forward", "before-step")
"""The moments at which a step may clear gradients: the old ones before its forward pass or after its loss, or the new
ones, unused. The last trains nothing; it shows what the order does to the peak of memory."""

MAX_GRADIENT_NORM = 1.0

Mark = Callable[[str], None]
"""A function that is called with the name of each part of a training step once it is issued."""


def ignore_mark(part: str) -> None:
    """The mark of a step that is not observed."""


def ignore_backward() -> None:
    """What a model on one device does after its backward pass."""


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats, a scalar, in float32 and op by op."""
    logits_BTV = logits_BTV.float()
    shifted_BTV = logits_BTV - logits_BTV.max(dim=-1, keepdim=True).values
    log_probabilities_BTV = shifted_BTV - shifted_BTV.exp().sum(dim=-1, keepdim=True).log()
    return -log_probabilities_BTV.gather(-1, targets_BT[..., None]).mean()


class Training:
    """A model in training: what each benchmarked phase calls.

    Parameters stay in float32; `precision` determines what a forward pass casts and whether the loss is scaled.
    `optimizer` says how AdamW runs; another `torch.optim.Optimizer` may take its place before the first step. There is
    one group of parameters, PyTorch's default, so that norms and embeddings decay too.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        device: torch.device,
        optimizer: str = "default",
        zero_grad: str = "before-forward",
    ):
        if zero_grad not in ZERO_GRAD:
            raise ValueError(f"zero_grad is {zero_grad!r}; it must be one of {', '.join(ZERO_GRAD)}.")
        self.zero_grad = zero_grad
        self.after_backward = ignore_backward  # where ranks average gradients, see `model.parallel`
        self.model = model
        self.precision = precision
        self.device = device
        self.optimizer_implementation = optimizer_that_runs(optimizer, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision.scales_loss)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(),
            foreach=self.optimizer_implementation == "foreach",
            fused=self.optimizer_implementation == "fused",
        )

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (B, T, V). Autocast covers this pass alone."""
        with region("forward"), self.precision.autocast(self.device):
            return self.model(tokens_BT)

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        with region("loss"):
            return cross_entropy(logits_BTV, targets_BT)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients; a scaler multiplies them by its scale until `update` divides them again."""
        with region("backward"):
            self.scaler.scale(loss).backward()
            self.after_backward()

    def update(self) -> None:
        """Clip the gradients to norm 1 and step the optimizer; a step whose scaled gradients overflowed is skipped."""
        with region("optimizer"):
            with region("unscale"):
                self.scaler.unscale_(self.optimizer)
            with region("clip"):
                nn.utils.clip_grad_norm_(
                    self.model.parameters(), MAX_GRADIENT_NORM, foreach=self.optimizer_implementation != "loop"
                )
            with region(type(self.optimizer).__name__.lower()):  # `adamw`, unless a caller replaced it
                self.scaler.step(self.optimizer)
                self.scaler.update()

    def clear_gradients(self) -> None:
        with region("zero_grad"):
            self.optimizer.zero_grad(set_to_none=True)

    def create_optimizer_state(self) -> None:
        """Make the moments, which usually appear in the first step, by a step with learning rate 0 and no gradient."""
        for parameter in self.model.parameters():
            if parameter.requires_grad:  # a frozen one gets no gradient in a step, and so no moments
                parameter.grad = torch.zeros_like(parameter)
        learning_rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.optimizer.step()
        for state in self.optimizer.state.values():
            if isinstance(state.get("step"), Tensor):  # or the first step would correct its bias as the second one
                state["step"].zero_()
        for group, learning_rate in zip(self.optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = learning_rate
        self.clear_gradients()

    def step(self, tokens_BT: Tensor, targets_BT: Tensor, mark: Mark = ignore_mark) -> Tensor:
        """One training step; returns the loss."""
        with region("full_step"):
            self._clear_if("before-forward", mark)
            logits_BTV = self.forward(tokens_BT)
            mark("forward")
            loss = self.loss(logits_BTV, targets_BT)
            mark("loss")
            self._clear_if("after-forward", mark)
            self.backward(loss)
            mark("backward")
            self._clear_if("before-step", mark)
            self.update()
            mark("optimizer")
            return loss.detach()

    def _clear_if(self, now: str, mark: Mark) -> None:
        if self.zero_grad == now:
            self.clear_gradients()
            mark("zero_grad")

    def loss_scale(self) -> float:
        """The scaler's factor, 1 without a scaler; it falls when a step is skipped. Waits for the device."""
        return float(self.scaler.get_scale())

    def release(self) -> None:
        """Free gradients and optimizer state, whose tensors outlive the step that made them."""
        self.clear_gradients()
        self.optimizer.state.clear()


def optimizer_that_runs(optimizer: str, device: torch.device) -> str:
    """`optimizer` with `default` resolved as torch.optim.AdamW does: foreach on CUDA, a loop on a CPU."""
    if optimizer != "default":
        return optimizer
    return "foreach" if device.type == "cuda" else "loop"
