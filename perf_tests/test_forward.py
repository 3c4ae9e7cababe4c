"""Time of one forward pass. Not timed: building the model, drawing tokens, the loss."""

import pytest
import torch

from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench.checked_rounds import check_of_forward
from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.models import Batch
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.outputs import check_forward, check_tokens, require


@pytest.mark.phase("inference")
def test_inference(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure) -> None:
    """Records no graph: nothing is saved for a backward pass."""
    with torch.no_grad():
        output = measure(
            lambda: training.forward(batch.tokens_BT),
            renew=batch.renew,
            check=lambda: check_of_forward(training, batch.tokens_BT),
        )
    check_forward(output, case)
    check_tokens(batch.tokens_BT, batch.targets_BT)
    require(output.grad_fn is None, "the output under no_grad has a graph")


@pytest.mark.phase("forward")
def test_forward(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure) -> None:
    """Records the graph, as in training."""
    output = measure(
        lambda: training.forward(batch.tokens_BT),
        renew=batch.renew,
        check=lambda: check_of_forward(training, batch.tokens_BT),
    )
    check_forward(output, case)
    check_tokens(batch.tokens_BT, batch.targets_BT)
    require(output.grad_fn is not None, "the output has no graph")
