"""What the documentation says that the gate is worth is what its kept runs say today."""

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median, stdev
from typing import get_args

import numpy as np
import pytest

from claims import gate_worth
from claims.compact_trials import TrialsByProof, trials_under
from claims.gate_cost import cleared_in, screening_seconds, suites_of
from claims.gate_power import errors_of, is_injected, slowed_in
from claims.gate_relabelled import RULES, coverage, looks_taken, recorded_values, relabelled, unchanged_runs
from claims.gate_simulation import COVERAGE, PAIRS_SHOWN
from claims.gate_trials import Trial
from perf_tests.__main__ import main
from perf_tests.gate.samples import PRESENT_ENGINE, Clock, PairTime, read_samples
from perf_tests.gate.stages import interim_analyses
from perf_tests.gate.statistics import Floats, decide_clock, pair_values
from perf_tests.gate.verdicts import Verdict
from tests.support.documents import README, ROOT, block, indented, page

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
    runs, (first, second) = unchanged_runs(trials), interim_analyses(RULES)
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


def test_the_first_page_says_how_long_unchanged_code_takes(trials: TrialsByProof) -> None:
    minutes = [whole_seconds(trial) / 60 for trial in of_present_engine(trials["cost"])]
    assert f"about {median(minutes):.0f} minutes for 20 cases" in " ".join(README.split())


def test_the_page_says_what_longer_rounds_cost(trials: TrialsByProof) -> None:
    text = " ".join(page("gate").split())
    cost = of_present_engine(trials["cost"])
    seconds, cleared = sorted(map(screening_seconds, cost)), sorted(map(cleared_in, cost))
    (suite,) = suites_of(cost)
    assert f"median round takes {1000 * suite.round_seconds:.0f} ms are screened in {seconds[0]:.0f} to" in text
    assert f"to {seconds[-1]:.0f} s, which clears {cleared[0]} to {cleared[-1]} of them" in text
    assert (min(map(whole_seconds, cost)) // 30, max(map(whole_seconds, cost)) // 30) == (7, 9), "after 4 to 5 minutes"
    assert {row.verdict for trial in cost for row in trial.result.cases} == {Verdict.OK}


def test_the_page_says_what_planted_work_takes_in_fact_and_how_well_it_is_estimated(trials: TrialsByProof) -> None:
    text = " ".join(page("gate").split())
    injected = list(filter(is_injected, of_present_engine(trials["power"])))
    truths = [case.truth for case in slowed_in(injected) if case.slowdown == 0.05]
    assert f"Extra work of 5 % takes {100 * mean(truths):.1f} % in the mean" in text
    errors = errors_of(case for case in slowed_in(injected) if case.slowdown == 0.05)
    assert f"at 5 % they are {100 * mean(errors):.1f} points too large".replace("0.", ".") in text
    assert f"an uncertainty of {200 * stdev(errors) / math.sqrt(len(errors)):.1f}".replace("0.", ".") in text
    behind = [unchanged_backward(trial) for trial in injected]
    assert f"take {100 * mean(np.concatenate(behind)):.1f} % more in these runs".replace("0.", ".") in text


def unchanged_backward(trial: Trial) -> Floats:
    """The means of the launches of stage 1, of backward passes behind forward passes with extra work."""
    assert trial.samples is not None
    values = pair_values(trial.samples, 1, trial.samples.pairs(1), trial.result.clock.clock)
    cases = [
        place for place, case in enumerate(trial.samples.cases) if "attention_backward" in case and "naive" in case
    ]
    assert cases
    return np.expm1(values[cases].mean(axis=1))


def of_present_engine(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.engine == PRESENT_ENGINE]


def whole_seconds(trial: Trial) -> float:
    assert trial.samples is not None
    return sum(time.seconds for time in trial.samples.of(PairTime))


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
