"""`predict`, as it is typed: exit codes, what is printed and as JSON, and one sentence for what makes no sense."""

import json
import re
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from perf_tests_suite.perf_tests.cases.attention import ATTENTION_BATCH_SIZE
from perf_tests_suite.perf_tests.hardware.limits import ALONE, BY_DO_BENCH, FULL_STEPS, UPDATES, WHOLE_MODELS
from perf_tests_suite.perf_tests.predict import machine, request
from perf_tests_suite.perf_tests.predict.request import link_rate
from perf_tests_suite.perf_tests.predict.step import predict_case
from perf_tests_suite.perf_tests.verbs import predict
from perf_tests_suite.perf_tests.verbs.predict import COUNTING, MEASURING, REPLAYING
from tests.support.example_cases import CEILINGS, attention_case
from tests.support.launch import MODELS, Verb

STEP = "--size=tiny --context=64"
SMALL_CARD = "memory=0.5GiB,bandwidth=300GB/s,fp32=10"
ON_RANKS = "--size=tiny --context=16 --batch-size=1 --gpu=H100 --parallel=fsdp2 --world=8"
ATTENTION = "--head-dim=16 --gpu=T4"
ALONE_OF_256 = "--head-dim 16 --sequence-length 256"
LIBRARIES = {
    f"{STEP} --gpu H200": ["library workspaces: 33.55 MB of cuBLAS"],
    f"{STEP} --gpu memory=24GiB,bandwidth=300GB/s,fp32=10 --optimizer loop": ["library workspaces: 8.52 MB"],
    f"{ALONE_OF_256} --gpu H200 --attention sdpa": [],
    f"{ALONE_OF_256} --gpu A100-80GB --attention sdpa --precision bf16": ["sdpa in 16 bits: flash"],
    f"{ALONE_OF_256} --gpu V100 --attention sdpa --precision fp16": [
        "sdpa in 16 bits: memory-efficient (torch has no flash kernel for this card)"
    ],
    "--head-dim 16 --sequence-length 16384 --gpu H200": [
        "library workspaces: 33.55 MB", "launches: elementwise kernels and reductions above 2 GiB"
    ],
}  # fmt: skip


@pytest.mark.parametrize("words", LIBRARIES)
def test_rules_of_cudas_libraries_and_ranges_are_printed_where_they_are_known(verb: Verb, words: str) -> None:
    text, rules = verb("predict", *words.split())[1], LIBRARIES[words]
    shown = [line for line in text.splitlines() if line.startswith(("library workspaces", "sdpa in", "launches:"))]
    assert [line[: len(rule)] for line, rule in zip(shown, rules, strict=True)] == rules
    assert max(map(len, shown), default=0) <= 120
    # Counts are of the class that the rows are of; no published time is of AdamW in groups of tensors.
    of_models = [WHOLE_MODELS, *[UPDATES] * ("loop" in words), FULL_STEPS]
    classes = [] if "sdpa" in words else [ALONE] if "--head-dim" in words else of_models
    classes += [BY_DO_BENCH[ALONE]] if classes == [ALONE] else []
    assert re.findall(r"^  ([\w,' .-]+): \d+ of \d+ bound by", text, re.M) == classes
    assert ("\nrange: " in text) == bool(classes)
    of = (
        ["sdpa attention"]
        if "sdpa" in words
        else []
        if "--head-dim" in words
        else ["AdamW foreach alone", "AdamW fused"]
    )
    said = re.findall("^range not known: no published time is of (.*)$", text, re.M)
    assert said == [one for one in of if "loop" not in words or "foreach" not in one]
    assert ("not known" in text) == bool(said)


SCREENS = {
    # 67 and a dash, as published; and the order that would have made the third one fit.
    "--size 2.7B --context 256,512 --zero-grad after-forward --optimizer loop --gpu A100-80GB": (
        r"\n256 .* GB +(66|67)\.\d+ GB.*\n512 .* GB +- .*gradients set to None after the forward pass.*"
        "context 512 fits only if gradients are cleared before the forward pass"
    ),
    f"{STEP} --gpu=T4 --batch-size=1,2048": (
        "^A training step of tiny at context 64, fp32, naive attention.*"
        r"\nbatch +forward pass .*\n1 .* fits .*\nbatch 2048 does not fit: its peak is "
    ),
    f"{STEP} --gpu=T4 --zero-grad=before-step --hold=former-pass": (
        "assumes AdamW foreach, which never has gradients.* set to None before the step .* are kept .*eager"
    ),
    f"{STEP} --gpu=T4 --checkpoint=none,block": (
        r"\n--checkpoint none .*\n--checkpoint block .*fastest that fits: --checkpoint none, "
    ),
    f"{STEP} --gpu={SMALL_CARD}": "does not fit on memory=0.5GiB",
    f"{STEP} --gpu={SMALL_CARD} --checkpoint=all --batch-size=64": r"fastest that fits: none\n$",
    f"--context=8 --gpu=A100-80GB --model={MODELS}:Averaging": (
        rf"^A training step of planted_models \({MODELS}:Averaging\) at context 8"
    ),
    f"{ON_RANKS} --interconnect=450GB/s": (
        "on each of 8 ranks, fsdp2\nfits on H100.*a rank sends.*exposed communication.*fewest ranks"
    ),
    ON_RANKS: "no time: give what a rank can send with --interconnect 450GB/s",
    f"{ATTENTION} --sequence-length=256,16384": f"^Attention alone, batch {ATTENTION_BATCH_SIZE}, fp32, on T4\n",
}
SCREENS_OF_NO_FIT = ("2.7B", "2048", SMALL_CARD, "16384")


