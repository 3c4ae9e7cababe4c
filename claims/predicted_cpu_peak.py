"""The peak that is predicted for a CPU, phase by phase, and the one that its allocator really had."""

import argparse
import sys
from collections.abc import Callable

import torch

from claims.verdict import conclude, conditions
from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.machine import physical_cores
from perf_tests.phases import FIRST_STEP, FULL_STEP
from perf_tests.predict.counters import Counters, counters_of
from perf_tests.predict.counting import INPUTS, OPTIMIZER_STATE, PARAMETERS
from tests.support.allocator_peak import allocator_peak_bytes

LIMIT = 0.001
BATCH_SIZE = 4
OPTIMIZER = "loop"
PHASES = ("inference", "forward", "backward", "forward_backward", FIRST_STEP, FULL_STEP)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--attention", nargs="+", default=["naive", "sdpa"])
    parser.add_argument("--phase", nargs="+", default=list(PHASES), choices=PHASES)
    arguments = parser.parse_args()
    torch.set_num_threads(physical_cores())
    print(conditions(torch.get_num_threads()))
    print(f"{'':40}{'predicted':>16}{'allocator':>16}   bytes beyond what stands before the round")
    errors = [
        error
        for context in arguments.context
        for precision in arguments.precision
        for attention in arguments.attention
        for error in errors_of(arguments.size, context, precision, attention, arguments.phase)
    ]
    claim = f"on a CPU the predicted peak is the allocator's within {LIMIT:.1%} ({len(errors)} peaks)"
    return conclude(claim, max(errors) <= LIMIT)


def errors_of(size: str, context: int, precision: str, attention: str, phases: list[str]) -> list[float]:
    config = SIZES[size].at_context(context)
    torch.manual_seed(0)
    model = TransformerLM(config, ATTENTION[attention].build())
    training = Training(model, PRECISIONS[precision], torch.device("cpu"), OPTIMIZER)
    tokens_BT = torch.randint(config.vocab_size, (BATCH_SIZE, context))
    errors = []
    plays = rounds(training, tokens_BT)
    for phase in phases:
        if phase == FULL_STEP:
            training.create_optimizer_state()
        case = LanguageModelCase(
            phase, size, config, context, BATCH_SIZE, precision, attention, "eager", "none", OPTIMIZER, "cpu", "ours"
        )
        predicted, measured = above_standing(counters_of(case)), allocator_peak_bytes(plays[phase])
        training.release()
        errors.append(abs(predicted / measured - 1))
        name = f"{phase} {size}-ctx{context}-{precision}-{attention}"
        print(f"{name:40}{predicted:16,}{measured:16,}  {errors[-1]:.4%}")
    return errors


def rounds(training: Training, tokens_BT: torch.Tensor) -> dict[str, Callable[[], object]]:
    """A round of each phase, its set-up included."""

    def inference() -> None:
        with torch.no_grad():
            training.forward(tokens_BT)

    def backward() -> None:
        training.backward(training.loss(training.forward(tokens_BT), tokens_BT))

    def forward_backward() -> None:
        logits_BTV = training.forward(tokens_BT)
        training.backward(training.loss(logits_BTV, tokens_BT))

    plays: tuple[Callable[[], object], ...] = (
        inference,
        lambda: training.forward(tokens_BT),
        backward,
        forward_backward,
        lambda: training.step(tokens_BT, tokens_BT),
        lambda: training.step(tokens_BT, tokens_BT),
    )
    return dict(zip(PHASES, plays, strict=True))


def above_standing(counters: Counters) -> int:
    """The peak without weights, inputs and optimizer state, which the profiler does not see either."""
    standing = counters.parts[0].bytes_by_category
    return counters.peak_bytes - sum(standing.get(category, 0) for category in (PARAMETERS, INPUTS, OPTIMIZER_STATE))


if __name__ == "__main__":
    sys.exit(main())
