"""What a checkpoint recomputes is counted by the rules of the device that was asked for, as its forward pass is."""

from dataclasses import replace

import pytest

from model.sizes import SIZES
from perf_tests.cases import LanguageModelCase
from perf_tests.counting.case_counters import counters_of

CASE = LanguageModelCase(
    phase="backward", size="tiny", config=SIZES["tiny"].at_context(64), context_length=64, batch_size=2,
    precision="bf16", attention="naive", execution="eager", checkpoint="none", optimizer=None, device="cuda",
    model="ours",
)  # fmt: skip


def attention_kernels(case: LanguageModelCase) -> set[str]:
    return {kernel.name for kernel in counters_of(case).kernels if "attention" in kernel.name}


@pytest.mark.parametrize("checkpoint", ["attention", "block"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recomputed_pass_takes_the_kernel_that_the_first_took(precision: str, checkpoint: str) -> None:
    case = replace(CASE, precision=precision, attention="sdpa")
    forward = attention_kernels(replace(case, phase="forward"))
    assert forward
    assert attention_kernels(replace(case, checkpoint=checkpoint)) == attention_kernels(case) | forward


def test_a_recomputed_exponential_runs_in_float32() -> None:
    """Autocast on CUDA keeps exp in float32; the CPU's would halve the bytes."""

    def bytes_of_exponentials(case: LanguageModelCase) -> set[int]:
        return {kernel.bytes for kernel in counters_of(case).kernels if kernel.name == "aten.exp"}

    forward = bytes_of_exponentials(replace(CASE, phase="forward"))
    assert forward
    assert bytes_of_exponentials(replace(CASE, checkpoint="attention")) == forward
