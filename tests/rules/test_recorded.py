"""The record of the operations of `model/` replays what a fake run counts: launches, reads, logs of memory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import COUNTED_ATTENTION, Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.predict import fake_run, recorded, recording
from perf_tests_suite.perf_tests.predict.parts import Parts
from tests.support.documents import ROOT
from tests.support.example_cases import attention_case, language_model_case

pytestmark = pytest.mark.skipif(
    recorded.opened() is None,
    reason="no record of this torch and this model/; write it by `make ledger ARGS=--update-counters`",
)

CONTEXTS, BATCHES = (128, 300, 1024, 4096), (1, 2, 7, 2048)


@pytest.fixture(autouse=True)
def in_use() -> Iterator[None]:
    with recorded.in_use():
        yield


def both(case: Case) -> tuple[Parts, Parts | None]:
    """What a fake run counts, and what the record replays."""
    if isinstance(case, AttentionCase):
        return fake_run.count_attention(case), recorded.attention_passes(case)
    assert isinstance(case, LanguageModelCase)
    if case.phase == "optimizer":
        return fake_run.count_updates(case), recorded.updates(case)
    return fake_run.count_passes(case), recorded.passes(case)


def of_size(size: str, layers: int, context: int, **fields: Any) -> LanguageModelCase:
    config = replace(SIZES[size].at_context(context), num_layers=layers)
    return language_model_case(config, size=size, device="cuda", **fields)


def drawn(draw: Random) -> Iterator[Case]:
    """One case of each kind: passes that record a graph or none, an update, attention alone."""
    size, context, batch = draw.choice([*SIZES]), draw.choice(CONTEXTS), draw.choice(BATCHES)
    way = {"attention": draw.choice(COUNTED_ATTENTION), "batch_size": batch}
    for phase, kind in (("backward", "training"), ("inference", "inference")):
        precision = draw.choice([name for name in PRECISIONS if not name.endswith("-tensors")])
        checkpoint, layers = draw.choice(recording.CHECKPOINTS), draw.choice(recording.LAYERS[kind])
        yield of_size(size, layers, context, phase=phase, precision=precision, checkpoint=checkpoint, **way)
    shallow, optimizer = draw.choice(("tiny", "small-2layers")), draw.choice(recording.OPTIMIZERS)
    precision = draw.choice(("fp32", "fp16"))
    yield of_size(shallow, 2, context, phase="optimizer", optimizer=optimizer, precision=precision, batch_size=1)
    alone = {"sequence_length": draw.choice((256, 1000, 16384)), "head_dim": draw.choice((16, 64, 128))}
    yield attention_case(device="cuda", precision=draw.choice([*PRECISIONS]), **alone, **way)


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_is_what_a_fake_run_counts(seed: int) -> None:
    """Kernels in their order too, which a prediction prints."""
    for case in drawn(Random(seed)):
        counted, replayed = both(case)
        assert replayed == counted, case
        assert {name: [*part.kernels] for name, part in counted.items()} == {
            name: [*part.kernels] for name, part in (replayed or {}).items()
        }, case


NOT_HELD = {
    "of a CPU": replace(of_size("tiny", 2, 128), device="cpu"),
    "a context of one": of_size("tiny", 2, 1),
    "a depth between": of_size("tiny", 7, 128),
    "blocks that share a checkpoint": of_size("tiny", 2, 128, checkpoint="2"),
}


@pytest.mark.parametrize("name", NOT_HELD)
def test_what_the_record_lacks_is_counted_anew(name: str) -> None:
    assert recorded.passes(NOT_HELD[name]) is None


def test_a_record_of_another_model_or_format_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "transformer.py").write_text("")
    changes = ((recorded, "MODEL", tmp_path), (recorded, "FORMAT", 0), (recorded, "FOLDER", tmp_path))
    case = of_size("tiny", 2, 128)
    for module, name, value in changes:
        assert recorded.passes(case) is not None
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            recorded.opened.cache_clear()
            assert recorded.passes(case) is None
        recorded.opened.cache_clear()


def test_a_size_is_told_by_its_dimensions_or_refused() -> None:
    assert recording.symbol(4 * 13 * 541 * 541, recording.PRIMES) == "4BTT"
    assert recording.symbol(0, recording.PRIMES) == "0"
    assert recording.symbol(3 * 37, recording.PRIMES, [2 * 37]) == "111"
    with pytest.raises(ValueError, match="no product of dimensions"):
        recording.symbol(541 + 1, recording.PRIMES)


WITHOUT_TORCH = """
import sys
from perf_tests_suite.perf_tests.__main__ import main
for words in COMMANDS:
    assert main(["predict", *words.split()]) in (0, 1), words
    assert "torch" not in sys.modules, words
"""
COMMANDS = (
    "--size small --gpu H100",
    "--size 2.7B --context 256,1024 --precision bf16 --optimizer fused --gpu A100-80GB",
    "--size medium --attention softmax --checkpoint none,attention,block --gpu H100 --json",
    "--size large --precision fp16 --hold former-pass --zero-grad after-forward --gpu T4",
    "--head-dim 16,128 --sequence-length 1024,16384 --precision bf16 --gpu H100",
)


def test_a_prediction_of_a_known_size_loads_no_torch() -> None:
    program = WITHOUT_TORCH.replace("COMMANDS", repr(COMMANDS))
    of_this_tree = {**os.environ, "PYTHONPATH": str(ROOT / "perf_tests/importable")}
    subprocess.run([sys.executable, "-c", program], env=of_this_tree, stdout=subprocess.DEVNULL, check=True)
