"""Equal bits: from run to run, in any batch, before any continuation; `pytest numerics_tests -k invariance -s` prints.

What must hold is asserted: the same call gives the same bits. Which sizes change them is printed, of this machine; with
--attention or --model of the user's own code.
"""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from perf_tests_suite.model.attention import AttentionFunction, naive_attention, sdpa_attention
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.numerics_tests.harness import tiny
from perf_tests_suite.numerics_tests.harness.checks import assert_same_bits
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.machine import environment, invariance
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.invariance import BATCHES, LENGTHS, Subject
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALL_THREADS = max(2, os.cpu_count() or 1)

EAGER: dict[str, AttentionFunction] = {"naive attention": naive_attention, "sdpa attention": sdpa_attention}


def check_repeats(subject: Subject, x: Tensor, threads: int, backward: bool) -> None:
    """Compare the same call twice at the largest size: the same bits."""
    with environment.threads(threads):
        first, second = (invariance.result(subject, x, backward) for _ in range(2))
    assert_same_bits(second, first, f"the same call twice, {threads} threads")


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_invariance_from_run_to_run(dtype: torch.dtype, deterministic: bool) -> None:
    """Forward and backward on all threads: no layer here is on PyTorch's list of nondeterministic operations.

    torch.use_deterministic_algorithms, documentation: the list, and what raises under it.
    """
    x = invariance.inputs(dtype)[:4, :64]
    torch.use_deterministic_algorithms(deterministic)
    for subject in invariance.subjects(dtype).values():
        for backward in (False, True):
            check_repeats(subject, x, ALL_THREADS, backward)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_map_of_invariance(dtype: torch.dtype) -> None:
    """Printed with -s. A norm and a softmax compute each row alone, so that no batch changes it."""
    print(invariance.LEGEND)
    x = invariance.inputs(dtype)
    for name, subject in invariance.subjects(dtype).items():
        for backward in (False, True):
            found = invariance.map_of(subject, x, backward)
            direction = "backward" if backward else "forward"
            print(f"{str(dtype)[6:]:9} {name:16} {direction:9} {invariance.written(found)}")
            if name in ("RMSNorm", "F.layer_norm", "softmax") and not backward:
                assert found["rows"] == found["batch"] == [list(BATCHES)]


@claim("attention", EAGER)  # a compiled one would compile for each size
def test_invariance_of_an_attention(attention: AttentionFunction) -> None:
    """The map of one implementation, the user's with --attention; twice the same call gives the same bits."""
    print(invariance.LEGEND)
    for dtype in DTYPES:
        x = invariance.inputs(dtype)

        def subject(x: Tensor) -> Tensor:
            return invariance.by_heads(attention, x)

        for backward in (False, True):
            check_repeats(subject, x[:4], ALL_THREADS, backward)
            found = invariance.map_of(subject, x, backward)
            print(f"{str(dtype)[6:]:9} {'backward' if backward else 'forward':9} {invariance.written(found)}")


SHAPE = ModelConfig(d_model=256, d_ff=512, num_layers=2, num_heads=4, vocab_size=256, context_length=max(LENGTHS))
Build = Callable[[], tuple[nn.Module, int]]
"""Make a model in evaluation mode; return it and the most tokens that it takes."""


def wide_model() -> tuple[nn.Module, int]:
    """Wide enough for kernels to divide their work; the user's configuration may take only fewer tokens."""
    try:
        return tiny.model(config=SHAPE), SHAPE.context_length
    except UserCodeError:
        return tiny.model(), tiny.CONFIG.context_length


@claim("build", {"model": wide_model}, of_any_model=True)
def test_invariance_of_the_model(build: Build) -> None:
    """The map of a whole forward pass, the user's with --model; and twice the same call gives the same bits."""
    made, longest = build()
    lengths = [length for length in LENGTHS if length <= longest]
    tokens = torch.randint(
        tiny.CONFIG.vocab_size, (max(BATCHES), lengths[-1]), generator=torch.Generator().manual_seed(0)
    )
    x = tokens.to(device())
    check_repeats(made, x[:8], ALL_THREADS, backward=False)
    found = invariance.map_of(made, x, backward=False, lengths=lengths)
    print(f"{invariance.LEGEND}\nfloat32   forward   {invariance.written(found)}")
