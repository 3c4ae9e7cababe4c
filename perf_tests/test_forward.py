"""Time of one forward pass. Not timed: building the model, drawing tokens, the loss."""

import pytest
import torch

from model.training import Training
from perf_tests.bench.checked_rounds import LogitsCheck
from perf_tests.bench.loop import Measure
from perf_tests.bench.models import Batch
from perf_tests.cases.language_model import LanguageModelCase, check_logits, check_tokens, require


@pytest.mark.phase("inference")
def test_inference(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure) -> None:
    """Records no graph: nothing is saved for a backward pass."""
    with torch.no_grad():
        logits_BTV = measure(
            lambda: training.forward(batch.tokens_BT),
            renew=batch.renew,
            check=lambda: LogitsCheck(batch.tokens_BT, training.precision, training.forward),
        )
    check_logits(logits_BTV, case)
    check_tokens(batch.tokens_BT, batch.targets_BT)
    require(logits_BTV.grad_fn is None, "logits under no_grad have a graph")


@pytest.mark.phase("forward")
def test_forward(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure) -> None:
    """Records the graph, as in training."""
    logits_BTV = measure(
        lambda: training.forward(batch.tokens_BT),
        renew=batch.renew,
        check=lambda: LogitsCheck(batch.tokens_BT, training.precision, training.forward),
    )
    check_logits(logits_BTV, case)
    check_tokens(batch.tokens_BT, batch.targets_BT)
    require(logits_BTV.grad_fn is not None, "the logits have no graph")
