"""The fixtures of a benchmark: its case, its model and inputs, and the means to measure it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention import ATTENTION, AttentionFunction
from model.precision import PRECISIONS
from model.training import Training
from perf_tests.bench.models import ForeignModelError, ModelShelf, forget
from perf_tests.bench.stash import CASE, PASS, SERVED_MEASURE, WORKBENCH
from perf_tests.bench.workbench import Workbench
from perf_tests.cases import AttentionCase, Case, LanguageModelCase
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.round_health import RoundHealth
from perf_tests.instruments.sdpa_backend import sdpa_backend_for_shape
from perf_tests.measures.ranged import RangedMeasure
from perf_tests.measures.timed import Measure
from perf_tests.passes.every_pass import EVERY_PASS
from perf_tests.passes.extra_pass import ROOT, ExtraPass
from perf_tests.records.record import Json
from perf_tests.workers.memory_process import MemoryWorker


@dataclass(frozen=True)
class Batch:
    """Random tokens and, for each, the one that follows; int64, both (B, T)."""

    tokens_BT: Tensor
    targets_BT: Tensor


@dataclass(frozen=True)
class AttentionInputs:
    """Random query, key and value, leaves of a fresh graph, and the gradient of the output; (B, T, K), float32."""

    q_BTK: Tensor
    k_BTK: Tensor
    v_BTK: Tensor
    gradient_BTK: Tensor

    def forget_gradients(self) -> None:
        for leaf in (self.q_BTK, self.k_BTK, self.v_BTK):
            leaf.grad = None


@pytest.fixture(scope="session")
def workbench(request: pytest.FixtureRequest) -> Workbench:
    return request.config.stash[WORKBENCH]


@pytest.fixture(scope="session")
def shelf(workbench: Workbench) -> Iterator[ModelShelf]:
    shelf = ModelShelf(workbench.device, workbench.settings.seed)
    yield shelf
    shelf.clear()


def axis(name: str) -> Any:
    """A fixture that hands on the value which the plugin chose for this axis."""

    @pytest.fixture(name=name)
    def value(request: pytest.FixtureRequest) -> str | int:
        return request.param

    return value


model_size = axis("model_size")
context_length = axis("context_length")
precision = axis("precision")
attention = axis("attention")
execution = axis("execution")
checkpoint = axis("checkpoint")


@pytest.fixture
def case(
    request: pytest.FixtureRequest,
    model_size: str,
    context_length: int,
    precision: str,
    attention: str,
    execution: str,
    checkpoint: str,
) -> Case:
    """What the axes describe; the plugin made it, to sort by, from the same values."""
    return request.node.stash[CASE]


@pytest.fixture
def clock(workbench: Workbench) -> Clock:
    return workbench.clock


@pytest.fixture
def training(case: LanguageModelCase, workbench: Workbench, shelf: ModelShelf) -> Iterator[Training]:
    start = time.perf_counter()
    try:
        training = shelf.lend(case, workbench.settings.optimizer)
    except ForeignModelError as error:
        # What --model names is no language model, and so it is for every further case.
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    workbench.device.synchronize()
    workbench.time_spent.builds_seconds += time.perf_counter() - start
    yield training
    training.release()
    del training
    forget(workbench.device)


@pytest.fixture
def batch(case: LanguageModelCase, workbench: Workbench) -> Batch:
    generator = torch.Generator().manual_seed(workbench.settings.seed)
    shape = (case.batch_size, case.context_length + 1)
    tokens = torch.randint(case.config.vocab_size, shape, generator=generator)
    tokens = tokens.to(workbench.device.torch_device)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


@pytest.fixture
def attend(case: AttentionCase, workbench: Workbench) -> Iterator[AttentionFunction]:
    """The implementation under the case's precision."""
    precision = PRECISIONS[case.precision]
    precision.apply()
    attention = ATTENTION[case.attention].build()

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
def measure(
    request: pytest.FixtureRequest, case: Case, workbench: Workbench, benchmark: object
) -> Iterator[Measure | RangedMeasure]:
    served_measure = request.config.stash.get(SERVED_MEASURE, None)
    if served_measure is not None:
        yield served_measure(request.node.nodeid, workbench)
        return
    if workbench.settings.nvtx:
        yield RangedMeasure(case, workbench)
        return
    measure = Measure(
        benchmark=benchmark,  # type: ignore[arg-type]
        case=case,
        clock=workbench.clock,
        device=workbench.device,
        rounds=workbench.rounds(case),
        warmup_rounds=workbench.settings.warmup_rounds,
        matmul_flops_per_second=None if workbench.disabled else workbench.ceiling(case.precision),
        conditions={} if workbench.disabled else _conditions(case, workbench),
        on_round=workbench.on_round,
        expectation=None if workbench.disabled else workbench.expect(case),
        measure_ceiling_again=workbench.measure_ceiling_again,
        available_bytes=workbench.budget_bytes,
        health=RoundHealth(workbench.health),
    )
    yield measure
    workbench.time_spent.rounds_seconds += measure.rounds_seconds
    if "compile_cache" in measure.conditions:
        workbench.time_spent.first_compiled_calls_seconds += measure.first_call_seconds


@pytest.fixture
def look(request: pytest.FixtureRequest, case: Case, workbench: Workbench) -> ExtraPass:
    """What the test's extra pass does with the benchmark that it repeats."""
    return EVERY_PASS[request.node.stash[PASS]](request, case, workbench)


@pytest.fixture(scope="module")
def memory_worker() -> Iterator[MemoryWorker]:
    worker = MemoryWorker(ROOT)
    yield worker
    worker.end()


def _conditions(case: Case, workbench: Workbench) -> Json:
    """What a figure depends on beside the identity of its case."""
    conditions: Json = {
        "seed": workbench.settings.seed,
        "warmup_rounds": workbench.settings.warmup_rounds,
        "records_graph": case.phase != "inference",
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    conditions["parameters"] = case.config.parameters if isinstance(case, LanguageModelCase) else 0
    if case.attention == "sdpa":
        conditions["sdpa_backend"] = _sdpa_backend(case, workbench)
    return conditions


def _sdpa_backend(case: Case, workbench: Workbench) -> str | None:
    if isinstance(case, AttentionCase):
        shape: tuple[int, ...] = (case.batch_size, case.sequence_length, case.head_dim)
    else:
        shape = (case.batch_size, case.config.num_heads, case.context_length, case.config.head_dim)
    return sdpa_backend_for_shape(
        ATTENTION["sdpa"].build(),
        shape,
        PRECISIONS[case.precision].autocast_dtype or torch.float32,
        workbench.device.torch_device,
        records_graph=case.phase != "inference",
    )
