"""A whole training step on fake tensors with all its layers, in the order in which it happens.

The counters of a case come from its parts, each counted once; this is the step in one piece, slower and without any
such economy.
"""

import torch

from model.training import optimizer_that_runs
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.predict.counting import GRADIENTS, INPUTS, OPTIMIZER_STATE, PARAMETERS, PartCounters
from perf_tests.predict.fake_run import fake_training, gradients_of, playing


def played_step(case: LanguageModelCase, zero_grad: str, first_step: bool) -> dict[str, PartCounters]:
    """The counters of each part of the step of `case`, by the rules of its device type."""
    optimizer = optimizer_that_runs(case.optimizer or "default", torch.device(case.device))
    with playing(case.device, case.precision) as counting:
        training = fake_training(case.config, case.attention, case.checkpoint, case.precision, optimizer, case.device)
        counting.claim(PARAMETERS)
        tokens_BT, targets_BT = (torch.zeros(case.batch_size, case.context_length, dtype=torch.int64) for _ in range(2))
        counting.claim(INPUTS)
        if not first_step:
            training.step(tokens_BT, targets_BT)
            counting.register(gradients_of(training), GRADIENTS)
        if zero_grad == "before-step":
            training.release()  # such a step never made any state
        counting.claim(OPTIMIZER_STATE)
        if zero_grad == "before-forward":
            training.clear_gradients()
        with counting.part("forward"):
            logits_BTV = training.forward(tokens_BT)
        with counting.part("loss"):
            loss = training.loss(logits_BTV, targets_BT)
        if zero_grad == "after-forward":
            training.clear_gradients()
        with counting.part("backward"):
            training.backward(loss)
        counting.register(gradients_of(training), GRADIENTS)
        if zero_grad == "before-step":
            training.clear_gradients()
        with counting.part("optimizer"):
            training.update()
        del logits_BTV, loss
        counting.claim(OPTIMIZER_STATE)
        return counting.finished()
