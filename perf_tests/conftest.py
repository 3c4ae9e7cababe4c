"""The fixtures of a benchmark: its case, its model and inputs, and its measure."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from perf_tests_suite.model.attention import ATTENTION, AttentionFunction
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.audit.rounds import RowFacts
from perf_tests_suite.perf_tests.bench.checked_rounds import Draws
from perf_tests_suite.perf_tests.bench.judged import JudgedInputs
from perf_tests_suite.perf_tests.bench.loop import Measure, RowBuilder, TimedMeasure
from perf_tests_suite.perf_tests.bench.models import AttentionInputs, Batch, ModelCache, free_leftovers
from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.session import benchmark_of, session_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.cases.attention import AttentionCase, CollectiveCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.bound import time
from perf_tests_suite.perf_tests.hardware.clock import Clock, multiplied_dtype, product_seconds, tensor_dtype
from perf_tests_suite.perf_tests.hardware.device import float32_matmul_precision, sdpa_backend
from perf_tests_suite.perf_tests.hardware.machine import RoundHealth
from perf_tests_suite.perf_tests.passes.extra_pass import ROOT, ExtraPass, pass_named
from perf_tests_suite.perf_tests.passes.memory import MemoryWorker
from perf_tests_suite.perf_tests.predict.compiling import compilation_or_reason
from perf_tests_suite.perf_tests.user_code.attention import attention_named
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from perf_tests_suite.perf_tests.user_code.own_loss import OwnLossTraining


@pytest.fixture(scope="session")
def workbench(request: pytest.FixtureRequest) -> Workbench:
    return session_of(request.config).workbench


@pytest.fixture(scope="session")
def model_cache(workbench: Workbench) -> Iterator[ModelCache]:
    cache = ModelCache(workbench.device, workbench.settings.seed, workbench.groups)
    yield cache
    cache.reset()


@pytest.fixture
def case(
    request: pytest.FixtureRequest,
    model_size: str,
    context_length: int,
    precision: str,
    attention: str,
    execution: str,
    checkpoint: str,
    batch_size: int | None,
    parallel: str | None,
) -> Case:
    """What the axes describe, which the plugin parametrizes; it made the case from the same values."""
    return benchmark_of(request.node).case


@pytest.fixture
def clock(workbench: Workbench) -> Clock:
    return workbench.clock


@pytest.fixture
def training(
    request: pytest.FixtureRequest, case: LanguageModelCase, workbench: Workbench, model_cache: ModelCache
) -> Iterator[Training]:
    with workbench.spending("building"):
        try:
            training = model_cache.get(case, workbench.settings.optimizer)
        except UserCodeError as error:  # the smallest model passed before the first case, and others may
            benchmark_of(request.node).outcome = Outcome("error", str(error))
            pytest.fail(str(error), pytrace=False)
        workbench.device.synchronize()
    if isinstance(training, OwnLossTraining):
        training.targets_BT = request.getfixturevalue("batch").targets_BT
    yield training
    training.release()
    del training
    free_leftovers(workbench.device)


@pytest.fixture
def batch(case: LanguageModelCase, workbench: Workbench) -> Batch:
    def draw(generator: torch.Generator) -> Tensor:
        """Draw the same on all ranks, of which each takes its part."""
        shape = (case.global_batch_size or case.batch_size, case.context_length + 1)
        tokens = torch.randint(case.config.vocab_size, shape, generator=generator)
        if case.sharing is not None and workbench.groups is not None:
            tokens = workbench.groups.part_of(tokens, case.sharing)
        return tokens

    return Batch.drawn(draw, workbench.settings.seed, workbench.device.torch_device)


@pytest.fixture
def attend(case: AttentionCase, workbench: Workbench) -> Iterator[AttentionFunction]:
    """The implementation under the case's precision."""
    precision = PRECISIONS[case.precision]
    precision.apply()
    attention = attention_named(case.attention).build()

    def attend(q_BTK: Tensor, k_BTK: Tensor, v_BTK: Tensor) -> Tensor:
        with precision.autocast(workbench.device.torch_device):
            return attention(q_BTK, k_BTK, v_BTK)

    yield attend
    free_leftovers(workbench.device)


@pytest.fixture
def inputs(request: pytest.FixtureRequest, case: AttentionCase, workbench: Workbench) -> AttentionInputs:
    """Values of the seed, or tensors that the judge fills before each round."""
    suite = session_of(request.config)
    is_timed = benchmark_of(request.node).extra_pass is None and suite.other_measure is None
    if (judge := suite.judge) is not None and is_timed and not workbench.disabled:
        return judge.case(request.node.nodeid, case, workbench.device, workbench.rounds(case)).inputs()
    generator = torch.Generator().manual_seed(workbench.settings.seed)
    device, dtype = workbench.device.torch_device, tensor_dtype(PRECISIONS[case.precision])
    q, k, v, gradient = (torch.randn(case.query_shape, generator=generator).to(device, dtype) for _ in range(4))
    return AttentionInputs(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), gradient)


