"""Attention: blind to the future, within the hull of the values, as exact as plain PyTorch of the same precision.

Every implementation of the model runs, the compiled ones at one shape, because each new shape is compiled again.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from model.attention import ATTENTION, AttentionFunction, naive_attention, sdpa_attention
from numerics_tests.harness import bounds, oracles
from numerics_tests.harness.checks import assert_at_most_twice, assert_same_bits, assert_true, assert_within
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, alike, recipes
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import BF16, U32
from perf_tests.user_code.attention import Arithmetic, exact_and_bounds

SHAPE = (2, 2, 9, 16)
TOKENS, WIDTH = SHAPE[-2:]
QUERIES = recipes(*SHAPE, exponents=(-3, 1), max_spread=1, plant=(0.0, 1.0, -8.0))
FLOAT32_QUERIES = recipes(*SHAPE, dtypes=(torch.float32,), exponents=(-3, 1), max_spread=1, plant=(0.0, -8.0))

EAGER: dict[str, AttentionFunction] = {"naive": naive_attention, "sdpa": sdpa_attention}


def triple(recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (made.tensor() for made in (recipe, alike(recipe, 1), alike(recipe, 2)))
    return q, k, v


def check_bound(attention: AttentionFunction, recipe: Recipe) -> None:
    q, k, v = triple(recipe)
    _, allowed = exact_and_bounds(q, k, v, torch.zeros_like(v), Arithmetic.of(recipe.dtype))
    assert_within(attention(q, k, v), oracles.attention(q, k, v), allowed.output, "attention_bounds")


@claim("attention", cost=2, recipe=QUERIES)
def test_attention_is_within_its_bound(attention: AttentionFunction, recipe: Recipe) -> None:
    """Element by element; the bound, by which also a kernel of one's own is judged, names its sources."""
    check_bound(attention, recipe)


@claim("attention", EAGER, recipe=recipes((1, 3), (1, 2), (1, 2, 33), (2, 8, 64), exponents=(-3, 0), plant=(0.0, 1.0)))
def test_attention_is_within_its_bound_at_any_shape(attention: AttentionFunction, recipe: Recipe) -> None:
    """The same bound for one token, one head, narrow and wide heads; ASNA 2e, section 3.5."""
    check_bound(attention, recipe)


@claim("attention", EAGER, recipe=recipes(2, (1, 9), 16, exponents=(-3, 0), plant=(0.0, 1.0)))
def test_attention_is_within_its_bound_without_heads(attention: AttentionFunction, recipe: Recipe) -> None:
    """The same bound for (batch, tokens, width), as attention alone is measured; ASNA 2e, section 3.5."""
    check_bound(attention, recipe)


EDGES = tuple(block + offset for block in (64, 128, 256) for offset in (-1, 0, 1))


@claim("attention", EAGER, recipe=recipes(1, 1, EDGES, 16, exponents=(-3, 0), plant=(0.0, 1.0)))
def test_attention_is_within_its_bound_across_blocks(attention: AttentionFunction, recipe: Recipe) -> None:
    """The same bound at lengths around the blocks in which fused kernels work; ASNA 2e, section 3.5."""
    check_bound(attention, recipe)


@claim("attention", EAGER, cost=4, seed=st.integers(0, 2**32 - 1), power=st.integers(7, 12))
def test_first_token_is_seen_from_far_away(attention: AttentionFunction, seed: int, power: int) -> None:
    """2050 tokens, of which the first has the only key that queries point to: every row is its value, to 2^-20.

    The other scores are lower by at least 2^7, and exp(-2^7) of 2050 of them is below 2^-170.
    """
    generator = torch.Generator().manual_seed(seed)
    shape, wide = (1, 1, 2050, 16), 2.0**power
    q, k = torch.zeros(shape), torch.zeros(shape)
    q[..., 0], k[..., 0, 0] = 4.0, wide
    v = torch.randn(shape, generator=generator).to(device())
    exact = v[..., :1, :].double().expand(shape)
    assert_within(attention(q.to(device()), k.to(device()), v), exact, 2.0**-20 * v.abs().max().double(), "exp(-128)")


@claim("attention", cost=4, recipe=QUERIES)
def test_attention_without_a_graph_is_the_same(attention: AttentionFunction, recipe: Recipe) -> None:
    """A kernel may under no_grad choose another path; at most twice the error of the one with a graph, in float64."""
    q, k, v = triple(recipe)
    with torch.no_grad():
        result = attention(q, k, v)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    floor = 4 * bounds.rounding(recipe.dtype)[0] * float(v.abs().max())
    assert_at_most_twice(result, attention(*leaves).detach(), oracles.attention(q, k, v), floor)


@claim("attention", recipe=recipes(*SHAPE, dtypes=(torch.float32, torch.bfloat16), exponents=(0, 0), max_spread=0,
                                   plant=()), power=st.integers(7, 12))  # fmt: skip
def test_mask_beats_any_score(attention: AttentionFunction, recipe: Recipe, power: int) -> None:
    """All scores are equal, at -4 x 4^power, from -65 536 down to -67 million: row t is the mean of v up to t.

    Equal scores give weights 1 / t to the bit, so u |O| + (t + 2) u32 max|v| is left; ASNA 2e, section 4.2. A finite
    number in place of -inf would win over such scores.
    """
    q = torch.full(SHAPE, 2.0**power, dtype=recipe.dtype, device=device())
    v = recipe.tensor()
    exact = v.double().cumsum(-2) / torch.arange(1, TOKENS + 1, device=device())[:, None]
    u, eta = bounds.rounding(recipe.dtype)
    bound = 4 * u * v.double().abs().max() + (TOKENS + 2) * U32 * v.double().abs().max() + eta
    assert_within(attention(q, -q, v), exact, bound, "equal scores")


