"""An optimizer of the user's is known by its file, tried on what it trains, and refused where it does not train."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench.models import ModelCache
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.outputs import check_update
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.predict.costs import tensors_in
from perf_tests_suite.perf_tests.user_code.given import UserModel, UserOptimizer
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from perf_tests_suite.perf_tests.user_code.model import check_optimizer_before_measuring
from perf_tests_suite.perf_tests.user_code.named import load
from perf_tests_suite.perf_tests.user_code.optimizer import build_optimizer, put_into
from tests.support.example_cases import CPU, SETTINGS, TOY, build, language_model_case, random_tokens
from tests.support.launch import MODELS, ROOT

PLANTED = "tests.support.planted_optimizers"
MUON = f"{ROOT}/examples/muon.py:build"

REFUSED = {
    "no_such_factory": "cannot be imported: AttributeError",
    "raises": "builds no optimizer: KeyError: 'lr'",
    "never_returns": "builds no optimizer: it did not return within 1",
    "a_class": "returned the class SGD; it must return a torch.optim.Optimizer",
    "leaves_one_out": "leaves out 1 of 21 parameters, the first embedding.weight_VD",
    "holds_one_twice": "holds embedding.weight_VD twice",
    "holds_a_stranger": "holds a tensor that is not a parameter of the model",
    "one_group_without_a_learning_rate": "has a group without `lr`",
    "fails_without_words": r"zero gradients: AssertionError: no message \(.*planted_optimizers\.py:\d+, in step\)",
    "needs_a_closure": "fails at zero gradients: TypeError: .*closure",
    "Still": "changes no parameter in 32 steps on random gradients",
    "Normalised": "turns zero gradients, of which its state is made, into weights that are not finite",
    "NotANumber": "turns random gradients of norm 1 into weights that are not finite, the first in embedding",
    "FailsAtItsStep": "fails at zero gradients: ValueError: a group without betas",
}


def planted(name: str) -> UserOptimizer:
    return UserOptimizer(f"{PLANTED}:{name}")


def of(optimizer: str, phase: str = "full_step", **changes: object) -> LanguageModelCase:
    name = optimizer if ":" in optimizer else f"{PLANTED}:{optimizer}"
    return language_model_case(TOY, phase=phase, optimizer=name, **changes)


@pytest.mark.parametrize("factory", REFUSED)
def test_an_optimizer_that_does_not_train_is_refused(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "perf_tests_suite.perf_tests.user_code.model.LONGEST_SECONDS", 0.2 if factory == "never_returns" else 10
    )
    with pytest.raises(UserCodeError, match=REFUSED[factory]) as refusal:
        check_optimizer_before_measuring(planted(factory), None, TOY, CPU)
    assert str(refusal.value).startswith(f"--optimizer {PLANTED}:{factory} ")
    assert ". " not in str(refusal.value)


def test_one_that_trains_is_not_refused() -> None:
    for factory in ("healthy", "Descent", "ReadsAValue", "EverySecondStep", "Nested", "averaged_descent"):
        for model in (None, UserModel(f"{MODELS}:Tied")):
            check_optimizer_before_measuring(planted(factory), model, TOY, CPU)


def test_what_is_frozen_may_be_left_out_and_gets_no_gradient() -> None:
    """As an adapter's optimizer leaves out the model below it."""
    frozen = UserModel(f"{MODELS}:FrozenEmbedding")
    for optimizer in ("of_what_trains", "refuses_frozen"):
        check_optimizer_before_measuring(planted(optimizer), frozen, TOY, CPU)


