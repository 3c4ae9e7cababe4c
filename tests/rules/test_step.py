"""Predicted steps move the way physics does; orders, held passes and checkpoints decide what fits, by the rule."""

import gc
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.language_model import OF_ATTENTION_ALONE, LanguageModelCase
from perf_tests_suite.perf_tests.hardware import limits
from perf_tests_suite.perf_tests.hardware.datasheets import Room, gpu_named
from perf_tests_suite.perf_tests.hardware.limits import ALONE, BY_DO_BENCH, ceilings_of
from perf_tests_suite.perf_tests.phases import FULL_STEP, PHASES, ZERO_GRAD
from perf_tests_suite.perf_tests.predict import step as prediction
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.parts import FORMER_PASS
from perf_tests_suite.perf_tests.predict.screens import (
    COURSE_ADAMW,
    attention_lines,
    gb,
    range_text,
    step_lines,
    unknown_lines,
)
from tests.support.allocator_peak import PEAK_LIMIT, step_peaks
from tests.support.example_cases import CEILINGS, CPU, SETTINGS, TOY, attention_case, language_model_case
from tests.support.launch import MODELS

TINY = language_model_case(
    SIZES["tiny"].at_context(64), phase=FULL_STEP, size="tiny", batch_size=4, optimizer="foreach", device="cuda"
)
STEP = language_model_case(phase=FULL_STEP, optimizer="loop", device="cuda")


@pytest.fixture(autouse=True)
def by_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rooms here are of kilobytes, of which CUDA's allocator takes megabytes at a time; so a share decides."""
    monkeypatch.setattr(
        "perf_tests_suite.perf_tests.predict.step.allocator_peaks", lambda case, libraries, room_bytes=None: None
    )


def machine(room_bytes: int = 10**12) -> prediction.TargetMachine:
    room, ceilings = Room(room_bytes, "made up"), ceilings_of(gpu_named("A100-80GB"))
    return prediction.TargetMachine("card", "cuda", room, ceilings, True)


def cpu_with(room_bytes: int = 10**12) -> prediction.TargetMachine:
    return prediction.TargetMachine("this CPU", "cpu", Room(room_bytes, "made up"), CEILINGS, False)


def at(case: LanguageModelCase, batch_size: int = 4, context: int = 64) -> LanguageModelCase:
    return replace(case, batch_size=batch_size, context_length=context, config=case.config.at_context(context))


def cell(phase: str, sequence_length: int) -> AttentionCase:
    return attention_case(phase=f"attention_{phase}", sequence_length=sequence_length, device="cuda")


@pytest.mark.parametrize("phase", ["inference", "forward", "backward", "full_step"])
def test_more_tokens_take_no_less_memory_and_no_less_time(phase: str) -> None:
    case = replace(TINY, phase=phase)
    by_batch = [at(case, batch_size=count) for count in (1, 2, 8, 32)]
    for grown in (by_batch, [at(case, context=count) for count in (32, 64, 256, 512)]):
        found = [prediction.predict_case(case, machine()) for case in grown]
        assert found == sorted(found, key=lambda one: one.peak_bytes) == sorted(found, key=lambda one: one.time.seconds)
        assert found[-1].peak_bytes > found[0].peak_bytes


def test_a_range_is_stated_only_of_what_was_compared_with_published_times() -> None:
    optimizer = "tests.support.planted_optimizers:Descent"
    unknown = [replace(TINY, attention="sdpa"), replace(TINY, optimizer=optimizer)]
    updates = [replace(TINY, phase="optimizer", optimizer=name) for name in ("loop", "fused")]
    cases = [TINY, cell("forward", 256), *unknown, *updates]
    known = [prediction.predict_case(one, machine()).is_range_known for one in cases]
    assert known == [True, True, False, False, True, False]
    assert not prediction.predict_case(TINY, replace(machine(), has_published_times=False)).is_range_known
    of_no_time: dict[str, Case] = {
        "sdpa attention": unknown[0], "an optimizer of your own": unknown[1], "AdamW fused alone": updates[1],
        "AdamW fused": replace(TINY, optimizer="fused"),
        "tensors in 16 bits, but by do_bench": replace(cell("forward", 256), precision="bf16-tensors"),
        "a model of your own": replace(TINY, model=f"{MODELS}:Averaging", attention="own"),
    }  # fmt: skip
    found = {name: prediction.predict_case(case, machine()) for name, case in of_no_time.items()}
    assert {name: one.without_evidence for name, one in found.items()} == {name: name for name in of_no_time}
    assert unknown_lines([prediction.predict_case(TINY, machine()), *found.values(), *found.values()]) == [
        f"range not known: no published time is of {', '.join(of_no_time)}"
    ]


