"""The cache builds a model once, gives it in the same state every time, and refuses what is no language model."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model.sizes import ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.bench import models
from perf_tests.bench.models import ModelCache
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware import device as heap
from perf_tests.hardware.device import CpuDevice
from perf_tests.user_code.guard import UserCodeError
from tests.support.example_cases import CPU, TOY, language_model_case, random_tokens
from tests.support.launch import MODELS

FOREIGN = language_model_case(model=f"{MODELS}:Averaging", attention="own")


@pytest.fixture
def cache() -> ModelCache:
    return ModelCache(CpuDevice(CPU), seed=7)


def weights_of(training: Training) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "other, builds",
    [
        pytest.param(language_model_case(phase="backward"), 1, id="phase"),
        pytest.param(language_model_case(precision="bf16"), 1, id="precision"),
        pytest.param(language_model_case(batch_size=4), 1, id="batch"),
        pytest.param(language_model_case(TOY.at_context(4)), 2, id="context"),
        pytest.param(language_model_case(attention="sdpa"), 2, id="attention"),
        pytest.param(language_model_case(checkpoint="block"), 2, id="checkpoint"),
        pytest.param(FOREIGN, 2, id="model"),
    ],
)
def test_cases_that_share_a_model_build_it_once(cache: ModelCache, other: LanguageModelCase, builds: int) -> None:
    first = cache.get(language_model_case(), "loop").model
    assert (cache.get(other, "loop").model is first) == (builds == 1)
    assert cache.builds == builds


@pytest.mark.parametrize(
    "case, builds",
    [
        pytest.param(language_model_case(phase="full_step", optimizer="loop"), 1, id="drawn again"),
        pytest.param(replace(FOREIGN, phase="full_step", optimizer="loop"), 2, id="built again, where it cannot draw"),
    ],
)
def test_after_training_a_model_begins_anew(cache: ModelCache, case: LanguageModelCase, builds: int) -> None:
    """No gradient, moment or weight is left over from the case before."""
    starts, ends = [], []
    for _ in range(2):
        training = cache.get(case, "loop")
        starts.append(weights_of(training))
        training.step(random_tokens(), random_tokens())
        training.release()
        ends.append(weights_of(training))
    assert same(*starts)
    assert same(*ends)
    assert not same(starts[0], ends[0])
    assert cache.builds == builds


def test_the_weights_are_those_of_the_seed() -> None:
    lent = [ModelCache(CpuDevice(CPU), seed).get(language_model_case(), "loop") for seed in (7, 7, 8)]
    first, again, other = map(weights_of, lent)
    assert same(first, again)
    assert not same(first, other)


def test_the_old_model_is_gone_before_the_next_is_built(cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or two of them would have to fit at once."""
    old = weakref.ref(cache.get(language_model_case(), "loop").model)
    alive_while_building = []

    def build(config: ModelConfig, *arguments: Any) -> nn.Module:
        alive_while_building.append(old() is not None)
        return TransformerLM(config, *arguments)

    monkeypatch.setattr(models, "TransformerLM", build)
    cache.get(language_model_case(attention="sdpa"), "loop")
    assert alive_while_building == [False]


def test_others_are_left_the_model_and_what_the_heap_keeps(cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    model = weakref.ref(cache.get(language_model_case(), "loop").model)
    given_back = []
    monkeypatch.setattr(heap, "give_back", lambda: given_back.append(model() is None))
    cache.leave_memory_to_others()
    assert given_back == [True]


def test_getting_a_model_sets_the_precision(cache: ModelCache) -> None:
    torch.set_float32_matmul_precision("high")
    cache.get(language_model_case(), "loop")
    assert torch.get_float32_matmul_precision() == "highest"


def test_with_a_single_token_there_is_no_context_to_ignore(cache: ModelCache) -> None:
    cache.get(language_model_case(TOY.at_context(1), model=f"{MODELS}:IgnoresContext", attention="own"), "loop")
    assert cache.builds == 1


def test_a_model_is_checked_again_when_it_is_lent(cache: ModelCache) -> None:
    """Before measuring, a large one was only played."""
    with pytest.raises(UserCodeError, match="an attention mask is missing"):
        cache.get(language_model_case(model=f"{MODELS}:Unrunnable", attention="own"), "loop")


def test_a_foreign_model_that_runs_out_of_memory_is_not_refused_for_it(cache: ModelCache) -> None:
    with pytest.raises(MemoryError):
        cache.get(language_model_case(model=f"{MODELS}:runs_out_of_memory", attention="own"), "loop")
