"""The cache builds a model once, gives it in the same state every time, and refuses what is no language model."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.bench import models
from perf_tests_suite.perf_tests.bench.models import ModelCache
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.outputs import check_gradients, check_update
from perf_tests_suite.perf_tests.hardware import device as heap
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from tests.support.example_cases import CPU, TOY, language_model_case, random_tokens
from tests.support.launch import MODELS


def theirs(name: str, config: ModelConfig = TOY, **changes: object) -> LanguageModelCase:
    return language_model_case(config, model=f"{MODELS}:{name}", attention="own", **changes)


@pytest.fixture
def cache() -> ModelCache:
    return ModelCache(CpuDevice(CPU), seed=7)


def weights_of(training: Training) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_cases_that_share_a_model_build_it_once() -> None:
    for other, builds in (
        (language_model_case(phase="backward"), 1),
        (language_model_case(precision="bf16"), 1),
        (language_model_case(batch_size=4), 1),
        (language_model_case(TOY.at_context(4)), 2),
        (language_model_case(attention="sdpa"), 2),
        (language_model_case(checkpoint="block"), 2),
        (theirs("Averaging"), 2),
    ):
        cache = ModelCache(CpuDevice(CPU), seed=7)
        first = cache.get(language_model_case(), "loop").model
        assert (cache.get(other, "loop").model is first) == (builds == 1)
        assert cache.builds == builds


def test_after_training_a_model_begins_anew() -> None:
    """No gradient, moment or weight is left over from the case before, and the weights are those of the seed.

    A model that cannot draw its weights again is built again.
    """
    for case, builds in ((language_model_case(), 1), (theirs("Averaging"), 2)):
        cache, starts, ends = ModelCache(CpuDevice(CPU), seed=7), [], []
        for _ in range(2):
            training = cache.get(replace(case, phase="full_step", optimizer="loop"), "loop")
            starts.append(weights_of(training))
            training.step(random_tokens(), random_tokens())
            training.release()
            ends.append(weights_of(training))
        again, other = (weights_of(ModelCache(CpuDevice(CPU), seed).get(case, "loop")) for seed in (7, 8))
        assert [same(starts[0], other) for other in (starts[1], again, ends[0], other)] == [True, True, False, False]
        assert (same(*ends), cache.builds) == (True, builds)


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


def test_a_model_is_checked_again_when_it_is_lent(cache: ModelCache) -> None:
    """Before measuring, a large one was only played."""
    with pytest.raises(UserCodeError, match="an attention mask is missing"):
        cache.get(theirs("Unrunnable"), "loop")
    with pytest.raises(MemoryError):  # for which it is not refused
        cache.get(theirs("runs_out_of_memory"), "loop")
    cache.get(theirs("IgnoresContext", TOY.at_context(1)), "loop")  # one token has no context to ignore


def test_what_a_round_must_leave_is_asked_of_trainable_parameters_alone(cache: ModelCache) -> None:
    parts = f"{MODELS}:FrozenEmbedding"
    case = language_model_case(phase="full_step", model=parts, attention="own", optimizer="loop")
    training = cache.get(case, "loop")
    with pytest.raises(AssertionError, match=r"head\.weight has no optimizer state"):
        check_update(training)
    training.step(random_tokens(), random_tokens())
    check_gradients(training)
    check_update(training)
    training.clear_gradients()
    with pytest.raises(AssertionError, match=r"head\.weight has no gradient"):
        check_gradients(training)
