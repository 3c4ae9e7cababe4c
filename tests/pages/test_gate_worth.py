"""What the documentation says that the gate is worth is what its one file of kept runs says today."""

import json
import lzma
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from shutil import copy
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import pytest

from claims import gate
from claims.gate import FILE, KEPT, Trial, trials_under
from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.gate.samples import PRESENT_ENGINE, PairTime, read_samples, rules_from_settings
from perf_tests_suite.perf_tests.gate.statistics import decide_clock, pair_values
from perf_tests_suite.perf_tests.gate.verdicts import RunVerdict, Verdict, conclude
from tests.support.documents import EVIDENCE, README, block, indented
from tests.support.simulated_launches import RULES
from tests.support.simulated_suites import recorded_values, relabelled


def test_the_pages_say_what_the_kept_runs_say(capsys: pytest.CaptureFixture[str]) -> None:
    trials, text = trials_under(KEPT), " ".join(EVIDENCE.split())
    gate.say(trials)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line]
    assert [line.rstrip() for line in indented(block(EVIDENCE, "worth")) if line] == said
    runs = [trial.samples for trial in trials["false-alarms"] if trial.says_something]
    values = recorded_values(runs, decide_clock(runs[0], RULES).clock)
    alarms = relabelled(np.random.default_rng(2027), values, 10_000)
    assert alarms.limits[1] <= RULES.alpha
    cost, power = ([trial for trial in trials[proof] if trial.engine == PRESENT_ENGINE] for proof in ("cost", "power"))
    seconds, cleared = sorted(map(gate.screening_seconds, cost)), sorted(map(gate.cleared_in, cost))
    whole = [sum(time.seconds for time in trial.samples.of(PairTime)) for trial in cost]
    assert (min(whole) // 30, max(whole) // 30) == (7, 9), "after 4 to 5 minutes all were OK"
    assert {row.verdict for trial in cost for row in trial.result.cases} == {Verdict.OK}
    (suite,), injected = gate.suites_of(cost), list(filter(gate.is_injected, power))
    slowed = [case for case in gate.slowed_in(injected) if case.slowdown == 0.05]
    errors = gate.errors_of(slowed)
    behind = 100 * mean(map(unchanged_backward, injected))
    for words in (
        f"of 10 000 relabelled runs, {alarms.count} report SLOWER",
        f"median round takes {1000 * suite.round_seconds:.0f} ms are screened in {seconds[0]:.0f} to "
        f"{seconds[-1]:.0f} s, which clears {cleared[0]} to {cleared[-1]} of them",
        f"Extra work of 5 % takes {100 * mean(case.truth for case in slowed):.1f} % in the mean",
        f"at 5 % they are {f'{100 * mean(errors):.1f}'.lstrip('0')} points too large, with an uncertainty of "
        f"{f'{200 * stdev(errors) / math.sqrt(len(errors)):.1f}'.lstrip('0')}.",
        f"take {f'{behind:.1f}'.lstrip('0')} % more in these runs",
    ):
        assert words in text
    assert f"about {median(whole) / 60:.0f} minutes for 20 cases" in " ".join(README.split())
    for line in map(json.loads, lzma.decompress((KEPT / FILE).read_bytes()).splitlines()):
        assert re.search(rf"git worktree add ../raw-samples\S* {line['raw_commit']} ", EVIDENCE)
    unchanged = "all-cores-false-alarms"  # more raw samples would be too much for a light checkout
    raw = gate.read_trial(gate.finished_trials(KEPT / unchanged)[0])
    assert_judged_the_same(next(trial for trial in trials[unchanged] if trial.name == raw.name), raw)


def test_a_run_that_is_slower_is_judged_by_its_line_as_by_its_samples(tmp_path: Path) -> None:
    (tmp_path / "power").mkdir()
    raw = tmp_path / "power/slower.jsonl.xz"
    copy(KEPT / "float64-softmax.jsonl.xz", raw)
    raw.with_name("slower.truth.json").write_text("{}")
    assert gate.add_raw_trials(tmp_path) == 1
    (found,) = trials_under(tmp_path)["power"]
    assert found.result.verdict is RunVerdict.FAILED
    assert_judged_the_same(found, gate.read_trial(raw))


def unchanged_backward(trial: Trial) -> float:
    """The slowdown of backward passes behind forward passes with extra work, in launches of stage 1."""
    values = pair_values(trial.samples, 1, trial.samples.pairs(1), trial.result.clock.clock)
    is_behind = ["attention_backward" in case and "naive" in case for case in trial.samples.cases]
    return float(np.expm1(values[is_behind].mean(axis=1)).mean())


def assert_judged_the_same(found: Trial, raw: Trial) -> None:
    """All that is said of a run, but head's times, which the one file does not keep."""
    without_head = [replace(row, head_seconds=None) for row in raw.result.cases]
    assert asdict(found.result) == rounded(asdict(replace(raw.result, cases=without_head)))
    assert (found.truth, found.engine, found.pair_spread) == (raw.truth, raw.engine, rounded(raw.pair_spread))


def rounded(value: Any) -> Any:
    """Numbers to five significant digits, in whatever holds them."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(rounded, value))
    return pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True) if isinstance(value, float) else value


def test_the_page_shows_the_one_false_alarm_as_its_samples_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [line for line in indented(block(EVIDENCE, "alarm")) if line]
    assert main(["replay", str(KEPT / "alarm.jsonl.xz")]) == 1
    assert shown in capsys.readouterr().out.splitlines()
    samples = read_samples(KEPT / "alarm.jsonl.xz")
    assert (len(samples.pairs(2)), samples.end) == (9, "budget")
    assert "time ended after nine fresh pairs" in " ".join(EVIDENCE.split())


def test_an_undecided_case_says_the_minutes_of_a_run_that_decides_it() -> None:
    """Stage 1 of all cases and as many fresh pairs of the open ones as they need and a run may measure.

    A launch pair takes its launch, and of the rest the share of its cases; all of it, where samples lack the launch's
    part. Two cases were measured here.
    """
    samples = read_samples(KEPT / "alarm.jsonl.xz")
    rules = rules_from_settings(samples.header["settings"])
    assert conclude(samples, rules).minutes_needed is None
    each, most = median(time.seconds for time in samples.of(PairTime) if time.stage == 1), rules.confirm_looks[-1]
    known = {True: 0, False: 0}
    for alpha, launch in ((1e-9, None), (1e-9, 2.0), (1e-3, 2.0)):
        events = [
            replace(event, launch_seconds=launch) if isinstance(event, PairTime) else event for event in samples.events
        ]
        strict = replace(rules, alpha=alpha, margin=0.0, matters=1e-6, first_look=None)
        found = conclude(replace(samples, events=events), strict)
        undecided = [row for row in found.cases if row.verdict == Verdict.UNDECIDED]
        fresh = {count: (launch + (each - launch) * count / 2) if launch else each for count in (1, 2)}
        needed = [min(row.launches_needed or math.inf, most) for row in undecided]
        whole = (rules.screen_pairs * each + max(needed) * fresh[len(undecided)]) / 60
        assert found.minutes_needed == pytest.approx(whole)
        alone = [(rules.screen_pairs + pairs) * fresh[1] / 60 for pairs in needed]
        assert [row.minutes_needed for row in undecided] == pytest.approx(alone)
        known[max(needed) < most] += 1
    assert min(known.values()) > 0, "cases that a run decides, and cases that none does"


OF_NO_PROOF = b'{"kind": "gate-trial", "format_version": 2}'
DAMAGED = {
    b"no xz": "cannot be read",
    lzma.compress(b"[]"): "cannot be used",
    lzma.compress(OF_NO_PROOF): "format version 1",
    lzma.compress(OF_NO_PROOF.replace(b"2}", b'1, "proof": "power"}')): "line 1 is damaged",
}


def test_a_damaged_file_of_trials_is_one_sentence(tmp_path: Path) -> None:
    for content, why in DAMAGED.items():
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(ValueError, match=f"{FILE} cannot be (used|read): ") as error:
            trials_under(tmp_path)
        assert why in str(error.value)
