"""What the numerics tests are made of: checks, claims, planted faults, flags, the report on mutants."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, register_random
from hypothesis import strategies as st
from torch import Tensor

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.attention import softmax as model_softmax
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.regions import regions_opened_by
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.model.training import cross_entropy
from perf_tests_suite.model.transformer import RMSNorm, blocks_per_checkpoint
from perf_tests_suite.numerics_tests.harness.checks import assert_at_most_twice, assert_same_bits, assert_within
from perf_tests_suite.numerics_tests.harness.claims import REFUSALS, Claim, all_claims
from perf_tests_suite.numerics_tests.harness.exercises import model_rms_norm
from perf_tests_suite.numerics_tests.harness.planting import Planted, in_force, planted
from perf_tests_suite.numerics_tests.harness.strategies import TORCH_GENERATOR, Recipe
from perf_tests_suite.numerics_tests.machine import environment
from perf_tests_suite.numerics_tests.machine.cuda_autocast import op_lists
from perf_tests_suite.numerics_tests.test_feed_forward import model_swiglu
from perf_tests_suite.numerics_tests.test_precisions import model_linear
from perf_tests_suite.numerics_tests.test_rotary import model_rotary
from tests.kill_matrix import __main__ as kill_matrix
from tests.mutants import Change, report

ZERO = torch.zeros(2, dtype=torch.float64)


@pytest.fixture(autouse=True)
def flags_are_put_back() -> Iterator[None]:
    with environment.pinned():
        yield


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


def nearly_softmax(x: Tensor) -> Tensor:
    return model_softmax(x) * 1.1


def test_failure_can_be_read_and_pasted() -> None:
    """The bound's formula, the drawn numbers and a line of the judged code; the lines after "Paste:" repeat it all."""
    softmax = all_claims()["test_softmax_is_within_its_bound"]
    nearly = replace(softmax, references={"nearly": nearly_softmax})
    recipe = Recipe((2, 3), torch.float16, seed=3, exponent=4, planted=((1, 256.0),))
    with pytest.raises(AssertionError) as caught:
        nearly.checked(**{softmax.argument: nearly.references["nearly"], "recipe": recipe})
    formula, inputs, judged, pasted = caught.value.__notes__
    assert "relative ((m - x_i) + log n + n + 8) u32 + u" in formula
    assert inputs.split()[1:4:2] == ["recipe:", "256,"]
    assert re.fullmatch(r"Judged: tests/rules/test_numerics_harness\.py:\d+, in nearly_softmax", judged)
    lines = [line.removeprefix("    ") for line in pasted.splitlines()[1:]]
    scope: dict[str, object] = {}
    exec("\n".join(lines[:-1]), scope)
    assert scope["claim"] is softmax
    with pytest.raises(AssertionError, match=re.escape(str(caught.value)[:40])):
        exec(lines[-1], {**scope, "claim": nearly})


def test_nothing_is_reported_where_nobody_changed_anything() -> None:
    """What PyTorch itself turns on, and these tests turn off, is not reported either."""
    flags = [flag for flag in environment.FLAGS if flag.torch_default is not None]
    for flag in flags:
        flag.write(flag.torch_default)
    assert environment.changed({}) == []


def test_changed_matmul_precision_is_named_and_reset() -> None:
    """What the user's environment sets is reported, pinned inside and restored outside."""
    torch.set_float32_matmul_precision("medium")
    assert any("float32_matmul_precision is 'medium'" in sentence for sentence in environment.changed({}))
    with environment.pinned():
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "medium"


def test_precision_set_for_one_backend_is_named_and_reset() -> None:
    """torch's getter raises after that; here it is reported as one more change."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    matmul.fp32_precision = "bf16"
    try:
        assert any("MixedPrecisions(mkldnn='bf16'" in sentence for sentence in environment.changed({}))
        with environment.pinned():
            assert torch.get_float32_matmul_precision() == "highest"
        assert matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_variable_that_forces_tf32_is_named() -> None:
    """A variable that only cuBLAS reads cannot be reset here, so it is reported."""
    sentences = environment.changed({"NVIDIA_TF32_OVERRIDE": "1"})
    assert sentences == [
        "NVIDIA_TF32_OVERRIDE=1 is set: it forces TF32 inside cuBLAS and cuDNN, out of reach of PyTorch; unset it."
    ]


def test_torch_draws_the_same_in_every_example() -> None:
    """Hypothesis seeds Python and NumPy by itself; torch's generator is registered with it and starts alike too."""
    register_random(TORCH_GENERATOR)
    drawn = set()

    @given(st.integers())
    def example(number: int) -> None:
        drawn.add(torch.rand(()).item())

    example()
    assert len(drawn) == 1


