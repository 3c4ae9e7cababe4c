"""One training step, part by part, against the same written by hand."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from model.precision import PRECISIONS
from model.training import OPTIMIZERS, Training, cross_entropy, optimizer_that_runs
from model.transformer import TransformerLM
from perf_tests.meta_tests.example_cases import CPU, build, random_tokens

EPSILON = 2.0**-23


def toy_training(optimizer: str = "loop") -> Training:
    return Training(build(), PRECISIONS["fp32"], CPU, optimizer)


def weights_of(training: Training) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def take_one_step(training: Training) -> None:
    tokens_BT = random_tokens()
    training.step(tokens_BT, tokens_BT.roll(1))


def gradient_norm(training: Training) -> float:
    gradients = [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_the_loss_is_the_mean_negative_log_likelihood(scale: float) -> None:
    """Float32 rounds V exponentials that sum to at least 1, and differences of the size of the largest logit."""
    generator = torch.Generator().manual_seed(3)
    logits_BTV = scale * torch.randn(2, 5, 37, generator=generator)
    targets_BT = torch.randint(37, (2, 5), generator=generator)
    wanted_BT = logits_BTV.double().gather(-1, targets_BT[..., None])[..., 0]
    exact = (torch.logsumexp(logits_BTV.double(), -1) - wanted_BT).mean()
    tolerance = EPSILON * (37 + 4 * float(logits_BTV.abs().max()))
    assert abs(cross_entropy(logits_BTV, targets_BT).double() - exact) <= tolerance


def test_the_loss_of_half_precision_logits_is_float32() -> None:
    logits_BTV, targets_BT = torch.randn(1, 3, 7).bfloat16(), torch.zeros(1, 3, dtype=torch.int64)
    loss = cross_entropy(logits_BTV, targets_BT)
    assert loss.dtype == torch.float32
    assert loss == cross_entropy(logits_BTV.float(), targets_BT)


def test_a_uniform_guess_costs_the_logarithm_of_the_vocabulary() -> None:
    loss = cross_entropy(torch.zeros(1, 4, 64), torch.zeros(1, 4, dtype=torch.int64))
    assert abs(float(loss) - torch.tensor(64.0).log()) <= 4 * EPSILON


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


def test_old_gradients_do_not_add_to_a_step() -> None:
    fresh, used = toy_training(), toy_training()
    for parameter in used.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    take_one_step(fresh)
    take_one_step(used)
    assert all(torch.equal(one, other) for one, other in zip(weights_of(fresh), weights_of(used), strict=True))


def test_clipping_leaves_a_gradient_of_norm_one() -> None:
    training = toy_training()
    take_one_step(training)
    assert abs(gradient_norm(training) - 1) < 1e-5


@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
def test_creating_optimizer_state_moves_no_weight(optimizer: str) -> None:
    training = toy_training(optimizer)
    before = weights_of(training)
    training.create_optimizer_state()
    assert all(torch.equal(one, other) for one, other in zip(before, weights_of(training), strict=True))


def test_creating_optimizer_state_makes_moments_for_each_parameter() -> None:
    training = toy_training()
    training.create_optimizer_state()
    for parameter in training.model.parameters():
        state = training.optimizer.state[parameter]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
        assert parameter.grad is None


def test_after_creating_its_state_the_optimizer_still_learns() -> None:
    training = toy_training()
    training.create_optimizer_state()
    before = weights_of(training)
    take_one_step(training)
    assert not any(torch.equal(one, other) for one, other in zip(before, weights_of(training), strict=True))


class Overflowing(nn.Module):
    """Logits of about 1 whose gradient is 3e37, which no loss scale above 10 leaves finite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1e-37, 2e-37]))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return (self.weight * 3e37).expand(*tokens_BT.shape, 2)


def test_a_step_whose_scaled_gradients_overflow_is_skipped() -> None:
    training = Training(Overflowing(), PRECISIONS["fp16"], CPU)
    before, scale = weights_of(training), training.loss_scale()
    training.step(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64))
    assert torch.equal(before[0], weights_of(training)[0])
    assert training.loss_scale() == scale / 2


def test_without_a_scaler_the_scale_is_one() -> None:
    training = Training(Overflowing(), PRECISIONS["fp16-unscaled"], CPU)
    training.step(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64))
    assert training.loss_scale() == 1


def test_scaled_gradients_are_divided_again_before_they_are_clipped() -> None:
    """Else the optimizer would see a gradient of norm 1 / 65536."""
    training = Training(build(), PRECISIONS["fp16"], CPU, "loop")
    take_one_step(training)
    assert training.loss_scale() == 65536
    assert abs(gradient_norm(training) - 1) < 1e-5


def test_releasing_frees_gradients_and_optimizer_state() -> None:
    training = toy_training()
    take_one_step(training)
    parameter = next(training.model.parameters())
    assert parameter.grad is not None
    freed = [weakref.ref(parameter.grad), *map(weakref.ref, training.optimizer.state[parameter].values())]
    training.release()
    gc.collect()
    assert [reference() for reference in freed] == [None] * len(freed)


def test_a_step_marks_its_parts_in_order() -> None:
    marks: list[str] = []
    toy_training().step(random_tokens(), random_tokens(), marks.append)
    assert marks == ["zero_grad", "forward", "loss", "backward", "optimizer"]


def test_a_step_returns_a_loss_without_a_graph() -> None:
    assert not toy_training().step(random_tokens(), random_tokens()).requires_grad


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizer_that_runs_is_the_one_recorded(optimizer: str) -> None:
    """`default` is PyTorch's own choice: foreach on a GPU, a loop on a CPU."""
    default_here, default_on_gpu = ("loop", "foreach") if optimizer == "default" else (optimizer, optimizer)
    assert optimizer_that_runs(optimizer, CPU) == default_here
    assert optimizer_that_runs(optimizer, torch.device("cuda", 0)) == default_on_gpu
