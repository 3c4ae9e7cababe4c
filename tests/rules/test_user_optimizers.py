"""An optimizer of one's own is counted as it is, and one that does not train is refused before measuring."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from model.precision import PRECISIONS
from model.training import Training
from perf_tests.bench.models import ModelCache
from perf_tests.cases.language_model import LanguageModelCase, check_update
from perf_tests.hardware.datasheets import Room
from perf_tests.hardware.device import CpuDevice
from perf_tests.predict.costs import tensors_in
from perf_tests.predict.screens import step_lines
from perf_tests.predict.step import TargetMachine, predict_step
from perf_tests.user_code.guard import UserCodeError
from perf_tests.user_code.model import UserModel, check_optimizer_before_measuring
from perf_tests.user_code.named import load
from perf_tests.user_code.optimizer import UserOptimizer
from tests.support.example_cases import CEILINGS, CPU, SETTINGS, TOY, build, language_model_case, random_tokens
from tests.support.launch import MODELS, ROOT

PLANTED = "tests.support.planted_optimizers"
MUON = f"{ROOT}/examples/muon.py:build"

REFUSED = {
    "no_such_factory": "cannot be imported: AttributeError",
    "raises": "builds no optimizer: KeyError: 'lr'",
    "exits": r"builds no optimizer: it called exit\(3\)",
    "never_returns": "builds no optimizer: it did not return within 0.2 s",
    "nothing": "returned a NoneType; it must return a torch.optim.Optimizer",
    "a_class": "returned the class SGD; it must return a torch.optim.Optimizer",
    "changes_the_default_dtype": "changed torch's default dtype from torch.float32 to torch.float64",
    "leaves_one_out": "leaves out 1 of 21 parameters, the first embedding.weight_VD",
    "holds_one_twice": "holds embedding.weight_VD twice",
    "holds_a_stranger": "holds a tensor that is no parameter of the model",
    "without_a_learning_rate": "has a group without `lr`",
    "one_group_without_a_learning_rate": "has a group without `lr`",
    "needs_a_closure": "fails at zero gradients: TypeError: .*closure",
    "Still": "changes no parameter in a step on random gradients",
    "Normalised": "turns zero gradients, of which its state is made, into weights that are not finite",
    "NotANumber": "turns random gradients of norm 1 into weights that are not finite, the first in embedding",
    "FailsAtItsStep": "fails at zero gradients: ValueError: a group without betas",
}


def of(optimizer: str, phase: str = "full_step", **changes: object) -> LanguageModelCase:
    name = optimizer if ":" in optimizer else f"{PLANTED}:{optimizer}"
    return language_model_case(changes.pop("config", TOY), phase=phase, optimizer=name, **changes)  # type: ignore[arg-type]


def training_of(case: LanguageModelCase) -> Training:
    model = build(case.config)
    training = Training(model, PRECISIONS["fp32"], CPU)
    assert case.user_optimizer is not None
    case.user_optimizer.put_into(training, model)
    return training


@pytest.mark.parametrize("factory", REFUSED)
def test_an_optimizer_that_does_not_train_is_refused_in_one_sentence(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf_tests.user_code.model.LONGEST_SECONDS", 0.2 if factory == "never_returns" else 10)
    own = UserOptimizer(f"{PLANTED}:{factory}")
    with pytest.raises(UserCodeError, match=REFUSED[factory]) as refusal:
        check_optimizer_before_measuring(own, None, TOY, CPU)
    assert str(refusal.value).startswith(f"--optimizer {own.name} ")
    assert ". " not in str(refusal.value)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("factory", ["healthy", "prints", "Descent", "ReadsAValue", "EverySecondStep", "Nested"])
def test_one_that_trains_is_not_refused(factory: str) -> None:
    own = UserOptimizer(f"{PLANTED}:{factory}")
    check_optimizer_before_measuring(own, None, TOY, CPU)
    check_optimizer_before_measuring(own, UserModel(f"{MODELS}:Tied"), TOY, CPU)


def test_before_measuring_a_large_model_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step could take minutes; what the groups hold is known without."""
    monkeypatch.setattr("perf_tests.user_code.model.SMALL_TO_STEP", 10)
    large = UserModel(f"{MODELS}:Averaging")
    check_optimizer_before_measuring(UserOptimizer(f"{PLANTED}:Still"), large, TOY, CPU)
    with pytest.raises(UserCodeError, match="leaves out 1 of 3 parameters, the first embedding"):
        check_optimizer_before_measuring(UserOptimizer(f"{PLANTED}:leaves_one_out"), large, TOY, CPU)


def test_the_identity_names_the_file_as_its_repository_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "theirs"
    (repository / ".git").mkdir(parents=True)
    (repository / "train").mkdir()
    for folder, name in ((repository, "train/fast.py:build"), (tmp_path, f"{repository}/train/fast.py:build")):
        monkeypatch.chdir(folder)
        assert of(name).identity()["optimizer"] == "train/fast.py:build"
    assert of("torch.optim:SGD").identity()["optimizer"] == "torch.optim:SGD"


def test_phases_without_a_step_are_the_same_with_any_optimizer() -> None:
    settings = replace(SETTINGS, optimizer=MUON)
    axes = dict(zip(LanguageModelCase.axes, ("tiny", 8, "fp32", "naive", "eager", "none", None, None), strict=True))
    assert LanguageModelCase.of("backward", axes, settings) == LanguageModelCase.of("backward", axes, SETTINGS)
    assert LanguageModelCase.of("full_step", axes, settings).user_optimizer == UserOptimizer(MUON)