DIFF = """--- model/training.py
+++ model/training.py
@@ -1,4 +1,3 @@
 def step():
-    a = f(
-        b, c)
+    a = f(b)
"""
KNOWN = Change.of(DIFF)
CHANGES = {"known": KNOWN, "new": Change("x + 1", "x - 1")}


def statuses(killed: int, **others: str) -> dict[str, str]:
    return {f"killed_{number}": "killed" for number in range(killed)} | others


EQUIVALENT = {"c is 0": (KNOWN,)}


def test_a_change_is_its_lines_without_their_layout() -> None:
    assert Change("a = f( b, c)", "a = f(b)") == KNOWN


@pytest.mark.parametrize("word", ["survived", "no tests", "suspicious"])
@pytest.mark.parametrize("killed, is_good", [(98, True), (31, False)])
def test_few_may_survive_unexplained(word: str, killed: int, is_good: bool) -> None:
    """One of a hundred passes, one of 33 does not; the equivalent one does not count."""
    lines, passes = report(statuses(killed, known="survived", new=word), CHANGES.__getitem__, EQUIVALENT)
    assert passes == is_good
    assert f"  new ({word})\n    - x + 1\n    + x - 1" in lines
    assert "     1 equivalent: c is 0" in lines


def test_an_explanation_without_a_survivor_is_refused() -> None:
    lines, passes = report(statuses(9), CHANGES.__getitem__, EQUIVALENT)
    assert not passes
    assert "take it out of EQUIVALENT" in lines[-1]


def test_no_mutants_prove_nothing() -> None:
    assert not report({}, CHANGES.__getitem__, {})[1]


