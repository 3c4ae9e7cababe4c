"""Every reduction of PyTorch that a Transformer uses, checked against the bound of its accumulator's format."""

import pytest
import torch
from hypothesis import strategies as st

from numerics_tests.harness import bounds
from numerics_tests.harness.checks import assert_same_bits, assert_within
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import Recipe, alike, integers, low_dtypes, recipes
from numerics_tests.machine.environment import device
from numerics_tests.machine.formats import FORMAT_OF, LOW, Format
from numerics_tests.machine.sums import IN_INPUT_DTYPE, PRODUCTS, SUMS, Product, Total

LENGTHS = (1, 4, 33, 128)
"""Short enough for the bounds to bite: the error of a long sum stays far below its worst case."""

TAME = (0.0, -0.0, 1.0, -1.0, 2.0**-14, 255.0, 257.0)
"""Planted values whose products cannot overflow float16."""


@claim("product", PRODUCTS, recipe=recipes(LENGTHS, exponents=(-3, 2), max_spread=3, plant=TAME))
def test_product_is_within_the_bound_of_float32_accumulation(product: Product, recipe: Recipe) -> None:
    """gamma_n(u32) sum|x y| and one rounding to the output; Higham, ASNA 2e, section 4.2, in any order."""
    x, y = recipe.tensor(), alike(recipe, 1).tensor()
    terms = x.double() * y.double()
    bound = bounds.sum_in_float32(terms.sum(), terms.abs().sum(), len(x), x.dtype)
    assert_within(product(x, y), terms.sum(), bound, bounds.ASNA)


@claim("total", SUMS, recipe=recipes(LENGTHS, exponents=(-3, 2), max_spread=3, plant=TAME))
def test_sum_is_within_the_bound_of_its_accumulator(total: Total, recipe: Recipe) -> None:
    """gamma_n(u) sum|x|, with u of float32, or of the input where the table says so; ASNA 2e, section 4.2."""
    x = recipe.tensor()
    exact, magnitudes = x.double().sum(), x.double().abs().sum()
    bound = bounds.sum_in_float32(exact, magnitudes, len(x), x.dtype)
    if any(total is SUMS[name] for name in IN_INPUT_DTYPE[device().type]):
        bound = bounds.gamma(len(x), FORMAT_OF[recipe.dtype].unit_roundoff) * magnitudes
    assert_within(total(x), exact, bound, bounds.ASNA)


@claim("product", PRODUCTS, power=st.integers(0, 13), dtype=low_dtypes())
def test_product_of_ones_counts(product: Product, power: int, dtype: torch.dtype) -> None:
    """2^k ones give 2^k exactly, which a 16-bit accumulator cannot: it stops at 256 or 2048."""
    ones = torch.ones(2**power, dtype=dtype, device=device())
    assert_same_bits(product(ones, ones).cpu(), torch.tensor(2.0**power, dtype=dtype), "2^k < 2^24")


@pytest.mark.parametrize("a_format", LOW, ids=lambda a_format: a_format.name)
def test_map_of_sums_that_accumulate_in_low_precision(a_format: Format) -> None:
    """The map, printed with -s; on a CPU it must be the recorded one, so that a change of kernel is noticed."""
    in_input_dtype = set()
    print()
    for name, total in SUMS.items():
        # So many ones are beyond where either format stops, also where several threads sum a part each.
        count = 2**12 if name in ("Python loop", ".grad over microbatches") else 2**15
        if float(total(torch.ones(count, dtype=a_format.dtype, device=device()))) != count:
            in_input_dtype.add(name)
        accumulator = a_format.name if name in in_input_dtype else "float32"
        print(f"{a_format.name}  {name:32} accumulates in {accumulator}")
    assert device().type != "cpu" or in_input_dtype == IN_INPUT_DTYPE["cpu"]


@claim("total", {name: SUMS[name] for name in ("sum", "sum(dim)", "sum(dim 0)", "mean", "cumsum")}, seed=st.integers(0))
def test_sum_of_small_integers_is_exact_in_any_order(total: Total, seed: int) -> None:
    """Every partial sum of integers with sum|x| < 2^24 is a float32, so no order can change the result."""
    x = integers(seed % 2**32, 1000, 128).float().to(device())
    order = torch.randperm(128, generator=torch.Generator().manual_seed(seed % 2**32))
    # mean divides by 128 and is multiplied by it again: both exact.
    expected = x.double().sum().float()
    assert_same_bits(total(x), expected, "sum|x| < 2^24")
    assert_same_bits(total(x[order.to(device())]), expected, "sum|x| < 2^24, permuted")


@claim(
    "product", PRODUCTS, recipe=recipes((4, 33), max_spread=2, exponents=(-2, 2), plant=()), power=st.integers(-4, 4)
)
def test_powers_of_two_pass_through_products(product: Product, recipe: Recipe, power: int) -> None:
    """Scaling by 2^k changes exponents alone, so it commutes bit for bit while nothing over- or underflows."""
    x, y = recipe.tensor(), alike(recipe, 1).tensor()
    # Large enough that rounding cannot reach below the smallest normal number of float16.
    keep = (x.abs() > 2.0**-5) & (y.abs() > 2.0**-5)
    x, y = torch.where(keep, x, 1), torch.where(keep, y, 1)
    result = product(x, y)
    if result.abs() > 2.0**-9:
        assert_same_bits(product(x * 2.0**power, y), result * 2.0**power, "IEEE 754-2019, section 4.3")


@pytest.mark.parametrize("name", ["sum", "mean", "cumsum"])
def test_number_of_threads_moves_a_long_sum_within_its_bound(name: str) -> None:
    """Each thread sums a part, so that bits may change with their number; gamma_n(u32) sum|x| holds in any order.

    Higham, ASNA 2e, section 4.2. Long enough to be split: at::internal::GRAIN_SIZE is 32768.
    """
    x = torch.randn(2**18, generator=torch.Generator().manual_seed(0))
    exact, magnitudes = x.double().sum(), x.double().abs().sum()
    bound = bounds.sum_in_float32(exact, magnitudes, len(x), x.dtype)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            assert_within(SUMS[name](x), exact, bound, f"{bounds.ASNA}, {threads} threads")
    finally:
        torch.set_num_threads(before)


def test_bound_on_a_gpu_allows_for_parts_rounded_to_16_bits() -> None:
    """Four parts of 32 products, each rounded to bfloat16: some of 200 draws are beyond the bound of one sum."""
    beyond = 0
    for seed in range(200):
        x, y = (
            Recipe((128,), torch.bfloat16, seed=seed, positive=True, planted=()).tensor() for seed in (seed, seed + 999)
        )
        terms = (x.double() * y.double()).unflatten(0, (4, bounds.TERMS_OF_A_PART))
        split = terms.sum(-1).bfloat16().double().sum().bfloat16().double()
        of = terms.sum(), terms.abs().sum(), 128, torch.bfloat16
        assert_within(split, terms.sum(), bounds.sum_in_float32(*of, on_gpu=True), bounds.ASNA)
        beyond += bool((split - terms.sum()).abs() > bounds.sum_in_float32(*of, on_gpu=False))
    assert beyond


def test_void_bound_is_refused() -> None:
    """gamma_n is void from n u = 1 on, and raises."""
    with pytest.raises(ValueError, match="gamma_256 is void"):
        bounds.gamma(256, LOW[1].unit_roundoff)
