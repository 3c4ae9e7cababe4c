"""Attention: blind to the future, and within the bound of its arithmetic at any length, width and number of heads.

Every implementation of the model runs, the compiled ones at one shape, because each new shape is compiled again.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from perf_tests_suite.model import attention as of_model
from perf_tests_suite.model.attention import ATTENTION, AttentionFunction, naive_attention, sdpa_attention
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.numerics_tests.harness import bounds, oracles, within
from perf_tests_suite.numerics_tests.harness.checks import assert_at_most_twice, assert_same_bits, assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, alike, recipes
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import BF16, U32
from perf_tests_suite.perf_tests.user_code.attention import Arithmetic, exact_and_bounds

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
    _, allowed = within.attention(recipe.dtype, q, k, v)
    assert_within(attention(q, k, v), oracles.attention(q, k, v), allowed, "exact_and_bounds")


@claim("attention", cost=2, recipe=QUERIES)
def test_attention_is_within_its_bound(attention: AttentionFunction, recipe: Recipe) -> None:
    """Element by element; the bound, by which also a kernel of one's own is judged, names its sources.

    A kernel may choose another path under no_grad, so that float32 takes both.
    """
    check_bound(attention, recipe)
    if recipe.dtype == torch.float32:
        with torch.no_grad():
            check_bound(attention, recipe)


@claim("attention", EAGER, recipe=recipes(2, (1, 9), 16, exponents=(-3, 0), plant=(0.0, 1.0)))
def test_attention_is_within_its_bound_without_heads(attention: AttentionFunction, recipe: Recipe) -> None:
    """The same bound for (batch, tokens, width), as attention alone is measured; ASNA 2e, section 3.5."""
    check_bound(attention, recipe)


EDGES = tuple(block + offset for block in (64, 128, 256) for offset in (-1, 0, 1))


ANY_LENGTH = recipes(1, (1, 2), (1, 2, *EDGES), (2, 16, 64), exponents=(-3, 0), plant=(0.0, 1.0))


@claim("attention", EAGER, recipe=ANY_LENGTH)
def test_attention_is_within_its_bound_across_blocks(attention: AttentionFunction, recipe: Recipe) -> None:
    """The same bound for one token and at lengths around the blocks in which fused kernels work; ASNA 2e, 3.5."""
    check_bound(attention, recipe)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The yardstick: none of the model's, which would be held to itself."""
    return oracles.attention(q, k, v, torch.float32)


def check_with_gradients(attention: AttentionFunction, *shape: int) -> None:
    """Hold output and gradients to their bounds, and in float32 to twice the error of the plain formula."""

    def found(function: AttentionFunction) -> tuple[Tensor, ...]:
        leaves = [x.requires_grad_() for x in triple(recipe)]
        output = function(*leaves)
        return (output.detach(), *torch.autograd.grad(output, leaves, upstream))

    for dtype in (torch.float32, torch.bfloat16):
        recipe = Recipe(shape, dtype)
        upstream = alike(recipe, 3).tensor()
        mine, (exact, allowed) = found(attention), exact_and_bounds(*triple(recipe), upstream, Arithmetic.of(dtype))
        for three in zip(mine, found(plain_attention), exact, strict=True) if dtype == torch.float32 else ():
            assert_at_most_twice(*three, roundings=WIDTH * TOKENS)
        for name, actual, right, bound in zip(("output", "dq", "dk", "dv"), mine, exact, allowed, strict=True):
            assert_within(actual, right, bound, f"attention_bounds, {name} of {shape}")


WIDEST = max(config.head_dim for config in SIZES.values())


@claim("attention", EAGER)
def test_attention_holds_beyond_its_tiles(attention: AttentionFunction) -> None:
    """The same bound, of gradients too, at lengths beyond the tiles of 64 to 1,024 in which kernels cut their work.

    At the head widths of the sizes that are measured, 80 and 128.
    """
    check_with_gradients(attention, 1, 1, 600, 80)
    check_with_gradients(attention, 1, 1, 1030, WIDEST)


