"""A training step on fake tensors is counted as on real ones, and few layers tell of many."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from model.sizes import SIZES, ModelConfig
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware import torch_private
from perf_tests.hardware.limits import KernelCost
from perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests.predict import fake_run as fake_training
from perf_tests.predict.counting import ACTIVATIONS, GRADIENTS, INPUTS, PartCounters
from perf_tests.predict.fake_run import NotOfEqualLayersError, extrapolated
from tests.support.example_cases import language_model_case

CONFIG = ModelConfig(d_model=32, d_ff=48, num_layers=2, num_heads=4, vocab_size=51, context_length=24)
CASE = language_model_case(CONFIG, batch_size=3)


def without_log(parts: dict[str, PartCounters]) -> dict[str, PartCounters]:
    """The log holds the order in which autocast's copies are freed, which is that of their addresses."""
    return {name: replace(part, changes=()) for name, part in parts.items()}


def count_all(case: LanguageModelCase) -> dict[str, PartCounters]:
    return {**fake_training.count_passes(replace(case, phase="inference")), **fake_training.count_passes(case)}


def told(case: LanguageModelCase) -> dict[str, PartCounters]:
    """As they are asked for: from a few layers where these tell."""
    return {**fake_training.passes(replace(case, phase="inference")), **fake_training.passes(case)}