def test_a_step_takes_no_less_than_its_longest_part_and_no_more_than_all_of_them() -> None:
    """A small model is bound by launches and a large one by its kernels."""
    phases = prediction.predict_step(TINY, machine()).phases
    parts = [phases[name].time.seconds for name in ("forward", "backward", "optimizer")]
    # The loss is in the step alone.
    assert max(parts) < phases[FULL_STEP].time.seconds < 1.2 * sum(parts)
    large = replace(TINY, size="large", config=SIZES["large"].at_context(1024), context_length=1024, phase="forward")
    assert (phases[FULL_STEP].time.bound, prediction.predict_case(large, machine()).time.bound) == ("launch", "compute")


SINGLE = ["--optimizer fused", "--attention sdpa", "--checkpoint attention", "--checkpoint block"]
TOGETHER = {"optimizer": "fused", "attention": "sdpa", "checkpoint": "block"}


def test_what_does_not_fit_is_remedied_cheapest_first_and_with_the_largest_batch_that_fits() -> None:
    assert prediction.predict_step(TINY, machine()).remedies == {}, "what fits is not remedied"
    case = at(TINY, batch_size=8, context=512)
    small = machine(room_bytes=counters_of(case).peak_bytes // 2)
    remedies = prediction.predict_step(case, small).remedies
    changes = list(remedies)
    assert changes[:4] == SINGLE
    assert [change.split()[0] for change in changes[4:6]] == ["--batch-size", "--context"]
    assert all(remedies[change].fits for change in changes[4:6])
    assert not prediction.predict_case(at(case, int(changes[4].split()[1]) + 1, 512), small).fits
    assert not prediction.predict_case(at(case, 8, int(changes[5].split()[1]) + 64), small).fits


def test_where_no_single_change_helps_all_of_them_together_are_tried_and_then_the_smallest_batch() -> None:
    """The optimizer's temporaries and the saved activations are each too many by themselves."""
    case = at(TINY, batch_size=2)
    for batch_size, last in ((2, " ".join(f"--{name} {value}" for name, value in TOGETHER.items())),
                             (1, "... and --batch-size 1")):  # fmt: skip
        room_bytes = Room.bytes_for(counters_of(replace(case, batch_size=batch_size, **TOGETHER)).peak_bytes)  # type: ignore[arg-type]
        remedies = prediction.predict_step(case, machine(room_bytes)).remedies
        assert list(remedies)[-1] == last
        assert [change for change, step in remedies.items() if step.fits and "--" in change[3:]] == [last]
        assert not any(remedies[change].fits for change in SINGLE)


def test_where_the_weights_alone_are_too_large_nothing_is_tried_and_it_is_said() -> None:
    """16 bytes a parameter; of a frozen one 4, of a shared matrix once."""
    found = prediction.predict_step(TINY, machine(room_bytes=16 * TINY.config.parameters))
    assert (found.fits, found.is_hopeless, found.remedies) == (False, True, {})
    assert step_lines(found)[-1].endswith("alone take 49.36 MB")
    frozen = replace(STEP, model=f"{MODELS}:FrozenEmbedding", attention="own")
    trained = TOY.vocab_size * (32 + 1)
    weights = 4 * (trained + TOY.vocab_size * 32 + 3 * trained)
    assert prediction.predict_step(frozen, machine()).unavoidable_bytes == weights
    assert frozen.least_bytes == weights + 4 * frozen.tokens * TOY.vocab_size


def test_the_largest_batch_that_fits_is_known_to_the_sequence() -> None:
    """Also where blocks of 512 bytes make its line uneven, and where any batch would fit."""
    case = replace(STEP, model=f"{MODELS}:Tied", attention="own")
    for device, most in (("cpu", 23), *(("cuda", batch_size) for batch_size in (3, 5, 6, 7))):
        case = replace(case, device=device)
        room = round(counters_of(replace(case, batch_size=most)).peak_bytes * 1.05) + 1
        assert prediction.largest_batch(case, machine(room)) == most
    found = prediction.predict_step(case, machine())
    assert (found.largest_batch, found.unavoidable_bytes) == (4096, 4 * 4 * TOY.vocab_size * 4)
    assert "largest batch that fits: 4096 or more" in step_lines(found)


def test_the_smallest_attention_that_does_not_fit_has_its_bytes_accounted_for() -> None:
    cells = [cell(phase, length) for length in (256, 1024, 4096) for phase in ("forward", "backward")]
    found = prediction.predict_attention(cells, machine(room_bytes=10**8))
    smallest: Any = found.smallest_that_does_not_fit
    assert smallest.case == cell("forward", 1024)
    account = "\n".join(attention_lines(found)).partition("smallest case that does not fit")[2]
    assert all(words in account for words in ("forward d16-seq1024-fp32-naive", "aten.exp  model/attention.py"))


def test_each_class_of_published_times_is_told_by_what_is_timed() -> None:
    """Of attention by its softmax and clock, of models by part and optimizer; of others there are none."""
    softmax = replace(cell("backward", 1024), attention="softmax")
    classes: dict[str, Case] = {
        limits.WHOLE_MODELS: replace(TINY, phase="forward", optimizer=None),
        limits.FULL_STEPS: TINY,
        limits.UPDATES: replace(TINY, phase="optimizer", optimizer="loop"),
        limits.ALONE: cell("forward", 1024),
        limits.SOFTMAX_ALONE: softmax,
    }
    assert {name: prediction.evidence_of(case) for name, case in classes.items()} == {name: name for name in classes}
    assert {prediction.evidence_of(classes[name], by_do_bench=True) for name in BY_DO_BENCH} == {*BY_DO_BENCH.values()}
    assert [*limits.IN_RANGE] == [*classes, *BY_DO_BENCH.values()]
    without = [
        replace(softmax, attention="sdpa"),
        replace(TINY, phase="forward", optimizer=None, attention="softmax"),
        replace(TINY, optimizer="fused"),
        replace(TINY, phase="optimizer", optimizer="foreach"),
    ]
    assert [prediction.evidence_of(case) for case in without] == [None] * 4


def test_a_range_wider_than_ten_times_is_not_known() -> None:
    assert [range_text(1.0, high) for high in (10.0, 10.1)] == ["1 to 10 s", "not known"]
    assert range_text(0.0, 1e-3) == "not known"


def test_the_courses_adamw_launches_more_than_a_loop_of_pytorch() -> None:
    """As the screen has it: 16 a parameter of 111 of small, where PyTorch's loop makes 10, of any size."""
    assert "16 launches a parameter, 1776 for small, where PyTorch's loop makes 10;" in COURSE_ADAMW
    assert 16 * (12 * 9 + 3) == 1776
    loop = counters_of(replace(TINY, phase="optimizer", optimizer="loop")).kernel_launches
    tensors = len([*TransformerLM(TINY.config, naive_attention).parameters()])
    assert (tensors, round(loop / tensors)) == (TINY.config.num_layers * 9 + 3, 10)


def test_tensors_of_bf16_are_another_precision_than_autocast_and_the_screen_says_which_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one sequence of 16,384 tokens, published by NiccoloSacchi/assignment2-systems
    (assets/benchmark_flash_attention.csv): 3616 MiB without the 256 MiB that do_bench clears. Its graph is kept, one
    matrix more, and its mask has one element, a byte a score less.
    """
    case = replace(cell("backward", 16384), batch_size=1, head_dim=64, precision="bf16-tensors")
    in_tensors, by_autocast = (
        prediction.predict_attention([one], machine()) for one in (case, replace(case, precision="bf16"))
    )
    tensors: Any = in_tensors.cells[0]
    autocast: Any = by_autocast.cells[0]
    square = 16384**2
    assert tensors.peak_bytes + 2 * square - square == pytest.approx(3616.4 * 2**20, rel=0.01)
    assert autocast.peak_bytes > 1.5 * tensors.peak_bytes
    assert tensors.by_do_bench.seconds < autocast.by_do_bench.seconds
    assert (tensors.is_range_known, autocast.is_range_known) == (False, True)
    (about, *_), (other, *_) = attention_lines(in_tensors), attention_lines(by_autocast)
    assert "batch 1, bf16 tensors without autocast" in about
    assert "float32 tensors under bf16 autocast" in other
    assert f"  {BY_DO_BENCH[ALONE]}: " in "\n".join(attention_lines(in_tensors))
    assert case.residual_tensor_bytes == 16384 * 64 * 2
    monkeypatch.setattr("perf_tests_suite.model.precision.cpu_capabilities", lambda: {"avx512_bf16": True})
    model = replace(TINY, precision="bf16-tensors")
    assert why_unsupported(model, torch.device("cpu")) == OF_ATTENTION_ALONE.format("bf16-tensors")


def test_the_first_step_has_a_row_only_where_its_peak_differs() -> None:
    """It holds nothing of a former pass and no state yet, and its gradients are new."""
    for size, order in ((1, "before-forward"), (256, "after-forward")):
        case = replace(TINY, batch_size=size, zero_grad=order, holds_former_pass=size > 1)
        found = prediction.predict_step(case, machine())
        differs = found.first_step.peak_bytes != found.step.peak_bytes
        assert ("first_step" in found.peaks) == differs == any("first_step" in line for line in step_lines(found))
        first = counters_of(replace(case, phase="first_step"))
        plain = replace(case, phase="first_step", zero_grad="before-forward", holds_former_pass=False)
        assert first == counters_of(plain)
    lines = step_lines(prediction.predict_step(case, machine(Room.bytes_for(found.first_step.peak_bytes))))
    (line,) = (line for line in lines if line.startswith("its first step, which makes the optimizer's state, fits"))
    assert line.endswith(gb(first.peak_bytes))


@pytest.mark.parametrize(
    "held, added", [("forward", "graph and logits"), ("inference", "logits"), ("full_step", "logits")]
)
@pytest.mark.parametrize("precision, logit_bytes", [("fp32", 4), ("bf16", 2)])
def test_a_former_pass_adds_what_it_did_not_free(held: str, added: str, precision: str, logit_bytes: int) -> None:
    case = replace(STEP, phase=held, optimizer="loop" if held == FULL_STEP else None, precision=precision)
    alone, beside = counters_of(case), counters_of(replace(case, holds_former_pass=True))
    graph_bytes = counters_of(replace(case, phase="forward", optimizer=None)).saved_bytes
    wanted = case.tokens * case.config.vocab_size * logit_bytes + (graph_bytes if "graph" in added else 0)
    assert beside.parts[0].peak_bytes - alone.parts[0].peak_bytes == wanted
    assert beside.parts[0].bytes_by_category[FORMER_PASS] == wanted
    assert (beside.parts[1:], beside.kernels) == (alone.parts[1:], alone.kernels)


def test_the_verdict_says_what_a_held_pass_adds_and_which_pass_it_keeps_from_fitting() -> None:
    """A loop of forward passes holds two graphs, more than a step with its gradients and moments."""
    wide = replace(STEP, batch_size=64, holds_former_pass=True)
    step, forward = (prediction.predict_case(replace(wide, phase=of), machine(2**40)) for of in (FULL_STEP, "forward"))
    assert step.peak_bytes < forward.peak_bytes
    between = machine(int(1.05 * (step.peak_bytes + forward.peak_bytes) / 2))
    held, freed = (prediction.predict_step(replace(wide, holds_former_pass=holds), between) for holds in (True, False))
    line = step_lines(held)[2]
    assert held.fits
    assert line.startswith("but forward alone ")
    assert line.endswith(f"{gb(forward.bytes_by_category[FORMER_PASS])} of it held from the former pass)")
    assert "former pass" not in "\n".join(step_lines(freed))


def test_a_condition_is_named_only_where_it_decides() -> None:
    orders = [replace(STEP, zero_grad=order) for order in ZERO_GRAD[:2]]
    peaks = [prediction.predict_case(case, machine(2**40)).peak_bytes for case in orders]
    assert peaks[0] < peaks[1]
    for case, room in product(orders, (2**40, int(1.05 * sum(peaks) / 2), 2**10)):
        step = prediction.predict_case(case, machine(room))
        named = [one.text for one in prediction.conditions_of(step, machine(room))]
        assert any("cleared before the forward pass" in words for words in named) == (2**10 < room < 2**40)


def test_every_implementation_of_adamw_is_shown_with_its_own_peak() -> None:
    found = prediction.optimizer_variants(replace(STEP, config=replace(TOY, d_ff=4096), batch_size=1), machine(2**40))
    assert (list(found), found["foreach"].peak_bytes > found["loop"].peak_bytes) == (["loop", "foreach", "fused"], True)


@pytest.mark.parametrize("order", ZERO_GRAD)
@pytest.mark.parametrize("phase", ["full_step", "forward", "optimizer"])
def test_the_order_is_in_the_identity_of_a_full_step_alone(phase: str, order: str) -> None:
    axes = dict.fromkeys(LanguageModelCase.axes) | {
        "model_size": "tiny", "context_length": 8, "precision": "fp32", "attention": "naive", "execution": "eager",
        "checkpoint": "none",
    }  # fmt: skip
    case = LanguageModelCase.of(phase, axes, replace(SETTINGS, zero_grad=order))
    stored = f"set_to_none_{order.replace('-', '_')}" if phase == FULL_STEP else None
    assert case.identity()["zero_grad_policy"] == stored
    half = replace(case, precision="fp16")  # whose scaler would get no gradients
    assert (phase, order) != (FULL_STEP, "before-step") or re.search(
        "before-step|fp16", str(why_unsupported(half, CPU))
    )
    assert case.updates is (PHASES[phase].trains and (phase, order) != (FULL_STEP, "before-step"))


SIX_LAYERS = ModelConfig(d_model=64, d_ff=256, num_layers=6, num_heads=4, vocab_size=50, context_length=128)
DEEP = replace(STEP, config=SIX_LAYERS, context_length=128, size="six layers", batch_size=4, device="cpu")


def checkpoint_of(step: object) -> str:
    return str(step.case.identity()["checkpoint"])  # type: ignore[attr-defined]


def test_the_checkpoint_that_is_named_is_the_allocators_best() -> None:
    """What lies between the offered numbers is never smaller."""
    peaks = {}
    for one in ("none", "block", "2", "6"):
        peaks[one] = step_peaks(replace(DEEP, checkpoint=one))
        gc.collect()  # a model in training is a cycle: without this two of them would stand side by side
    assert max(abs(predicted / measured - 1) for predicted, measured in peaks.values()) <= PEAK_LIMIT
    assert checkpoint_of(prediction.choose_checkpoint(DEEP, list(peaks), cpu_with()).smallest) == "block"
    assert peaks["block"][1] <= min(measured for _, measured in peaks.values()) * (1 + PEAK_LIMIT)
    assert prediction.worthwhile_checkpoints(6) == ["none", "attention", "block", "2", "3", "6"]
    three, four, five = (counters_of(replace(DEEP, checkpoint=str(n))).peak_bytes for n in (3, 4, 5))
    assert three <= four <= five  # two checkpoints each


def choice_in(room_bytes: int) -> prediction.CheckpointChoice:
    return prediction.choose_checkpoint(DEEP, ["none", "block", "6"], cpu_with(room_bytes))


def test_the_fastest_that_fits_recomputes_only_where_it_must() -> None:
    peaks = {checkpoint_of(step): step.peak_bytes for step in choice_in(10**12).steps}
    assert peaks["block"] < peaks["6"] <= peaks["none"]
    for room, name in (
        (10**12, "none"),
        (Room.bytes_for(peaks["block"]), "block"),
        (peaks["block"] - 1, None),
    ):
        fastest = choice_in(room).fastest_that_fits
        assert (fastest and checkpoint_of(fastest)) == name


def test_the_smallest_peak_wins_and_of_equal_peaks_the_fastest() -> None:
    """Where the optimizer holds the most, recomputing saves nothing; of many thin layers two blocks beat one."""
    assert checkpoint_of(choice_in(10**12).smallest) == "block", "none would be faster"
    choice = prediction.choose_checkpoint(at(DEEP, 1, 2), ["block", "none"], cpu_with())
    assert {step.peak_part for step in choice.steps} == {"optimizer"}
    assert checkpoint_of(choice.smallest) == "none"
    thin = ModelConfig(d_model=64, d_ff=2, num_layers=36, num_heads=1, vocab_size=2, context_length=64)
    case = replace(DEEP, config=thin, context_length=64, batch_size=16, attention="sdpa")
    assert checkpoint_of(prediction.choose_checkpoint(case, ["block", "2", "4"], cpu_with()).smallest) == "2"
