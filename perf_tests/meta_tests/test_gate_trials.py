"""The harness that proves the gate: its planted changes fit the code and do what they say, its limits are exact."""

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
from typing import Any

import numpy as np
import pytest
import torch

from model.attention import naive_attention
from model.precision import PRECISIONS
from perf_tests.gate.clock import ClockDecision
from perf_tests.gate.conclusion import GateResult, RunVerdict, conclude
from perf_tests.gate.decisions import screen_values
from perf_tests.gate.early_looks import early_looks
from perf_tests.gate.engines import ENGINES, PRESENT_ENGINE
from perf_tests.gate.rules import Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.verdicts import CaseResult, Effect, ExactResult, Verdict
from perf_tests.launching.git_repository import make_repository
from perf_tests.launching.launch import ROOT
from perf_tests.proofs import gate_cost, gate_power, gate_trials, planted_truth
from perf_tests.proofs.gate_false_alarms import NO_OP_CHANGES, conclude_from
from perf_tests.proofs.gate_simulation import CLAIMED_POWER
from perf_tests.proofs.gate_slowdowns import (
    METHODS,
    OTHER_SLOWDOWNS,
    REAL_SLOWDOWNS,
    SHAPES,
    slow_attention,
    slowed,
)
from perf_tests.proofs.share import Share
from perf_tests.proofs.simulated_launches import SimulatedCase, gate_run
from perf_tests.records.record import Json


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


def test_the_truth_of_planted_work_is_measured_in_launches_of_its_own(tmp_path: Path) -> None:
    name, others = "test_attention_forward[d16-seq64-fp32-naive]", "test_attention_forward[d16-seq128-fp32-naive]"
    make_repository(tmp_path)
    slow_attention(tmp_path, {(16, 64): 0.5, (16, 128): 0.0})
    measured = gate_trials.measured_shares(tmp_path, {name: 0.5, others: 0.0}, launch_pairs=3)
    assert measured.keys() == {name, others}
    assert measured[others] + 0.2 < measured[name] < 1.0


def test_planted_work_in_a_benchmark_that_is_not_there_ends_the_trial(tmp_path: Path) -> None:
    make_repository(tmp_path)
    slow_attention(tmp_path, {(16, 64): 0.5})
    with pytest.raises(gate_trials.TrialError, match=r"test_forward\[nowhere\] cannot be measured"):
        gate_trials.measured_shares(tmp_path, ["test_attention_forward[d16-seq64-fp32-naive]", "test_forward[nowhere]"])


def test_launches_that_show_the_truth_of_planted_work_decide_nothing_and_are_never_stopped() -> None:
    rules = planted_truth.rules(5)
    assert early_looks(rules) == []
    slowed = np.random.default_rng(1).normal(0.1, 0.005, (12, 5))
    assert not screen_values(slowed, rules).candidates.any()
    assert screen_values(slowed, Rules(screen_pairs=5)).candidates.all()


def test_the_truth_of_a_benchmark_is_what_its_clone_took() -> None:
    noted = replace(
        power_trial(0.03, True, error=0.002), truth={"planted": {"slowed": 0.03}, "measured": {"slowed": 0.032}}
    )
    assert gate_power.errors_of(gate_power.slowed_in([noted])) == [pytest.approx(0.0)]
    assert gate_power.errors_of(gate_power.slowed_in([power_trial(0.03, True, error=0.002)])) == [pytest.approx(0.002)]


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


@pytest.mark.parametrize(("hits", "trials"), [(0, 299), (1, 473), (2, 628), (3, 773)])
def test_the_upper_limit_is_one_percent_where_the_tables_say(hits: int, trials: int) -> None:
    """Trials needed to state a rate below 1 % at 95 % (Clopper and Pearson)."""
    assert Share(hits, trials).upper_limit <= 0.01
    assert Share(hits, trials - 1).upper_limit > 0.01


def test_the_interval_of_a_share_is_the_exact_one() -> None:
    """8 of 20: 0.191 to 0.639, as printed in textbooks."""
    assert Share(8, 20).limits == pytest.approx((0.191, 0.639), abs=0.001)
    assert Share(0, 299).limits == pytest.approx((0.0, 1 - 0.025 ** (1 / 299)))
    assert Share(10, 10).limits[1] == 1.0
    assert str(Share(8, 20)) == "8 of 20, 40% (19% to 64%)"
    assert Share(8, 20).words(2) == "8 of 20, 40.00% (19.12% to 63.95%)"
    assert str(Share(0, 0)) == "0 of 0"


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


