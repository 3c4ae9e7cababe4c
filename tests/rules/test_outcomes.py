"""Why a case is not measured: what counts as out of memory, and which larger cases that speaks for."""

from collections.abc import Callable
from functools import partial
from unittest.mock import Mock

import pytest
import torch

from model.sizes import SIZES
from perf_tests.bench.outcomes import Outcome, amount, outcome_of_error, why_too_large
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.device import CpuDevice, Device, is_out_of_memory
from perf_tests.predict.counters import needed_bytes
from tests.support.example_cases import CPU, attention_case, language_model_case
from tests.support.launch import MODELS

AMPLE = 10**18
# More than any address space holds, so that no kernel setting makes the allocation succeed.
IMPOSSIBLE_BYTES = 1 << 62

ALLOCATOR = '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1154, please report a bug to PyTorch.'
CUBLAS = "CUDA error: {} when calling `cublasCreate(handle)`"
CUDNN_FRONTEND = "cuDNN Frontend error: CUDNN_BACKEND_API_FAILED: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
TRITON = (
    "backend='inductor' raised:\nRuntimeError: No valid triton configs. OutOfResources: out of resource: shared "
    "memory, Required: 327680, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.\n\n"
    "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace"
)


class FullDevice(CpuDevice):
    def memory_in_words(self) -> str:
        return "NVIDIA Example has 79.1 GiB: 0.1 GiB free, 79.0 GiB used"


@pytest.mark.parametrize("allocate", [partial(torch.empty, dtype=torch.uint8), bytearray], ids=["torch", "python"])
def test_a_failed_allocation_is_out_of_memory(allocate: Callable[[int], object]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as failure:
        allocate(IMPOSSIBLE_BYTES)
    assert is_out_of_memory(failure.value)


@pytest.mark.parametrize(
    "error, is_out",
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True, id="cuda"),
        pytest.param(RuntimeError("std::bad_alloc"), True, id="bad_alloc"),
        pytest.param(RuntimeError(f"NVML_SUCCESS == r INTERNAL ASSERT FAILED at {ALLOCATOR}"), True, id="mig"),
        pytest.param(
            RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"), True, id="runtime"
        ),
        pytest.param(RuntimeError("CUDA driver error: out of memory"), True, id="driver"),
        pytest.param(RuntimeError("Triton Error [CUDA]: out of memory"), True, id="triton"),
        pytest.param(RuntimeError(CUBLAS.format("CUBLAS_STATUS_ALLOC_FAILED")), True, id="cublas"),
        pytest.param(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True, id="cudnn"),
        pytest.param(RuntimeError(CUDNN_FRONTEND), True, id="cudnn frontend"),
        pytest.param(RuntimeError(CUBLAS.format("CUBLAS_STATUS_EXECUTION_FAILED")), False, id="cublas fails"),
        pytest.param(RuntimeError("CUDA error: unspecified launch failure"), False, id="launch failure"),
        pytest.param(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False, id="shapes"),
        pytest.param(RuntimeError("CUDA error: an illegal memory access was encountered"), False, id="illegal access"),
        pytest.param(ValueError("can't allocate memory"), False, id="value error"),
        pytest.param(AssertionError("3 of the logits are not finite"), False, id="assertion"),
    ],
)
def test_only_an_error_that_names_memory_is_out_of_memory(error: Exception, is_out: bool) -> None:
    assert is_out_of_memory(error) == is_out


def of_size(size: str, context: int = 256, **changes: object) -> LanguageModelCase:
    return language_model_case(SIZES[size].at_context(context), size=size, **changes)


def after(failed: Case, outcome: str = "out_of_memory") -> list[dict[str, object]]:
    return [Outcome(outcome, "no room").as_row("perf_tests/test_forward.py::test_forward[failed]", failed, [])]


@pytest.mark.parametrize("outcome", ["out_of_memory", "would_not_fit"])
@pytest.mark.parametrize(
    "larger, failed",
    [
        pytest.param(of_size("medium"), of_size("small"), id="size"),
        pytest.param(of_size("small", 512), of_size("small"), id="context"),
        pytest.param(of_size("small", batch_size=8), of_size("small"), id="batch"),
        pytest.param(of_size("large", 1024), of_size("small"), id="all"),
        pytest.param(attention_case(sequence_length=1024), attention_case(), id="sequence"),
    ],
)
def test_a_larger_case_is_not_tried_after_one_that_did_not_fit(larger: Case, failed: Case, outcome: str) -> None:
    refusal = why_too_large(larger, AMPLE, after(failed, outcome))
    assert refusal is not None
    assert refusal.outcome == "would_not_fit"
    assert "test_forward[failed]" in refusal.reason


