"""Peaks as the CPU allocator sees them, which predictions are held to: of one call, and of a round of each phase."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.passes.memory_watch import allocator_trace
from perf_tests_suite.perf_tests.phases import FIRST_STEP, FULL_STEP
from perf_tests_suite.perf_tests.predict.counters import Counters, counters_of
from perf_tests_suite.perf_tests.predict.parts import INPUTS, OPTIMIZER_STATE, PARAMETERS
from tests.support import traced_rounds

PEAK_LIMIT = 0.001
"""Share by which a predicted peak may be off: tensors of a few bytes are not counted."""

PHASES = ("inference", "forward", "backward", "forward_backward", FIRST_STEP, FULL_STEP)


def allocator_peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes handed out at any moment of `function()`, beyond those handed out before it.

    An earlier block that is freed inside is not subtracted: the allocator does not know its size. Memory that a library
    allocates for itself, as a matrix product's packing buffers, does not pass through the allocator.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    return max(accumulate((event.bytes for event in allocator_trace(profiler).events), initial=0))


def rounds(training: Training, tokens_BT: torch.Tensor) -> dict[str, Callable[[], object]]:
    """A round of each phase, its set-up included."""
    phases = traced_rounds.rounds(training, tokens_BT)

    def whole(target: Callable[..., object], setup: Callable[[], tuple[object, ...] | None]) -> Callable[[], object]:
        return lambda: target(*(setup() or ()))

    return {phase: whole(*phases[FULL_STEP if phase == FIRST_STEP else phase]) for phase in PHASES}


def above_standing(counters: Counters) -> int:
    """The peak without weights, inputs and optimizer state, which the profiler does not see either."""
    standing = counters.parts[0].bytes_by_category
    return counters.peak_bytes - sum(standing.get(category, 0) for category in (PARAMETERS, INPUTS, OPTIMIZER_STATE))


def step_peaks(case: LanguageModelCase) -> tuple[int, int]:
    """Peak bytes of a full step of a case, predicted and the allocator's, beyond what stands before it."""
    torch.manual_seed(0)
    model = TransformerLM(case.config, ATTENTION[case.attention].build(), case.checkpoint)
    training = Training(model, PRECISIONS[case.precision], torch.device("cpu"), case.optimizer or "default")
    tokens_BT = torch.randint(case.config.vocab_size, (case.batch_size, case.context_length))
    training.create_optimizer_state()
    predicted = above_standing(counters_of(replace(case, phase=FULL_STEP)))
    return predicted, allocator_peak_bytes(rounds(training, tokens_BT)[FULL_STEP])
