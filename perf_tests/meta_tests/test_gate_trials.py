"""The harness that proves the gate: its planted changes fit the code and do what they say, its limits are exact."""

import importlib.util
import json
import random
import shutil
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from model.attention import naive_attention
from perf_tests.meta_tests.launch import ROOT
from perf_tests.proofs import gate_cost, gate_power
from perf_tests.proofs.gate_false_alarms import NO_OP_CHANGES, conclude_from
from perf_tests.proofs.gate_power import REAL_SLOWDOWNS, slowed
from perf_tests.proofs.gate_trials import Change, Trial, TrialError, count_trials, limits, replaced, share, upper_limit
from perf_tests.proofs.simulated_launches import SimulatedCase, gate_run
from perf_tests.records.gate.clock import ClockDecision
from perf_tests.records.gate.conclusion import GateResult, RunVerdict, conclude
from perf_tests.records.gate.rules import Rules
from perf_tests.records.gate.verdicts import CaseResult, Effect, ExactResult, Verdict


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "model", tmp_path / "model", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def attention_in(tree: Path) -> ModuleType:
    """The changed `model/attention.py`, under another name."""
    spec = importlib.util.spec_from_file_location("changed_attention", tree / "model/attention.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(sequence_length: int = 64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(8, sequence_length, 16, generator=generator) for _ in range(3))


CHANGES = {**NO_OP_CHANGES, **{name: real.change for name, real in REAL_SLOWDOWNS.items()}}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_fits_the_code_and_leaves_the_result_as_it_was(name: str, tree: Path) -> None:
    before = {path: path.read_text() for path in (tree / "model").glob("*.py")}
    CHANGES[name](tree)
    changed = [path for path, text in before.items() if path.read_text() != text]

    assert bool(changed) == (name != "same-code")
    for path in changed:
        compile(path.read_text(), str(path), "exec")
    torch.testing.assert_close(attention_in(tree).naive_attention(*inputs()), naive_attention(*inputs()))


def test_extra_work_takes_the_share_it_says_and_only_where_it_says(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, cases = slowed(random.Random(1), 0.5)
    change(tree)
    module = attention_in(tree)
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    moments = iter([0.0, 1.0, *(1.0 + step / 10 for step in range(1, 100))])
    read: list[float] = []

    def clock() -> float:
        read.append(next(moments))
        return read[-1]

    monkeypatch.setattr(time, "perf_counter", clock)
    length = next(length for length in (64, 128) if f"d16-seq{length}-" in " ".join(cases))
    output = module.naive_attention(*inputs(length))
    assert read[-1] == pytest.approx(1.5)
    torch.testing.assert_close(output, naive_attention(*inputs(length)))

    read.clear()
    other = next(length for length in (64, 128, 256, 512) if f"d16-seq{length}-" not in " ".join(cases))
    module.naive_attention(*inputs(other))
    assert len(read) == 1


def test_slowed_cases_are_drawn_anew_for_each_run_and_the_same_for_the_same_run() -> None:
    drawn = [tuple(slowed(random.Random(f"run {run}"), 0.03)[1]) for run in range(10)]
    assert len(set(drawn)) > 3
    assert drawn[0] == tuple(slowed(random.Random("run 0"), 0.03)[1])


def test_a_change_that_does_not_fit_is_refused(tree: Path) -> None:
    change: Change = replaced("model/attention.py", "no such line", "")
    with pytest.raises(TrialError, match=r"model/attention\.py has no 'no such line' to change"):
        change(tree)


@pytest.mark.parametrize(("hits", "trials"), [(0, 299), (1, 473), (2, 628), (3, 773)])
def test_the_upper_limit_is_one_percent_where_the_tables_say(hits: int, trials: int) -> None:
    """Trials needed to state a rate below 1 % at 95 % (Clopper and Pearson)."""
    assert upper_limit(hits, trials) <= 0.01
    assert upper_limit(hits, trials - 1) > 0.01


def test_the_interval_of_a_share_is_the_exact_one() -> None:
    """8 of 20: 0.191 to 0.639, as printed in textbooks."""
    assert limits(8, 20) == pytest.approx((0.191, 0.639), abs=0.001)
    assert limits(0, 10)[0] == 0.0
    assert limits(10, 10)[1] == 1.0
    assert share(8, 20) == "8 of 20, 40% (19% to 64%)"
    assert share(0, 0) == "0 of 0"


def test_only_finished_trials_count(tmp_path: Path) -> None:
    for stem in ("finished", "without-samples"):
        (tmp_path / f"{stem}.truth.json").write_text(json.dumps({"change": "item"}))
    (tmp_path / "finished.jsonl").touch()
    (tmp_path / "without-truth.jsonl").touch()
    assert count_trials(tmp_path, "item") == 1
    assert count_trials(tmp_path, "extra-copy") == 0


def power_trial(slowdown: float, found: bool, cpu_spread: float = 0.01) -> Trial:
    """A run of two benchmarks, of which the first is slowed."""
    verdict = Verdict.SLOWER if found else Verdict.UNDECIDED
    effect = Effect(slowdown + 0.001, 0.0, 0.2, 10)
    rows = [CaseResult("a::slowed", verdict, effect), CaseResult("a::other", Verdict.OK, effect)]
    clock = ClockDecision("cpu", 0.1, cpu_spread)
    truth = {"change": "extra-work", "slowdown": slowdown, "cases": ["slowed"]}
    return Trial("extra-work", truth, GateResult(RunVerdict.FAILED, "", rows, [], None, None, {}, clock, None, (6, 10)))


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

    assert gate_power.conclude_from([*five, *three]) == exit_code
    output = capsys.readouterr().out
    assert f"extra work of 5%: found in {found} of {trials}" in output
    assert "estimate less truth +0.10% +- 0.00%" in output
    assert f"0 of {trials} others called slower" in output


def real_trial(change: str, by_time: bool, by_counters: bool | None) -> Trial:
    """A run of a real slowdown of one benchmark beside another; None for one that counted nothing."""
    verdict = Verdict.SLOWER if by_time else Verdict.OK
    rows = [CaseResult("a::slowed", verdict), CaseResult("a::other", Verdict.SLOWER)]
    clock = ClockDecision("cpu", 0.1, 0.01)
    exact = [
        ExactResult(
            "a::slowed", "kernel_launches", 7, 8 if by_counters else 7, Verdict.MORE if by_counters else Verdict.SAME
        )
    ]
    exact = [] if by_counters is None else [*exact, ExactResult("a::other", "saved_bytes", 7, 8, Verdict.MORE)]
    result = GateResult(RunVerdict.FAILED, "", rows, exact, None, None, {}, clock, None, (6, 10))
    return Trial(change, {"change": change, "slowdown": None, "cases": ["slowed"]}, result)


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


def cost_trial(screened_seconds: float, cleared: int, pair_spread: float = 0.01) -> Trial:
    """Twenty unchanged benchmarks, of which all but `cleared` scatter wildly."""
    spreads = [pair_spread] * cleared + [0.3] * (20 - cleared)
    cases = [SimulatedCase(f"a::{place}", pair_spread=spread) for place, spread in enumerate(spreads)]
    samples = gate_run(cases, Rules(), seed=1, most_pairs=6)
    for pair in samples.pairs(1):
        samples.add({"event": "pair", "stage": 1, "pair": pair, "seconds": screened_seconds / 6})
    return Trial("same-code", {"change": "same-code"}, conclude(samples, Rules()), samples)


@pytest.mark.parametrize(
    ("seconds", "cleared", "pair_spread", "exit_code"),
    [(200, 20, 0.005, 0), (301, 20, 0.005, 1), (200, 15, 0.005, 1), (200, 20, 0.1, 2)],
    ids=["in time", "too long", "too few cleared", "too noisy a machine"],
)
def test_cost_is_claimed_of_the_whole_suite_in_time_and_cleared(
    seconds: float, cleared: int, pair_spread: float, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate_cost.conclude_from([cost_trial(seconds, cleared, pair_spread)]) == exit_code
    assert f"6 launch pairs in {seconds} s" in capsys.readouterr().out


def trial(change: str, verdict: RunVerdict) -> Trial:
    clock = ClockDecision("cpu", 0.1, 0.01)
    return Trial(change, {"change": change}, GateResult(verdict, "", [], [], None, None, {}, clock, None, (6, 0)))


@pytest.mark.parametrize("alarms, runs, exit_code", [(0, 50, 0), (1, 60, 0), (4, 60, 1), (0, 10, 2), (10, 10, 1)])
def test_false_alarms_are_counted_against_the_promised_rate(
    alarms: int, runs: int, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    contaminated = trial("comments", RunVerdict.CONTAMINATED)
    failed = [trial("same-code", RunVerdict.FAILED)] * alarms
    passed = [trial("comments", RunVerdict.PASSED)] * (runs - alarms)

    assert conclude_from([contaminated, *failed, *passed]) == exit_code
    output = capsys.readouterr().out
    assert f"runs with a false alarm: {alarms} of {runs}" in output
    assert "contaminated runs, which the gate refused: 1 of" in output