@pytest.mark.parametrize("words", SCREENS)
def test_a_screen_says_whether_it_fits_and_what_it_assumes(verb: Verb, words: str) -> None:
    code, text, _ = verb("predict", *words.split())
    assert code == any(word in words for word in SCREENS_OF_NO_FIT)
    assert re.search(SCREENS[words], text, re.DOTALL), text


def test_attention_alone_is_of_the_batch_that_is_typed(verb: Verb) -> None:
    card = request.requested_machine("T4")
    for typed, batch_size in (("--batch-size=1", 1), ("", ATTENTION_BATCH_SIZE)):
        data = json.loads(verb("predict", *f"{ATTENTION} --sequence-length=4096 {typed} --json".split())[1])
        forward = attention_case(sequence_length=4096, device="cuda", batch_size=batch_size)
        for one, case in zip(data["cells"], (forward, replace(forward, phase="attention_backward")), strict=True):
            assert (one["identity"], one["peak_bytes"]) == (case.identity(), predict_case(case, card).peak_bytes)


def test_here_is_this_machine_with_its_measured_ceilings(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, with ceilings that were not measured: launching and kernels add up, and no error is known."""
    monkeypatch.setattr(machine, "ceilings_here", lambda device: CEILINGS)
    monkeypatch.setattr(machine, "physical_cores", lambda: 1)
    code, shown, _ = verb("predict", *STEP.split(), "--gpu=here", "--json")
    data = json.loads(shown)
    assert (code, data["machine"], data["source"]) == (0, "this CPU", "planted")
    forward = data["phases"]["forward"]
    assert (forward["range_seconds"], forward["identity"]["device"]) == (None, "cpu")
    assert sum(forward["shares"].values()) == pytest.approx(1)


def test_the_interconnects_rate_stands_beside_the_memorys(verb: Verb) -> None:
    """Both are bytes per second."""
    assert [link_rate(text) for text in ("450GB/s", "12.5GB/s", None)] == [450e9, 12.5e9, None]
    memory = request.requested_machine("H100").ceilings.bytes_per_second
    for words, rate in ((f"{ON_RANKS} --interconnect=450GB/s", 450e9), (ON_RANKS, None)):
        data = json.loads(verb("predict", *words.split(), "--json")[1])
        assert (data["fits"], data["smallest_world_that_fits"], len(data["messages"])) == (True, 1, 9)
        assert (data["bytes_per_second"], data["interconnect_bytes_per_second"]) == (memory, rate)
        assert sum(data["bytes_by_category"].values()) == data["peak_bytes"]


OF_A_STEP = (
    "--model-arg=a=1", "--vocab-size=9", "--context=512", "--optimizer=default", "--zero-grad=before-forward",
    "--hold=former-pass", "--checkpoint=none", "--parallel=ddp", "--world=2", "--interconnect=450GB/s",
    "--bucket-mb=25", "--reshard=yes",
)  # fmt: skip
OF_NO_ATTENTION = r"^{} is for a training step; it does not apply to attention alone\.\n$"
ON_T4 = f"{STEP} --gpu=T4"
REFUSED = {
    f"{STEP} --gpu=Z9000": r"GPU 'Z9000' has no datasheet here; known: .*A100.*by its peaks.*memory=",
    f"{ON_T4} --context=512;1024": "--context '512;1024' has a semicolon; write values with commas in between",
    f"{ON_T4} --size=7B": r"--size '7B' is unknown; choose from tiny, small.* or a shape as D_MODELxD_FF",
    f"{ON_T4} --size=tiny,small": "--size 'tiny,small' names 2; predict takes one",
    f"{ON_T4} --precision=bf16": "T4 has no bf16 path, or only emulates it; it has fp32, fp16",
    "--gpu=H100 --size=tiny --precision=bf16-tensors": "bf16-tensors is a precision of attention alone.*choose bf16",
    f"{ON_T4} --attention=flex": "--attention flex is not predicted: how many kernels .*perf-tests run",
    f"{ON_T4} --execution=max-autotune": "--execution max-autotune is not predicted: .*before it is compiled",
    f"{ON_T4} --context=64,128 --checkpoint=all": "--context and --checkpoint are both lists; compare one at a time",
    f"{ON_T4} --batch-size=4,8 --checkpoint=all": "--batch-size and --checkpoint are both lists; compare one at a time",
    f"{ATTENTION} --batch-size=4,8": "--batch-size '4,8' is a list; attention alone takes one batch size",
    f"{ON_T4} --checkpoint=some": "checkpoint is 'some'; it must be none",
    f"{ON_T4} --attention=flash": "--attention 'flash' is unknown; choose from naive, softmax, .*sdpa",
    f"{ON_T4} --execution=jit": "--execution 'jit' is unknown; choose from eager",
    f"{ON_T4} --precision=fp8": "--precision 'fp8' is unknown; choose from fp32",
    f"{ON_T4} --zero-grad=never": "--zero-grad 'never' is unknown",
    f"{ON_T4} --hold=breath": "--hold 'breath' is unknown",
    f"{ON_T4} --head-dim=64": "give --size or --model for a training step, or --head-dim",
    f"{ON_T4} --model-arg=a=1": "--model-arg is for a factory of your own; name it with --model",
    f"{ON_T4} --model={MODELS}:Tied --attention=sdpa": "--attention does not apply: .* brings its own",
    f"--context=8 --gpu=T4 --model={MODELS}:Healthy": "asks for d_model, .*num_heads; give the shape with --size",
    f"{ON_T4} --world=8": r"--world is for ranks; name how they share the step with --parallel\.",
    f"{ON_T4} --reshard=no": r"--reshard is for ranks; name how they share the step with --parallel\.",
    f"{ON_T4} --parallel=ddp": r"--parallel needs the number of ranks; give it with --world\.",
    f"{ON_T4} --parallel=dp --world=8": "--parallel 'dp' is unknown; choose from none, ddp-naive, ddp-flat, ddp",
    f"{ON_T4} --parallel=ddp --world=0": r"--world is 0; it must be at least 1\.",
    f"{ON_T4} --parallel=ddp --world=2 --interconnect=450": "--interconnect '450' is not a rate",
    f"{ON_T4} --parallel=ddp --world=2 --interconnect=0GB/s": "--interconnect '0GB/s' is not a rate",
    f"{ON_T4} --parallel=fsdp2 --world=2 --reshard=maybe": r"--reshard 'maybe' is unknown; choose from yes, no, or all",
    f"{ON_T4} --parallel=ddp --world=2 --reshard=no": "--reshard changes fsdp2 and fsdp2-bf16 alone; choose one of",
    f"{ON_T4} --parallel=fsdp2 --world=2 --bucket-mb=1": "--bucket-mb changes ddp and zero1 alone; choose one of them",
    f"{ON_T4} --parallel=ddp --world=2 --checkpoint=all": "--parallel takes one context, batch size and checkpoint",
    "--gpu=T4 --head-dim=wide": "not a whole number",
    "--gpu=T4 --sequence-length=0": "at least 1",
    **{f"{ATTENTION} --sequence-length=256 {typed}": OF_NO_ATTENTION.format(*typed.split("=")) for typed in OF_A_STEP},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_a_usage_error_in_one_sentence(verb: Verb, words: str) -> None:
    code, shown, said = verb("predict", *words.split())
    assert (code, shown, said.count("\n")) == (2, "", 1)
    assert re.search(REFUSED[words], said), said


def test_what_takes_longer_says_what_it_does(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("predict", *f"{STEP} --gpu T4".split())
    for seconds, said in ((1e4, [""]), (0.0, [f"{COUNTING}\n", f"{MEASURING}\n", f"{REPLAYING}\n"])):
        monkeypatch.setattr(f"{predict.__name__}.QUIET_SECONDS", seconds)
        assert verb(*words)[2] in said


def test_what_takes_longer_is_told_by_what_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded, said in (((), REPLAYING), (("fake_run",), COUNTING), (("fake_run", "machine"), MEASURING)):
        with monkeypatch.context() as patch:
            for name in ("fake_run", "machine"):
                patch.delitem(sys.modules, f"perf_tests_suite.perf_tests.predict.{name}", raising=False)
            for name in loaded:
                patch.setitem(sys.modules, f"perf_tests_suite.perf_tests.predict.{name}", ModuleType(name))
            predict.say_what_takes_long()
        assert capsys.readouterr().err == f"{said}\n"