@claim("attention", EAGER)
def test_attention_holds_for_many_heads(attention: AttentionFunction) -> None:
    """The same bound for 65 heads of 5 sequences, and for as many sequences without heads.

    Keys of 2^18 and queries of 2^-18 make the same scores: bfloat16 has the range, and no kernel may take float16's.
    """
    check_with_gradients(attention, 5, 13, 9, WIDEST)
    recipe = Recipe((65, 9, 16), torch.bfloat16)
    check_bound(attention, recipe)
    q, k, v = triple(recipe)
    assert_same_bits(attention(q * 2.0**-18, k * 2.0**18, v), attention(q, k, v), "IEEE 754-2019, section 4.3")


@claim("build", {"flex": ATTENTION["flex"].build})
def test_flex_is_causal_at_every_length(build: Callable[[], AttentionFunction]) -> None:
    """One built function at several lengths, alone and with heads, against float64; its mask is of the length.

    Run uncompiled, since compiled it needs a GPU. 130 tokens: two blocks of the mask, the second all but empty.
    """
    with patch.object(of_model, "compiled", lambda function: function), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of running it uncompiled
        attend = build()
        for shape in ((2, 130, 16), (1, 2, 70, 16), (1, 2, 300, 16)):
            made = Recipe(shape, torch.float64)
            q, k, v = (each.exact() for each in (made, alike(made, 1), alike(made, 2)))
            exact = oracles.attention(q, k, v)
            assert_within(attend(q, k, v), exact, 1e-12, f"float64, {shape}")


@claim("attention", EAGER)
def test_first_token_is_seen_from_far_away(attention: AttentionFunction) -> None:
    """2050 tokens, of which the first has the only key that queries point to: every row is its value, to 2^-20.

    The other scores are lower by at least 2^7, and exp(-2^7) of 2050 of them is below 2^-170.
    """
    v = Recipe((1, 1, 2050, 16), torch.float32).tensor()
    exact = v[..., :1, :].double().expand(v.shape)
    q, k = torch.zeros_like(v), torch.zeros_like(v)
    for wide in (2.0**7, 2.0**12):
        q[..., 0], k[..., 0, 0] = 4.0, wide
        assert_within(attention(q, k, v), exact, 2.0**-20 * v.abs().max().double(), "exp(-128)")


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


@claim("attention", cost=2, recipe=QUERIES, cut=st.integers(1, TOKENS - 1))
def test_past_does_not_depend_on_the_future(attention: AttentionFunction, recipe: Recipe, cut: int) -> None:
    """Bit for bit: masked scores are -inf before and after, exp of them 0, and adding 0 x v is exact."""
    q, k, v = triple(recipe)
    before = attention(q, k, v)[..., :cut, :]
    for x, other in zip((q, k, v), triple(alike(recipe, 3)), strict=True):
        x[..., cut:, :] = other[..., cut:, :]
    assert_same_bits(attention(q, k, v)[..., :cut, :], before, "exp(-inf) = 0")


@claim("attention", cost=4, recipe=FLOAT32_QUERIES)
def test_attention_gradients_are_those_of_float64(attention: AttentionFunction, recipe: Recipe) -> None:
    """dq, dk and dv by flash-attention's rule: at most twice the error of the plain formula in the same precision."""
    upstream = alike(recipe, 3).tensor()

    def gradients(function: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in triple(recipe)]
        return list(torch.autograd.grad(function(*leaves), leaves, upstream.to(dtype)))

    mine, plain = (gradients(function, torch.float32) for function in (attention, plain_attention))
    exact = gradients(oracles.attention, torch.float64)
    for three in zip(mine, plain, exact, strict=True):
        assert_at_most_twice(*three, roundings=WIDTH * TOKENS)


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
