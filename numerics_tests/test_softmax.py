"""Softmax: exact to its condition, blind to a shift, finite for every finite input. Read this file first.

A claim is a test that takes the implementation it judges as an argument, here `softmax`. pytest runs each claim on the
model's softmax and on PyTorch's; Hypothesis draws the inputs and shrinks the one on which a claim fails.

A bound says how far a right implementation may be from the exact value. It is derived from the number format and the
algorithm, with its source beside it, and never tuned until a test passes. In bounds, u is the relative error of one
rounding (2^-24 for float32, written u32) and eta the smallest number above 0. The exact value comes from an oracle: the
definition evaluated in float64, on the very inputs of the kernel. Where a result has no freedom, bits are compared.

A fault is a wrong implementation that a claim must catch. Two of this file's, from `harness/faults/layers.py`:

    def unshifted(x): return x.exp() / x.exp().sum(-1, keepdim=True)

    Fault("softmax without the shift", "softmax_ignores_a_shift", unshifted)
    Fault("softmax of the negative", "softmax_keeps_order", lambda x: softmax(-x))

`test_kill_matrix.py` runs each claim on its faults, so that a claim which can no longer fail is found.
"""

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from model.attention import softmax as model_softmax
from numerics_tests.harness import bounds, oracles
from numerics_tests.harness.checks import assert_same_bits, assert_true, assert_within
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, alike, integers, recipes
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import U32

Softmax = Callable[[Tensor], Tensor]


def torch_softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


SOFTMAXES = {"model": model_softmax, "torch": torch_softmax}
GAPS = (0.0, 17.4, -17.4, 88.8, -88.8, 104.0, -104.0, 1e4, -1e4)
"""Logits: a probability vanishes in float16 beyond 17.4, in float32 beyond 104; exp overflows float32 beyond 88.8."""

LOGITS = recipes(3, (1, 2, 8, 33, 128), dtypes=(torch.float32,), exponents=(-6, 6), plant=GAPS)
LOW_LOGITS = recipes(3, (2, 8, 33, 600), dtypes=(torch.float16, torch.bfloat16), exponents=(-6, 4), plant=GAPS)


@claim("softmax", SOFTMAXES, recipe=LOGITS)
def test_softmax_is_within_its_bound(softmax: Softmax, recipe: Recipe) -> None:
    """Relative ((m - x_i) + log n + n + 8) u32; Blanchard, Higham and Higham, IMA JNA 41 (2021)."""
    # A recipe is a few numbers, from which the tensor is made: it shrinks to a line that can be pasted.
    x = recipe.tensor()
    # The oracle sees x after its rounding to float32, so the error is that of the kernel alone.
    exact = oracles.softmax(x)
    assert_within(softmax(x), exact, bounds.softmax(x.double(), exact, x.dtype), "bounds.softmax")


@claim("softmax", SOFTMAXES, recipe=LOW_LOGITS)
def test_softmax_of_16_bits_is_within_its_bound(softmax: Softmax, recipe: Recipe) -> None:
    """Relative ((m - x_i) + 4) u, where every step is rounded to 16 bits but the sum is kept in float32.

    The shift rounds by u (m - x_i), exp, sum and quotient by u each; same source. The model writes softmax out, so on
    a CPU, where exp is not on autocast's list, this is what runs under autocast.
    """
    x = recipe.tensor()
    exact = oracles.softmax(x)
    u, eta = bounds.rounding(x.dtype)
    gap = (x.double().amax(-1, keepdim=True) - x.double()).clamp(max=200)
    relative = ((gap * u).expm1() + 4 * u) * (1 + 4 * u) + (x.shape[-1] + 8) * U32
    assert_within(softmax(x), exact, exact * relative + 2 * eta, "bounds.softmax in 16 bits")


@claim("softmax", SOFTMAXES, seed=st.integers(0, 2**32 - 1), shift=st.integers(-(2**20), 2**20))
def test_softmax_ignores_a_shift(softmax: Softmax, seed: int, shift: int) -> None:
    """softmax(z + c) = softmax(z) bit for bit on integers below 2^24, which shift without rounding."""
    z = integers(seed, 50, 3, 17).float().to(device())
    assert_same_bits(softmax(z + shift), softmax(z), "integers below 2^24 are exact")


@claim("softmax", SOFTMAXES, recipe=recipes(2, (2, 33), exponents=(8, 14), plant=(65504.0, -65504.0, 3e4)))
def test_softmax_is_finite_and_sums_to_one(softmax: Softmax, recipe: Recipe) -> None:
    """|sum p - 1| <= (n + 8) u32 + 3 u + n eta for every finite input, however large; ASNA 2e, section 4.2."""
    probabilities = softmax(recipe.tensor()).double()
    u, eta = bounds.rounding(recipe.dtype)
    n = probabilities.shape[-1]
    total = probabilities.sum(-1)
    assert_within(total, torch.ones_like(total), (n + 8) * U32 + 3 * u + n * eta, bounds.ASNA)


@claim("softmax", SOFTMAXES, recipe=recipes(2, (2, 9), dtypes=(torch.float32,), exponents=(-3, 4), plant=GAPS))
def test_softmax_keeps_order(softmax: Softmax, recipe: Recipe) -> None:
    """A larger logit never gets a smaller probability: shift, exp and quotient are each monotone, rounded or not."""
    x = recipe.tensor().sort(-1).values
    probabilities = softmax(x)
    falls = (probabilities.diff(dim=-1) < -2 * U32 * probabilities[..., 1:]).any()
    assert_true(not bool(falls), f"a larger logit got less: {probabilities}")


@claim("softmax", SOFTMAXES, recipe=LOGITS, power=st.integers(-8, 0))
def test_softmax_moves_no_more_than_its_input(softmax: Softmax, recipe: Recipe, power: int) -> None:
    """||softmax(z + e) - softmax(z)||_1 <= max|e|, and the rounding of both.

    Derived: the Jacobian diag(p) - p p^T turns e into p (e - p.e), largest for e of signs alone, where its 1-norm is
    4 P (1 - P) <= 1 with P the probability of the positive ones.
    """
    x = recipe.tensor()
    moved = x + alike(recipe, 1, exponent=power, spread=0).tensor()
    change = (softmax(moved).double() - softmax(x).double()).abs().sum(-1)
    allowed = (moved.double() - x.double()).abs().amax(-1)
    rounding = sum(bounds.softmax(z.double(), oracles.softmax(z), z.dtype).sum(-1) for z in (x, moved))
    assert_within(change, torch.zeros_like(change), allowed + rounding, "condition of softmax")


def test_gap_beyond_which_a_float32_probability_vanishes() -> None:
    """exp(-104) is below half of 2^-149: 150 log 2 is 103.97."""
    assert math.ceil(150 * math.log(2)) == 104
    vanished, kept = model_softmax(torch.tensor([[0.0, -104.0], [0.0, -87.0]]))[:, 1]
    assert vanished == 0 < kept
