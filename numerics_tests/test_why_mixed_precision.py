"""The practices of mixed precision, and what happens without each.

Read top to bottom: master weights, loss scaling, float32 norms and losses, what rounding errors are, what they add to.
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from perf_tests_suite.numerics_tests.harness.checks import assert_true
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.exercises import normal, stochastically_rounded
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import BF16, LOW, Format

by_low_format = pytest.mark.parametrize("a_format", LOW, ids=lambda a_format: a_format.name)


Update = Callable[[Tensor, float, int, torch.dtype], tuple[Tensor, Tensor]]
"""(float32 weights, change per step, steps, 16-bit dtype) to the weights and their 16-bit copy."""


def mixed_update(master: Tensor, change: float, steps: int, low: torch.dtype) -> tuple[Tensor, Tensor]:
    """`steps` updates of a float32 master, and the 16-bit copy that a forward pass would use."""
    for _ in range(steps):
        master = master - change
    return master, master.to(low)


@claim("update", {"master": mixed_update}, power=st.integers(-16, -10), steps=st.integers(1, 200))
def test_copy_follows_its_master(update: Update, power: int, steps: int) -> None:
    """The 16-bit copy is the master rounded once, after any number of updates: |copy - master| <= u |master|."""
    start = torch.full((4,), 3.0, device=device())
    for a_format in LOW:
        master, copy = update(start, 2.0**power, steps, a_format.dtype)
        # Multiples of 2^-16 below 4 are exact in float32.
        exact = 3.0 - steps * 2.0**power
        is_exact = bool((master.double() == exact).all())
        assert_true(is_exact, f"the master is {master[0]}, not {exact}")
        is_rounded = bool((copy == torch.tensor(exact, dtype=torch.float64, device=device()).to(copy.dtype)).all())
        assert_true(is_rounded, f"the copy is {copy[0]}, not {exact} rounded")


@by_low_format
def test_loss_in_16_bits_moves_in_steps(a_format: Format) -> None:
    """One number, nothing to average: between 8 and 16 a bfloat16 loss has steps of 1/16, a float16 one of 1/128.

    From the definition of the format: 2^(3 - p + 1). A training signal of 0.01 per step is invisible in bfloat16.
    """
    step = 2.0 ** (3 - a_format.precision + 1)
    assert step == {"fp16": 1 / 128, "bf16": 1 / 16}[a_format.name]
    loss = torch.tensor(9.0, dtype=torch.float64)
    assert (loss + 0.49 * step).to(a_format.dtype) == loss
    assert (loss + 0.51 * step).to(a_format.dtype) == loss + step


def test_rounding_error_is_a_function_of_the_mantissa() -> None:
    """x and 2 x are off by the same relative error, to the bit; a number drawn twice is off twice alike: no noise."""
    x = normal(4096)
    error = x.bfloat16().double() / x - 1
    doubled = (2 * x).bfloat16().double() / (2 * x) - 1
    assert torch.equal(error, doubled)


def test_rounding_error_is_bounded_and_not_gaussian() -> None:
    """The error is never beyond u, where a Gaussian as wide would go twice in a thousand draws; it is flat inside.

    A flat distribution has a kurtosis of 9/5, a Gaussian of 3. The error in units in the last place is flat because
    the bits that are cut off are; kurtosis is estimated from 2^16 draws within 24 / sqrt(2^16) or so.
    """
    x = normal(2**16)
    units = torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - BF16.precision)
    error = (x.bfloat16().double() - x) / units
    assert float(error.abs().max()) <= 0.5
    assert float((x.bfloat16().double() / x - 1).abs().max()) <= BF16.unit_roundoff
    kurtosis = float(error.pow(4).mean() / error.square().mean() ** 2)
    assert abs(kurtosis - 9 / 5) < 0.1


Rounding = Callable[[Tensor, torch.Generator], Tensor]


@claim(
    "rounding",
    {"stochastic": stochastically_rounded},
    cost=2,
    share=st.integers(1, 2**16 - 1),
    exponent=st.integers(-8, 8),
)
def test_stochastic_rounding_is_right_on_average(rounding: Rounding, share: int, exponent: int) -> None:
    """Only the two neighbours appear, and their mean is x within 6 standard deviations of N draws.

    Why bfloat16 weights can do without a master: E SR(x) = x. Connolly, Higham and Mary, SISC 43 (2021).
    """
    generator = torch.Generator().manual_seed(share)
    p, draws = share / 2**16, 4096
    x = torch.full((draws,), (1 + p * 2.0**-7) * 2.0**exponent, dtype=torch.float32)
    unit = 2.0 ** (exponent - 7)
    steps = (rounding(x, generator).double() - 2.0**exponent) / unit
    assert_true(bool(((steps == 0) | (steps == 1)).all()), "a number that is no neighbour of x")
    allowed = 6 * math.sqrt(p * (1 - p) / draws) + 1 / draws
    off = abs(float(steps.mean()) - p)
    assert_true(off <= allowed, f"the mean is off by {off:.3g} units, {allowed:.3g} allowed")
