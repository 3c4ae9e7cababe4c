"""Softmax: exact to its condition, in float32 and step by step in 16 bits. Read this file first.

A claim is a test that takes the implementation it judges as an argument, here `softmax`. pytest runs each claim on the
model's softmax and on PyTorch's; Hypothesis draws the inputs and shrinks the one on which a claim fails.

A bound says how far a right implementation may be from the exact value. It is derived from the number format and the
algorithm, with its source beside it, and never tuned until a test passes. In bounds, u is the relative error of one
rounding (2^-24 for float32, written u32) and eta the smallest number above 0. The exact value comes from an oracle: the
definition evaluated in float64, on the very inputs of the kernel. Where a result has no freedom, bits are compared.

A fault is a wrong implementation that a claim must catch. Two of this file's, from `tests/kill_matrix/layers.py`:

    def unshifted(x): return x.exp() / x.exp().sum(-1, keepdim=True)

    Fault("softmax without the shift", "softmax_is_within_its_bound", unshifted)
    Fault("softmax of the negative", "softmax_is_within_its_bound", lambda x: softmax(-x))

`make kill-matrix` runs each claim on its faults, so that a claim which can no longer fail is found.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.attention import softmax as model_softmax
from perf_tests_suite.numerics_tests.harness import bounds, oracles
from perf_tests_suite.numerics_tests.harness.checks import assert_within
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, recipes
from perf_tests_suite.numerics_tests.machine.formats import U32

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


@claim("softmax", SOFTMAXES)
def test_softmax_holds_for_long_rows(softmax: Softmax) -> None:
    """The same bound for rows of 1,030 scores, 10,000 words and many rows."""
    for shape in ((3, 1030), (1, 10_000), (2100, 9)):
        x = Recipe(shape, torch.float32, exponent=1).tensor()
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


def test_gap_beyond_which_a_float32_probability_vanishes() -> None:
    """exp(-104) is below half of 2^-149: 150 log 2 is 103.97."""
    assert math.ceil(150 * math.log(2)) == 104
    vanished, kept = model_softmax(torch.tensor([[0.0, -104.0], [0.0, -87.0]]))[:, 1]
    assert vanished == 0 < kept
