"""One training step, part by part, against the same written by hand."""

import gc
import weakref

import pytest
import torch
from torch import Tensor

from model.precision import PRECISIONS
from model.training import OPTIMIZERS, Training, cross_entropy, optimizer_that_runs
from model.transformer import TransformerLM
from tests.support.example_cases import CPU, build, random_tokens

EPSILON = 2.0**-23


def toy_training(optimizer: str = "loop") -> Training:
    return Training(build(), PRECISIONS["fp32"], CPU, optimizer)


def weights_of(training: Training) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def take_one_step(training: Training) -> None:
    tokens_BT = random_tokens()
    training.step(tokens_BT, tokens_BT.roll(1))


def step_by_hand(model: TransformerLM) -> list[Tensor]:
    """The weights after clipping to norm 1 and AdamW's first step: m / (1 - b1) = g and v / (1 - b2) = g^2."""
    tokens_BT = random_tokens()
    cross_entropy(model(tokens_BT), tokens_BT.roll(1)).backward()
    gradients = [parameter.grad.double() for parameter in model.parameters() if parameter.grad is not None]
    norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
    shrink = min(1.0, 1.0 / (norm + 1e-6))
    return [
        parameter.detach().double() * (1 - 1e-3 * 1e-2) - 1e-3 * g * shrink / ((g * shrink).abs() + 1e-8)
        for parameter, g in zip(model.parameters(), gradients, strict=True)
    ]


@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
def test_a_step_is_forward_loss_backward_clipping_and_adamw(optimizer: str) -> None:
    """Within a few roundings of the weight, and of the step of at most 1e-3 (clipping rounds the gradient too)."""
    training = toy_training(optimizer)
    take_one_step(training)
    for got, expected in zip(weights_of(training), step_by_hand(build()), strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=4 * EPSILON, atol=1e-3 * 64 * EPSILON)


@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
def test_creating_optimizer_state_makes_moments_moves_no_weight_and_leaves_it_learning(optimizer: str) -> None:
    training = toy_training(optimizer)
    before = weights_of(training)
    training.create_optimizer_state()
    assert all(torch.equal(one, other) for one, other in zip(before, weights_of(training), strict=True))
    for parameter in training.model.parameters():
        state = training.optimizer.state[parameter]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
        assert parameter.grad is None
    take_one_step(training)
    assert not any(torch.equal(one, other) for one, other in zip(before, weights_of(training), strict=True))


@pytest.mark.parametrize("precision, scale", [("fp16", 65536), ("fp16-unscaled", 1)])
def test_without_a_scaler_the_scale_is_one(precision: str, scale: int) -> None:
    training = Training(build(), PRECISIONS[precision], CPU)
    take_one_step(training)
    assert training.loss_scale() == scale


def test_the_scaler_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.amp.GradScaler turns itself off on a GPU that is not there, and says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not Training(build(), PRECISIONS["fp16"], torch.device("cuda")).scaler.is_enabled()


def test_releasing_frees_gradients_and_optimizer_state() -> None:
    training = toy_training()
    take_one_step(training)
    parameter = next(training.model.parameters())
    assert parameter.grad is not None
    freed = [weakref.ref(parameter.grad), *map(weakref.ref, training.optimizer.state[parameter].values())]
    training.release()
    gc.collect()
    assert [reference() for reference in freed] == [None] * len(freed)


def test_a_step_marks_its_parts_in_order_and_returns_a_loss_without_a_graph() -> None:
    marks: list[str] = []
    assert not toy_training().step(random_tokens(), random_tokens(), marks.append).requires_grad
    assert marks == ["zero_grad", "forward", "loss", "backward", "optimizer"]


@pytest.mark.parametrize(
    "zero_grad, before, updates", [("after-forward", "backward", True), ("before-step", "optimizer", False)]
)
def test_gradients_are_cleared_where_the_order_says(zero_grad: str, before: str, updates: bool) -> None:
    training = Training(build(), PRECISIONS["fp32"], CPU, zero_grad=zero_grad)
    marks: list[str] = []
    for _ in range(2):
        training.step(random_tokens(), random_tokens(), marks.append)
    assert marks[marks.index("zero_grad") + 1] == before
    assert bool(training.optimizer.state) is updates


def test_an_unknown_order_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="before-forward, after-forward, before-step"):
        Training(build(), PRECISIONS["fp32"], CPU, zero_grad="never")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizer_that_runs_is_the_one_recorded(optimizer: str) -> None:
    """`default` is PyTorch's own choice: foreach on a GPU, a loop on a CPU."""
    default_here, default_on_gpu = ("loop", "foreach") if optimizer == "default" else (optimizer, optimizer)
    assert optimizer_that_runs(optimizer, CPU) == default_here
    assert optimizer_that_runs(optimizer, torch.device("cuda", 0)) == default_on_gpu
