"""The practices of mixed precision, and what happens without each.

Read top to bottom: master weights, loss scaling, float32 norms and losses, what rounding errors are, what they add to.
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from numerics_tests.harness import oracles
from numerics_tests.harness.checks import assert_true
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import BF16, LOW, Format

by_low_format = pytest.mark.parametrize("a_format", LOW, ids=lambda a_format: a_format.name)


def trained(weight: Tensor, steps: int, rate: float) -> Tensor:
    """AdamW without decay on a weight whose gradient is always 1: each step moves it by the learning rate."""
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=0.0)
    for _ in range(steps):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return parameter.detach()


def test_master_weights_move_where_bfloat16_weights_stand_still() -> None:
    """100 steps of 1e-3 move a float32 weight of 1 to 0.9. In bfloat16 it is 1 after every one of them.

    A step is lost when it is at most half the distance to the next number, u/2 = 2^-9 below 1; 1e-3 is less.
    """
    steps, rate = 100, 1e-3
    start = torch.ones(1, device=device())
    assert rate < BF16.unit_roundoff / 2
    assert trained(start.bfloat16(), steps, rate).item() == 1.0
    moved = 1 - trained(start, steps, rate).double()
    # The first moments are exact for a constant gradient up to one rounding in each average and each step.
    assert abs(moved.item() - steps * rate) <= steps * (4 * 2.0**-24 + rate * 4096 * 2.0**-24)


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


def relative_noise(approximate: Tensor, exact: Tensor) -> float:
    """Root mean square error over root mean square value."""
    return float((approximate.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return Recipe(shape, torch.float64, seed=seed).exact()


def test_noise_of_inputs_does_not_grow_in_a_product() -> None:
    """Inputs rounded to bfloat16 give a product as noisy as they are, at 64 terms and at 4096: errors average out.

    Each term carries an independent relative error of rms at most u / sqrt(3) from each factor; n of them add to
    sqrt(n) times that, and the product of random signs to sqrt(n) as well, so the ratio is at most u sqrt(2/3).
    Higham and Mary, SISC 41 (2019). Sampling 64 x 64 results leaves a few per cent, far from the factor of 8.
    """
    noise = {}
    for n in (64, 4096):
        a, b = normal(64, n), normal(n, 64, seed=1)
        rounded = a.bfloat16().double() @ b.bfloat16().double()
        noise[n] = relative_noise(rounded, a @ b)
        assert noise[n] <= BF16.unit_roundoff * math.sqrt(2 / 3) * 1.1
    assert 0.8 < noise[4096] / noise[64] < 1.25


def test_noise_averages_out_in_a_sum_of_one_sign() -> None:
    """sum|x| of rounded terms: 1 / sqrt(n) of the noise of one, because errors cancel and the terms do not."""
    noise = {}
    for n in (64, 4096):
        x = normal(2048, n).abs()
        noise[n] = relative_noise(x.bfloat16().double().sum(-1), x.sum(-1))
    # A quarter less and a third more than the expected 8: 2048 sums leave a few per cent of sampling error.
    assert 6 < noise[64] / noise[4096] < 10.7, "sqrt(4096 / 64) is 8"


def test_noise_of_a_norm_is_shared_by_its_row() -> None:
    """The inverse root in bfloat16 is one rounding error for the whole row: averaging over the row keeps all of it.

    Every element is off by the same factor, while rounding each element leaves 1 / sqrt(n) of it in the row's mean:
    1/32 of 1024, of which a quarter is asked for here.
    """
    x = normal(256, 1024)
    exact = oracles.rms_norm(x, torch.ones(1024), 1e-5)
    inverse = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    of_the_row = ((x * inverse.bfloat16().double()) / exact - 1).mean(-1)
    of_elements = (exact.bfloat16().double() / exact - 1).mean(-1)
    assert float(of_the_row.abs().mean()) > 8 * float(of_elements.abs().mean())
    assert float((x * inverse.bfloat16().double() / exact - 1).std(-1).max()) < 1e-12


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


@pytest.mark.parametrize("batch", [64, 4096])
def test_shared_errors_add_up_where_independent_ones_average_out(batch: int) -> None:
    """A bias rounded once is off by the same amount in every row: the mean over rows keeps the whole error.

    Independent roundings of the rows leave 1 / sqrt(rows) of it in their mean; 5 standard deviations are allowed.
    """
    bias = torch.tensor(1 + 0.3 * BF16.unit_roundoff, dtype=torch.float64)
    shared = (bias.bfloat16().double() - bias) / bias
    rows = 1 + normal(batch, seed=3).abs().clamp(max=1)
    shared_mean = ((rows + bias.bfloat16().double()) - (rows + bias)).mean() / bias
    independent_mean = (rows.bfloat16().double() - rows).mean()
    assert abs(float(shared_mean - shared)) < 1e-12
    # Errors of numbers in [1, 2) are flat within u: their standard deviation is u / sqrt(3).
    assert abs(float(independent_mean)) <= 5 * BF16.unit_roundoff / math.sqrt(3) / math.sqrt(batch)


def stochastically_rounded(x: Tensor, generator: torch.Generator) -> Tensor:
    """float32 to bfloat16, up with the probability that makes the mean right: random bits below the cut."""
    noise = torch.randint(0, 2**16, x.shape, generator=generator, dtype=torch.int32)
    # A carry out of the last 16 bits rounds up; -0x10000 is the int32 0xFFFF0000, which then cuts them off.
    return ((x.view(torch.int32) + noise) & -0x10000).view(torch.float32).bfloat16()


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