STILL_TRIED: dict[str, tuple[Case, Case]] = {
    "another phase": (of_size("medium", phase="inference"), of_size("small")),
    "another precision": (of_size("medium", precision="bf16"), of_size("small")),
    "another attention": (of_size("medium", attention="sdpa"), of_size("small")),
    "another execution": (of_size("medium", execution="compiled"), of_size("small")),
    "another checkpoint": (of_size("medium", checkpoint="block"), of_size("small")),
    "another model": (of_size("medium", model=f"{MODELS}:Healthy"), of_size("small")),
    "another device": (of_size("medium", device="cuda"), of_size("small")),
    "wider, with 32 layers after 48": (of_size("2.7B"), of_size("xl")),
    "a smaller context": (of_size("small", 128), of_size("small")),
    "a smaller size": (of_size("tiny", 1024), of_size("small")),
    "attention after a model": (attention_case(), of_size("tiny")),
    "a model after attention": (of_size("10B"), attention_case()),
}


@pytest.mark.parametrize("case, failed", STILL_TRIED.values(), ids=STILL_TRIED)
def test_a_case_that_is_not_larger_in_every_dimension_of_one_family_is_still_tried(case: Case, failed: Case) -> None:
    assert why_too_large(case, AMPLE, after(failed)) is None


@pytest.mark.parametrize("outcome", ["error", "unsupported", "impossible"])
def test_a_failure_that_is_not_about_memory_says_nothing_of_larger_cases(outcome: str) -> None:
    assert why_too_large(of_size("medium"), AMPLE, after(of_size("small"), outcome)) is None


def test_a_row_that_lacks_a_field_says_nothing() -> None:
    """As one written before an axis existed."""
    rows = after(of_size("small"))
    del rows[0]["checkpoint"]
    assert why_too_large(of_size("medium"), AMPLE, rows) is None


def test_what_would_not_fit_names_both_amounts() -> None:
    case, budget = of_size("2.7B"), 3 * 2**30
    refusal = why_too_large(case, budget, [])
    assert refusal is not None
    assert (refusal.needed_bytes, refusal.available_bytes) == (needed_bytes(case), budget)
    assert amount(needed_bytes(case)) in refusal.reason
    assert "3.0 GiB" in refusal.reason


def test_what_needs_exactly_the_budget_is_tried() -> None:
    case = of_size("small")
    assert why_too_large(case, needed_bytes(case), []) is None
    assert why_too_large(case, needed_bytes(case) - 1, []) is not None


def meant_by(error: Exception) -> Outcome | None:
    return outcome_of_error(error, of_size("small"), FullDevice(CPU), 5)


def test_a_kernel_that_needs_more_than_the_gpu_has_is_unsupported_with_both_amounts() -> None:
    outcome = meant_by(RuntimeError(TRITON))
    assert outcome is not None
    assert outcome.outcome == "unsupported"
    assert "Required: 327680, Hardware limit: 232448" in outcome.reason


def test_an_error_of_the_case_itself_is_no_outcome_and_asks_nothing_of_the_device() -> None:
    device = Mock(spec=Device)
    assert outcome_of_error(RuntimeError("CUDA error: unspecified launch failure"), of_size("small"), device, 5) is None
    device.memory_in_words.assert_not_called()


@pytest.mark.parametrize(
    "words, told",
    [
        ("CUDA error: out of memory", "0.1 GiB free"),
        ("CUDA out of memory. of which 0.2 GiB is free.", "0.2 GiB is free"),
    ],
)
def test_a_gpu_that_is_full_is_told_with_what_is_free_once(words: str, told: str) -> None:
    outcome = meant_by(RuntimeError(words))
    assert outcome is not None
    assert (outcome.outcome, outcome.reason.count("free")) == ("out_of_memory", 1)
    assert told in outcome.reason


def test_the_row_of_a_failure_keeps_its_first_line_and_its_rounds() -> None:
    outcome = outcome_of_error(
        RuntimeError("can't allocate memory\nin a long trace"), of_size("small"), CpuDevice(CPU), 5
    )
    assert outcome is not None
    row = outcome.as_row("some id", of_size("small"), [0.1, 0.2])
    assert (row["reason"], row["rounds"], row["size"]) == ("can't allocate memory", [0.1, 0.2], "small")


def test_an_error_without_words_is_named_by_its_kind() -> None:
    outcome = outcome_of_error(MemoryError(), of_size("small"), CpuDevice(CPU), 5)
    assert outcome is not None
    assert outcome.reason == "MemoryError"


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="'lost' is not known"):
        Outcome("lost", "somewhere")


@pytest.mark.parametrize(
    "case, words",
    [
        (of_size("small", precision="tf32"), "tf32"),
        (of_size("small", attention="flex"), "flex_attention"),
        (attention_case(attention="flex"), "flex_attention"),
    ],
    ids=["precision", "attention", "attention_alone"],
)
def test_what_the_device_cannot_run_is_unsupported_with_its_reason(case: Case, words: str) -> None:
    assert words in str(case.why_unsupported(CPU))


def test_what_needs_a_compiler_is_unsupported_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "'no-such-compiler'" in str(of_size("small", execution="compiled").why_unsupported(CPU))
