"""Bad input, as a user types it: one sentence that says what is wrong and what is known, and pytest's exit code."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from perf_tests.meta_tests.forked_python import forked_python
from perf_tests.meta_tests.launch import MODELS, ROOT, SMALL
from perf_tests.records.store import own_folder

USAGE = 4


@dataclass(frozen=True)
class Refusal:
    arguments: tuple[str, ...]
    exit_code: int
    said: tuple[str, ...]
    """All of it in one line."""


def refused(*arguments: str, says: tuple[str, ...]) -> Refusal:
    return Refusal(arguments, USAGE, says)


def with_model(factory: str) -> tuple[str, ...]:
    return (f"--model={MODELS}:{factory}", "--phase=forward", "-k=not attention")


SIZES = "tiny, small-2layers, small, medium, large, xl, 2.7B, 10B"

REFUSALS = {
    "an unknown size": refused("--size=smal", says=("--size 'smal' is unknown", SIZES)),
    "an unknown size among known ones": refused("--size=tiny,huge", says=("--size 'huge'", SIZES)),
    "an unknown precision": refused("--precision=fp64", says=("--precision 'fp64'", "fp32, tf32, bf16, fp16")),
    "an unknown attention": refused("--attention=flash", says=("--attention 'flash'", "naive, compiled, sdpa, flex")),
    "an unknown execution": refused("--execution=jit", says=("--execution 'jit'", "eager, compiled")),
    "an unknown phase": refused("--phase=forwards", says=("--phase 'forwards'", "inference, forward, backward")),
    "an unknown optimizer": refused("--optimizer=sgd", says=("--optimizer 'sgd'", "default, loop, foreach, fused")),
    "an unknown checkpoint": refused("--checkpoint=some", says=("checkpoint", "'some'", "none, attention, block")),
    "no context": refused("--context=0", says=("--context is 0; it must be at least 1",)),
    "a negative context": refused("--context=-8", says=("--context is -8; it must be at least 1",)),
    "a context that is no number": refused("--context=8,lots", says=("--context 'lots' is not a whole number",)),
    "no rounds": refused("--rounds=0", says=("--rounds is 0; it must be at least 1",)),
    "a negative warm-up": refused("--warmup-rounds=-1", says=("--warmup-rounds is -1; it must be at least 0",)),
    "an empty batch": refused("--batch-size=0", says=("--batch-size is 0; it must be at least 1",)),
    "no threads": refused("--threads=0", says=("--threads is 0; it must be at least 1",)),
    "more threads than processors": refused("--threads=99999", says=("--threads is 99999", "at most")),
    "a head width of nothing": refused("--head-dim=0", says=("--head-dim is 0; it must be at least 1",)),
    "memory without a unit": refused("--memory-budget=12", says=("--memory-budget '12'", "12GiB")),
    "an unknown device": refused("--device=tpu", says=("tpu", "cpu", "cuda")),
    "a GPU that no machine has": refused("--device=cuda:99", says=("cuda:99",)),
    "a model without a factory": refused("--model=torch", says=("--model 'torch' names no factory",)),
    "a model that is nowhere": refused("--model=nowhere:build", says=("--model 'nowhere:build'", "'nowhere'")),
    "a model in a package that is nowhere": refused("--model=no.where:build", says=("--model 'no.where:build'",)),
    "a limit without a baseline": refused(
        "--benchmark-compare-fail=median:5%", says=("--benchmark-compare-fail", "add --benchmark-compare")
    ),
    "a limit and no record": refused(
        "--benchmark-compare-fail=median:5%", "--benchmark-compare", says=("nothing to compare with", "no record")
    ),
    "a baseline that does not exist": refused(
        "--benchmark-compare=0077", says=("--benchmark-compare=0077 matches no record", "recorded here: 0001_broken")
    ),
    "a corrupt baseline": refused("--benchmark-compare=0001", says=("0001_broken.json cannot be read",)),
    "a foreign journal to resume": refused("--resume", says=("journal-foreign.jsonl is no journal", "Delete it")),
    "a storage that is no folder": refused(
        "--benchmark-storage=elasticsearch+http://host/index", says=("--benchmark-storage", "file://PATH")
    ),
    "a storage below a file": refused(
        "--benchmark-storage=file:///proc/version/below", says=("cannot be saved under /proc/version/below", "storage")
    ),
    "a storage where nothing can be made": refused(
        "--benchmark-storage=file:///proc/nothing", says=("cannot be saved under /proc/nothing", "storage")
    ),
    "a base that is no revision": refused("--against=no-such-revision", says=("names no revision", "a branch, a tag")),
    "a gate option without a base": refused(
        "--gate-minutes=3", says=("--gate-minutes is for the gate", "--against REV")
    ),
    "a gate of no time": refused(
        "--against=HEAD", "--gate-minutes=0", says=("--gate-minutes '0' is not a positive number of minutes",)
    ),
    "a gate of no number": refused(
        "--against=HEAD", "--gate-minutes=nan", says=("--gate-minutes 'nan' is not a positive number of minutes",)
    ),
    "an unknown word for undecided": refused(
        "--against=HEAD", "--gate-undecided=maybe", says=("--gate-undecided 'maybe'", "choose from pass, fail")
    ),
    "a summary in no folder": refused("--against=HEAD", "--gate-summary=/nowhere/s.md", says=("is not a folder",)),
    "a gate with a study": refused(
        "--against=HEAD", "--warmup-study", says=("cannot be combined with --warmup-study",)
    ),
    "a gate with a kernel pass": refused("--against=HEAD", "--kernels", says=("cannot be combined with --kernels",)),
    "a gate with ranges": refused("--against=HEAD", "--nvtx", says=("cannot be combined with --nvtx",)),
    "a gate that is to be resumed": refused("--against=HEAD", "--resume", says=("cannot be combined with --resume",)),
    "a gate and a recorded baseline": refused(
        "--against=HEAD", "--benchmark-compare", says=("cannot be combined with --benchmark-compare",)
    ),
    "a gate that measures nothing": refused(
        "--against=HEAD", "--benchmark-disable", says=("cannot be combined with --benchmark-disable",)
    ),
    "another option of no axis": refused(
        "--against-option=size=tiny", says=("write AXIS=VALUE", "attention, precision")
    ),
    "another option that is not known": refused(
        "--against-option=attention=fast", says=("'fast' is unknown", "naive, compiled, sdpa, flex")
    ),
    "another option that is head's own": refused("--against-option=attention=naive", says=("is head's own value",)),
    "another option against several": refused(
        "--attention=naive,compiled",
        "--against-option=attention=sdpa",
        says=("compares with one attention", "naive, compiled"),
    ),
    "another option of somebody else's model": refused(
        *with_model("WrongShape"), "--against-option=attention=sdpa", says=("compares with one attention", "own")
    ),
    "pytest-benchmark switched off": refused("-p", "no:benchmark", says=("-p no:benchmark switched it off",)),
    "a selection of nothing": Refusal(("-k=no_such_case",), 5, ("5 deselected / 0 selected",)),
    "a factory that is not there": refused(
        *with_model("no_such_factory"), says=("planted_models:no_such_factory cannot be imported",)
    ),
    "a factory that makes no module": refused(
        *with_model("no_module"), says=("planted_models:no_module returned a str; it must return an nn.Module",)
    ),
    "a model of the wrong shape": refused(
        *with_model("WrongShape"), says=("planted_models:WrongShape returned (1, 8, 9999)", "(1, 8, 10000)")
    ),
    "a model that ignores its context": refused(
        *with_model("IgnoresContext"), says=("planted_models:IgnoresContext ignores its context",)
    ),
}
if not torch.cuda.is_available():
    REFUSALS["a GPU that is not there"] = refused("--device=cuda", says=("device 'cuda' needs an NVIDIA GPU",))


DAMAGED = {"0001_broken.json": '{"machine_info": {"cpu"', "journal-foreign.jsonl": "a line of another tool\n"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a record that is torn and a journal of another tool."""
    storage = tmp_path_factory.mktemp("storage")
    own_folder(storage).mkdir()
    for name, content in DAMAGED.items():
        (own_folder(storage) / name).write_text(content)
    return storage


