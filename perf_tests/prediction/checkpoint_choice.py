"""Which activation checkpointing suits a training step on a machine: peak and time of each, and the best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perf_tests.cases import LanguageModelCase
from perf_tests.prediction.step import PredictedCase, TargetMachine, predict_case


@dataclass(frozen=True)
class CheckpointChoice:
    """One training step under several checkpoints, in the order asked for."""

    machine: TargetMachine
    steps: tuple[PredictedCase, ...]

    @property
    def smallest(self) -> PredictedCase:
        """The smallest peak; of equal ones the fastest step."""
        return min(self.steps, key=lambda step: (step.peak_bytes, step.time.seconds))

    @property
    def fastest_that_fits(self) -> PredictedCase | None:
        """Of equally fast ones the smallest peak."""
        fitting = [step for step in self.steps if step.fits]
        return min(fitting, key=lambda step: (step.time.seconds, step.peak_bytes), default=None)

    @property
    def fits(self) -> bool:
        return self.fastest_that_fits is not None


def choose_checkpoint(case: LanguageModelCase, checkpoints: Sequence[str], machine: TargetMachine) -> CheckpointChoice:
    """The full step of `case` under each of `checkpoints`; raises as `predict_step` does."""
    step = replace(case, phase="full_step")
    return CheckpointChoice(machine, tuple(predict_case(replace(step, checkpoint=one), machine) for one in checkpoints))


def worthwhile_checkpoints(num_layers: int) -> list[str]:
    """`none`, `attention`, `block` and, for each number of checkpoints, the fewest blocks that share one.

    Other block counts need no less: they keep as many inputs, recompute all blocks too and hold more of them at once.
    """
    shared = sorted({-(-num_layers // checkpoints) for checkpoints in range(1, num_layers + 1)})
    return ["none", "attention", "block", *(str(blocks) for blocks in shared if blocks > 1)]
