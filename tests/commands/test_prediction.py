"""`predict` says what fits, why not, and what would help; its figures move the way physics does."""

import json
import re
from dataclasses import replace

import pytest

from model.sizes import SIZES
from perf_tests.__main__ import main
from perf_tests.cases.attention import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import (
    DOES_NOT_FIT,
    FITS,
    FRAGMENTATION_SHARE,
    MAY_NOT_FIT,
    Room,
    gpu_named,
    room_on,
)
from perf_tests.hardware.limits import ceilings_of
from perf_tests.predict import request as prediction_request
from perf_tests.predict.counters import counters_of
from perf_tests.predict.screens import attention_lines, step_lines
from perf_tests.predict.step import TargetMachine, predict_attention, predict_case, predict_step
from tests.support.example_cases import CEILINGS, attention_case, language_model_case

TINY = language_model_case(
    SIZES["tiny"].at_context(64), phase="full_step", size="tiny", batch_size=4, optimizer="foreach", device="cuda"
)


def machine(room_bytes: int = 10**12) -> TargetMachine:
    return TargetMachine("card", "cuda", Room(room_bytes, "made up"), ceilings_of(gpu_named("A100-80GB")), True)


def at(case: LanguageModelCase, batch_size: int = 4, context: int = 64) -> LanguageModelCase:
    return replace(case, batch_size=batch_size, context_length=context, config=case.config.at_context(context))


@pytest.mark.parametrize("phase", ["inference", "forward", "backward", "full_step"])
def test_more_tokens_take_no_less_memory_and_no_less_time(phase: str) -> None:
    case = replace(TINY, phase=phase)
    by_batch = [at(case, batch_size=count) for count in (1, 2, 8, 32)]
    by_context = [at(case, context=count) for count in (32, 64, 256, 512)]
    for grown in (by_batch, by_context):
        found = [predict_case(case, machine()) for case in grown]
        assert found == sorted(found, key=lambda one: one.peak_bytes) == sorted(found, key=lambda one: one.time.seconds)
        assert found[-1].peak_bytes > found[0].peak_bytes


def test_an_error_is_stated_only_of_what_was_compared_with_published_times() -> None:
    assert predict_case(TINY, machine()).is_range_known
    assert predict_case(cell("forward", 256), machine()).is_range_known
    assert not predict_case(replace(TINY, attention="sdpa"), machine()).is_range_known
    assert not predict_case(TINY, replace(machine(), has_published_times=False)).is_range_known


def test_a_step_takes_no_less_than_its_longest_part_and_no_more_than_all_of_them() -> None:
    seconds = {name: phase.time.seconds for name, phase in predict_step(TINY, machine()).phases.items()}
    parts = [seconds[name] for name in ("forward", "backward", "optimizer")]
    assert max(parts) < seconds["full_step"]
    # The loss is in the step alone.
    assert seconds["full_step"] < 1.2 * sum(parts)


def test_a_small_model_is_bound_by_launches_and_a_large_one_by_its_kernels() -> None:
    assert predict_case(TINY, machine()).time.bound == "launch"
    large = replace(TINY, size="large", config=SIZES["large"].at_context(1024), context_length=1024, phase="forward")
    assert predict_case(large, machine()).time.bound == "compute"


