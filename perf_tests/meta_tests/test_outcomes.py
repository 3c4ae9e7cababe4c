"""Why a case is not measured: what counts as out of memory, and which larger cases that speaks for."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from model.sizes import SIZES
from perf_tests.bench.outcomes import Outcome, gib, is_out_of_memory, out_of_memory, why_too_large, why_unsupported
from perf_tests.cases import Case, LanguageModelCase
from perf_tests.counting.memory_estimate import needed_bytes
from perf_tests.meta_tests.example_cases import CPU, attention_case, language_model_case

AMPLE = 10**18
# More than any address space holds, so that no kernel setting makes the allocation succeed.
IMPOSSIBLE_BYTES = 1 << 62


@pytest.mark.parametrize("allocate", [partial(torch.empty, dtype=torch.uint8), bytearray], ids=["torch", "python"])
def test_a_failed_allocation_is_out_of_memory(allocate: Callable[[int], object]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as failure:
        allocate(IMPOSSIBLE_BYTES)
    assert is_out_of_memory(failure.value)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), RuntimeError("std::bad_alloc")],
    ids=["cuda", "bad_alloc"],
)
def test_an_error_that_names_memory_is_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("can't allocate memory"),
        AssertionError("3 of the logits are not finite"),
    ],
    ids=["shapes", "illegal_access", "value_error", "assertion"],
)
def test_another_error_is_not_out_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


def of_size(size: str, context: int = 256, **changes: object) -> LanguageModelCase:
    return language_model_case(SIZES[size].at_context(context), size=size, **changes)


def after(failed: Case, outcome: str = "out_of_memory") -> list[dict[str, object]]:
    return [Outcome(outcome, "no room").as_row("perf_tests/test_forward.py::test_forward[failed]", failed, [])]


@pytest.mark.parametrize("outcome", ["out_of_memory", "would_not_fit"])
@pytest.mark.parametrize(
    "larger",
    [of_size("medium"), of_size("small", 512), of_size("small", batch_size=8), of_size("large", 1024)],
    ids=["size", "context", "batch", "all"],
)
def test_a_larger_case_is_not_tried_after_one_that_did_not_fit(larger: LanguageModelCase, outcome: str) -> None:
    refusal = why_too_large(larger, AMPLE, after(of_size("small"), outcome))
    assert refusal is not None
    assert refusal.outcome == "would_not_fit"
    assert "test_forward[failed]" in refusal.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "inference"},
        {"precision": "bf16"},
        {"attention": "sdpa"},
        {"execution": "compiled"},
        {"checkpoint": "block"},
        {"model": "somebody:model"},
        {"device": "cuda"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_case_of_another_family_is_still_tried(changes: dict[str, object]) -> None:
    other = replace(of_size("medium"), **changes)  # type: ignore[arg-type]
    assert why_too_large(other, AMPLE, after(of_size("small"))) is None


def test_a_shape_that_is_not_larger_in_every_dimension_is_still_tried() -> None:
    """2.7B is wider than xl, but has 32 layers where xl has 48."""
    assert why_too_large(of_size("2.7B"), AMPLE, after(of_size("xl"))) is None


@pytest.mark.parametrize("smaller", [of_size("small", 128), of_size("tiny", 1024)], ids=["context", "size"])
def test_a_smaller_case_is_still_tried(smaller: LanguageModelCase) -> None:
    assert why_too_large(smaller, AMPLE, after(of_size("small"))) is None


@pytest.mark.parametrize("outcome", ["error", "unsupported", "impossible"])
def test_a_failure_that_is_not_about_memory_says_nothing_of_larger_cases(outcome: str) -> None:
    assert why_too_large(of_size("medium"), AMPLE, after(of_size("small"), outcome)) is None


def test_attention_alone_and_models_are_different_families() -> None:
    assert why_too_large(attention_case(), AMPLE, after(of_size("tiny"))) is None
    assert why_too_large(of_size("10B"), AMPLE, after(attention_case())) is None


def test_a_row_that_lacks_a_field_says_nothing() -> None:
    """As one written before an axis existed."""
    rows = after(of_size("small"))
    del rows[0]["checkpoint"]
    assert why_too_large(of_size("medium"), AMPLE, rows) is None


def test_a_longer_sequence_is_not_tried_after_one_that_did_not_fit() -> None:
    assert why_too_large(attention_case(sequence_length=1024), AMPLE, after(attention_case())) is not None


def test_what_would_not_fit_names_both_amounts() -> None:
    case, budget = of_size("2.7B"), 3 * 2**30
    refusal = why_too_large(case, budget, [])
    assert refusal is not None
    assert (refusal.needed_bytes, refusal.available_bytes) == (needed_bytes(case), budget)
    assert gib(needed_bytes(case)) in refusal.reason
    assert "3.0 GiB" in refusal.reason


def test_what_needs_exactly_the_budget_is_tried() -> None:
    case = of_size("small")
    assert why_too_large(case, needed_bytes(case), []) is None
    assert why_too_large(case, needed_bytes(case) - 1, []) is not None


def test_the_row_of_a_failure_keeps_its_first_line_and_its_rounds() -> None:
    outcome = out_of_memory(RuntimeError("can't allocate memory\nin a long trace"), of_size("small"), 5)
    row = outcome.as_row("some id", of_size("small"), [0.1, 0.2])
    assert (row["reason"], row["rounds"], row["size"]) == ("can't allocate memory", [0.1, 0.2], "small")


def test_an_error_without_words_is_named_by_its_kind() -> None:
    assert out_of_memory(MemoryError(), of_size("small"), 5).reason == "MemoryError"


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="'lost' is not known"):
        Outcome("lost", "somewhere")


@pytest.mark.parametrize(
    "case, words",
    [
        (of_size("small", precision="tf32"), "tf32"),
        (of_size("small", attention="flex"), "flex_attention"),
        (attention_case(attention="flex"), "flex_attention"),
        (of_size("small", model="somebody:model", attention="own", checkpoint="block"), "checkpoint block"),
    ],
    ids=["precision", "attention", "attention_alone", "checkpoint"],
)
def test_what_the_device_cannot_run_is_unsupported_with_its_reason(case: Case, words: str) -> None:
    outcome = why_unsupported(case, CPU)
    assert outcome is not None
    assert outcome.outcome == "unsupported"
    assert words in outcome.reason


def test_what_needs_a_compiler_is_unsupported_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    outcome = why_unsupported(of_size("small", execution="compiled"), CPU)
    assert outcome is not None
    assert "'no-such-compiler'" in outcome.reason
