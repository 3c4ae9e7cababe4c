"""How autocast behaves around its table: regions, errors, its cache of weights, gradients, custom functions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from numerics_tests.harness.checks import Watching, assert_same_bits, assert_true
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, low_dtypes, recipes
from numerics_tests.machine.autocast import torch_version
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import LOW
from numerics_tests.test_autocast_dtypes import Region

AUTOCAST = {"torch": torch.autocast}
MATRIX = recipes((2, 5), 4, dtypes=(torch.float32,), exponents=(-2, 2), max_spread=1, plant=())


def casts_of(weight: Tensor, run: Callable[[], object]) -> int:
    """How often `run` casts `weight`, counted as PyTorch's own test_autocast.py does."""
    is_cast: list[bool] = []
    with Watching(lambda name, arguments: is_cast.append(name == "aten::_to_copy" and arguments[0] is weight)):
        run()
    return sum(is_cast)


@claim("autocast", AUTOCAST, cost=4, recipe=MATRIX, uses=st.integers(2, 4), low=low_dtypes())
def test_weight_is_cast_once_in_a_region(autocast: Region, recipe: Recipe, uses: int, low: torch.dtype) -> None:
    """A leaf that needs a gradient is cast once however often it is used; ATen/autocast_mode.h, cached_cast."""
    weight, x = recipe.tensor().requires_grad_(), recipe.tensor()
    with autocast(device().type, dtype=low):
        casts = casts_of(weight, lambda: [F.linear(x, weight) for _ in range(uses)])
    assert_true(casts == 1, f"the weight was cast {casts} times in one region")


def test_weight_is_cast_every_time_without_the_cache() -> None:
    """cache_enabled=False trades time for memory, and sees a weight that changes inside the region."""
    weight, x = torch.ones(2, 2, device=device(), requires_grad=True), torch.ones(2, 2, device=device())
    with torch.autocast(device().type, dtype=torch.bfloat16, cache_enabled=False):
        assert casts_of(weight, lambda: [F.linear(x, weight) for _ in range(2)]) == 2


def test_weight_changed_inside_a_region_is_stale() -> None:
    """The cache does not notice an update in place: why a region holds one forward pass and not a training loop."""
    weight, x = torch.ones(2, 2, device=device(), requires_grad=True), torch.ones(2, 2, device=device())
    with torch.autocast(device().type, dtype=torch.bfloat16):
        before = F.linear(x, weight)
        with torch.no_grad():
            weight.mul_(3)
        assert torch.equal(F.linear(x, weight), before)
    with torch.autocast(device().type, dtype=torch.bfloat16):
        assert torch.equal(F.linear(x, weight), 3 * before)


@claim("autocast", AUTOCAST, cost=2, low=low_dtypes(), depth=st.integers(1, 3))
def test_error_inside_leaves_no_region_behind(autocast: Region, low: torch.dtype, depth: int) -> None:
    """An exception leaves the state as it was before, through any depth of nesting."""
    before = (torch.is_autocast_enabled(device().type), torch.get_autocast_dtype(device().type))

    def fail(levels: int) -> None:
        with autocast(device().type, dtype=low):
            if levels == 1:
                raise KeyError("planted")
            fail(levels - 1)

    with pytest.raises(KeyError, match="planted"):
        fail(depth)
    after = (torch.is_autocast_enabled(device().type), torch.get_autocast_dtype(device().type))
    # A leaked state must not reach the next test.
    torch.set_autocast_enabled(device().type, before[0])
    assert_true(after == before, f"autocast was {before} before the error and {after} after")


@claim("autocast", AUTOCAST, recipe=MATRIX, low=low_dtypes())
def test_gradient_has_the_range_of_the_autocast_dtype(autocast: Region, recipe: Recipe, low: torch.dtype) -> None:
    """W.grad is float32 but was computed in 16 bits: each of its values is one of that format, bit for bit."""
    x = recipe.tensor()
    weight = recipe.tensor().requires_grad_()
    with autocast(device().type, dtype=low):
        F.linear(x, weight).float().sum().backward()
    assert weight.grad is not None
    assert_true(weight.grad.dtype == torch.float32, f"W.grad is {weight.grad.dtype}")
    assert_same_bits(weight.grad.to(low).float(), weight.grad, "backward of a cast is a cast")


