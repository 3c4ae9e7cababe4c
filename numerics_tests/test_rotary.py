"""Rotary embedding: pairs of neighbours, turned by their position, seen through the oracle of complex numbers."""

from collections.abc import Callable

import torch
from torch import Tensor

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.model.transformer import RotaryEmbedding
from perf_tests_suite.numerics_tests.harness import within
from perf_tests_suite.numerics_tests.harness.checks import assert_true, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, recipes
from perf_tests_suite.numerics_tests.machine.environment import device

Rotate = Callable[[Tensor], Tensor]
"""x (..., T, K), row t at position t, to the turned rows."""

POSITIONS = (0, 1, 255, 257, 4095, 30_000)
"""257 is the first integer that bfloat16 lacks; far positions show the error of the angle, and 30 000 is beyond any
context measured here."""


def model_rotary(x: Tensor) -> Tensor:
    num_tokens, width = x.shape[-2:]
    # Of a longer context, whose first positions they are.
    return RotaryEmbedding(width, num_tokens + 5).to(x.device)(x)


ROTARIES = {"model": model_rotary}
ROWS = recipes(258, (2, 8, 64), exponents=(-6, 6), plant=(0.0, 1.0, 1e3))


def check_against_complex(rotate: Rotate, x: Tensor, positions: Tensor) -> None:
    """A result in the format of x, as others cast it back, may be off by that rounding more; no other is allowed."""
    turned = rotate(x)[..., positions, :]
    assert_true(turned.dtype in (x.dtype, torch.float32), f"{x.dtype} turned becomes {turned.dtype}")
    exact, allowed = within.rotary(turned.dtype, x[..., positions, :], positions)
    assert_within(turned, exact, allowed, "bounds.rotary")


@claim("rotate", ROTARIES, recipe=ROWS)
def test_rotary_is_a_turn_in_the_complex_plane(rotate: Rotate, recipe: Recipe) -> None:
    """x e^(i t f) within |pair| 8 u32 (1 + t f), for every position and pair; RoFormer, eq. 34; ASNA 2e, 3.1."""
    x = recipe.tensor()
    check_against_complex(rotate, x, torch.arange(len(x), device=device()))


@claim("rotate", ROTARIES)
def test_rotary_holds_for_the_widths_of_models(rotate: Rotate) -> None:
    """The same for the head widths of the models that are measured, 32 to 128, over their context and several heads."""
    for width in sorted({config.head_dim for config in SIZES.values()}):
        x = Recipe((2, 3, 1024, width), torch.float32).tensor()
        check_against_complex(rotate, x, torch.arange(1024, device=device()))


@claim("rotate", ROTARIES, cost=4, recipe=recipes(30_001, 8, exponents=(-2, 2), plant=()))
def test_rotary_holds_far_out(rotate: Rotate, recipe: Recipe) -> None:
    """The same at positions that 16-bit integers and angles cannot hold; pytorch's 16-bit tables fail here."""
    check_against_complex(rotate, recipe.tensor(), torch.tensor(POSITIONS, device=device()))
