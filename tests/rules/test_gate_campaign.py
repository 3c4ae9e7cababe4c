"""The runs that the gate's claims take: measured in turns, added whole, resumed where they were stopped."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from claims import gate_campaign
from claims.compact_trials import FILE, trials_under
from claims.gate_power import FEWEST_TRIALS, INJECTED, extra_work
from claims.gate_trials import SAMPLES, TRUTH, Plan, Trial, TrialError, read_trial
from perf_tests.gate.samples import PRESENT_ENGINE, Rules
from tests.support.finished_trials import FAILED
from tests.support.simulated_launches import SimulatedCase, gate_run

CASES = [SimulatedCase(f"a::{place}") for place in range(4)]


def measured(folder: Path, plan: Plan, minutes: str) -> Trial:
    """What a run of the gate leaves, in no time."""
    samples = gate_run(CASES, Rules(), seed=1, most_pairs=3, quadruples=2)
    header = {**samples.header, "engine": PRESENT_ENGINE}
    lines = [{**vars(m), "orders": list(m.orders)} for m in samples.measurements]
    for line in lines:
        line |= {name: value.tolist() for name, value in line.items() if hasattr(value, "tolist")}
    text = "\n".join(map(json.dumps, [header, *lines, {"event": "end", "reason": "budget"}])) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"2030{len(list(folder.glob('*'))):04d}-{plan.truth['change']}"
    stem.with_name(stem.name + TRUTH).write_text(json.dumps(plan.truth))
    path = stem.with_name(stem.name + SAMPLES)
    path.write_bytes(gzip.compress(text.encode()))
    return read_trial(path)


def test_a_stopped_campaign_resumes_with_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = sum(gate_campaign.wanted().values())
    assert gate_campaign.measure(tmp_path, 2, None, measured) == 2
    assert gate_campaign.measure(tmp_path, 1, None, measured) == 2
    assert f"{everything - 3} runs of engine {PRESENT_ENGINE} are missing" in capsys.readouterr().out
    assert sum(map(len, trials_under(tmp_path).values())) == 3
    for raw in tmp_path.glob("*/*"):
        raw.unlink()
    assert len(list(gate_campaign.missing(trials_under(tmp_path)))) == everything - 3, "the one file is enough"


def test_a_run_that_fails_costs_none_of_the_others(tmp_path: Path) -> None:
    def fails(*_: object) -> Trial:
        raise TrialError("no verdict")

    gate_campaign.measure(tmp_path, 1, None, measured)
    kept = (tmp_path / FILE).read_bytes()
    with pytest.raises(TrialError):
        gate_campaign.measure(tmp_path, 1, None, fails)
    assert (tmp_path / FILE).read_bytes() == kept


def test_all_kinds_take_turns() -> None:
    first = [kind for kind, _ in gate_campaign.missing({})][: len(gate_campaign.wanted())]
    assert Counter(first) == Counter(gate_campaign.wanted().keys())


def test_runs_of_an_earlier_engine_do_not_count() -> None:
    trial = Trial("20261122T044242-same-code", {"change": "same-code"}, FAILED)
    assert len(list(gate_campaign.missing({"false-alarms": [trial]}))) == sum(gate_campaign.wanted().values())
    samples = replace(
        gate_run(CASES, Rules(), seed=1, most_pairs=1),
        header={**gate_run([], Rules(), 1).header, "engine": PRESENT_ENGINE},
    )
    present = replace(trial, samples=samples)
    assert len(list(gate_campaign.missing({"false-alarms": [present]}))) == sum(gate_campaign.wanted().values()) - 1


def test_every_run_that_is_wanted_can_be_planned() -> None:
    for kind in gate_campaign.wanted():
        assert gate_campaign.plan(kind, 0).truth["change"] == kind[1]


def test_the_runs_with_extra_work_are_enough_for_each_claimed_slowdown() -> None:
    runs = gate_campaign.wanted()["power", INJECTED]
    planted = Counter(slowdown for number in range(runs) for slowdown in extra_work(number).truth["planted"].values())
    assert planted[0.02] >= 20
    assert min(planted[0.03], planted[0.05]) >= FEWEST_TRIALS
