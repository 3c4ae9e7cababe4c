"""`predict`, as it is typed: exit codes, what is printed and as JSON, and one sentence for what makes no sense."""

import json
import re
from dataclasses import replace

import pytest

from perf_tests.__main__ import main
from perf_tests.cases.attention import ATTENTION_BATCH_SIZE
from perf_tests.predict import request
from perf_tests.predict.request import link_rate
from perf_tests.predict.step import predict_case
from tests.support.example_cases import CEILINGS, attention_case
from tests.support.launch import MODELS

STEP = ["--size=tiny", "--context=64"]
SMALL_CARD = "memory=0.5GiB,bandwidth=300GB/s,fp32=10"
ON_RANKS = ["--size=tiny", "--context=16", "--batch-size=1", "--gpu=H100", "--parallel=fsdp2", "--world=8"]
ATTENTION = ["--head-dim=16", "--gpu=T4"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["predict", *words])
    return code, "".join(capsys.readouterr())


def test_the_exit_code_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, *STEP, "--gpu=A100-80GB")[0] == 0
    code, text = printed(capsys, *STEP, f"--gpu={SMALL_CARD}")
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
    _, text = printed(capsys, *ATTENTION, "--sequence-length=256", f"--attention={attention}")
    assert ("\nrange: " in text) == is_stated == ("not known" not in text)


def test_a_step_that_fits_only_before_there_is_optimizer_state_is_said_to_fail_at_the_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of xl in bf16 at 512 tokens on 40 GiB."""
    card = "memory=40GiB,bandwidth=1555GB/s,fp32=19.5,bf16=312"
    words = ["--size=xl", "--context=512", "--precision=bf16", "--optimizer=loop", f"--gpu={card}"]
    code, text = printed(capsys, *words)
    assert code == 1
    assert "does not fit on memory=40GiB" in text
    assert "its first step, which makes the optimizer's state, fits: its peak is 32.16 GB" in text
    peaks = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith(("first_st", "full_st"))}
    assert peaks["first_step"] == "32.16"


def test_json_says_the_same_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, *STEP, "--gpu=T4", "--json")
    data = json.loads(text)
    assert (code, data["fits"], data["machine"]) == (0, True, "T4")
    assert all(sum(phase["bytes_by_category"].values()) == phase["peak_bytes"] for phase in data["phases"].values())
    assert data["phases"]["full_step"]["identity"]["optimizer"] == "foreach"


def test_attention_alone_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, *ATTENTION, "--sequence-length=256,16384", "--json")
    data = json.loads(text)
    assert (code, len(data["cells"])) == (1, 4)
    assert data["smallest_that_does_not_fit"]["identity"]["sequence_length"] == 16384


@pytest.mark.parametrize("typed, batch_size", [(["--batch-size=1"], 1), ([], ATTENTION_BATCH_SIZE)])
def test_attention_alone_is_of_the_batch_that_is_typed_and_says_which(
    capsys: pytest.CaptureFixture[str], typed: list[str], batch_size: int
) -> None:
    words = [*ATTENTION, "--sequence-length=4096", *typed]
    assert printed(capsys, *words)[1].splitlines()[0] == f"Attention alone, batch {batch_size}, on T4"
    found = json.loads(printed(capsys, *words, "--json")[1])["cells"]
    forward = attention_case(sequence_length=4096, device="cuda", batch_size=batch_size)
    expected = [forward, replace(forward, phase="attention_backward")]
    assert [one["identity"] for one in found] == [case.identity() for case in expected]
    card = request.requested_machine("T4")
    assert [one["peak_bytes"] for one in found] == [predict_case(case, card).peak_bytes for case in expected]


def test_help_names_both_default_batches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    both = f"(default: {request.STEP_BATCH_SIZE}, of attention alone {ATTENTION_BATCH_SIZE})"
    assert both in " ".join(capsys.readouterr().out.split())


def test_here_is_this_machine_with_its_measured_ceilings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, with ceilings that were not measured: launching and kernels add up, and no error is known."""
    monkeypatch.setattr(request, "ceilings_here", lambda device: CEILINGS)
    monkeypatch.setattr(request, "physical_cores", lambda: 1)
    code, text = printed(capsys, *STEP, "--gpu=here", "--json")
    data = json.loads(text)
    assert (code, data["machine"], data["source"]) == (0, "this CPU", "planted")
    forward = data["phases"]["forward"]
    assert forward["range_seconds"] is None
    assert forward["identity"]["device"] == "cpu"
    assert sum(forward["shares"].values()) == pytest.approx(1)


