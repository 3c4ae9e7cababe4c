"""The table of precisions: what each name casts, which products it lets run as TF32, and how it scales the loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.precision import PRECISIONS
from model.transformer import Linear
from numerics_tests.harness import tiny
from numerics_tests.harness.checks import assert_true
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, alike, recipes
from numerics_tests.machine.environment import device


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
"""(x, weight (out, in)) to x weight^T, under bf16 autocast."""


def model_linear(x: Tensor, weight: Tensor) -> Tensor:
    layer = Linear(weight.shape[1], weight.shape[0]).to(x.device)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return torch.func.functional_call(layer, {"weight_OI": weight}, (x,))


@claim("product", {"model": model_linear}, recipe=recipes(64, 256, dtypes=(torch.bfloat16,), max_spread=0, plant=()))
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
