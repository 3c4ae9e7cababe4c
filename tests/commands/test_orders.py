"""What a training loop chooses decides whether its step fits, and `predict` says so."""

import json
from dataclasses import replace

import pytest

from perf_tests.__main__ import main
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import Room, gpu_named
from perf_tests.hardware.limits import ceilings_of
from perf_tests.phases import PHASES, ZERO_GRAD
from perf_tests.predict.counters import counters_of
from perf_tests.predict.counting import FORMER_PASS
from perf_tests.predict.screens import gb, held_lines, step_lines, verdict_line
from perf_tests.predict.step import TargetMachine, conditions_of, optimizer_variants, predict_case, predict_step
from tests.support.example_cases import CPU, SETTINGS, TOY, language_model_case

STEP = language_model_case(phase="full_step", optimizer="loop", device="cuda")


def machine(room_bytes: int) -> TargetMachine:
    return TargetMachine("card", "cuda", Room(room_bytes, "made up"), ceilings_of(gpu_named("A100-80GB")), True)


def test_the_step_of_a_published_table_comes_out_of_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    """60, 67 and a dash; and the order that would have made the third one fit."""
    words = [
        "--size",
        "2.7B",
        "--context",
        "128,256,512",
        "--zero-grad",
        "after-forward",
        "--optimizer",
        "loop",
        "--gpu",
        "A100-80GB",
    ]
    assert main(["predict", *words]) == 1
    text = capsys.readouterr().out
    cells = [line.split()[3] for line in text.splitlines() if line.startswith(("128 ", "256 "))]
    assert [float(cell) for cell in cells] == [pytest.approx(60, rel=0.01), pytest.approx(67, rel=0.01)]
    (dash,) = (line for line in text.splitlines() if line.startswith("512 "))
    assert dash.split()[3] == "-", dash
    assert "context 512 fits only if gradients are cleared before the forward pass" in text
    assert "gradients set to None after the forward pass" in text


@pytest.mark.parametrize(
    "held, added", [("forward", "graph and logits"), ("inference", "logits"), ("full_step", "logits")]
)
def test_a_former_pass_that_is_held_adds_what_its_backward_pass_did_not_free(held: str, added: str) -> None:
    case = replace(STEP, phase=held, optimizer="loop" if held == "full_step" else None)
    alone, beside = counters_of(case), counters_of(replace(case, holds_former_pass=True))
    logits_bytes = case.tokens * case.config.vocab_size * 4
    graph_bytes = counters_of(replace(case, phase="forward", optimizer=None)).saved_bytes
    wanted = logits_bytes + (graph_bytes if added == "graph and logits" else 0)
    assert beside.parts[0].peak_bytes - alone.parts[0].peak_bytes == wanted
    assert beside.parts[0].bytes_by_category[FORMER_PASS] == wanted
    assert beside.parts[1:] == alone.parts[1:]
    assert beside.kernels == alone.kernels


def test_the_verdict_says_what_a_held_pass_adds_and_which_pass_it_keeps_from_fitting() -> None:
    """A loop of forward passes holds two graphs, more than a step with its gradients and moments."""
    wide = replace(STEP, batch_size=64, holds_former_pass=True)
    step, forward = (predict_case(replace(wide, phase=phase), machine(2**40)) for phase in ("full_step", "forward"))
    assert step.peak_bytes < forward.peak_bytes
    between = machine(int(1.05 * (step.peak_bytes + forward.peak_bytes) / 2))
    held, freed = (predict_step(replace(wide, holds_former_pass=holds), between) for holds in (True, False))
    assert held.fits
    (line,) = held_lines(held)
    assert line.startswith("but forward alone ")
    assert line.endswith(f"{gb(forward.bytes_by_category[FORMER_PASS])} of it held from the former pass)")
    assert FORMER_PASS not in freed.step.bytes_by_category
    assert not held_lines(freed)
    assert step_lines(held)[2] == line, "directly below the verdict"
    verdict = verdict_line(step, between)
    assert ("held from the former pass" in verdict) == (FORMER_PASS in step.bytes_by_category)


@pytest.mark.parametrize("asked", ["before-forward", "after-forward"])
def test_a_condition_is_named_only_where_it_decides(asked: str) -> None:
    peaks = [predict_case(replace(STEP, zero_grad=order), machine(2**40)).peak_bytes for order in ZERO_GRAD[:2]]
    assert peaks[0] < peaks[1]
    between = machine(int(1.05 * (peaks[0] + peaks[1]) / 2))
    step = predict_case(replace(STEP, zero_grad=asked), between)
    assert step.fits is (asked == "before-forward")
    assert any("cleared before the forward pass" in one.words for one in conditions_of(step, between))
    for room in (2**40, 2**10):
        ample = machine(room)
        assert not conditions_of(predict_case(replace(STEP, zero_grad=asked), ample), ample)


def test_every_implementation_of_adamw_is_shown_with_its_own_peak() -> None:
    wide = replace(STEP, config=replace(TOY, d_ff=4096), batch_size=1)
    found = optimizer_variants(wide, machine(2**40))
    assert list(found) == ["loop", "foreach", "fused"]
    assert found["foreach"].peak_bytes > found["loop"].peak_bytes


def test_a_prediction_names_what_it_assumes_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--size", "tiny", "--context", "64", "--gpu", "T4", "--zero-grad", "before-step", "--hold", "former-pass"]
    assert main(["predict", *words]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("assumes"))
    for word in ("AdamW foreach", "never has gradients", "set to None before the step", "are still held", "eager"):
        assert word in line
    assert main(["predict", *words, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["optimizers"]) == {"loop", "foreach", "fused"}


@pytest.mark.parametrize("words", ["--zero-grad never", "--hold breath", "--context 64,128 --checkpoint all"])
def test_an_order_that_is_none_is_a_usage_error(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--size", "tiny", "--gpu", "T4", *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("order", ZERO_GRAD)
@pytest.mark.parametrize("phase", ["full_step", "forward", "optimizer"])
def test_the_order_is_in_the_identity_of_a_full_step_alone(phase: str, order: str) -> None:
    axes = dict.fromkeys(LanguageModelCase.axes) | {
        "model_size": "tiny", "context_length": 8, "precision": "fp32", "attention": "naive", "execution": "eager",
        "checkpoint": "none",
    }  # fmt: skip
    case = LanguageModelCase.of(phase, axes, replace(SETTINGS, zero_grad=order))
    stored = f"set_to_none_{order.replace('-', '_')}" if phase == "full_step" else None
    assert case.identity()["zero_grad_policy"] == stored
    assert case.updates is (PHASES[phase].trains and (phase, order) != ("full_step", "before-step"))


def test_a_loss_scaler_that_gets_no_gradients_is_unsupported() -> None:
    case = language_model_case(phase="full_step", optimizer="loop", precision="fp16", zero_grad="before-step")
    reason = str(case.why_unsupported(CPU))
    assert "before-step" in reason or "fp16" in reason