CLOCK = ClockDecision("cpu", 0.1, 0.01)
FAILED = GateResult(RunVerdict.FAILED, "", [], [], None, None, {}, CLOCK, None, (6, 10))


def trial(
    change: str, truth: Json | None = None, samples: GateSamples | None = None, **result: Any
) -> gate_trials.Trial:
    """A finished run; `result` says what of it is not as in one that failed without any case."""
    return gate_trials.Trial(change, {"change": change, **(truth or {})}, replace(FAILED, **result), samples)


def power_trial(
    slowdown: float, found: bool, cpu_spread: float = 0.01, detectable: float = 0.01, error: float = 0.001
) -> gate_trials.Trial:
    """A finished run of two benchmarks, of which the first is slowed."""
    verdict = Verdict.SLOWER if found else Verdict.UNDECIDED
    effect = Effect(slowdown + error, 0.0, 0.2, 10)
    rows = [CaseResult("a::slowed", verdict, effect), CaseResult("a::other", Verdict.OK, effect)]
    clock, truth = ClockDecision("cpu", 0.1, cpu_spread), {"planted": {"slowed": slowdown}}
    return trial("extra-work", truth, FINISHED, cases=rows, clock=clock, detectable=detectable)


FINISHED = gate_run([SimulatedCase("a::slowed"), SimulatedCase("a::other")], Rules(), seed=1)