@pytest.fixture(scope="module")
def ends(storage: Path) -> dict[str, tuple[int, str, str]]:
    """How each of the refusals ended: exit code, output, errors."""
    always = ("perf_tests", "-p", "no:cacheprovider", *SMALL)
    commands = [
        [
            *always,
            *(() if "no:benchmark" in refusal.arguments else (f"--benchmark-storage=file://{storage}",)),
            *refusal.arguments,
        ]
        for refusal in REFUSALS.values()
    ]
    process = subprocess.run(
        [forked_python(), "-m", "perf_tests.meta_tests.many_launches"],
        cwd=ROOT, input=json.dumps(commands), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return dict(zip(REFUSALS, map(tuple, json.loads(process.stdout)), strict=True))


@pytest.mark.parametrize("what", REFUSALS)
def test_bad_input_ends_in_its_exit_code_and_one_sentence(what: str, ends: dict[str, tuple[int, str, str]]) -> None:
    exit_code, output, errors = ends[what]
    refusal = REFUSALS[what]

    assert exit_code == refusal.exit_code, output + errors
    telling = [line for line in (output + errors).splitlines() if all(words in line for words in refusal.said)]
    assert len(telling) == 1, output + errors
    assert "Traceback" not in output + errors
    assert "INTERNALERROR" not in output + errors


def test_bad_input_measures_nothing_and_damages_nothing(storage: Path, ends: dict[str, tuple[int, str, str]]) -> None:
    left = {path.name: path.read_text() for path in storage.rglob("*") if path.is_file()}

    assert len(ends) == len(REFUSALS)
    assert left == DAMAGED