def test_the_step_of_a_published_table_comes_out_of_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    """60, 67 and a dash; and the order that would have made the third one fit."""
    words = "--size 2.7B --context 128,256,512 --zero-grad after-forward --optimizer loop --gpu A100-80GB"
    code, text = printed(capsys, *words.split())
    assert code == 1
    cells = {
        line.split()[0]: line.split()[3] for line in text.splitlines() if line.startswith(("128 ", "256 ", "512 "))
    }
    assert cells.pop("512") == "-"
    assert [float(cell) for cell in cells.values()] == [pytest.approx(60, rel=0.01), pytest.approx(67, rel=0.01)]
    assert "context 512 fits only if gradients are cleared before the forward pass" in text
    assert "gradients set to None after the forward pass" in text


def test_a_prediction_names_what_it_assumes_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*STEP, "--gpu=T4", "--zero-grad=before-step", "--hold=former-pass"]
    code, text = printed(capsys, *words)
    assert code == 0
    (line,) = (line for line in text.splitlines() if line.startswith("assumes"))
    for word in ("AdamW foreach", "never has gradients", "set to None before the step", "are still held", "eager"):
        assert word in line
    assert set(json.loads(printed(capsys, *words, "--json")[1])["optimizers"]) == {"loop", "foreach", "fused"}


def test_predict_names_the_best_of_a_list_of_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, *STEP, "--gpu=T4", "--checkpoint=none,block")
    lines = text.splitlines()
    assert code == 0
    assert [line.split()[1] for line in lines if line.startswith("--checkpoint")] == ["none", "block"]
    assert lines[-1].startswith("fastest that fits: --checkpoint none, ")
    assert max(map(len, lines[3:6])) <= 120
    code, text = printed(capsys, *STEP, f"--gpu={SMALL_CARD}", "--checkpoint=all", "--batch-size=64")
    assert (code, text.splitlines()[-1]) == (1, "fastest that fits: none")
    code, text = printed(capsys, *STEP, "--gpu=T4", "--checkpoint=all", "--json")
    data = json.loads(text)
    assert (code, data["fastest_that_fits"]) == (0, "none")
    assert [row["identity"]["checkpoint"] for row in data["checkpoints"]] == ["none", "attention", "block", "2"]
    assert data["smallest_peak"] in ("none", "attention", "block", "2")


def test_a_size_is_asked_for_only_where_the_factory_asks(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--context=8", "--gpu=A100-80GB", f"--model={MODELS}"]
    code, text = printed(capsys, *asked[:-1], f"{asked[-1]}:Averaging")
    assert code == 0
    assert text.startswith(f"A training step of planted_models ({MODELS}:Averaging) at context 8")
    code, text = printed(capsys, *asked[:-1], f"{asked[-1]}:Healthy")
    assert code == 2
    assert "asks for d_model, d_ff, num_layers, num_heads; give the shape with --size" in text


def test_one_rank_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, *ON_RANKS, "--interconnect=450GB/s")
    assert code == 0
    for words in ("on each of 8 ranks, fsdp2", "fits on H100", "a rank sends", "exposed communication", "fewest ranks"):
        assert words in text
    assert "no time: give what a rank can send with --interconnect 450GB/s" in printed(capsys, *ON_RANKS)[1]


def test_one_rank_as_json_with_the_interconnects_rate_beside_the_memorys(capsys: pytest.CaptureFixture[str]) -> None:
    alone, linked, unlinked = (
        json.loads(printed(capsys, *words, "--json")[1])
        for words in (ON_RANKS[:-2], [*ON_RANKS, "--interconnect=450GB/s"], ON_RANKS)
    )
    assert (linked["fits"], linked["smallest_world_that_fits"], len(linked["messages"])) == (True, 1, 9)
    assert sum(linked["bytes_by_category"].values()) == linked["peak_bytes"]
    assert linked["exposed_seconds"][0] <= linked["exposed_seconds"][1]
    memory = request.requested_machine("H100").ceilings.bytes_per_second
    rates = [(one["bytes_per_second"], one.get("interconnect_bytes_per_second")) for one in (alone, linked, unlinked)]
    assert rates == [(memory, None), (memory, 450e9), (memory, None)]


