"""The suite's own model: an edit that changes nothing is the same, a mutant whose timed step differs is not."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.bench.worker_plugin import sent
from perf_tests_suite.perf_tests.bench.workers import start_worker
from perf_tests_suite.perf_tests.interleaved.observer import Observation
from perf_tests_suite.perf_tests.interleaved.same import ObservedTree, why_not_the_same
from perf_tests_suite.perf_tests.interleaved.sides import MEASURING_CODE, environment_of_side
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.named import Repository
from tests.support.example_cases import SETTINGS
from tests.support.launch import ROOT
from tests.support.same_programs import MODEL, mutants_of_the_model, write

MUTANTS = 200
REHEARSED = replace(
    SETTINGS, phases=("forward", "backward", "full_step"), precisions=("fp32", "bf16"), attentions=("naive", "sdpa"),
    checkpoints=("none", "1"), executions=("eager", "compiled"),
)  # fmt: skip
STEP = """
import hashlib
import re
import torch
from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
digest = hashlib.sha256()
from torch.utils._python_dispatch import TorchDispatchMode
class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        digest.update(re.sub("0x[0-9a-f]+", "", repr((func, args, kwargs, result))).encode())
        return result
for attention in "naive", "sdpa":
    for precision in "fp32", "bf16":
        for checkpoint in "none", "1":
            torch.manual_seed(1)
            model = TransformerLM(ModelConfig(8, 16, 2, 2, 11, 4), ATTENTION[attention].build(), checkpoint)
            training = Training(model, PRECISIONS[precision], torch.device("cpu"), "loop")
            tokens = torch.arange(8).reshape(2, 4)
            with Operations():
                for _ in range(2):
                    training.step(tokens, tokens)
print(digest.hexdigest())
"""
"""Prints a digest of all operations and values of the timed step."""


def rehearsed(tree: Path) -> tuple[Json, Observation]:
    """What a worker of the gate says of this tree: digests of operations, and what it ran and read in the end."""
    suite = Repository(tree)
    worker = start_worker("perf_tests_suite.perf_tests.interleaved.worker", tree, environment_of_side(suite, tree))
    try:
        files = [f"perf_tests/test_{name}.py" for name in ("forward", "backward", "full_step")]
        where = {"tree": str(tree), "repository": suite.as_json}
        worker.send({"settings": sent(REHEARSED), "files": files, "is_rehearsal": True, **where})
        cases = [*worker.receive(120)["ready"]]
        digests = worker.ask({"order": cases}, 120)["digests"]
        answer = worker.ask({"once": cases}, 300)
        assert answer["unplayed"] == {}
        return digests, Observation.of(answer)
    finally:
        worker.end()


def step_of(tree: Path) -> str:
    ended = subprocess.run([sys.executable, "-c", STEP], cwd=tree, capture_output=True, text=True)
    return ended.stdout or ended.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = write(tmp_path_factory.mktemp("sides") / "base", MODEL)
    for name in MEASURING_CODE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def seen(base: Path) -> tuple[Json, Observation]:
    return rehearsed(base)


def why_of_code(base: Path, seen: tuple[Json, Observation], name: str, text: str) -> str | None:
    """Why a tree in which one file differs is not the same, as far as its code says without running it."""
    head = write(base.parent / "head", {**MODEL, name: text})
    return why_not_the_same(ObservedTree(base, seen[1]), ObservedTree(head, seen[1]), [name])


def test_edits_of_the_model_that_change_nothing_are_the_same(base: Path, seen: tuple[Json, Observation]) -> None:
    renamed = re.sub(r"\bshifted\b", "moved", MODEL["model/attention.py"])
    unused = MODEL["model/attention.py"].replace(
        "def causal_mask", "def of_nobody() -> int:\n    return 1\n\n\ndef causal_mask"
    )
    edits: dict[str, Callable[[str], str]] = {
        "comment": lambda text: re.sub(r"(?m)^(import .*|    return [^\"'(\[{]*)$", r"\1  # new", text),
        "documentation": lambda text: re.sub(r'(?m)^( *)"""(\w)', r'\1"""New \2', text),
        "layout": lambda text: text.replace("\n\n\n", "\n\n\n\n").replace(" = ", "  =  "),
    }
    tried = [(name, edit(text)) for edit in edits.values() for name, text in MODEL.items() if edit(text) != text]
    tried += [("model/attention.py", renamed), ("model/attention.py", unused), ("model/parallel.py", "raise\n")]
    assert len(tried) > 25
    assert {(name, why_of_code(base, seen, name, text)) for name, text in tried} == {(name, None) for name, _ in tried}


def test_no_mutant_whose_timed_step_differs_is_the_same(base: Path, seen: tuple[Json, Observation]) -> None:
    step, wrong = step_of(base), []
    assert step == step_of(base)
    for name, text in mutants_of_the_model(MUTANTS, seed=2):
        if why_of_code(base, seen, name, text) is None and step_of(base.parent / "head") != step:
            wrong.append((name, text))
    assert wrong == []
