"""The fixtures of a benchmark: its case, its model and inputs, and its measure."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from model.attention import ATTENTION, AttentionFunction
from model.precision import PRECISIONS
from model.training import Training
from perf_tests.bench.loop import Measure, TimedMeasure
from perf_tests.bench.models import AttentionInputs, Batch, ModelShelf, axis, forget
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.row import Row
from perf_tests.bench.workbench import CASE, OTHER_MEASURE, OUTCOME, PASS, WORKBENCH, Workbench
from perf_tests.cases.attention import AttentionCase, CollectiveCase
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.clock import Clock, product_seconds
from perf_tests.hardware.device import sdpa_backend
from perf_tests.hardware.machine import RoundHealth
from perf_tests.passes.every_pass import EVERY_PASS
from perf_tests.passes.extra_pass import ROOT, ExtraPass
from perf_tests.passes.memory import MemoryWorker
from perf_tests.records.record import Json
from perf_tests.user_code.attention import attention_named
from perf_tests.user_code.guard import OwnModelError


@pytest.fixture(scope="session")
def workbench(request: pytest.FixtureRequest) -> Workbench:
    return request.config.stash[WORKBENCH]


@pytest.fixture(scope="session")
def shelf(workbench: Workbench) -> Iterator[ModelShelf]:
    shelf = ModelShelf(workbench.device, workbench.settings.seed, workbench.groups)
    yield shelf
    shelf.clear()


model_size = axis("model_size")
context_length = axis("context_length")
precision = axis("precision")
attention = axis("attention")
execution = axis("execution")
checkpoint = axis("checkpoint")
batch_size = axis("batch_size")
parallel = axis("parallel")


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
    """What the axes describe; the plugin made it from the same values."""
    return request.node.stash[CASE]


@pytest.fixture
def clock(workbench: Workbench) -> Clock:
    return workbench.clock


@pytest.fixture
def training(
    request: pytest.FixtureRequest, case: LanguageModelCase, workbench: Workbench, shelf: ModelShelf
) -> Iterator[Training]:
    with workbench.spending("building"):
        try:
            training = shelf.lend(case, workbench.settings.optimizer)
        except OwnModelError as error:  # the smallest model passed before the first case, and others may
            request.node.stash[OUTCOME] = Outcome("error", str(error))
            pytest.fail(str(error), pytrace=False)
        workbench.device.synchronize()
    yield training
    training.release()
    del training
    forget(workbench.device)


@pytest.fixture
def batch(case: LanguageModelCase, workbench: Workbench) -> Batch:
    generator = torch.Generator().manual_seed(workbench.settings.seed)
    shape = (case.global_batch_size or case.batch_size, case.context_length + 1)
    tokens = torch.randint(case.config.vocab_size, shape, generator=generator)
    if case.sharing is not None and workbench.groups is not None:
        tokens = workbench.groups.part_of(tokens, case.sharing)
    tokens = tokens.to(workbench.device.torch_device)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


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
    forget(workbench.device)


@pytest.fixture
def inputs(case: AttentionCase, workbench: Workbench) -> AttentionInputs:
    generator = torch.Generator().manual_seed(workbench.settings.seed)
    shape = (case.batch_size, case.sequence_length, case.head_dim)
    q, k, v, gradient = (torch.randn(shape, generator=generator) for _ in range(4))
    q, k, v = (leaf.to(workbench.device.torch_device).requires_grad_() for leaf in (q, k, v))
    return AttentionInputs(q, k, v, gradient.to(workbench.device.torch_device))


@pytest.fixture
def measure(request: pytest.FixtureRequest, case: Case, workbench: Workbench, benchmark: object) -> Iterator[Measure]:
    other_measure = request.config.stash.get(OTHER_MEASURE, None)
    if other_measure is not None:
        yield other_measure(request.node, workbench)
        return
    kind: Callable[..., TimedMeasure] = TimedMeasure
    if isinstance(case, LanguageModelCase) and case.sharing is not None:
        # Imported late: distributed tensors take torch seconds to load.
        from perf_tests.bench.loop import SharedStepMeasure

        training = request.getfixturevalue("training")
        kind = partial(
            SharedStepMeasure, case=case, sharing=case.sharing, training=training,
            spending=partial(workbench.spending, "communication"),
        )  # fmt: skip
    elif case.ranks is not None:
        from perf_tests.bench.loop import RankedMeasure

        kind = RankedMeasure
    measure = kind(
        benchmark,
        workbench.clock,
        workbench.device,
        workbench.rounds(case),
        case.fewest_warmup_rounds if workbench.disabled else workbench.warmup_rounds(case),
        row=None if workbench.disabled else _row(case, workbench),
        flush=None if workbench.disabled else workbench.cache_flush(case),
        on_round=workbench.on_round,
        health=RoundHealth(workbench.health),
        sentinel=partial(product_seconds, workbench.device),
    )
    yield measure
    if measure.timing is not None:
        workbench.spent_seconds["rounds"] += measure.timing.rounds_seconds
        workbench.spent_seconds["compiling"] += measure.timing.first_compiled_seconds


def _row(case: Case, workbench: Workbench) -> Row:
    if isinstance(case, CollectiveCase):
        from perf_tests.bench.loop import CollectiveRow

        return CollectiveRow(case, {"seed": workbench.settings.seed, "warmup_rounds": workbench.warmup_rounds(case)})
    return Row(
        case,
        conditions=_conditions(case, workbench),
        matmul_flops_per_second=workbench.ceiling(case.precision) * (case.ranks or 1),
        expectation=None if case.ranks else workbench.expect(case),
        measure_ceiling_again=workbench.measure_ceiling_again,
        available_bytes=workbench.budget_bytes,
    )


@pytest.fixture
def look(request: pytest.FixtureRequest, case: Case, workbench: Workbench) -> ExtraPass:
    return EVERY_PASS[request.node.stash[PASS]](request, case, workbench)


@pytest.fixture(scope="module")
def memory_worker() -> Iterator[MemoryWorker]:
    worker = MemoryWorker(ROOT)
    yield worker
    worker.end()


def _conditions(case: Case, workbench: Workbench) -> Json:
    """What a figure depends on besides the identity of its case."""
    conditions: Json = {
        "seed": workbench.settings.seed,
        "warmup_rounds": workbench.warmup_rounds(case),
        "records_graph": case.row.records_graph,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "parameters": case.parameters,
    }
    if case.attention == "sdpa":
        conditions["sdpa_backend"] = _sdpa_backend(case, workbench.device.torch_device)
    return conditions


def _sdpa_backend(case: Case, device: torch.device) -> str | None:
    attention, dtype = ATTENTION["sdpa"].build(), PRECISIONS[case.precision].autocast_dtype or torch.float32
    return sdpa_backend(attention, case.query_shape, dtype, device, records_graph=case.row.records_graph)
