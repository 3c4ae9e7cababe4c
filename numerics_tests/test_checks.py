"""The checks themselves: what they reject, and that their messages can be pasted."""

import math
import re
from dataclasses import replace

import pytest
import torch

from model.attention import softmax as model_softmax
from numerics_tests.harness.checks import assert_at_most_twice, assert_same_bits, assert_within
from numerics_tests.harness.claims import all_claims
from numerics_tests.harness.strategies import Recipe

ZERO = torch.zeros(2, dtype=torch.float64)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1.0])
def test_value_outside_its_bound_is_refused(wrong: float) -> None:
    """NaN too, which is neither smaller nor larger than anything."""
    with pytest.raises(AssertionError, match=r"x its bound at \(1,\) \(1 of 2 outside\)"):
        assert_within(torch.tensor([0.0, wrong]), ZERO, 0.5, "a source")


def test_oracle_of_low_precision_is_refused() -> None:
    """Two results in low precision agree on their common error."""
    with pytest.raises(AssertionError, match="the oracle must be float64"):
        assert_within(torch.zeros(2), torch.zeros(2), 1.0, "a source")


@pytest.mark.parametrize("wrong", [torch.tensor([-0.0]), torch.tensor([1e-45]), torch.zeros(1, dtype=torch.float64)])
def test_other_bits_are_refused(wrong: torch.Tensor) -> None:
    """The sign of zero counts, and the dtype."""
    with pytest.raises(AssertionError, match="a source"):
        assert_same_bits(wrong, torch.zeros(1), "a source")


def test_more_than_twice_the_error_is_refused() -> None:
    """The baseline's own error decides."""
    baseline = torch.full((2,), 0.1)
    assert_at_most_twice(torch.full((2,), 0.19), baseline, ZERO, 0.0)
    with pytest.raises(AssertionError, match="x what is allowed"):
        assert_at_most_twice(torch.full((2,), 0.21), baseline, ZERO, 0.0)
    with pytest.raises(AssertionError, match="x what is allowed"):
        assert_at_most_twice(torch.full((2,), math.nan), baseline, ZERO, 0.0)


def test_failure_can_be_read_and_pasted() -> None:
    """The bound's formula, the drawn numbers and a line of the judged code; the lines after "Paste:" repeat it all."""
    softmax = all_claims()["test_softmax_is_within_its_bound"]
    nearly = replace(softmax, references={"nearly": lambda x: model_softmax(x) * 1.1})
    recipe = Recipe((2, 3), torch.float16, seed=3, exponent=4, planted=((1, 256.0),))
    with pytest.raises(AssertionError) as caught:
        nearly.checked(**{softmax.argument: nearly.references["nearly"], "recipe": recipe})
    formula, inputs, judged, pasted = caught.value.__notes__
    assert "relative ((m - x_i) + log n + n + 8) u32 + u" in formula
    assert inputs.split()[1:4:2] == ["recipe:", "256,"]
    assert re.fullmatch(r"Judged: model/attention\.py:\d+, in softmax", judged)
    lines = [line.removeprefix("    ") for line in pasted.splitlines()[1:]]
    scope: dict[str, object] = {}
    exec("\n".join(lines[:-1]), scope)
    assert scope["claim"] is softmax
    with pytest.raises(AssertionError, match=re.escape(str(caught.value)[:40])):
        exec(lines[-1], {**scope, "claim": nearly})
