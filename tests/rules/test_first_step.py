"""The first step as the memory pass examines it: whatever ran before, each round makes the optimizer's state anew."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests import test_first_step as benchmark
from perf_tests_suite.perf_tests.bench.loop import Measure, Rounds
from perf_tests_suite.perf_tests.bench.models import Batch
from perf_tests_suite.perf_tests.predict.costs import tensors_in
from perf_tests_suite.perf_tests.user_code.given import UserOptimizer
from perf_tests_suite.perf_tests.user_code.optimizer import put_into
from tests.support.example_cases import CPU, build, language_model_case, random_tokens


@dataclass
class Seen(Measure):
    """Plays three rounds; keeps the bytes of gradients and optimizer state before and after each."""

    training: Training
    before: list[tuple[int, int]] = field(default_factory=list)
    after: list[tuple[int, int]] = field(default_factory=list)

    def run_rounds(self, rounds: Rounds) -> None:
        for _ in range(3):
            rounds.forget()
            self.before.append(self._held())
            rounds.run_round()
            self.after.append(self._held())

    def _held(self) -> tuple[int, int]:
        gradients = [weight.grad.nbytes for weight in self.training.model.parameters() if weight.grad is not None]
        return sum(gradients), sum(tensor.nbytes for tensor in tensors_in(self.training.optimizer.state.values()))


def seen(training: Training) -> Seen:
    tokens, measure = random_tokens(), Seen(training)
    case = language_model_case(phase="first_step", optimizer="loop", zero_grad=training.zero_grad)
    benchmark.test_first_step(case, training, Batch(tokens, tokens), measure)
    return measure


def a_training(**options: str) -> Training:
    return Training(build(), PRECISIONS["fp32"], CPU, **options)


def test_each_round_finds_neither_gradients_nor_moments_and_makes_both() -> None:
    measure = seen(training := a_training())
    weights = sum(weight.nbytes for weight in training.model.parameters())
    assert measure.before == [(0, 0)] * 3
    assert all(gradients == weights and state > 2 * weights for gradients, state in measure.after)
    cleared = seen(a_training(zero_grad="before-step")).after
    assert cleared == [(0, 0)] * 3, "without gradients an update makes no moments"


def test_state_that_an_optimizer_has_before_its_first_step_stays() -> None:
    """Adagrad makes its sums when it is built."""
    training = a_training()
    put_into(UserOptimizer("torch.optim:Adagrad"), training, training.model)
    measure = seen(training)
    ((gradients, sums),) = set(measure.before)
    assert gradients == 0 < sums
    assert {state for _, state in measure.after} == {sums}


def test_a_step_that_the_loss_scale_skips_is_not_taken_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients overflow twice; only a step that is taken makes state."""
    training = a_training()
    training.precision = replace(training.precision, scales_loss=True)
    scale, taken, step = [65536.0], [], training.step

    def overflowing(tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        if scale[0] > 16384:
            scale[0] /= 2
            return torch.zeros(())
        taken.append(1)
        return step(tokens_BT, targets_BT)

    monkeypatch.setattr(training, "loss_scale", lambda: scale[0])
    monkeypatch.setattr(training, "step", overflowing)
    measure = seen(training)
    assert len(taken) == 1 + 3
    assert measure.before == [(0, 0)] * 3
    assert all(state > 0 for _, state in measure.after)