PLACES: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "a function that others have imported": ("attention.softmax", lambda: model_softmax(torch.zeros(1, 2))),
    "a method": ("transformer.RMSNorm.forward", lambda: RMSNorm(2)(torch.ones(1, 2))),
    "a property": ("sizes.ModelConfig.head_dim", lambda: torch.tensor(SIZES["tiny"].head_dim)),
    "a function with a default": (
        "transformer.blocks_per_checkpoint",
        lambda: torch.tensor(blocks_per_checkpoint("2")),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_is_planted_takes_the_place_for_everybody_and_is_gone_afterwards(name: str) -> None:
    """The wrong function has the real one to call; unchanged, it changes nothing."""
    place, call = PLACES[name]
    right = call()
    for wrong, expected in ((lambda real: real, right), (doubled, 2 * right)):
        with suppress(KeyError), planted(Planted("twice", "x", place, wrong)):
            assert in_force() == "twice"
            assert torch.equal(call(), expected)
            raise KeyError
        assert in_force() == ""
        assert torch.equal(call(), right)


def doubled(real: Any) -> Any:
    if isinstance(real, property):
        return property(lambda self: 2 * (real.fget or abs)(self))
    return lambda *given: 2 * real(*given)


def test_an_entry_of_a_table_and_a_generator_are_places_too() -> None:
    with planted(Planted("none", "x", "precision.PRECISIONS.bf16", lambda known: PRECISIONS["fp32"])):
        assert PRECISIONS["bf16"].autocast_dtype is None
    assert PRECISIONS["bf16"].autocast_dtype == torch.bfloat16
    seven = Planted("seven", "x", "regions.regions_opened_by", lambda real: lambda opener: iter([7]))
    with planted(seven), regions_opened_by(lambda name: nullcontext()) as given:
        assert given == 7


@pytest.mark.parametrize("place", ["attention.gone", "transformer.Block.gone", "precision.PRECISIONS.fp64"])
def test_a_place_that_is_gone_is_named_as_not_planted(place: str) -> None:
    fault = Planted("a fault", "softmax_is_within_its_bound", place, lambda real: real)
    end, words = kill_matrix.judged(fault)
    assert end == "NOT PLANTED"
    assert repr(place.rpartition(".")[2]) in words


def test_a_place_that_the_claim_never_calls_is_named_as_not_planted() -> None:
    fault = Planted("a fault", "softmax_is_within_its_bound", "training.cross_entropy", lambda real: real)
    assert kill_matrix.judged(fault) == ("NOT PLANTED", "softmax_is_within_its_bound calls no training.cross_entropy.")
    assert kill_matrix.judged_honest(fault)[0] == "NOT PLANTED"


def test_a_harmless_fault_survives_and_an_accident_is_no_catch() -> None:
    def of(wrong: Any) -> str:
        return kill_matrix.judged(Planted("a fault", "softmax_is_within_its_bound", "attention.softmax", wrong))[0]

    assert of(lambda real: real) == "SURVIVES"
    assert of(lambda real: lambda x: real(2 * x)) == "caught"
    assert of(lambda real: lambda: 0) == "ACCIDENT"
    honest = Planted(
        "torch's", "softmax_is_within_its_bound", "attention.softmax", lambda real: lambda x: x.softmax(-1)
    )
    assert kill_matrix.judged_honest(honest)[0] == "accepted"
    assert kill_matrix.judged_honest(replace(honest, wrong=lambda real: torch.exp))[0] == "REFUSED"


def test_header_without_the_lists_is_refused() -> None:
    """A header with another layout raises one sentence; empty lists would pass every check."""
    with pytest.raises(ValueError, match="AT_FORALL_LOWER_PRECISION_FP"):
        op_lists("#define SOMETHING_ELSE(_) _(linear)")


def test_every_claim_has_a_fault_and_every_fault_a_claim_and_a_name_of_its_own() -> None:
    assert kill_matrix.unguarded(kill_matrix.FAULTS) == []
    fault = Planted("norm by a division", "nothing", "attention.softmax", lambda real: real)
    first, *_, unknown, twice = kill_matrix.unguarded([fault])
    assert first.endswith("no fault is planted for it.")
    assert (unknown, twice) == ("test_nothing: no claim is called so.", "norm by a division: two faults are called so.")


AREAS = {
    "attention": ("attention.naive_attention", naive_attention), "softmax": ("attention.softmax", model_softmax),
    "rms_norm": ("transformer.RMSNorm.forward", model_rms_norm), "loss": ("training.cross_entropy", cross_entropy),
    "rotate": ("transformer.RotaryEmbedding.forward", model_rotary),
    "feed_forward": ("transformer.SwiGLU.forward", model_swiglu),
    "product": ("transformer.Linear.forward", model_linear),
}  # fmt: skip
"""Functions of the model by the argument of the claims that judge them."""
OF_BITS = {"past_does_not_depend_on_the_future", "loss_of_broken_logits_is_no_number", "invariance_of_an_attention"}
"""Claims without float64: results are compared bit for bit, or must be no numbers."""


def judges_the_model(claim: Claim) -> bool:
    known = claim.references or {"naive": naive_attention}
    return claim.argument in AREAS and AREAS[claim.argument][1] in known.values()


JUDGES = {name.removeprefix("test_"): claim for name, claim in all_claims().items() if judges_the_model(claim)}


@pytest.mark.parametrize("name", sorted(JUDGES.keys() - OF_BITS))
def test_no_claim_compares_a_function_with_itself(name: str) -> None:
    """With everything that the model's function gives too large by a sixteenth, wherever it is called, each claim
    that has a yardstick fails: the yardstick does not come from the model.
    """
    place, judged = AREAS[JUDGES[name].argument]
    too_large = Planted("too large", name, place, lambda real: lambda *given: real(*given) * (1 + 2**-4))
    with planted(too_large), pytest.raises(REFUSALS):
        JUDGES[name].judge(judged)


def test_a_value_error_inside_a_claim_is_told_as_an_assertion_is() -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError("no kernel for this width")

    softmax = all_claims()["test_softmax_is_within_its_bound"]
    with pytest.raises(ValueError, match="no kernel") as caught:
        softmax.checked(softmax=raises, recipe=Recipe((1, 2), torch.float32))
    assert caught.value.__notes__[-1].startswith("Paste:")
