"""What the documentation says that the gate is worth is what its kept runs say today."""

import json
import lzma
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import pytest

from claims.gate import FILE, KEPT, PROOFS, Trial, TrialsByProof, finished_trials, read_trial, trials_under
from claims.gate_worth import cleared_in, errors_of, is_injected, say, screening_seconds, slowed_in, suites_of
from perf_tests.__main__ import main
from perf_tests.gate.samples import PRESENT_ENGINE, PairTime, read_samples
from perf_tests.gate.statistics import Floats, decide_clock, pair_values
from perf_tests.gate.verdicts import GateResult, Verdict
from tests.support.documents import README, block, indented, page
from tests.support.gate_rates import RULES, recorded_values, relabelled


@pytest.fixture(scope="module")
def trials() -> TrialsByProof:
    return trials_under(KEPT)


def test_the_page_says_what_the_kept_runs_say(trials: TrialsByProof, capsys: pytest.CaptureFixture[str]) -> None:
    say(trials)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line]
    assert [line.rstrip() for line in indented(block(page("gate"), "worth")) if line] == said


def test_the_page_says_how_many_relabelled_runs_raise_an_alarm(trials: TrialsByProof) -> None:
    runs = [trial.samples for trial in trials["false-alarms"] if trial.says_something]
    _, values = recorded_values(runs, decide_clock(runs[0], RULES).clock)
    found = relabelled(np.random.default_rng(2027), values, 10_000)
    assert f"of 10 000 relabelled runs, {found.alarms.count} report SLOWER" in " ".join(page("gate").split())
    assert found.alarms.limits[1] <= RULES.alpha


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
    values = pair_values(trial.samples, 1, trial.samples.pairs(1), trial.result.clock.clock)
    cases = [
        place for place, case in enumerate(trial.samples.cases) if "attention_backward" in case and "naive" in case
    ]
    assert cases
    return np.expm1(values[cases].mean(axis=1))


def of_present_engine(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.engine == PRESENT_ENGINE]


def whole_seconds(trial: Trial) -> float:
    return sum(time.seconds for time in trial.samples.of(PairTime))


def test_the_page_shows_the_false_alarm_as_its_samples_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [line for line in indented(block(page("gate"), "alarm")) if line]
    assert main(["replay", str(KEPT / "alarm.jsonl.xz")]) == 1
    assert shown in capsys.readouterr().out.splitlines()


def test_the_page_says_after_how_many_fresh_pairs_the_time_of_the_false_alarm_ended() -> None:
    samples = read_samples(KEPT / "alarm.jsonl.xz")
    assert (len(samples.pairs(2)), samples.end) == (9, "budget")
    assert "time ended after nine fresh pairs" in " ".join(page("gate").split())


@pytest.mark.parametrize("proof", PROOFS)
def test_every_kept_raw_trial_is_judged_the_same_from_the_one_file(proof: str, trials: TrialsByProof) -> None:
    """All that is said of a run, but head's times, which the file does not keep."""
    (path,) = finished_trials(KEPT / proof)
    raw = read_trial(path)
    found = next(trial for trial in trials[proof] if trial.name == raw.name)
    assert said(found.result) == rounded(said(raw.result))
    assert (found.truth, found.engine, found.pair_spread) == (raw.truth, raw.engine, rounded(raw.pair_spread))


def said(result: GateResult) -> Any:
    return asdict(replace(result, cases=[replace(row, head_seconds=None) for row in result.cases]))


def rounded(value: Any) -> Any:
    """Numbers to five significant digits, in whatever holds them."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(inner) for inner in value)
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-8, nan_ok=True) if math.isfinite(value) else str(value)
    return value


def test_every_committed_trial_names_the_commit_of_its_raw_samples_as_the_page_does() -> None:
    lines = lzma.decompress((KEPT / FILE).read_bytes()).splitlines()
    for commit in {json.loads(line)["raw_commit"] for line in lines}:
        assert re.search(rf"git worktree add ../raw-samples\S* {commit} ", page("gate"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no xz", "cannot be read"),
        (lzma.compress(b"[]"), "cannot be used"),
        (lzma.compress(b'{"kind": "gate-trial", "format_version": 2}'), "format version 1"),
        (lzma.compress(b'{"kind": "gate-trial", "format_version": 1, "proof": "power"}'), "line 1 is damaged"),
    ],
)
def test_a_damaged_file_of_trials_is_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ValueError, match=f"{FILE} cannot be (used|read): .*") as error:
        trials_under(tmp_path)
    assert why in str(error.value)
