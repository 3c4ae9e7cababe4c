"""A training step on fake tensors is counted as on real ones, and few layers tell of many."""

import importlib
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware import torch_private
from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests_suite.perf_tests.predict import fake_run, recorded, rounds
from perf_tests_suite.perf_tests.predict.parts import ACTIVATIONS, GRADIENTS, INPUTS, PartCounters
from perf_tests_suite.perf_tests.predict.rounds import NotOfEqualLayersError, extrapolated
from tests.support.example_cases import language_model_case
from tests.support.launch import MODELS
from tests.support.same_programs import write

CONFIG = ModelConfig(d_model=32, d_ff=48, num_layers=2, num_heads=4, vocab_size=51, context_length=24)
CASE = language_model_case(CONFIG, batch_size=3)


ADAMW = ("loop", "foreach", "fused")


def count_all(case: LanguageModelCase) -> dict[str, PartCounters]:
    both = replace(case, phase="inference"), case
    return {name: part for one in both for name, part in fake_run.count_passes(one).items()}


def test_a_module_that_holds_tensors_without_content_is_imported_anew_by_real_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that makes a workspace on a device that is not here; what imports it goes with it."""
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, {
        "kit_of_fakes/__init__.py": "",
        "kit_of_fakes/fused.py": "import torch\nSPACE = torch.empty(1, device='cuda')\n",
        "kit_of_fakes/outer.py": "from kit_of_fakes import fused\n", "kit_of_fakes/plain.py": "ONE = 1\n",
    })  # fmt: skip
    with fake_run.fake_run("cuda", "fp32"):
        for name in ("outer", "plain"):
            importlib.import_module(f"kit_of_fakes.{name}")
    assert {name for name in sys.modules if "kit_of_fakes" in name} == {"kit_of_fakes", "kit_of_fakes.plain"}
    assert not {"fused", "outer"} & vars(sys.modules["kit_of_fakes"]).keys()
    for name in ("kit_of_fakes", "kit_of_fakes.plain"):
        del sys.modules[name]


@pytest.mark.parametrize("precision, checkpoint", [("fp32", "none"), ("bf16", "none"), ("fp16", "block")])
@pytest.mark.parametrize("attention, target", [("naive", "cpu"), ("naive", "cuda"), ("sdpa", "cpu")])
def test_real_tensors_count_the_same(
    precision: str, attention: str, target: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes, attention alone, and updates with each of AdamW's implementations."""
    case = replace(CASE, precision=precision, attention=attention, device=target, checkpoint=checkpoint)
    alone = AttentionCase("attention_forward", 16, 40, 3, precision, attention, target)
    found = []
    for _ in range(2):
        rounds.attention_passes.cache_clear()
        rounds.updates.cache_clear()
        of_gpu = [replace(CASE, precision=precision, device="cuda", optimizer=name) for name in ADAMW]
        found.append((count_all(case), rounds.attention_passes(alone), [*map(rounds.updates, of_gpu)]))
        monkeypatch.setattr(fake_run, "fake_tensors", nullcontext)
    assert found[0] == found[1]


TINY = replace(SIZES["tiny"], num_layers=5, vocab_size=100)


DEEP = [
    (TINY, 64, "fp32", "naive", "none", "cpu"), (TINY, 64, "fp32", "sdpa", "block", "cuda"),
    (TINY, 64, "bf16", "naive", "attention", "cuda"), (TINY, 64, "bf16", "sdpa", "none", "cuda"),
    (TINY, 64, "fp16", "naive", "block", "cuda"), (SIZES["small"], 128, "fp32", "naive", "none", "cuda"),
    (SIZES["large"], 1024, "bf16", "naive", "none", "cuda"),
    *((replace(CONFIG, num_layers=9), 24, "fp32", "naive", blocks, "cpu") for blocks in "23579"),
]  # fmt: skip


@pytest.mark.parametrize("config, context, precision, attention, checkpoint, target", DEEP)
def test_a_few_layers_tell_of_all(
    config: ModelConfig, context: int, precision: str, attention: str, checkpoint: str, target: str
) -> None:
    case = replace(CASE, config=config.at_context(context), context_length=context, checkpoint=checkpoint)
    case = replace(case, precision=precision, attention=attention, device=target)
    told = {**rounds.passes(replace(case, phase="inference")), **rounds.passes(case)}
    assert told == count_all(case)


