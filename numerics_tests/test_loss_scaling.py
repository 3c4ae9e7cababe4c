"""Loss scaling changes nothing but what would have vanished; an overflow costs one step and nothing else."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from model.precision import PRECISIONS
from model.training import Training
from numerics_tests.harness import tiny
from numerics_tests.harness.checks import assert_same_bits, assert_true
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import SEEDS
from numerics_tests.machine.environment import device

SCALED_FLOAT32 = replace(PRECISIONS["fp32"], name="fp32-scaled", scales_loss=True)
"""Float32 arithmetic with a scaled loss: nothing under- or overflows, so scaling must be invisible."""


@claim("make", tiny.TRAININGS, cost=4, of_any_model=True, seed=SEEDS)
def test_scaling_by_a_power_of_two_is_invisible(make: tiny.MakeTraining, seed: int) -> None:
    """Scaled, unscaled, clipped and stepped: parameters equal those without a scaler to the bit.

    2^16 changes exponents alone (IEEE 754-2019, section 4.3), if unscaling comes before clipping.
    """
    tokens, results = tiny.tokens(seed), []
    for precision in (PRECISIONS["fp32"], SCALED_FLOAT32):
        training = make(tiny.model(seed), precision, device())
        for _ in range(2):
            training.step(tokens, tokens.roll(-1, -1))
        results.append(nn.utils.parameters_to_vector(training.model.parameters()))
    assert_same_bits(results[1], results[0], "2^16 moves exponents alone")


@claim("make", tiny.TRAININGS, cost=4, of_any_model=True, seed=SEEDS, bad=st.sampled_from([math.inf, math.nan]))
def test_overflow_skips_the_step_and_halves_the_scale(make: tiny.MakeTraining, seed: int, bad: float) -> None:
    """One infinite gradient: parameters and moments stay to the bit, the scale falls to half; torch.amp.GradScaler."""
    training = make(tiny.model(seed), SCALED_FLOAT32, device())
    tokens = tiny.tokens(seed)
    training.step(tokens, tokens)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    moments = [state["exp_avg"].clone() for state in training.optimizer.state.values()]
    scale = training.loss_scale()
    training.clear_gradients()
    training.backward(training.loss(training.forward(tokens), tokens))
    next(iter(tiny.gradients(training.model).values())).view(-1)[0] = bad
    training.update()
    for parameter, kept in zip(training.model.parameters(), before, strict=True):
        assert_same_bits(parameter.detach(), kept, "a skipped step")
    for state, kept in zip(training.optimizer.state.values(), moments, strict=True):
        assert_same_bits(state["exp_avg"], kept, "a skipped step")
    assert_true(training.loss_scale() == scale / 2, f"the scale went from {scale} to {training.loss_scale()}")


Backward = Callable[[Tensor, Tensor, float], Tensor]
"""(x, weight, dL/dy) to dL/dweight as float32, through a product in float16."""


def scaled_backward(
    x: Tensor, weight: Tensor, upstream: float, scale: float = 2.0**15, low: torch.dtype = torch.float16
) -> Tensor:
    leaf = weight.clone().requires_grad_()
    scaler = torch.amp.GradScaler(x.device.type, init_scale=scale)
    optimizer = torch.optim.SGD([leaf], lr=0.0)
    with torch.autocast(x.device.type, dtype=low):
        y = x @ leaf
    scaler.scale(y.float().sum() * upstream).backward()
    scaler.unscale_(optimizer)
    assert leaf.grad is not None
    return leaf.grad


@claim("backward", {"scaled by 2^15": scaled_backward}, power=st.integers(0, 38))
def test_scaling_saves_gradients_that_float16_would_lose(backward: Backward, power: int) -> None:
    """dL/dy = 2^-k arrives to the bit for k up to 39: 2^15 lifts it over 2^-24; arXiv:1710.03740, section 3.2."""
    x, weight = torch.eye(4, device=device()), torch.ones(4, 4, device=device())
    expected = torch.full((4, 4), 2.0**-power, device=device())
    assert_same_bits(backward(x, weight, 2.0**-power), expected, "2^(15 - k) >= 2^-24")


def test_gradients_below_the_smallest_number_of_float16_vanish_without_scaling() -> None:
    """2^-24 survives and 2^-25 does not, although W.grad is float32; bfloat16 has the range of float32."""
    one = torch.ones(1, 1, device=device())
    for power, low, is_lost in ((24, torch.float16, False), (25, torch.float16, True), (34, torch.bfloat16, False)):
        found = scaled_backward(one, one, 2.0**-power, scale=1.0, low=low)
        assert found.item() == (0 if is_lost else 2.0**-power)


def test_scale_of_the_default_does_not_fit_float16() -> None:
    """GradScaler starts at 65536 > 65504: with dL/dy >= 1 in float16 the first step is skipped, by design."""
    default = torch.amp.GradScaler("cpu").get_scale()
    assert default == 2.0**16
    assert torch.tensor(default).half().isinf()


def test_scale_grows_after_an_interval_without_overflow() -> None:
    """Doubled after as many good steps as the interval says, not before."""
    training = Training(tiny.model(), SCALED_FLOAT32, device())
    training.scaler.set_growth_interval(2)
    tokens, scales = tiny.tokens(), []
    for _ in range(4):
        training.step(tokens, tokens)
        scales.append(training.loss_scale())
    assert scales == [2.0**16, 2.0**17, 2.0**17, 2.0**18]


def test_unscaling_twice_is_refused() -> None:
    """Gradients divided twice would be silently too small; torch raises instead."""
    training = Training(tiny.model(), SCALED_FLOAT32, device())
    tokens = tiny.tokens()
    training.backward(training.loss(training.forward(tokens), tokens))
    training.scaler.unscale_(training.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        training.scaler.unscale_(training.optimizer)


def test_float16_parameters_are_refused() -> None:
    """Loss scaling is made for float32 gradients of a float32 master copy."""
    training = Training(tiny.model().half(), SCALED_FLOAT32, device())
    for parameter in training.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    # The scaler makes its scale when a loss is first scaled.
    training.scaler.scale(torch.ones((), device=device()))
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        training.scaler.unscale_(training.optimizer)