def test_what_does_not_fit_is_remedied_cheapest_first_and_with_the_largest_batch_that_fits() -> None:
    assert predict_step(TINY, machine()).remedies == {}, "what fits is not remedied"
    case = at(TINY, batch_size=8, context=512)
    small = machine(room_bytes=counters_of(case).peak_bytes // 2)
    remedies = predict_step(case, small).remedies
    changes = list(remedies)
    assert changes[:4] == ["--optimizer fused", "--attention sdpa", "--checkpoint attention", "--checkpoint block"]
    assert [change.split()[0] for change in changes[4:6]] == ["--batch-size", "--context"]
    assert all(remedies[change].fits for change in changes[4:6])
    batch_size = int(changes[4].split()[1])
    assert not predict_case(replace(case, batch_size=batch_size + 1), small).fits


def test_where_no_single_change_helps_all_of_them_together_are_tried() -> None:
    """The optimizer's temporaries and the saved activations are each too many by themselves."""
    case = at(TINY, batch_size=2)
    together = replace(case, optimizer="fused", attention="sdpa", checkpoint="block")
    room_bytes = Room.bytes_for(counters_of(together).peak_bytes)
    found = predict_step(case, machine(room_bytes=room_bytes))
    fits = {change: step.fits for change, step in found.remedies.items()}
    assert fits["--optimizer fused --attention sdpa --checkpoint block"]
    assert not any(fits[change] for change in ("--optimizer fused", "--attention sdpa", "--checkpoint block"))


def test_where_the_weights_alone_are_too_large_nothing_is_tried_and_it_is_said() -> None:
    found = predict_step(TINY, machine(room_bytes=16 * TINY.config.parameters))
    assert (found.fits, found.is_hopeless, found.remedies) == (False, True, {})
    assert step_lines(found)[-1].endswith("alone take 49.36 MB")


@pytest.mark.parametrize(
    "peak_bytes, verdict",
    [(1000, FITS), (1001, MAY_NOT_FIT), (1050, MAY_NOT_FIT), (1051, DOES_NOT_FIT)],
)
def test_fragmentation_stands_between_fitting_and_not(peak_bytes: int, verdict: str) -> None:
    assert FRAGMENTATION_SHARE == 0.05
    assert Room(1050, "made up").verdict(peak_bytes) == verdict


@pytest.mark.parametrize(
    "name, seen_gib",
    [("A100-80GB", 79.25), ("H100", 79.11), ("RTX 4090", 23.65), ("T4", 14.75), ("L4", 22.05)],
)
def test_the_room_on_a_card_is_what_programs_are_shown_less_the_context(name: str, seen_gib: float) -> None:
    """What `torch.cuda.get_device_properties` reports of these cards, in GiB, within 2 %."""
    assert room_on(gpu_named(name)).bytes + 0.5e9 == pytest.approx(seen_gib * 2**30, rel=0.02)


def cell(phase: str, sequence_length: int) -> AttentionCase:
    return attention_case(phase=f"attention_{phase}", sequence_length=sequence_length, device="cuda")


def test_the_smallest_attention_that_does_not_fit_has_its_bytes_accounted_for() -> None:
    cells = [cell(phase, length) for length in (256, 1024, 4096) for phase in ("forward", "backward")]
    found = predict_attention(cells, machine(room_bytes=10**8))
    smallest = found.smallest_that_does_not_fit
    assert smallest is not None
    assert smallest.case == cell("forward", 1024)
    account = "\n".join(attention_lines(found)).partition("smallest case that does not fit")[2]
    assert "forward d16-seq1024-fp32-naive" in account
    assert "aten.exp  model/attention.py" in account
    assert sum(smallest.bytes_by_category.values()) == smallest.peak_bytes


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["predict", *words])
    return code, "".join(capsys.readouterr())


def test_the_exit_code_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    fits = ["--size", "tiny", "--context", "64", "--gpu"]
    assert printed(capsys, *fits, "A100-80GB")[0] == 0
    code, text = printed(capsys, *fits, "memory=0.5GiB,bandwidth=300GB/s,fp32=10")
    assert code == 1
    assert "does not fit on memory=0.5GiB" in text


@pytest.mark.parametrize(
    "words, rules",
    [
        ("--size tiny --context 64 --gpu H200", ["library workspaces: 33.55 MB of cuBLAS"]),
        ("--size tiny --context 64 --gpu memory=24GiB,bandwidth=300GB/s,fp32=10", ["library workspaces: 8.52 MB"]),
        ("--head-dim 16 --sequence-length 256 --gpu H200 --attention sdpa", []),
        ("--head-dim 16 --sequence-length 256 --gpu A100-80GB --attention sdpa --precision bf16",
         ["sdpa in 16 bits: flash"]),
        ("--head-dim 16 --sequence-length 256 --gpu V100 --attention sdpa --precision fp16",
         ["sdpa in 16 bits: memory-efficient (torch has no flash kernel for this card)"]),
        ("--head-dim 16 --sequence-length 16384 --gpu H200",
         ["library workspaces: 33.55 MB", "launches: elementwise kernels and reductions above 2 GiB"]),
    ],
)  # fmt: skip
def test_rules_of_cudas_libraries_are_printed_where_they_change_a_figure(
    capsys: pytest.CaptureFixture[str], words: str, rules: list[str]
) -> None:
    lines = printed(capsys, *words.split())[1].splitlines()
    shown = [line for line in lines if line.startswith(("library workspaces", "sdpa in", "launches:"))]
    assert len(shown) == len(rules)
    assert all(line.startswith(rule) and len(line) <= 120 for line, rule in zip(shown, rules, strict=True))