@pytest.fixture
def shelf() -> ModelCache:
    return ModelCache(CpuDevice(CPU), seed=7)


@pytest.mark.parametrize("changes", [{}, {"model": f"{MODELS}:Averaging", "attention": "own"}])
def test_a_model_begins_with_its_seeds_weights_after_its_optimizer_was_tried(
    shelf: ModelCache, changes: dict[str, str]
) -> None:
    case = of("healthy", **changes)
    with_own, with_adamw = (
        [parameter.detach().clone() for parameter in shelf.get(one, "default").model.parameters()]
        for one in (case, replace(case, optimizer="loop"))
    )
    assert all(torch.equal(one, other) for one, other in zip(with_own, with_adamw, strict=True))
    training = shelf.get(case, "default")
    assert type(training.optimizer).__name__ == "SGD"
    assert not any(tensors_in(training.optimizer.state.values()))


def test_an_optimizer_is_tried_again_on_each_model_that_it_is_to_train(shelf: ModelCache) -> None:
    """Before measuring, a large model was not built."""
    with pytest.raises(UserCodeError, match="changes no parameter"):
        shelf.get(of("Still"), "default")
    shelf.get(replace(of("Still"), phase="backward", optimizer=None), f"{PLANTED}:Still")


def test_a_compiled_model_gives_its_parameters_the_names_of_the_eager_one(shelf: ModelCache) -> None:
    training = shelf.get(of("by_name", execution="compiled"), "default")
    assert next(iter(training.model.named_parameters()))[0].startswith("_orig_mod")


def test_without_state_an_update_is_checked_for_finite_weights_alone() -> None:
    training = training_of(of("Descent"))
    training.step(random_tokens(), random_tokens())
    check_update(training)
    with torch.no_grad():
        next(training.model.parameters()).fill_(float("nan"))
    with pytest.raises(AssertionError, match="not finite"):
        check_update(training)


def test_a_prediction_counts_the_state_and_names_the_optimizer() -> None:
    adamw, descent = (
        predict_step(of(name), TargetMachine("planted", "cpu", Room(10, "planted"), CEILINGS, True))
        for name in ("torch.optim:AdamW", "Descent")
    )
    assert descent.unavoidable_bytes == 2 * 4 * TOY.parameters
    assert adamw.unavoidable_bytes == 4 * 4 * TOY.parameters + 4 * 21
    assert f"optimizer {PLANTED}:Descent, checkpoint none" in step_lines(descent)[0]
    assert not descent.step.is_range_known


@pytest.mark.parametrize("shape", [(32, 16), (16, 32), (24, 24)])
def test_muon_makes_singular_values_one(shape: tuple[int, int]) -> None:
    """By the quintic's own range, 0.68 to 1.14, and two roundings of bfloat16 in each of five iterations."""
    torch.manual_seed(0)
    orthogonal = load(f"{ROOT}/examples/muon.py:orthogonal")
    left, right = (torch.linalg.qr(torch.randn(size, min(shape)))[0] for size in shape)
    singular = torch.linalg.svdvals(orthogonal(left * torch.linspace(0.1, 1, min(shape)) @ right.T).float())
    assert 0.68 - 0.06 < float(singular.min()) <= float(singular.max()) < 1.14 + 0.06


@pytest.mark.parametrize("shape", [(32, 16), (16, 32)])
def test_muon_moves_matrices_as_pytorchs_own_and_the_rest_as_adamw(shape: tuple[int, int]) -> None:
    """PyTorch's takes matrices alone. Both round to bfloat16, in another order."""
    torch.manual_seed(0)
    muon, start = load(f"{ROOT}/examples/muon.py:Muon"), torch.randn(shape)
    mine, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    vector, by_adamw = (nn.Parameter(start[0].clone()) for _ in range(2))
    rates: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
    optimizers = [
        muon([mine], [vector], **rates),
        torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **rates),
        torch.optim.AdamW([by_adamw], betas=(0.9, 0.95), **rates),
    ]
    for _ in range(4):
        gradient = torch.randn(shape)
        mine.grad, theirs.grad, vector.grad, by_adamw.grad = gradient, gradient, gradient[0], gradient[0]
        for optimizer in optimizers:
            optimizer.step()
    moved = (theirs - start).norm()
    assert (mine - theirs).norm() < 0.05 * moved
    torch.testing.assert_close(vector, by_adamw)
    assert moved > 0


def test_muon_leaves_embedding_head_and_vectors_to_adamw() -> None:
    optimizer = UserOptimizer(MUON).build(build())
    hidden, rest = (len(group["params"]) for group in optimizer.param_groups)
    assert (hidden, rest) == (7 * TOY.num_layers, 2 + 2 * TOY.num_layers + 1)


def test_what_is_frozen_may_be_left_out_and_gets_no_gradient() -> None:
    """As an adapter's optimizer leaves out the model below it."""
    frozen = UserModel("tests.support.planted_parts:FrozenEmbedding")
    for optimizer in (f"{PLANTED}:of_what_trains", "tests.support.planted_parts:RefusesFrozen"):
        check_optimizer_before_measuring(UserOptimizer(optimizer), frozen, TOY, CPU)
