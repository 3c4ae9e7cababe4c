"""What a training loop chooses beside its model: how AdamW runs, when gradients are cleared, what it still holds."""

from dataclasses import dataclass, replace

from perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests.prediction.step import PredictedCase, TargetMachine, predict_case

OPTIMIZERS = ("loop", "foreach", "fused")

CLEARED_EARLY = "gradients are cleared before the forward pass (--zero-grad before-forward)"
FREED_EARLY = "the loop frees the outputs of the former pass (no --hold former-pass)"


@dataclass(frozen=True)
class Condition:
    """What the loop must do for the step to fit."""

    words: str
    otherwise: PredictedCase
    """The step in the other order; it fits where the one asked for does not."""


@dataclass(frozen=True)
class ContextPrediction:
    """One training step at several context lengths, in the order asked for."""

    machine: TargetMachine
    steps: tuple[PredictedCase, ...]
    forwards: tuple[PredictedCase, ...]
    """The forward pass of each, as training pays it."""
    conditions: tuple[tuple[Condition, ...], ...]

    @property
    def fits(self) -> bool:
        return all(step.fits for step in self.steps)


def optimizer_variants(case: LanguageModelCase, machine: TargetMachine) -> dict[str, PredictedCase]:
    """The step of `case` under each implementation of AdamW; none where the optimizer is the user's own."""
    if case.own_optimizer is not None:
        return {}
    return {name: predict_case(replace(case, optimizer=name), machine) for name in OPTIMIZERS}


def conditions_of(step: PredictedCase, machine: TargetMachine) -> tuple[Condition, ...]:
    """What decides whether the step fits: orders and holders for which the verdict is another."""
    case = step.case
    assert isinstance(case, LanguageModelCase)
    other_order = "after-forward" if case.zero_grad == DEFAULT_ZERO_GRAD else DEFAULT_ZERO_GRAD
    others = {
        CLEARED_EARLY: replace(case, zero_grad=other_order),
        FREED_EARLY: replace(case, holds_former_pass=not case.holds_former_pass),
    }
    if case.zero_grad == "before-step":  # nothing is updated, so there is nothing to compare with
        del others[CLEARED_EARLY]
    tried = [Condition(words, predict_case(other, machine)) for words, other in others.items()]
    return tuple(condition for condition in tried if condition.otherwise.fits != step.fits)


def predict_contexts(cases: list[LanguageModelCase], machine: TargetMachine) -> ContextPrediction:
    """The full step of each of `cases`; raises as `predict_step` does."""
    steps = tuple(predict_case(replace(case, phase="full_step"), machine) for case in cases)
    forwards = tuple(predict_case(replace(case, phase="forward"), machine) for case in cases)
    return ContextPrediction(machine, steps, forwards, tuple(conditions_of(step, machine) for step in steps))