@pytest.mark.parametrize("attention, is_stated", [("naive", True), ("sdpa", False)])
def test_how_many_times_a_range_holds_is_said_where_a_range_is(
    capsys: pytest.CaptureFixture[str], attention: str, is_stated: bool
) -> None:
    _, text = printed(capsys, "--head-dim", "16", "--sequence-length", "256", "--gpu", "T4", "--attention", attention)
    assert ("\nrange: " in text) == is_stated == ("not known" not in text)


def test_a_step_that_fits_only_before_there_is_optimizer_state_is_said_to_fail_at_the_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of xl in bf16 at 512 tokens on 40 GiB."""
    card = "memory=40GiB,bandwidth=1555GB/s,fp32=19.5,bf16=312"
    words = ["--size", "xl", "--context", "512", "--precision", "bf16", "--optimizer", "loop", "--gpu", card]
    code, text = printed(capsys, *words)
    assert code == 1
    assert "does not fit on memory=40GiB" in text
    assert "its first step, which makes the optimizer's state, fits: its peak is 32.16 GB" in text
    peaks = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith(("first_st", "full_st"))}
    assert peaks["first_step"] == "32.16"


def test_the_first_step_has_a_row_only_where_its_peak_differs() -> None:
    small, large = (predict_step(replace(TINY, batch_size=size), machine()) for size in (1, 256))
    assert small.first_step.peak_bytes < large.first_step.peak_bytes
    for found in (small, large):
        differs = found.first_step.peak_bytes != found.step.peak_bytes
        assert ("first_step" in found.peaks) == differs
    assert "first_step" in large.peaks


def test_the_first_step_holds_nothing_of_a_former_pass() -> None:
    first = replace(TINY, phase="first_step")
    for held in (replace(first, holds_former_pass=True), replace(first, zero_grad="after-forward")):
        assert counters_of(held).peak_bytes == counters_of(first).peak_bytes


def test_json_says_the_same_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, "--size", "tiny", "--context", "64", "--gpu", "T4", "--json")
    data = json.loads(text)
    assert (code, data["fits"], data["machine"]) == (0, True, "T4")
    assert all(sum(phase["bytes_by_category"].values()) == phase["peak_bytes"] for phase in data["phases"].values())
    assert data["phases"]["full_step"]["identity"]["optimizer"] == "foreach"


def test_attention_alone_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--head-dim", "16", "--sequence-length", "256,16384", "--gpu", "T4", "--json"]
    code, text = printed(capsys, *words)
    data = json.loads(text)
    assert (code, len(data["cells"])) == (1, 4)
    assert data["smallest_that_does_not_fit"]["identity"]["sequence_length"] == 16384


@pytest.mark.parametrize("typed, batch_size", [(["--batch-size", "1"], 1), ([], ATTENTION_BATCH_SIZE)])
def test_attention_alone_is_of_the_batch_that_is_typed_and_says_which(
    capsys: pytest.CaptureFixture[str], typed: list[str], batch_size: int
) -> None:
    words = ["--head-dim", "16", "--sequence-length", "4096", "--gpu", "T4", *typed]
    assert printed(capsys, *words)[1].splitlines()[0] == f"Attention alone, batch {batch_size}, on T4"
    found = json.loads(printed(capsys, *words, "--json")[1])["cells"]
    expected = [replace(cell(phase, 4096), batch_size=batch_size) for phase in ("forward", "backward")]
    assert [one["identity"] for one in found] == [case.identity() for case in expected]
    card = prediction_request.requested_machine("T4")
    assert [one["peak_bytes"] for one in found] == [predict_case(case, card).peak_bytes for case in expected]


def test_help_names_both_default_batches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    both = f"(default: {prediction_request.STEP_BATCH_SIZE}, of attention alone {ATTENTION_BATCH_SIZE})"
    assert both in " ".join(capsys.readouterr().out.split())


STEP = {"--size": "tiny", "--context": "64", "--gpu": "T4"}


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"--gpu": "Z9000"}, r"GPU 'Z9000' has no datasheet here; known: .*A100.*by its peaks.*memory="),
        ({"--gpu": "memory=24GiB;bandwidth=1;fp32=1"}, "has semicolons; write its peaks with commas in between"),
        ({"--context": "512;1024"}, "--context '512;1024' has a semicolon; write values with commas in between"),
        ({"--gpu": "memory=24GiB"}, "lacks bandwidth and fp32"),
        ({"--gpu": "memory=24furlongs,bandwidth=1,fp32=1"}, "has memory in furlongs; give it in GiB, as in memory="),
        ({"--gpu": "memory=-80GB,bandwidth=1,fp32=1"}, "has memory of -80 GB; give a number above 0"),
        ({"--gpu": "memory=24,bandwidth=1TB/s,fp32=1"}, "has bandwidth in TB/s; give it in GB/s"),
        ({"--gpu": "memory=24,bandwidth=fast,fp32=1"}, "'bandwidth=fast', which is not of the form"),
        ({"--gpu": "memory=-24GiB,bandwidth=1,fp32=1"}, "has memory of -24 GiB; give a number above 0"),
        ({"--gpu": "memory=24,bandwidth=0,fp32=1"}, "has bandwidth of 0 GB/s; give a number above 0"),
        ({"--size": "7B"}, r"--size '7B' is unknown; choose from tiny, small.* or a shape as D_MODELxD_FF"),
        ({"--context": "512tokens"}, "--context '512tokens' is not a whole number; give it without a unit"),
        ({"--context": "0"}, "--context is 0; it must be at least 1"),
        ({"--batch-size": "-1"}, "--batch-size is -1; it must be at least 1"),
        ({"--precision": "fp8"}, "--precision 'fp8' is unknown; choose from fp32"),
        ({"--precision": "bf16"}, "T4 has no bf16 path, or only emulates it; it has fp32, fp16"),
        ({"--attention": "flash"}, "--attention 'flash' is unknown; choose from naive, sdpa"),
        ({"--attention": "compiled"}, "--attention compiled is not predicted: how many kernels .*pytest perf_tests"),
        ({"--attention": "flex"}, "--attention flex is not predicted"),
        ({"--execution": "compiled"}, "--execution compiled is not predicted: .*not known before it is compiled"),
        ({"--execution": "max-autotune"}, "--execution max-autotune is not predicted"),
        ({"--execution": "jit"}, "--execution 'jit' is unknown; choose from eager"),
        ({"--optimizer": "sgd"}, "--optimizer 'sgd' is unknown; choose from default, loop"),
        ({"--checkpoint": "some"}, "checkpoint is 'some'; it must be none"),
        ({"--head-dim": "64"}, "give --size or --model for a training step, or --head-dim"),
        ({"--size": None, "--context": None, "--head-dim": "wide"}, "not a whole number"),
        ({"--size": None, "--context": None, "--sequence-length": "0"}, "at least 1"),
        ({"--size": None, "--context": None, "--sequence-length": "1k"}, "not a whole number"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_in_one_sentence(
    capsys: pytest.CaptureFixture[str], changed: dict[str, str | None], sentence: str
) -> None:
    words = [f"{option}={value}" for option, value in {**STEP, **changed}.items() if value is not None]
    code, text = printed(capsys, *words)
    assert code == 2
    assert len(text.splitlines()) == 1
    assert re.search(sentence, text), text


@pytest.mark.parametrize(
    "words",
    [
        "--model-arg=a=1", "--vocab-size=9", "--context=512", "--optimizer=default", "--zero-grad=before-forward",
        "--hold=former-pass", "--checkpoint=none", "--parallel=ddp", "--world=2", "--interconnect=450GB/s",
        "--bucket-mb=25", "--reshard=yes",
    ],
)  # fmt: skip
def test_an_option_of_a_step_is_refused_for_attention_alone_even_with_its_default(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    option = words.partition("=")[0]
    sentence = f"{option} is for a training step; it does not apply to attention alone.\n"
    assert printed(capsys, "--head-dim=16", "--sequence-length=256", "--gpu=T4", words) == (2, sentence)


def test_here_is_this_machine_with_its_measured_ceilings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, with ceilings that were not measured: launching and kernels add up, and no error is known."""
    monkeypatch.setattr(prediction_request, "ceilings_here", lambda device: CEILINGS)
    monkeypatch.setattr(prediction_request, "physical_cores", lambda: 1)
    code, text = printed(capsys, "--size", "tiny", "--context", "64", "--gpu", "here", "--json")
    data = json.loads(text)
    assert (code, data["machine"], data["source"]) == (0, "this CPU", "planted")
    forward = data["phases"]["forward"]
    assert forward["range_seconds"] is None
    assert forward["identity"]["device"] == "cpu"
    assert sum(forward["shares"].values()) == pytest.approx(1)