def test_before_measuring_a_large_model_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step could take minutes; what the groups hold is known without."""
    large, parameters = UserModel(f"{MODELS}:Averaging"), 4 * 37 + 4 * 37 + 37
    monkeypatch.setattr("perf_tests_suite.perf_tests.user_code.model.SMALL_TO_STEP", parameters - 1)
    check_optimizer_before_measuring(planted("Still"), large, TOY, CPU)
    with pytest.raises(UserCodeError, match="leaves out 1 of 3 parameters, the first embedding"):
        check_optimizer_before_measuring(planted("leaves_one_out"), large, TOY, CPU)
    monkeypatch.setattr("perf_tests_suite.perf_tests.user_code.model.SMALL_TO_STEP", parameters)
    with pytest.raises(UserCodeError, match="changes no parameter"):
        check_optimizer_before_measuring(planted("Still"), large, TOY, CPU)


def test_phases_without_a_step_are_the_same_with_any_optimizer() -> None:
    settings = replace(SETTINGS, optimizer=MUON)
    axes = dict(zip(LanguageModelCase.axes, ("tiny", 8, "fp32", "naive", "eager", "none", None, None), strict=True))
    assert LanguageModelCase.of("backward", axes, settings) == LanguageModelCase.of("backward", axes, SETTINGS)
    assert LanguageModelCase.of("full_step", axes, settings).user_optimizer == UserOptimizer(MUON)


@pytest.mark.parametrize("changes", [{}, {"model": f"{MODELS}:Averaging", "attention": "own"}])
def test_a_model_begins_with_its_seeds_weights_after_its_optimizer_was_tried(changes: dict[str, str]) -> None:
    cache, case = ModelCache(CpuDevice(CPU), seed=7), of("healthy", **changes)
    tried, untried = (
        [parameter.detach().clone() for parameter in cache.get(one, "default").model.parameters()]
        for one in (case, replace(case, optimizer="loop"))
    )
    assert all(torch.equal(one, other) for one, other in zip(tried, untried, strict=True))
    optimizer = cache.get(case, "default").optimizer
    assert (type(optimizer).__name__, list(tensors_in(optimizer.state.values()))) == ("SGD", [])


def test_an_optimizer_is_tried_again_on_each_model_that_it_is_to_train() -> None:
    """Before measuring, a large model was not built. A compiled one gives its parameters the eager one's names."""
    cache = ModelCache(CpuDevice(CPU), seed=7)
    with pytest.raises(UserCodeError, match="changes no parameter"):
        cache.get(of("Still"), "default")
    cache.get(replace(of("Still"), phase="backward", optimizer=None), f"{PLANTED}:Still")
    training = cache.get(of("by_name", execution="compiled"), "default")
    assert next(iter(training.model.named_parameters()))[0].startswith("_orig_mod")


def test_without_state_an_update_is_checked_for_finite_weights_alone() -> None:
    training = Training(build(), PRECISIONS["fp32"], CPU)
    put_into(planted("Descent"), training, training.model)
    training.step(random_tokens(), random_tokens())
    check_update(training)
    with torch.no_grad():
        next(training.model.parameters()).fill_(float("nan"))
    with pytest.raises(AssertionError, match="not finite"):
        check_update(training)


@pytest.mark.parametrize("shape", [(32, 16), (16, 32)])
def test_muon_moves_matrices_as_pytorchs_own_and_the_rest_as_adamw(shape: tuple[int, int]) -> None:
    """PyTorch's takes matrices alone. Both round to bfloat16, in another order."""
    torch.manual_seed(0)
    muon, start = load(f"{ROOT}/examples/muon.py:Muon"), torch.randn(shape)
    mine, theirs, vector, by_adamw = (nn.Parameter(x.clone()) for x in (start, start, start[0], start[0]))
    optimizers = [
        muon([mine], [vector], lr=0.01, weight_decay=0.1),
        torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", lr=0.01, weight_decay=0.1),
        torch.optim.AdamW([by_adamw], betas=(0.9, 0.95), lr=0.01, weight_decay=0.1),
    ]
    for _ in range(4):
        gradient = torch.randn(shape)
        mine.grad, theirs.grad, vector.grad, by_adamw.grad = gradient, gradient, gradient[0], gradient[0]
        for optimizer in optimizers:
            optimizer.step()
    moved = (theirs - start).norm()
    assert 0 <= (mine - theirs).norm() < 0.05 * moved
    torch.testing.assert_close(vector, by_adamw)


def test_muon_leaves_embedding_head_and_vectors_to_adamw() -> None:
    optimizer = build_optimizer(UserOptimizer(MUON), build())
    hidden, rest = (len(group["params"]) for group in optimizer.param_groups)
    assert (hidden, rest) == (7 * TOY.num_layers, 2 + 2 * TOY.num_layers + 1)
