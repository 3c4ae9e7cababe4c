"""Time of causal attention alone, without heads or projections: batch 8, one head width, one sequence length."""

import pytest
from torch import Tensor

from perf_tests_suite.model.attention import AttentionFunction
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.bench.checked_rounds import AttentionCheck
from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.models import AttentionInputs
from perf_tests_suite.perf_tests.bench.session import benchmark_of
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.outputs import check_attention_gradients, check_attention_output


@pytest.fixture
def case(
    request: pytest.FixtureRequest, head_dim: int, sequence_length: int, precision: str, attention: str
) -> AttentionCase:
    """What the axes of attention alone describe."""
    case = benchmark_of(request.node).case
    assert isinstance(case, AttentionCase)
    return case


@pytest.mark.phase("attention_forward")
def test_attention_forward(
    case: AttentionCase, attend: AttentionFunction, inputs: AttentionInputs, measure: Measure
) -> None:
    """The forward pass with its graph recorded."""
    output_BTK = measure(
        lambda: attend(inputs.q_BTK, inputs.k_BTK, inputs.v_BTK),
        renew=inputs.renew,
        check=lambda: AttentionCheck(inputs.all, PRECISIONS[case.precision], has_backward=False),
    )
    check_attention_output(output_BTK, inputs.v_BTK)


@pytest.mark.phase("attention_backward")
def test_attention_backward(
    case: AttentionCase, attend: AttentionFunction, inputs: AttentionInputs, measure: Measure
) -> None:
    """The backward pass alone, on a graph made in each round's set-up."""

    def forward() -> tuple[Tensor, Tensor]:
        inputs.forget_gradients()
        output_BTK = attend(inputs.q_BTK, inputs.k_BTK, inputs.v_BTK)
        inputs.renew_gradient()
        return output_BTK, inputs.gradient_BTK.to(output_BTK.dtype)

    measure(
        lambda output_BTK, gradient_BTK: output_BTK.backward(gradient_BTK),
        setup=forward,
        renew=inputs.renew,
        renew_rest=inputs.renew_gradient,
        check=lambda: AttentionCheck(inputs.all, PRECISIONS[case.precision], has_backward=True),
    )
    check_attention_gradients(inputs.q_BTK, inputs.k_BTK, inputs.v_BTK)