def test_forward_without_gradients_does_not_spoil_the_next() -> None:
    """A weight first cast under no_grad must get a gradient later in the region; pytorch/pytorch#65766."""
    weight, x = torch.ones(2, 2, device=device(), requires_grad=True), torch.ones(2, 2, device=device())
    with torch.autocast(device().type, dtype=torch.bfloat16):
        with torch.no_grad():
            F.linear(x, weight)
        result = F.linear(x, weight)
    if torch_version() <= (2, 10) and not result.requires_grad:
        pytest.xfail("this torch is older than the fix, pytorch/pytorch#165068.")
    result.float().sum().backward()
    assert weight.grad is not None


class Doubling(torch.autograd.Function):
    """x W^T, doubled; its backward multiplies matrices, outside of the region by then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return 2 * (x @ weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return 2 * (gradients[0] @ weight), 2 * (gradients[0].T @ x)


def with_amp(device_type: str) -> type[torch.autograd.Function]:
    """`Doubling` with the decorators that PyTorch's "Automatic Mixed Precision examples" ask for."""

    class Aware(torch.autograd.Function):
        forward = staticmethod(torch.amp.custom_fwd(Doubling.forward, device_type=device_type))
        backward = staticmethod(torch.amp.custom_bwd(Doubling.backward, device_type=device_type))

    return Aware


def test_custom_function_needs_the_amp_decorators() -> None:
    """Its backward meets a bfloat16 gradient and a float32 weight and raises without them; with them it is exact."""
    x = torch.ones(2, 3, device=device(), requires_grad=True)
    weight = torch.ones(4, 3, device=device(), requires_grad=True)
    with torch.autocast(device().type, dtype=torch.bfloat16):
        plain = Doubling.apply(x, weight)  # type: ignore[no-untyped-call]
        aware = with_amp(device().type).apply(x, weight)
    with pytest.raises(RuntimeError, match="dtype"):
        plain.float().sum().backward()
    aware.float().sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 8.0))


def test_cuda_region_without_a_gpu_only_warns() -> None:
    """torch.autocast("cuda") on a machine without one is disabled with a warning: check whether it is enabled."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here.")
    with pytest.warns(UserWarning, match="CUDA is not available"), torch.autocast("cuda", dtype=torch.float16):
        assert not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("low", [a_format.dtype for a_format in LOW], ids=["fp16", "bf16"])
def test_low_precision_input_stays_low_in_a_disabled_region(low: torch.dtype) -> None:
    """enabled=False means "no more casts", not "back to float32": a result from outside must be cast by hand."""
    x = torch.ones(2, 2, device=device())
    with torch.autocast(device().type, dtype=low):
        inside = x @ x
        with torch.autocast(device().type, enabled=False):
            assert (x @ x).dtype == torch.float32
            assert (inside @ inside).dtype == low
            assert (inside.float() @ x).dtype == torch.float32


@claim(
    "loss",
    {"cross_entropy": F.cross_entropy},
    recipe=recipes(4, (3, 17), dtypes=(torch.float16, torch.bfloat16), exponents=(-2, 3), plant=(0.0, 30.0, -30.0)),
)
def test_cross_entropy_in_a_region_is_that_of_float32_logits(loss: Any, recipe: Recipe) -> None:
    """Bit for bit: the region casts 16-bit logits to float32 before anything else; autocast's list of float32 ops."""
    logits = recipe.tensor()
    targets = torch.arange(len(logits), device=device()) % logits.shape[-1]
    with torch.autocast(device().type, dtype=recipe.dtype):
        inside = loss(logits, targets)
    assert_same_bits(inside, F.cross_entropy(logits.float(), targets), "amp.html, ops that autocast to float32")
