"""The checkpoint that `predict` names as needing the least memory, beside the one with the smallest CPU peak.

A checkpoint keeps the state of the random generator, 5 kB on a CPU, which is not counted.
"""

import argparse
import gc
import sys
import time
from dataclasses import replace

import torch

from claims.predicted_cpu_peak import LIMIT, above_standing
from claims.verdict import conclude, conditions
from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.machine import physical_cores
from perf_tests.predict.counters import counters_of
from perf_tests.predict.request import this_machine
from perf_tests.predict.step import PredictedCase, TargetMachine, choose_checkpoint, worthwhile_checkpoints
from perf_tests.records.format import duration, table
from tests.support.allocator_peak import allocator_peak_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small-2layers")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--attention", default="naive", choices=("naive", "sdpa"))
    arguments = parser.parse_args()
    torch.set_num_threads(physical_cores())
    print(conditions(torch.get_num_threads()))
    config = SIZES[arguments.size].at_context(arguments.context)
    case = LanguageModelCase(
        phase="full_step", size=arguments.size, config=config, context_length=arguments.context, batch_size=4,
        precision="fp32", attention=arguments.attention, execution="eager", checkpoint="none", optimizer="loop",
        device="cpu", model="ours",
    )  # fmt: skip
    return compare(case, every_checkpoint(config), this_machine())


def every_checkpoint(config: ModelConfig) -> list[str]:
    """Including those left out as never better."""
    return ["none", "attention", "block", *(str(blocks) for blocks in range(2, config.num_layers + 1))]


def compare(case: LanguageModelCase, checkpoints: list[str], machine: TargetMachine) -> int:
    """Print each checkpoint's peak and time, predicted and measured; the exit code of both claims."""
    choice = choose_checkpoint(case, checkpoints, machine)
    measured = {one: measured_step(replace(case, checkpoint=one)) for one in checkpoints}
    rows = [row_of(step, *measured[checkpoint_of(step)]) for step in choice.steps]
    header = ("recomputed", "predicted peak", "allocator's", "predicted step", "measured step")
    print(f"a full step of {case.size} at context {case.context_length}; bytes beyond what stands before the step")
    print("\n".join(table(header, rows)))
    errors = [abs(peak_of(step) / measured[checkpoint_of(step)][0] - 1) for step in choice.steps]
    offered = choose_checkpoint(case, worthwhile_checkpoints(case.config.num_layers), machine)
    named, least = checkpoint_of(offered.smallest), min(peak for peak, _ in measured.values())
    print(f"named: {named}; the smallest peak of the allocator's: {least:,}")
    return max(
        conclude(f"each of {len(errors)} peaks is predicted within {LIMIT:.1%}", max(errors) <= LIMIT),
        conclude(
            f"no checkpoint has a smaller peak than the one named, {named}", measured[named][0] <= least * (1 + LIMIT)
        ),
    )


def checkpoint_of(step: PredictedCase) -> str:
    return str(step.case.identity()["checkpoint"])


def peak_of(step: PredictedCase) -> int:
    return above_standing(counters_of(step.case))


def row_of(step: PredictedCase, peak_bytes: int, seconds: float) -> tuple[str, ...]:
    predicted = f"{peak_of(step):,}"
    return checkpoint_of(step), predicted, f"{peak_bytes:,}", duration(step.time.seconds), duration(seconds)


def measured_step(case: LanguageModelCase) -> tuple[int, float]:
    """The allocator's peak of one step above its start, and the seconds of another step."""
    measured = _peak_and_seconds(case)
    gc.collect()  # a model in training is a cycle: without this two of them would stand side by side
    return measured


def _peak_and_seconds(case: LanguageModelCase) -> tuple[int, float]:
    torch.manual_seed(0)
    model = TransformerLM(case.config, ATTENTION[case.attention].build(), case.checkpoint)
    training = Training(model, PRECISIONS[case.precision], torch.device("cpu"), case.optimizer or "default")
    tokens_BT = torch.randint(case.config.vocab_size, (case.batch_size, case.context_length))
    training.create_optimizer_state()
    peak = allocator_peak_bytes(lambda: training.step(tokens_BT, tokens_BT))
    # The profiler slows its step down, and it was the first: the next one is the one to time.
    training.clear_gradients()
    start = time.perf_counter()
    training.step(tokens_BT, tokens_BT)
    return peak, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
