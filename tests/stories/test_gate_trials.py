"""The trials that prove the gate: planted changes fit the code and do what they say, and their truth is measured."""

import importlib.util
import itertools
import json
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from claims import gate_power, gate_trials, planted_truth
from claims.gate_false_alarms import NO_OP_CHANGES, conclude_from
from claims.gate_simulation import CLAIMED_POWER
from claims.gate_slowdowns import METHODS, OTHER_SLOWDOWNS, REAL_SLOWDOWNS, SHAPES, slow_attention, slowed
from model.attention import naive_attention
from model.precision import PRECISIONS
from perf_tests.gate.samples import ENGINES, PRESENT_ENGINE, Rules
from perf_tests.gate.stages import interim_analyses, screen_values
from tests.support.finished_trials import FINISHED, trial
from tests.support.git_repository import make_repository
from tests.support.launch import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "model", tmp_path / "model", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def changed_module(tree: Path, name: str) -> ModuleType:
    """The changed `model/NAME.py`, under another name."""
    spec = importlib.util.spec_from_file_location(f"changed_{name}", tree / f"model/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHANGES = {**NO_OP_CHANGES, **{name: real.change for name, real in REAL_SLOWDOWNS.items()}}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_fits_the_code_and_leaves_the_result_as_it_was(name: str, tree: Path) -> None:
    before = {path: path.read_text() for path in (tree / "model").glob("*.py")}
    CHANGES[name](tree)
    changed = [path for path, text in before.items() if path.read_text() != text]
    assert bool(changed) == (name != "same-code")
    for path in changed:
        compile(path.read_text(), str(path), "exec")
    q_k_v = torch.randn(3, 8, 64, 16)
    torch.testing.assert_close(changed_module(tree, "attention").naive_attention(*q_k_v), naive_attention(*q_k_v))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each share of extra work that changed code does, in order; nothing waits."""
    found: list[float] = []
    planted = ModuleType("model.extra_work")
    planted.__dict__.update(work_on=lambda start, end, share: found.append(share))
    monkeypatch.setitem(sys.modules, "model.extra_work", planted)
    return found


def test_extra_work_takes_the_share_it_says(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed(random.Random(1))[0](tree)
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    readings = itertools.count(30)
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings) / 10)
    changed_module(tree, "extra_work").work_on(start=1.0, end=3.0, share=0.5)
    assert next(readings) == 30 + 10 + 1


def test_the_truth_of_planted_work_is_measured_in_launches_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, others = "test_attention_forward[d16-seq64-fp32-naive]", "test_attention_forward[d16-seq128-fp32-naive]"
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))  # where no other gate measures
    (clone := tmp_path / "clone").mkdir()
    make_repository(clone)
    slow_attention(clone, {(16, 64): 0.5, (16, 128): 0.0})
    measured = gate_trials.measured_shares(clone, {name: 0.5, others: 0.0}, launch_pairs=3)
    assert measured.keys() == {name, others}
    assert measured[others] + 0.2 < measured[name] < 1.0


def test_planted_work_in_a_benchmark_that_is_not_there_ends_the_trial(tmp_path: Path) -> None:
    make_repository(tmp_path)
    slow_attention(tmp_path, {(16, 64): 0.5})
    with pytest.raises(gate_trials.TrialError, match=r"test_forward\[nowhere\] cannot be measured"):
        gate_trials.measured_shares(tmp_path, ["test_attention_forward[d16-seq64-fp32-naive]", "test_forward[nowhere]"])


def test_launches_that_show_the_truth_of_planted_work_decide_nothing_and_are_never_stopped() -> None:
    rules = planted_truth.rules(5)
    assert interim_analyses(rules) == []
    slowed = np.random.default_rng(1).normal(0.1, 0.005, (12, 5))
    assert not screen_values(slowed, rules).candidates.any()
    assert screen_values(slowed, Rules(screen_pairs=5)).candidates.all()


def test_attention_works_on_in_the_shapes_planted_and_nowhere_else(tree: Path, waits: list[float]) -> None:
    change, planted = slowed(random.Random(1))
    change(tree)
    attention = changed_module(tree, "attention").naive_attention
    for width, length in SHAPES:
        x_BTK = torch.randn(2, length, width)
        torch.testing.assert_close(attention(x_BTK, x_BTK, x_BTK), naive_attention(x_BTK, x_BTK, x_BTK))
        assert waits.pop() == planted[f"test_attention_forward[d{width}-seq{length}-fp32-naive]"]
    attention(*torch.randn(3, 2, 64, 8))
    attention(*torch.randn(3, 2, 1, 64, 16))
    assert not waits


def test_each_phase_of_the_model_works_on_once(tree: Path, waits: list[float]) -> None:
    change, planted = slowed(random.Random(1))
    change(tree)
    model = torch.nn.Embedding(3, 3)
    training = changed_module(tree, "training").Training(model, PRECISIONS["fp32"], torch.device("cpu"))
    tokens_BT = torch.zeros(1, 2, dtype=torch.long)
    loss = training.loss(training.forward(tokens_BT), tokens_BT)
    training.backward(loss)
    training.step(tokens_BT, tokens_BT)
    assert waits == [planted[f"test_{phase}[tiny-ctx32-fp32-sdpa]"] for phase in METHODS]


def test_slowed_cases_are_drawn_anew_for_each_run_and_the_same_for_the_same_run() -> None:
    drawn = [slowed(random.Random(f"run {run}"))[1] for run in range(10)]
    assert len({tuple(sorted(planted.items())) for planted in drawn}) > 3
    assert drawn[0] == slowed(random.Random("run 0"))[1]


@pytest.mark.parametrize("run", range(5))
def test_every_run_has_four_benchmarks_of_each_slowdown_that_is_claimed(run: int) -> None:
    sizes = Counter(slowed(random.Random(run))[1].values())
    assert {size: sizes[size] for size in CLAIMED_POWER} == dict.fromkeys(CLAIMED_POWER, 4)
    assert set(sizes) - set(CLAIMED_POWER) < set(OTHER_SLOWDOWNS)


def test_a_change_that_does_not_fit_is_refused(tree: Path) -> None:
    change: gate_trials.Change = gate_trials.replaced("model/attention.py", "no such line", "")
    with pytest.raises(gate_trials.TrialError, match=r"model/attention\.py has no 'no such line' to change"):
        change(tree)


def test_power_is_tried_by_what_the_folder_lacks(tmp_path: Path) -> None:
    for stem in ("finished", "without-samples"):
        (tmp_path / f"{stem}.truth.json").write_text(json.dumps({"change": "item"}))
    (tmp_path / "finished.jsonl.gz").touch()
    (tmp_path / "without-truth.jsonl.gz").touch()
    assert [gate_trials.count_trials(tmp_path, change) for change in ("item", "extra-copy")] == [1, 0]
    missing = list(gate_power.plans(tmp_path, 2, ["item", "extra-copy"]))
    assert [plan.truth["change"] for plan in missing] == ["extra-work", "extra-work", "extra-copy"]
    assert missing[0].truth["planted"] == slowed(random.Random("extra-work 0"))[1]


def test_a_run_that_says_nothing_ends_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: object) -> gate_trials.Trial:
        raise gate_trials.TrialError("no verdict")

    monkeypatch.setattr(gate_trials, "run_trial", fails)
    arguments = gate_trials.proof_arguments("about", "cost", runs=1, minutes=5).parse_args([f"--folder={tmp_path}"])
    plan = gate_trials.Plan({"change": "item"}, lambda tree: None, ())
    assert gate_trials.prove(arguments, [plan], conclude_from) == 2
    assert capsys.readouterr().out.endswith("no verdict\n")


@pytest.mark.parametrize(
    ("name", "engine"), [("20261122T005959-item", 1), ("20261122T010000-item", 2), ("20300101T000000-item", 3)]
)
def test_the_engine_of_an_older_trial_is_the_one_of_its_time(name: str, engine: int) -> None:
    assert trial(name).engine == engine


def test_samples_carry_the_number_of_their_engine() -> None:
    samples = replace(FINISHED, header=FINISHED.header | {"engine": PRESENT_ENGINE})
    assert trial("20261122T005959-item", samples=samples).engine == PRESENT_ENGINE == len(ENGINES)
    with pytest.raises(ValueError, match="its 'engine' is not a number"):
        replace(FINISHED, header=FINISHED.header | {"engine": "4"})
