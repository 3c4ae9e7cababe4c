"""A kernel of the user's is held to its bound: wrong ones are refused in units in the last place, right ones not."""

import re
from typing import Any

import pytest
import torch

from claims.__main__ import HOLDS, verdict_on
from claims.table import CLAIMS
from perf_tests_suite.numerics_tests import within_bounds
from perf_tests_suite.numerics_tests.harness import within
from perf_tests_suite.numerics_tests.harness.exercises import model_rms_norm
from perf_tests_suite.numerics_tests.test_rotary import model_rotary


def test_the_bounds_accept_no_wrong_kernel_and_refuse_no_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The claim as tried, beside assert_close, whose defaults refuse right kernels too: a line for each of them."""
    tried = CLAIMS["kernel-bounds"]
    assert verdict_on(tried.limits, tried.measured()) == HOLDS
    assert len(capsys.readouterr().out.splitlines()) == 2 + 60


def test_a_refusal_says_the_error_in_units_in_the_last_place_and_where() -> None:
    x, weight = torch.ones(4, 20, dtype=torch.bfloat16), torch.ones(20)
    got = model_rms_norm(x, weight, 1e-5)
    within_bounds("rms_norm", {"x": x, "weight": weight}, got)
    got[3, 17] += 4 * 2.0**-7
    told = "8 ulp at [3, 17], allowed 2 (rms_norm in bfloat16, 1 of 80 outside): got 1.03125, float64 says 0.999995."
    with pytest.raises(AssertionError, match=f"^{re.escape(told)}$"):
        within_bounds("rms_norm", [x, weight], got)


@pytest.mark.parametrize(
    ("kernel", "inputs", "words"),
    [
        ("rmsnorm", {}, "kernel 'rmsnorm' is unknown; choose matmul, softmax, rms_norm"),
        ("rms_norm", {"x": torch.ones(2)}, "rms_norm takes x, weight, eps; missing a required argument: 'weight'."),
        ("softmax", [torch.ones(2), 1], "softmax takes x; too many positional arguments."),
        ("rotary", {"x": torch.ones(1, 2), "pairs": "odd"}, "pairs is 'odd'; it must be neighbours or halves."),
    ],
)
def test_what_it_does_not_take_is_refused_in_one_sentence(kernel: str, inputs: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        within_bounds(kernel, inputs, torch.ones(2))


def test_another_shape_and_what_is_no_number_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"gives shape \(3,\), float64 gives \(2,\)"):
        within_bounds("softmax", [torch.zeros(2)], torch.zeros(3))
    with pytest.raises(AssertionError, match="got nan"):
        within_bounds("softmax", [torch.zeros(2)], torch.tensor([0.5, torch.nan]))


def test_halves_are_the_other_convention_of_pairs() -> None:
    """Feature i and i + K / 2, as published Llama weights have them: the same turn of features in another order."""
    x = torch.randn(30, 8)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    got = model_rotary(x[:, order])[:, order.argsort()]
    within_bounds("rotary", {"x": x, "pairs": "halves"}, got)
    with pytest.raises(AssertionError, match="ulp"):
        within_bounds("rotary", [x], got)


def test_units_in_the_last_place_are_distances_to_the_next_number() -> None:
    x = torch.tensor([1.0, 1.5, 2.0, 0.0, 2.0**-14, 2.0**-30], dtype=torch.float64)
    expected = torch.tensor([2.0**-10, 2.0**-10, 2.0**-9, 2.0**-24, 2.0**-24, 2.0**-24], dtype=torch.float64)
    assert torch.equal(within.units_in_the_last_place(x, torch.float16), expected)