def test_a_peak_that_wanders_with_the_depth_is_found() -> None:
    """Two layers peak at the end of the backward pass, at all gradients; many at its start, at all that was saved."""
    config = ModelConfig(d_model=64, d_ff=1024, num_layers=14, num_heads=1, vocab_size=4000, context_length=2)
    case = replace(CASE, config=config, context_length=2, batch_size=19)
    shallow = fake_run.count_passes(replace(case, config=replace(config, num_layers=2)))["backward"]
    deep = fake_run.count_passes(case)["backward"]
    assert shallow.live_at_peak[ACTIVATIONS] == deep.live_at_peak[GRADIENTS] == 0
    assert rounds.passes(case)["backward"].live_at_peak == deep.live_at_peak


def logged(*changes: tuple[str, int], kernels: int = 1) -> PartCounters:
    launched = Counter({KernelCost("aten.mm", 1, 1, "fp32"): kernels})
    return PartCounters(launched, 0, Counter(), tuple((*change, 0) for change in changes), (), Counter())


def test_layers_that_are_not_equal_are_refused() -> None:
    """A step in the middle of two logs may only free, and no count may shrink below none.

    The first layer of an inference differs: its caller still holds what goes in, where no graph does.
    """
    few = logged((ACTIVATIONS, 1), (GRADIENTS, 2))
    extrapolated(few, logged((ACTIVATIONS, 1), (INPUTS, -5), (GRADIENTS, 2)), 6)

    def counted(phase: str, **changes: int) -> PartCounters:
        return fake_run.count_passes(replace(CASE, phase=phase, config=replace(CONFIG, **changes)))[phase]

    for less, more, words in (
        (few, logged((ACTIVATIONS, 1), (INPUTS, 5), (GRADIENTS, 2)), "in the middle"),
        (logged(kernels=5), logged(kernels=1), "negative"),
        (counted("forward", num_layers=1), counted("forward", d_ff=64), "differ|negative"),
        (counted("inference", num_layers=1), counted("inference", num_layers=2), "differ|negative"),
    ):
        with pytest.raises(NotOfEqualLayersError, match=words):
            extrapolated(less, more, 6)


def test_a_deep_model_is_told_from_fewer_layers_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """One and one more; of an inference two, whose first differs; of checkpoints over two blocks what is left over."""
    monkeypatch.setattr(fake_run, "count_passes", counted := Mock(wraps=fake_run.count_passes))
    told = ("forward", "none", [1, 2]), ("inference", "none", [2, 3]), ("forward", "2", [3, 5])
    for phase, checkpoint, layers in told:
        counted.reset_mock()
        rounds.passes.cache_clear()
        rounds.passes(replace(CASE, phase=phase, config=replace(CONFIG, num_layers=9), checkpoint=checkpoint))
        assert [call.args[0].config.num_layers for call in counted.call_args_list] == layers


def test_counting_refuses_autocast_and_bounds_what_torch_remembers_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or memory grows with each shape of a long run."""
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="leave it first"):
        fake_run.count_passes(CASE)
    monkeypatch.setattr(torch_private, "MOST_FAKE_SHAPES", 10**6)
    fake_run.count_passes(replace(CASE, batch_size=5))
    assert FakeTensorMode.cache_info().size > 0
    monkeypatch.setattr(torch_private, "MOST_FAKE_SHAPES", 0)
    fake_run.count_passes(replace(CASE, batch_size=6))
    assert FakeTensorMode.cache_info().size == 0


IN_BATCHES: dict[str, tuple[dict[str, Any], int]] = {
    "blocks that share a checkpoint": ({"checkpoint": "2"}, 2),
    "a model of one's own": ({"model": f"{MODELS}:GroupedHeads", "attention": "own", "precision": "bf16"}, 2),
    "one that does something else in large batches": (
        {"model": f"{MODELS}:AnotherInLargeBatches", "attention": "own"}, 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_BATCHES)
def test_a_prediction_counts_one_batch_and_replays_the_others_where_that_is_exact(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, runs = IN_BATCHES[name]
    in_batch = {batch: replace(CASE, device="cuda", batch_size=batch, **fields) for batch in (3, 2, 64)}
    assert in_batch[3].facts.why_not_counted is None  # which builds a model of one's own, as every count does first
    wanted = {batch: fake_run.count_passes(case) for batch, case in in_batch.items()}
    monkeypatch.setattr(fake_run, "count_passes", count := Mock(wraps=fake_run.count_passes))
    monkeypatch.setattr(rounds, "_batches", {})
    with recorded.in_use():
        assert {batch: rounds.count_passes(case) for batch, case in in_batch.items()} == wanted
        assert count.call_count == runs
        rounds.count_passes(replace(in_batch[3], batch_size=1))
    assert count.call_count == runs + 1, "a batch of one has views where others have copies"
