"""What each precision casts, which products it lets run as TF32, and how it scales the loss.

Loss scaling changes nothing but what would have vanished; an overflow costs one step and nothing else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import Linear
from perf_tests_suite.numerics_tests.harness import bounds, tiny, within
from perf_tests_suite.numerics_tests.harness.checks import assert_same_bits, assert_true, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.exercises import scaled_backward
from perf_tests_suite.numerics_tests.harness.strategies import SEEDS, Recipe, alike, recipes
from perf_tests_suite.numerics_tests.machine import environment
from perf_tests_suite.numerics_tests.machine.environment import device


@dataclass(frozen=True)
class Mode:
    """What is in force under one precision."""

    autocast_dtype: torch.dtype | None
    float32_matmul_precision: str
    scales_loss: bool


EXPECTED = {
    "fp32": Mode(None, "highest", False),
    "tf32": Mode(None, "high", False),
    "bf16": Mode(torch.bfloat16, "highest", False),
    "fp16": Mode(torch.float16, "highest", True),
    "fp16-unscaled": Mode(torch.float16, "highest", False),
    "bf16-tensors": Mode(None, "highest", False),
}


@claim("make", tiny.TRAININGS)
def test_precisions_are_what_their_names_say(make: tiny.MakeTraining) -> None:
    """Read back from PyTorch, not from the table; the scaler's settings are those of torch.amp.GradScaler's page."""
    assert_true(set(PRECISIONS) == set(EXPECTED), f"the table holds {sorted(PRECISIONS)}")
    for name, expected in EXPECTED.items():
        training = make(nn.Linear(2, 2).to(device()), PRECISIONS[name], device())
        PRECISIONS[name].apply()
        with PRECISIONS[name].autocast(device()):
            is_cast = torch.is_autocast_enabled(device().type)
            found = Mode(
                torch.get_autocast_dtype(device().type) if is_cast else None,
                torch.get_float32_matmul_precision(),
                training.scaler.is_enabled(),
            )
        assert_true(found == expected, f"{name} is {found}, not {expected}")
        if found.scales_loss:
            scaler = training.scaler
            settings = (scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor())
            assert_true(settings == (2.0**16, 2.0, 0.5), f"{name} scales by {settings}")
            assert_true(scaler.get_growth_interval() == 2000, f"the scale grows every {scaler.get_growth_interval()}")
        assert_true(not environment.flushes_subnormals(), f"{name} flushes subnormal numbers to 0")


@claim("make", tiny.TRAININGS)
def test_autocast_keeps_float32_where_it_sums(make: tiny.MakeTraining) -> None:
    """The residual stream is float32 after every block, and norm weights have gradients of more than 16 bits.

    Their gradients are sums over tokens made in float32; values on the grid of a 16-bit format would have been rounded.
    """
    for name in ("bf16", "fp16"):
        training, tokens = make(tiny.model(), PRECISIONS[name], device()), tiny.tokens()
        stream: list[Tensor] = []
        for block in training.model.get_submodule("blocks").children():
            block.register_forward_hook(lambda module, inputs, output, stream=stream: stream.append(output))
        training.backward(training.loss(training.forward(tokens), tokens))
        dtypes = {x_BTD.dtype for x_BTD in stream}
        assert_true(dtypes == {torch.float32}, f"the residual stream of {name} is {dtypes}")
        for parameter, gradient in tiny.gradients(training.model).items():
            if parameter.endswith("norm.weight_D"):
                rounded = gradient.to(PRECISIONS[name].autocast_dtype).float()
                assert_true(not torch.equal(rounded, gradient), f"{name} rounds the gradient of {parameter}")


@claim("make", tiny.TRAININGS, of_any_model=True)
def test_autocast_ends_before_the_backward_pass(make: tiny.MakeTraining) -> None:
    """PyTorch's rule, torch.amp: backward passes run in the dtypes that autocast chose, not under autocast again."""
    training, tokens = make(tiny.model(), PRECISIONS["bf16"], device()), tiny.tokens()
    seen: list[bool] = []

    def watch(model: nn.Module, inputs: object, logits: Tensor) -> None:
        logits.register_hook(lambda gradient: seen.append(torch.is_autocast_enabled(device().type)))

    training.model.register_forward_hook(watch)
    training.backward(training.loss(training.forward(tokens), tokens))
    training.step(tokens, tokens)
    assert_true(seen == [False, False], "the backward pass runs under autocast, in one of a step and alone")


Product = Callable[[Tensor, Tensor], Tensor]
"""(x, weight (out, in)) to x weight^T."""


def model_linear(x: Tensor, weight: Tensor) -> Tensor:
    with torch.device("meta"):
        layer = Linear(weight.shape[1], weight.shape[0])
    return torch.func.functional_call(layer, {"weight_OI": weight}, (x,))


def under_autocast(x: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return model_linear(x, weight)


@claim("product", {"model": model_linear, "torch": F.linear})
def test_linear_holds_for_the_widths_of_models(product: Product) -> None:
    """gamma_K(u32) |x||W| and one rounding to the output, for up to 12,288 terms, 10,000 words and 4,096 rows.

    ASNA 2e, section 3.5. 700 and 1,536 terms are no multiple of 512, or of 1,024. With a graph and without.
    """
    for rows, words, terms in ((2, 3, 700), (2, 3, 1536), (2, 3, 6400), (2, 3, 12_288), (2, 10_000, 8), (4096, 3, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            x = Recipe((rows, terms), dtype).tensor()
            weight = Recipe((words, terms), dtype, seed=1).tensor()
            exact, bound = within.matmul(dtype, x, weight.T)
            assert_within(product(x, weight.requires_grad_()).detach(), exact, bound, bounds.ASNA)
            with torch.no_grad():
                assert_within(product(x, weight), exact, bound, f"{bounds.ASNA}, without a graph")


@claim("product", {"model": under_autocast}, recipe=recipes(64, 256, dtypes=(torch.bfloat16,), max_spread=0, plant=()))
def test_linear_rounds_once(product: Product, recipe: Recipe) -> None:
    """The root mean square of its error is that of rounding the exact product once to bfloat16, within 2 %.

    Accumulating K terms in float32 adds at most K u32 / u_bf16 = 2^-8 of a rounding. The largest error does not tell:
    a product whose halves are added in bfloat16 errs by as much at its worst, but by 1.2 times on average.
    """
    x, weight = recipe.tensor(), alike(recipe, 1).tensor()
    exact = x.double() @ weight.double().T
    once = (exact.bfloat16().double() - exact).square().mean().sqrt()
    error = (product(x.float(), weight.float()).double() - exact).square().mean().sqrt()
    assert_true(bool(error <= 1.02 * once), f"its rms error is {float(error / once):.3g} x that of one rounding")


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


@claim("backward", {"scaled by 2^15": scaled_backward}, power=st.integers(0, 38))
def test_scaling_saves_gradients_that_float16_would_lose(backward: Backward, power: int) -> None:
    """dL/dy = 2^-k arrives to the bit for k up to 39: 2^15 lifts it over 2^-24; arXiv:1710.03740, section 3.2."""
    x, weight = torch.eye(4, device=device()), torch.ones(4, 4, device=device())
    expected = torch.full((4, 4), 2.0**-power, device=device())
    assert_same_bits(backward(x, weight, 2.0**-power), expected, "2^(15 - k) >= 2^-24")


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
