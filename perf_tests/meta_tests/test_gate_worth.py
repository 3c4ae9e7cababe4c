"""What the documentation says that the gate is worth is what its kept runs say today."""

import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from perf_tests.__main__ import main
from perf_tests.gate.clock import decide_clock
from perf_tests.gate.early_looks import early_looks
from perf_tests.gate.rules import Clock
from perf_tests.gate.samples import read_samples
from perf_tests.meta_tests.documents import ROOT, block, indented, page
from perf_tests.proofs import gate_worth
from perf_tests.proofs.compact_trials import TrialsByProof, trials_under
from perf_tests.proofs.gate_relabelled import RULES, coverage, looks_taken, recorded_values, relabelled, unchanged_runs
from perf_tests.proofs.gate_simulation import COVERAGE, PAIRS_SHOWN

KEPT = ROOT / ".benchmarks/epyc-2core/gate"


@pytest.fixture(scope="module")
def trials() -> TrialsByProof:
    return trials_under(KEPT)


def test_the_page_says_what_the_kept_runs_say(trials: TrialsByProof, capsys: pytest.CaptureFixture[str]) -> None:
    gate_worth.say(trials)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line]
    assert [line.rstrip() for line in indented(block(page("gate"), "worth")) if line] == said


def test_the_page_says_how_many_relabelled_runs_raise_an_alarm(trials: TrialsByProof) -> None:
    runs = unchanged_runs(trials)
    _, values = recorded_values(runs, decide_clock(runs[0], RULES).clock)
    found = relabelled(np.random.default_rng(2027), values, 10_000)
    assert f"of 10 000 relabelled runs, {found.alarms.count} report SLOWER" in " ".join(page("gate").split())
    assert found.alarms.limits[1] <= RULES.alpha


@pytest.mark.parametrize("clock", get_args(Clock))
def test_early_looks_at_the_kept_launches_are_far_from_calling_anything_slower(
    trials: TrialsByProof, clock: Clock
) -> None:
    runs, (first, second) = unchanged_runs(trials), early_looks(RULES)
    called, farthest = looks_taken(runs, clock, first)
    assert len(called) >= 300
    assert not any(called)
    assert 0 < max(farthest) < RULES.far_spreads / 3, "as the page says"
    called, farthest = looks_taken(runs, clock, second)
    assert len(called) >= 150
    assert not any(called)
    assert not farthest, "as the page says: none is above the limit in every pair"


@pytest.mark.parametrize("clock", get_args(Clock))
def test_intervals_cover_nothing_changed_in_the_kept_runs(trials: TrialsByProof, clock: Clock) -> None:
    _, values = recorded_values(unchanged_runs(trials), clock)
    found = [coverage(values, pairs) for pairs in PAIRS_SHOWN]
    assert min(share.count / share.of for share in found) >= COVERAGE


def test_the_page_shows_the_false_alarm_as_its_samples_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [line for line in indented(block(page("gate"), "alarm")) if line]
    assert main(["replay", str(KEPT / "alarm.jsonl.xz")]) == 1
    assert shown in capsys.readouterr().out.splitlines()


def test_the_page_says_after_how_many_fresh_pairs_the_time_of_the_false_alarm_ended() -> None:
    samples = read_samples(KEPT / "alarm.jsonl.xz")
    assert (len(samples.pairs(2)), samples.end) == (9, "budget")
    assert "time ended after nine fresh pairs" in " ".join(page("gate").split())


def test_a_folder_without_runs_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate_worth", str(tmp_path)])
    assert gate_worth.main() == 3
    assert capsys.readouterr().out.startswith(f"{tmp_path} holds no trials; run gate_false_alarms")
