"""Time of one collective among ranks, without a model: under torchrun, with --collective."""

from typing import TYPE_CHECKING

import pytest

from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.session import benchmark_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.cases.attention import CollectiveCase

if TYPE_CHECKING:  # collected on one device too, where nothing of ranks is loaded
    from perf_tests_suite.perf_tests.bench.ranks import Exchange


@pytest.fixture
def case(request: pytest.FixtureRequest, collective: str, message_bytes: int, world: int) -> CollectiveCase:
    """What the axes of a collective alone describe."""
    case = benchmark_of(request.node).case
    assert isinstance(case, CollectiveCase)
    return case


@pytest.fixture
def exchange(case: CollectiveCase, workbench: Workbench) -> "Exchange":
    from perf_tests_suite.perf_tests.bench.ranks import Exchange

    assert workbench.groups is not None
    group = workbench.groups.case(case.world)
    return Exchange(case.collective, case.elements_of_a_rank, group, workbench.device.torch_device)


@pytest.mark.phase("collective")
def test_collective(case: CollectiveCase, exchange: "Exchange", measure: Measure) -> None:
    """Filled anew in each round's set-up: sums of sums would overflow."""
    measure(exchange.run, setup=exchange.fill)
    exchange.check()