@claim("attention", cost=4, recipe=FLOAT32_QUERIES)
def test_attention_errs_at_most_twice_the_plain_one(attention: AttentionFunction, recipe: Recipe) -> None:
    """flash-attention's rule, tests/test_flash_attn.py; the floor is one rounding of the largest value."""
    q, k, v = triple(recipe)
    floor = 4 * U32 * float(v.abs().max())
    exact = oracles.attention(q, k, v)
    assert_at_most_twice(attention(q, k, v), naive_attention(q, k, v), exact, floor)


@claim("attention", cost=2, recipe=QUERIES, cut=st.integers(1, TOKENS - 1))
def test_past_does_not_depend_on_the_future(attention: AttentionFunction, recipe: Recipe, cut: int) -> None:
    """Bit for bit: masked scores are -inf before and after, exp of them 0, and adding 0 x v is exact."""
    q, k, v = triple(recipe)
    before = attention(q, k, v)[..., :cut, :]
    for x, other in zip((q, k, v), triple(alike(recipe, 3)), strict=True):
        x[..., cut:, :] = other[..., cut:, :]
    assert_same_bits(attention(q, k, v)[..., :cut, :], before, "exp(-inf) = 0")


@claim("attention", cost=2, recipe=QUERIES)
def test_first_token_attends_to_itself(attention: AttentionFunction, recipe: Recipe) -> None:
    """Its only weight is 1 = exp(0) / exp(0), so the first row of the output is the first row of v to the bit."""
    q, k, v = triple(recipe)
    result = attention(q, k, v)
    assert_same_bits(result[..., 0, :] + 0.0, v[..., 0, :] + 0.0, "exp(0) = 1")


@claim("attention", cost=2, recipe=QUERIES)
def test_output_is_in_the_hull_of_the_values(attention: AttentionFunction, recipe: Recipe) -> None:
    """min v <= O <= max v over the visible rows, up to weights that sum to 1 within (T + 8) u32 + 4 u; ASNA 2e, 4.2."""
    q, k, v = triple(recipe)
    result, wide = attention(q, k, v).double(), v.double()
    u, eta = bounds.rounding(recipe.dtype)
    slack = ((TOKENS + 8) * U32 + 5 * u) * wide.abs().amax() + eta
    lowest, highest = wide.cummin(-2).values, wide.cummax(-2).values
    outside = (result < lowest - slack) | (result > highest + slack)
    assert_true(not bool(outside.any()), f"{int(outside.sum())} elements leave the hull of v")


@claim("attention", cost=4, recipe=FLOAT32_QUERIES)
def test_attention_gradients_are_those_of_float64(attention: AttentionFunction, recipe: Recipe) -> None:
    """dq, dk and dv by flash-attention's rule: at most twice the error of plain attention in the same precision."""
    upstream = alike(recipe, 3).tensor()

    def gradients(function: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in triple(recipe)]
        return list(torch.autograd.grad(function(*leaves), leaves, upstream.to(dtype)))

    mine, plain = (gradients(function, torch.float32) for function in (attention, naive_attention))
    exact = gradients(oracles.attention, torch.float64)
    for three in zip(mine, plain, exact, strict=True):
        assert_at_most_twice(*three, roundings=WIDTH * TOKENS)


@claim("attention", EAGER, recipe=FLOAT32_QUERIES, power=st.sampled_from([-2, 2, 4]))
def test_attention_is_linear_in_the_values(attention: AttentionFunction, recipe: Recipe, power: int) -> None:
    """Powers of two pass through v bit for bit; moved from k to q they cancel: IEEE 754-2019, section 4.3."""
    q, k, v = triple(recipe)
    result = attention(q, k, v)
    assert_same_bits(attention(q, k, v * 2.0**power), result * 2.0**power, "exponents alone")
    moved = attention(q * 2.0**power, k * 2.0**-power, v)
    assert_same_bits(moved, result, "exponents alone, from k to q")


def test_attention_runs_in_a_region_as_its_dtypes_say(attention: AttentionFunction) -> None:
    """Rotary embedding leaves float32 queries and keys beside 16-bit values; each implementation takes them."""
    q, k, v = triple(Recipe(SHAPE, torch.float32))
    with torch.autocast(device().type, dtype=torch.bfloat16):
        result = attention(q, k, v.bfloat16())
    assert result.dtype == torch.bfloat16
    exact = oracles.attention(q, k, v.bfloat16())
    # q and k are rounded to bfloat16 as well: each score moves by up to 2 u |q||k| more.
    rounded = replace(Arithmetic.of(torch.bfloat16), stored_roundoff=2 * BF16.unit_roundoff)
    _, allowed = exact_and_bounds(q, k, v.bfloat16(), torch.zeros_like(v), rounded)
    assert_within(result, exact, allowed.output, "attention_bounds, inputs rounded")


@pytest.mark.parametrize("name", ATTENTION)
def test_every_implementation_runs_or_says_why_not(name: str) -> None:
    """A skip must give its reason; an implementation that is silently left out would look tested."""
    reason = ATTENTION[name].why_unavailable(device(), WIDTH)
    assert reason is None or reason.endswith(".")
