"""Why a case is not measured: what counts as out of memory, and which larger cases that speaks for."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.bench.outcomes import (
    Outcome,
    amount,
    outcome_of_error,
    outcome_of_report,
    why_too_large,
)
from perf_tests_suite.perf_tests.bench.workers import lines_not_compiled
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.device import CpuDevice, Device, is_out_of_memory
from perf_tests_suite.perf_tests.predict.counters import needed_bytes
from perf_tests_suite.perf_tests.records.record import OUTCOMES
from tests.support.example_cases import CPU, attention_case, language_model_case
from tests.support.launch import MODELS

ABOUT_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    *map(RuntimeError, (
        "std::bad_alloc",
        "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1154",  # on MIG
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN Frontend error: CUDNN_BACKEND_API_FAILED: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    )),
)  # fmt: skip
ABOUT_SOMETHING_ELSE = (
    *map(RuntimeError, (
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: unspecified launch failure",
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "CUDA error: an illegal memory access was encountered",
    )),
    ValueError("can't allocate memory"),
    AssertionError("3 of the logits are not finite"),
)  # fmt: skip


def test_only_an_error_that_names_memory_is_out_of_memory() -> None:
    failed: list[Exception] = []
    for allocate in (bytearray, lambda count: torch.empty(count, dtype=torch.uint8)):
        try:
            allocate(1 << 62)  # more than any address space holds, so that no setting of the kernel lets it succeed
        except (RuntimeError, MemoryError) as error:
            failed.append(error)
    assert len(failed) == 2
    assert [error for error in (*failed, *ABOUT_MEMORY) if not is_out_of_memory(error)] == []
    assert [error for error in ABOUT_SOMETHING_ELSE if is_out_of_memory(error)] == []


def of_size(size: str, context: int = 256, **changes: object) -> LanguageModelCase:
    return language_model_case(SIZES[size].at_context(context), size=size, **changes)


LARGER: dict[str, tuple[Case, Case]] = {
    "size": (of_size("medium"), of_size("small")),
    "context": (of_size("small", 512), of_size("small")),
    "batch": (of_size("small", batch_size=8), of_size("small")),
    "all": (of_size("large", 1024), of_size("small")),
    "sequence": (attention_case(sequence_length=1024), attention_case()),
}
NOT_LARGER: dict[str, tuple[Case, Case]] = {
    "another phase": (of_size("medium", phase="inference"), of_size("small")),
    "another execution": (of_size("medium", execution="compiled"), of_size("small")),
    "another model": (of_size("medium", model=f"{MODELS}:Healthy"), of_size("small")),
    "wider, with 32 layers after 48": (of_size("2.7B"), of_size("xl")),
    "a smaller context": (of_size("small", 128), of_size("small")),
    "a smaller size": (of_size("tiny", 1024), of_size("small")),
    "attention after a model": (attention_case(), of_size("tiny")),
    "a model after attention": (of_size("10B"), attention_case()),
}


@pytest.mark.parametrize("name", [*LARGER, *NOT_LARGER])
def test_only_a_case_that_is_larger_in_every_dimension_is_not_tried_after_one_that_did_not_fit(name: str) -> None:
    case, failed = {**LARGER, **NOT_LARGER}[name]
    for outcome in OUTCOMES:
        row = Outcome(outcome, "planted").as_row("perf_tests/test_forward.py::test_forward[failed]", failed, [])
        refusal: Any = why_too_large(case, 10**18, [row])
        if name in LARGER and outcome in ("out_of_memory", "would_not_fit"):
            assert (refusal.outcome, "test_forward[failed]" in refusal.reason) == ("would_not_fit", True)
            del row["precision"]  # as in a row from before an axis existed
            assert why_too_large(case, 10**18, [row]) is None
        else:
            assert refusal is None


def test_what_needs_more_than_the_budget_would_not_fit_and_names_both_amounts() -> None:
    case, budget = of_size("2.7B"), 3 * 2**30
    needed = needed_bytes(case)
    assert why_too_large(case, needed, []) is None
    assert why_too_large(case, needed - 1, []) is not None
    refusal: Any = why_too_large(case, budget, [])
    assert (refusal.needed_bytes, refusal.available_bytes) == (needed, budget)
    assert f"needs at least {amount(needed)}, and 3.0 GiB may be used" in refusal.reason


class FullDevice(CpuDevice):
    def memory_state(self) -> str:
        return "NVIDIA Example has 79.1 GiB: 0.1 GiB free, 79.0 GiB used"


TRITON = (
    "backend='inductor' raised:\nRuntimeError: No valid triton configs. OutOfResources: out of resource: shared "
    "memory, Required: 327680, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.\n\n"
    "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace"
)


def test_an_error_of_the_device_is_an_outcome_with_one_line_that_says_what_is_free_once() -> None:
    case = of_size("small")
    for error, device, outcome, reason in (
        (RuntimeError(TRITON), FullDevice, "unsupported", "Required: 327680, Hardware limit: 232448"),
        (RuntimeError("compiling failed\nCUDA error: out of memory"), FullDevice, "out_of_memory",
         "CUDA error: out of memory (NVIDIA Example has 79.1 GiB: 0.1 GiB free, 79.0 GiB used)"),
        (RuntimeError("CUDA out of memory. of which 0.2 GiB is free."), FullDevice, "out_of_memory", "0.2 GiB is free"),
        (RuntimeError("can't allocate memory\nin a long trace"), CpuDevice, "out_of_memory", "can't allocate memory"),
        (MemoryError(), CpuDevice, "out_of_memory", "MemoryError"),
    ):  # fmt: skip
        found: Any = outcome_of_error(error, case, device(CPU), 5)
        assert (found.outcome, found.reason.count("\n"), reason in found.reason) == (outcome, 0, True)
        assert found.reason.count("free") == reason.count("free")
        if outcome == "out_of_memory":
            assert (found.needed_bytes, found.available_bytes) == (needed_bytes(case), 5)
        row = found.as_row("some id", case, [0.1, 0.2])
        assert (row["id"], row["reason"], row["rounds"], row["size"]) == ("some id", found.reason, [0.1, 0.2], "small")


def test_an_error_of_the_case_itself_is_no_outcome_and_asks_nothing_of_the_device() -> None:
    device: Any = Mock(spec=Device)
    assert outcome_of_error(RuntimeError("CUDA error: unspecified launch failure"), of_size("small"), device, 5) is None
    device.memory_state.assert_not_called()


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="'lost' is not known"):
        Outcome("lost", "somewhere")


def test_an_error_of_the_compiler_names_the_users_last_line_and_the_explanation() -> None:
    message = (
        "torch._dynamo.exc.TorchRuntimeError: it failed\n  Explanation: shapes differ\n\nfrom user code:\n"
        '   File "a.py", line 3, in forward\n    x = f(x)\n  File "b.py", line 9, in f\n    return x @ y\n'
    )
    report = Mock(skipped=False, longrepr=Mock(reprcrash=Mock(message=message)))
    said = "torch._dynamo.exc.TorchRuntimeError: it failed; shapes differ; at b.py:9"
    assert outcome_of_report(report) == Outcome("error", said)
    report.longrepr.reprcrash.message = "ValueError: no\nmore"
    assert outcome_of_report(report) == Outcome("error", "ValueError: no")
    assert lines_not_compiled(message) == [("a.py", "3"), ("b.py", "9")]


def test_what_the_device_cannot_run_is_unsupported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    for case, words in {
        of_size("small", precision="tf32"): "tf32",
        of_size("small", attention="flex"): "flex_attention",
        attention_case(attention="flex"): "flex_attention",
        of_size("small", execution="compiled"): "'no-such-compiler'",
    }.items():
        assert words in str(why_unsupported(case, CPU))


def test_the_gate_lets_each_side_tell_what_it_supports_and_whether_it_is_honest() -> None:
    of_a_side = {kind for kind in OUTCOMES if Outcome(kind, "why").is_of_a_side}
    assert of_a_side == {"unsupported", "suspicious"}
