"""Rotary embedding: pairs of neighbours, turned by their position, seen through the oracle of complex numbers."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

from model.transformer import RotaryEmbedding
from numerics_tests.harness import bounds, oracles
from numerics_tests.harness.checks import assert_same_bits, assert_true, assert_within
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, alike, recipes
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import U32

Rotate = Callable[[Tensor], Tensor]
"""x (T, K), row t at position t, to the turned rows."""

POSITIONS = (0, 1, 255, 257, 4095, 30_000)
"""257 is the first integer that bfloat16 lacks; far positions show the error of the angle, and 30 000 is beyond any
context measured here."""


def model_rotary(x_TK: Tensor) -> Tensor:
    num_tokens, width = x_TK.shape
    # Of a longer context, whose first positions they are.
    return RotaryEmbedding(width, num_tokens + 5).to(x_TK.device)(x_TK)


ROTARIES = {"model": model_rotary}
ROWS = recipes(258, (2, 8, 64), exponents=(-6, 6), plant=(0.0, 1.0, 1e3))


def pair_lengths(x: Tensor) -> Tensor:
    """Length of each pair, at both of its places."""
    return x.double().unflatten(-1, (-1, 2)).norm(dim=-1, keepdim=True).expand(*x.shape[:-1], -1, 2).flatten(-2)


def angles(positions: Tensor, width: int) -> Tensor:
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    return (positions.double()[:, None] * frequencies).repeat_interleave(2, -1)


def check_against_complex(rotate: Rotate, x: Tensor, positions: Tensor, recipe: Recipe) -> None:
    exact = oracles.rotary(x[positions], positions)
    bound = bounds.rotary(pair_lengths(x[positions]), angles(positions, x.shape[-1])) + 2.0**-126
    assert_within(rotate(x)[positions], exact, bound, "bounds.rotary")


@claim("rotate", ROTARIES, recipe=ROWS)
def test_rotary_is_a_turn_in_the_complex_plane(rotate: Rotate, recipe: Recipe) -> None:
    """x e^(i t f) within |pair| 8 u32 (1 + t f), for every position and pair; RoFormer, eq. 34; ASNA 2e, 3.1."""
    x = recipe.tensor()
    check_against_complex(rotate, x, torch.arange(len(x), device=device()), recipe)


@claim("rotate", ROTARIES, cost=4, recipe=recipes(30_001, 8, exponents=(-2, 2), plant=()))
def test_rotary_holds_far_out(rotate: Rotate, recipe: Recipe) -> None:
    """The same at positions that 16-bit integers and angles cannot hold; pytorch's 16-bit tables fail here."""
    check_against_complex(rotate, recipe.tensor(), torch.tensor(POSITIONS, device=device()), recipe)


@claim("rotate", ROTARIES, recipe=ROWS)
def test_rotary_leaves_the_first_position_alone(rotate: Rotate, recipe: Recipe) -> None:
    """Position 0 turns by 0: cos 0 = 1 and sin 0 = 0 exactly, so the row comes back to the bit."""
    x = recipe.tensor()
    # A zero may change its sign: 1 * -0 - 0 * 0 is 0.
    assert_same_bits(rotate(x)[0] + 0.0, x[0].to(rotate(x).dtype) + 0.0, "cos 0 = 1, sin 0 = 0")


@claim("rotate", ROTARIES, recipe=ROWS)
def test_rotary_keeps_the_length_of_pairs(rotate: Rotate, recipe: Recipe) -> None:
    """A turn keeps lengths, up to 16 u32: two products, a sum and rounded cos and sin; ASNA 2e, section 3.1."""
    x = recipe.tensor()
    before = pair_lengths(x)
    assert_within(pair_lengths(rotate(x)), before, 16 * U32 * before + 2.0**-126, "a turn keeps lengths")


@claim("rotate", ROTARIES, recipe=ROWS, distance=st.integers(0, 100))
def test_rotary_products_depend_on_distance_alone(rotate: Rotate, recipe: Recipe, distance: int) -> None:
    """<R(p) q, R(p + d) k> is the same at every p, within 32 u32 (1 + p) |q| |k|; RoFormer, eq. 16."""
    q = recipe.tensor()[:1].expand(258, -1)
    k = alike(recipe, 1).tensor()[:1].expand(258, -1)
    turned_q, turned_k = rotate(q).double(), rotate(k).double()
    products = (turned_q[: 258 - distance] * turned_k[distance:]).sum(-1)
    position = torch.arange(len(products), device=device(), dtype=torch.float64) + distance
    size = q[0].double().norm() * k[0].double().norm()
    bound = 32 * U32 * (1 + position) * size + 2.0**-126
    assert_within(products, products[:1].expand_as(products), bound, "RoFormer, eq. 16")


@claim("rotate", ROTARIES, recipe=recipes(5, 8, dtypes=(torch.float16, torch.bfloat16)))
def test_rotary_widens_16_bits(rotate: Rotate, recipe: Recipe) -> None:
    """16-bit queries meet a float32 table and leave as float32, also in a region: no op of it is on autocast's list."""
    x = recipe.tensor()
    with torch.autocast(device().type, dtype=recipe.dtype):
        inside = rotate(x)
    assert_true(inside.dtype == torch.float32, f"{x.dtype} came out as {inside.dtype}")
    assert_same_bits(inside, rotate(x), "not on autocast's list")