def test_a_rate_is_bytes_per_second() -> None:
    assert [link_rate(text) for text in ("450GB/s", "12.5GB/s")] == [450e9, 12.5e9]


REFUSED = {
    "--gpu=Z9000": r"GPU 'Z9000' has no datasheet here; known: .*A100.*by its peaks.*memory=",
    "--gpu=memory=24GiB": "lacks bandwidth and fp32",
    "--context=512;1024": "--context '512;1024' has a semicolon; write values with commas in between",
    "--size=7B": r"--size '7B' is unknown; choose from tiny, small.* or a shape as D_MODELxD_FF",
    "--context=512tokens": "--context '512tokens' is not a whole number; give it without a unit",
    "--context=0": "--context is 0; it must be at least 1",
    "--batch-size=-1": "--batch-size is -1; it must be at least 1",
    "--precision=fp8": "--precision 'fp8' is unknown; choose from fp32",
    "--precision=bf16": "T4 has no bf16 path, or only emulates it; it has fp32, fp16",
    "--attention=flash": "--attention 'flash' is unknown; choose from naive, sdpa",
    "--attention=compiled": "--attention compiled is not predicted: how many kernels .*pytest perf_tests",
    "--attention=flex": "--attention flex is not predicted",
    "--execution=compiled": "--execution compiled is not predicted: .*not known before it is compiled",
    "--execution=max-autotune": "--execution max-autotune is not predicted",
    "--execution=jit": "--execution 'jit' is unknown; choose from eager",
    "--optimizer=sgd": "--optimizer 'sgd' is unknown; choose from default, loop",
    "--checkpoint=some": "checkpoint is 'some'; it must be none",
    "--context=64,128 --checkpoint=all": "--context and --checkpoint are both lists; compare one at a time",
    "--zero-grad=never": "--zero-grad 'never' is unknown",
    "--hold=breath": "--hold 'breath' is unknown",
    "--head-dim=64": "give --size or --model for a training step, or --head-dim",
    "--world=8": r"--world is for ranks; name how they share the step with --parallel\.",
    "--reshard=no": r"--reshard is for ranks; name how they share the step with --parallel\.",
    "--parallel=ddp": r"--parallel needs the number of ranks; give it with --world\.",
    "--parallel=dp --world=8": "--parallel 'dp' is unknown; choose from ddp-naive, ddp-flat, ddp, zero1",
    "--parallel=ddp --world=0": r"--world is 0; it must be at least 1\.",
    "--parallel=ddp --world=2 --interconnect=450": "--interconnect '450' is not a rate",
    "--parallel=ddp --world=2 --interconnect=0GB/s": "--interconnect '0GB/s' is not a rate",
    "--parallel=fsdp2 --world=2 --reshard=maybe": r"--reshard 'maybe' is unknown; choose from yes, no\.",
    "--parallel=ddp --world=2 --reshard=no": "--reshard changes fsdp2 and fsdp2-bf16 alone; choose one of them",
    "--parallel=fsdp2 --world=2 --bucket-mb=1": "--bucket-mb changes ddp and zero1 alone; choose one of them",
    "--parallel=ddp --world=2 --checkpoint=all": "--parallel takes one context, one checkpoint",
}


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code, text = printed(capsys, *words)
    assert code == 2
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_a_usage_error_in_one_sentence(capsys: pytest.CaptureFixture[str], words: str) -> None:
    text = refused(capsys, *STEP, "--gpu=T4", *words.split())
    assert re.search(REFUSED[words], text), text


@pytest.mark.parametrize(
    "words, sentence",
    [("--head-dim=wide", "not a whole number"), ("--sequence-length=0", "at least 1"),
     ("--sequence-length=1k", "not a whole number")],
)  # fmt: skip
def test_an_attention_that_makes_no_sense_is_too(capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    assert sentence in refused(capsys, "--gpu=T4", words)


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
    assert refused(capsys, *ATTENTION, "--sequence-length=256", words) == sentence