@pytest.fixture
def measure(request: pytest.FixtureRequest, case: Case, workbench: Workbench, benchmark: object) -> Iterator[Measure]:
    other_measure = session_of(request.config).other_measure
    if other_measure is not None:
        yield other_measure(request.node, workbench)
        return
    kind: Callable[..., TimedMeasure] = TimedMeasure
    if isinstance(case, LanguageModelCase) and case.sharing is not None:
        # Imported late: distributed tensors take torch seconds to load.
        from perf_tests_suite.perf_tests.bench.ranks import SharedStepMeasure

        training = request.getfixturevalue("training")
        kind = partial(
            SharedStepMeasure, case=case, sharing=case.sharing, training=training,
            spending=partial(workbench.spending, "communication"),
        )  # fmt: skip
    elif case.ranks is not None:
        from perf_tests_suite.perf_tests.bench.ranks import MultiRankMeasure

        kind = MultiRankMeasure
    measure = kind(
        benchmark,
        workbench.clock,
        workbench.device,
        workbench.rounds(case),
        case.fewest_warmup_rounds if workbench.disabled else workbench.warmup_rounds(case),
        row=None if workbench.disabled else _row(case, workbench, session_of(request.config).repository.root),
        flush=None if workbench.disabled else workbench.cache_flush(case),
        on_round=workbench.on_round,
        health=RoundHealth(workbench.health),
        sentinel=partial(product_seconds, workbench.device),
        others=None if case.ranks else workbench.others,
        draws=Draws(workbench.values_seed, request.node.nodeid),
    )
    if isinstance(case, AttentionCase):
        given = request.getfixturevalue("inputs")
        measure.inputs = (given.q_BTK, given.k_BTK, given.v_BTK)
        measure.judged = given.judged if isinstance(given, JudgedInputs) else None
    PRECISIONS[case.precision].apply()  # measuring ceilings leaves another mode
    yield measure
    for work, seconds in measure.spent_seconds.items():
        workbench.spent_seconds[work] += seconds


def _row(case: Case, workbench: Workbench, root: Path) -> RowBuilder:
    """Return what is known of a case before its rounds, with what a figure depends on besides the case's identity."""
    conditions = RowFacts(seed=workbench.settings.seed, warmup_rounds=workbench.warmup_rounds(case))
    if isinstance(case, CollectiveCase):
        from perf_tests_suite.perf_tests.bench.ranks import CollectiveRow

        return CollectiveRow(case, conditions)
    conditions = replace(
        conditions,
        records_graph=case.phase_row.records_graph,
        float32_matmul_precision=float32_matmul_precision(),
        parameters=case.parameters,
        available_bytes=workbench.budget_bytes,
        empty_round_seconds=workbench.empty_round_seconds,
    )

    def kernel_of_sdpa() -> str | None:
        attention, dtype = ATTENTION["sdpa"].build(), multiplied_dtype(PRECISIONS[case.precision])
        device, records_graph = workbench.device.torch_device, case.phase_row.records_graph
        return sdpa_backend(attention, case.query_shape, dtype, device, records_graph=records_graph)

    return RowBuilder(
        case,
        conditions=conditions,
        sdpa_backend=kernel_of_sdpa if case.attention == "sdpa" else lambda: None,
        matmul_flops_per_second=workbench.ceiling(case.precision) * (case.ranks or 1),
        expectation=None if case.ranks else workbench.expect(case),
        measure_ceiling_again=workbench.measure_ceiling_again,
        with_run=partial(workbench.with_run, time.monotonic(), torch.get_num_threads()),
        ceilings_again=workbench.ceilings_again,
        compilation=partial(
            compilation_or_reason, case, workbench.device.torch_device, workbench.settings.seed, (root,)
        ),
    )


@pytest.fixture
def pass_of_test(request: pytest.FixtureRequest, case: Case, workbench: Workbench) -> ExtraPass:
    """The extra pass of this test, which it calls with the timing that it repeats."""
    extra_pass = benchmark_of(request.node).extra_pass
    assert extra_pass is not None
    return pass_named(extra_pass)(request, case, workbench)


@pytest.fixture(scope="module")
def memory_worker() -> Iterator[MemoryWorker]:
    worker = MemoryWorker(ROOT)
    yield worker
    worker.end()