@pytest.mark.parametrize(
    "found, trials, spread, exit_code",
    [(40, 40, 0.01, 0), (38, 40, 0.02, 0), (37, 40, 0.01, 1), (39, 39, 0.01, 2), (40, 40, 0.05, 2)],
    ids=["all", "enough", "not enough", "too few trials", "too noisy a machine"],
)
def test_power_is_claimed_from_enough_trials_on_a_machine_calm_enough(
    found: int, trials: int, spread: float, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    five = [power_trial(0.05, place < found, spread) for place in range(trials)]
    three = [power_trial(0.03, place < 32) for place in range(40)]
    real = real_trial("item", True, True)
    assert gate_power.conclude_from([*five, *three, real]) == exit_code
    output = capsys.readouterr().out
    assert f"{found} of {trials}" in next(line for line in output.splitlines() if line.strip().startswith("5%"))
    assert "+0.10% +- 0.00%" in output
    assert f"other benchmarks of these runs called slower: 0 of {trials + 40}" in output


def test_an_estimate_off_by_more_than_half_a_point_refutes_the_claim(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [power_trial(size, True, error=0.006) for size in CLAIMED_POWER for _ in range(40)]
    assert gate_power.conclude_from([*runs, real_trial("item", True, True)]) == 1
    assert "a bias of at most 0.5%: does not hold" in capsys.readouterr().out


@pytest.mark.parametrize(("found", "said"), [(40, "holds"), (25, "does not hold")])
def test_a_noisy_runs_claim_is_tried_where_it_says(found: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    ten = [power_trial(0.10, place < found, cpu_spread=0.05, detectable=0.08) for place in range(40)]
    beyond = [power_trial(0.05, False, cpu_spread=0.05, detectable=0.08) for _ in range(40)]
    gate_power.conclude_from([*ten, *beyond])
    output = capsys.readouterr().out
    assert f"the slowdown that it prints with 80% power ({found} of 40, " in output
    assert f"): {said}" in output


def real_trial(change: str, by_time: bool, by_counters: bool | None) -> gate_trials.Trial:
    """A run of a real slowdown of one benchmark beside another; None for one that counted nothing."""
    verdict = Verdict.SLOWER if by_time else Verdict.OK
    rows = [CaseResult("a::slowed", verdict), CaseResult("a::other", Verdict.SLOWER)]
    new, counted = (8, Verdict.MORE) if by_counters else (7, Verdict.SAME)
    exact = [
        ExactResult("a::slowed", "kernel_launches", 7, new, counted),
        ExactResult("a::other", "saved_bytes", 7, 8, Verdict.MORE),
    ]
    return trial(change, {"cases": ["slowed"]}, cases=rows, exact=[] if by_counters is None else exact)


def test_real_slowdowns_stand_in_a_table_of_what_caught_them() -> None:
    trials = [
        real_trial("copy", True, True), real_trial("sync", True, False), real_trial("launch", False, True),
        real_trial("nothing", False, False), real_trial("old", True, None),
    ]  # fmt: skip
    header, by_time, not_by_time, rest = gate_power.two_by_two(trials)
    assert header.split("  ")[-1] == "not by counters"
    assert by_time.split()[3:] == ["copy", "sync"]
    assert not_by_time.split()[3:] == ["launch", "nothing"]
    assert rest == "without counters: old"


@pytest.mark.parametrize(
    ("by_time", "by_counters", "exit_code"), [(False, False, 1), (False, True, 2), (True, None, 2)]
)
def test_a_real_slowdown_that_nothing_catches_refutes_the_claim(
    by_time: bool, by_counters: bool | None, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate_power.conclude_from([real_trial("item", by_time, by_counters)]) == exit_code
    assert ("by time or by counters: does not hold" in capsys.readouterr().out) == (exit_code == 1)


def cost_trial(
    screened_seconds: float, cleared: int, pair_spread: float = 0.003, round_seconds: float = 0.001
) -> gate_trials.Trial:
    """Twenty unchanged benchmarks, of which all but `cleared` scatter wildly."""
    spreads = [pair_spread] * cleared + [0.3] * (20 - cleared)
    cases = [
        SimulatedCase(f"{round_seconds}::{place}", round_seconds, pair_spread=spread)
        for place, spread in enumerate(spreads)
    ]
    samples = gate_run(cases, Rules(), seed=1, quadruples=20, most_pairs=6)
    for pair in samples.pairs(1):
        samples.add({"event": "pair", "stage": 1, "pair": pair, "seconds": screened_seconds / 6})
    return gate_trials.Trial("same-code", {"change": "same-code"}, conclude(samples, Rules()), samples)


@pytest.mark.parametrize(
    "seconds, cleared, changes, exit_code",
    [(170, 20, {}, 0), (181, 20, {}, 1), (170, 15, {}, 1), (170, 20, {"pair_spread": 0.1}, 2),
     (170, 20, {"round_seconds": 0.02}, 2)],
    ids=["in time", "too long", "too few cleared", "too noisy a machine", "long rounds"],
)  # fmt: skip
def test_cost_is_claimed_of_suites_of_short_rounds_in_time_and_cleared(
    seconds: float, cleared: int, changes: dict[str, float], exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate_cost.conclude_from([cost_trial(seconds, cleared, **changes)]) == exit_code
    assert "20 benchmarks, median round" in capsys.readouterr().out


def test_the_cost_of_runs_is_told_by_suite_and_the_slowest_run_decides() -> None:
    trials = [cost_trial(150, 20), cost_trial(170, 20), cost_trial(200, 20, round_seconds=0.02)]
    short, long = gate_cost.suites_of([*trials, trial("same-code", verdict=RunVerdict.CONTAMINATED)])
    assert str(short).endswith(
        "2 runs: screened in 150 to 170 s, median 160 s; cleared 38 of 40, 95% (83% to 99%), where launch pairs "
        "scatter by at most 1% 38 of 40, 95% (83% to 99%)"
    )
    assert short.keeps_the_claim
    assert not gate_cost.SuiteRuns([cost_trial(190, 20), *trials[:2]]).keeps_the_claim
    assert not long.keeps_the_claim


@pytest.mark.parametrize("alarms, runs, exit_code", [(0, 60, 0), (1, 60, 0), (4, 60, 1), (0, 10, 2), (10, 10, 1)])
def test_false_alarms_are_counted_against_the_promised_rate(
    alarms: int, runs: int, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    contaminated = trial("comments", verdict=RunVerdict.CONTAMINATED)
    failed = [trial("same-code")] * alarms
    passed = [trial("comments", verdict=RunVerdict.PASSED)] * (runs - alarms)
    assert conclude_from([contaminated, *failed, *passed]) == exit_code
    output = capsys.readouterr().out
    assert f"runs with a false alarm: {alarms} of {runs}" in output
    assert "contaminated runs, which the gate refused: 1 of" in output