@pytest.mark.parametrize("precision, checkpoint", [("fp32", "none"), ("bf16", "none"), ("fp16", "block")])
@pytest.mark.parametrize("attention, target", [("naive", "cpu"), ("naive", "cuda"), ("sdpa", "cpu")])
def test_passes_count_the_same_on_real_tensors(
    precision: str, attention: str, target: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(CASE, precision=precision, attention=attention, device=target, checkpoint=checkpoint)
    on_fake = count_all(case)
    monkeypatch.setattr(fake_training, "FakeTensorMode", nullcontext)
    assert without_log(count_all(case)) == without_log(on_fake)


@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("scales_loss", [False, True])
def test_real_tensors_count_updates_alike(optimizer: str, scales_loss: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on_fake = fake_training.updates(CASE.config, optimizer, scales_loss, "cuda")
    monkeypatch.setattr(fake_training, "FakeTensorMode", nullcontext)
    fake_training.updates.cache_clear()
    assert fake_training.updates(CASE.config, optimizer, scales_loss, "cuda") == on_fake


@pytest.mark.parametrize("attention, target", [("naive", "cpu"), ("naive", "cuda"), ("sdpa", "cpu")])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_alone_counts_the_same_on_real_tensors(
    attention: str, target: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = AttentionCase("attention_forward", 16, 40, 3, precision, attention, target)
    on_fake = fake_training.attention_passes(case)
    monkeypatch.setattr(fake_training, "FakeTensorMode", nullcontext)
    fake_training.attention_passes.cache_clear()
    assert fake_training.attention_passes(case) == on_fake


@pytest.mark.parametrize(
    "precision, attention, checkpoint, target",
    [
        ("fp32", "naive", "none", "cpu"),
        ("fp32", "sdpa", "block", "cuda"),
        ("bf16", "naive", "attention", "cuda"),
        ("bf16", "sdpa", "none", "cuda"),
        ("fp16", "naive", "block", "cuda"),
    ],
)
def test_a_few_layers_tell_of_five(precision: str, attention: str, checkpoint: str, target: str) -> None:
    config = replace(SIZES["tiny"], num_layers=5, vocab_size=100, context_length=64)
    case = replace(
        CASE, config=config, context_length=64, precision=precision, attention=attention, checkpoint=checkpoint,
        device=target,
    )  # fmt: skip
    assert without_log(told(case)) == without_log(count_all(case))


@pytest.mark.parametrize("size, context, precision", [("small", 128, "fp32"), ("large", 1024, "bf16")])
def test_a_few_layers_tell_of_real_sizes(size: str, context: int, precision: str) -> None:
    config = SIZES[size].at_context(context)
    case = replace(CASE, config=config, context_length=context, batch_size=4, precision=precision, device="cuda")
    assert without_log(told(case)) == without_log(count_all(case))


def test_a_peak_that_wanders_with_the_depth_is_found() -> None:
    """Two layers peak at the end of the backward pass, at all gradients; many at its start, at all that was saved."""
    config = ModelConfig(d_model=64, d_ff=1024, num_layers=14, num_heads=1, vocab_size=4000, context_length=2)
    case = replace(CASE, config=config, context_length=2, batch_size=19)
    shallow = fake_training.count_passes(replace(case, config=replace(config, num_layers=2)))
    deep = fake_training.count_passes(case)
    assert shallow["backward"].held_at_peak[ACTIVATIONS] == 0
    assert deep["backward"].held_at_peak[GRADIENTS] == 0
    assert fake_training.passes(case)["backward"].peak_bytes == deep["backward"].peak_bytes


def logged(*changes: tuple[str, int], kernels: int = 1) -> PartCounters:
    launched = Counter({KernelCost("aten.mm", 1, 1, "fp32"): kernels})
    return PartCounters(launched, 0, Counter(), Counter(), Counter(), changes, Counter())


def test_a_step_in_the_middle_of_two_logs_may_only_free_and_no_count_may_shrink_below_none() -> None:
    few = logged((ACTIVATIONS, 1), (GRADIENTS, 2))
    extrapolated(few, logged((ACTIVATIONS, 1), (INPUTS, -5), (GRADIENTS, 2)), 6)
    with pytest.raises(NotOfEqualLayersError, match="in the middle"):
        extrapolated(few, logged((ACTIVATIONS, 1), (INPUTS, 5), (GRADIENTS, 2)), 6)
    with pytest.raises(NotOfEqualLayersError, match="negative"):
        extrapolated(logged(kernels=5), logged(kernels=1), 6)


def test_layers_that_are_not_equal_are_refused() -> None:
    one = fake_training.count_passes(replace(CASE, config=replace(CASE.config, num_layers=1)))["forward"]
    other = fake_training.count_passes(replace(CASE, config=replace(CASE.config, d_ff=64)))["forward"]
    with pytest.raises(NotOfEqualLayersError):
        extrapolated(one, other, 6)


def test_a_first_layer_unlike_the_others_is_not_told_from_it_alone() -> None:
    """Its caller still holds what goes in, where no graph does: so the log of one layer says nothing of the second."""
    configs = (replace(CASE.config, num_layers=layers) for layers in (1, 2))
    one, two = (fake_training.count_passes(replace(CASE, phase="inference", config=config)) for config in configs)
    with pytest.raises(NotOfEqualLayersError):
        extrapolated(one["inference"], two["inference"], 6)


@pytest.mark.parametrize("blocks", [2, 3, 5, 7, 9])
@pytest.mark.parametrize("precision, target", [("fp32", "cpu"), ("bf16", "cuda")])
def test_a_few_checkpoints_over_several_blocks_tell_of_all(blocks: int, precision: str, target: str) -> None:
    config = replace(CASE.config, num_layers=9)
    case = replace(CASE, config=config, checkpoint=str(blocks), precision=precision, device=target)
    assert without_log(told(case)) == without_log(count_all(case))


@pytest.mark.parametrize(
    "phase, checkpoint, layers", [("forward", "none", [1, 2]), ("inference", "none", [2, 3]), ("forward", "2", [3, 5])]
)
def test_a_deep_model_is_told_from_fewer_layers_than_it_has(
    phase: str, checkpoint: str, layers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One and one more; of an inference two, whose first differs; of checkpoints over two blocks what is left over."""
    counted = Mock(wraps=fake_training.count_passes)
    monkeypatch.setattr(fake_training, "count_passes", counted)
    fake_training.passes.cache_clear()
    config = replace(CASE.config, num_layers=9)
    fake_training.passes(replace(CASE, phase=phase, config=config, checkpoint=checkpoint))
    assert [call.args[0].config.num_layers for call in counted.call_args_list] == layers


def test_counting_inside_autocast_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="leave it first"):
        fake_training.count_passes(CASE)


def test_what_torch_remembers_of_counted_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or memory grows with each shape of a long run."""
    fake_training.count_passes(replace(CASE, batch_size=5))
    assert FakeTensorMode.cache_info().size > 0
    monkeypatch.setattr(torch_private, "MOST_FAKE_SHAPES", 0)
    fake_training.count_passes(replace(CASE, batch_size=6))
    assert FakeTensorMode.cache_info().size == 0
