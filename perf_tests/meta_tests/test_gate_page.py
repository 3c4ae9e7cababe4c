"""The page of what the gate is worth, from simulated trials of known truth."""

import gzip
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf_tests.gate.rules import Rules
from perf_tests.gate.samples import GateSamples, Measurement
from perf_tests.meta_tests.browser import chromium, opened
from perf_tests.proofs import gate_page
from perf_tests.proofs.gate_peers import APART, GATE, POOLED, calls_of, rule_names
from perf_tests.proofs.gate_trials import kept_trials
from perf_tests.proofs.simulated_launches import SimulatedCase, gate_run
from perf_tests.records.record import Json

NAMES = [f"t.py::test_case[{place}]" for place in range(6)]
MACHINE = {"cpu": {"brand_raw": "Some <CPU>"}, "torch": {"torch": "2.13.0"}}


def keep(folder: Path, number: int, truth: Json, slowdown: float = 0.0, exact: bool = False) -> None:
    """A simulated run in which the first case is slowed, as a proof leaves it in its folder."""
    cases = [SimulatedCase(name, slowdown=slowdown if place == 0 else 0) for place, name in enumerate(NAMES)]
    samples = gate_run(cases, Rules(), seed=number)
    lines: list[Any] = [{**samples.header, "machine_info": MACHINE}, *map(as_line, samples.measurements)]
    if exact:
        lines.append({"event": "exact", "case": NAMES[0], "counter": "kernel_launches", "old": 7, "new": 9})
    lines += [{"event": "pair", "stage": 1, "pair": 0, "seconds": 90.0}, {"event": "end", "reason": samples.end}]
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"20300101T00{number:04}-{truth['change']}"
    content = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{stem}.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    (folder / f"{stem}.truth.json").write_text(json.dumps(truth))


def as_line(measurement: Measurement) -> Json:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(measurement).items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("gate")
    for number in range(8):
        keep(found / "false-alarms", number, {"change": ("same-code", "comments")[number % 2]})
    for number, slowdown in enumerate((0.05, 0.05, 0.1)):
        truth = {"change": "extra-work", "planted": {"test_case[0]": slowdown}}
        keep(found / "power", 10 + number, truth, slowdown)
    keep(found / "power", 20, {"change": "extra-copy", "cases": ["test_case[0]"]}, 0.2, exact=True)
    keep(found / "power", 21, {"change": "item", "cases": ["test_case[0]"]})
    return found


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    trials = [kept_trials(folder / name) for name in ("false-alarms", "power")]
    path = folder / "gate.html"
    path.write_text(gate_page.page_of(trials[0], trials[1], suites=200))
    return path


def table_of(page: Path, title: str) -> list[str]:
    """The cells of the table with this caption, row after row."""
    body = page.read_text().partition(f"<caption>{title}</caption>")[2].partition("</table>")[0]
    return re.findall(r"<td[^>]*>([^<]*)", body)


def test_every_rule_is_applied_to_the_very_rounds_of_a_run(folder: Path) -> None:
    trial = kept_trials(folder / "power")[2]
    calls = calls_of(trial)
    assert list(calls) == rule_names()
    assert calls[GATE] == {NAMES[0]}
    for view in (APART, POOLED):
        assert NAMES[0] in calls[f"Mann-Whitney 0.05, {view}"]
    assert calls[f"asv factor 1.1, {POOLED}"] == frozenset()


def test_two_launches_apart_are_of_two_launch_pairs(folder: Path) -> None:
    """What the machine did to one launch pair, and the turns cancel, is a slowdown to who compares across pairs."""
    trial = kept_trials(folder / "false-alarms")[0]
    assert trial.samples is not None
    last = trial.samples.pairs(1)[-1]
    moved = [
        line if line.pair != last else Measurement(**{**vars(line), "base_seconds": 2 * line.base_seconds,
                                                      "head_seconds": 2 * line.head_seconds})
        for line in trial.samples.measurements
    ]  # fmt: skip
    samples = GateSamples(trial.samples.header, moved)
    calls = calls_of(type(trial)(trial.name, trial.truth, trial.result, samples))
    assert calls[f"pytest-benchmark mean:5%, {APART}"] == set(NAMES)
    assert calls[f"pytest-benchmark mean:5%, {POOLED}"] == frozenset()


def test_false_alarms_stand_with_their_upper_limit(page: Path) -> None:
    cells = table_of(page, "Runs without a slowdown")
    assert cells[:4] == ["same-code", "4", "0", "52.7%"]
    assert cells[12:16] == ["all", "8", "0", "31.2%"]


def test_power_is_a_row_for_each_slowdown(page: Path) -> None:
    cells = table_of(page, "Power and bias")
    assert (cells[0], cells[4]) == ("5%", "10%")
    assert cells[1].startswith("2 of 2, 100%")
    assert "other benchmarks of these runs called slower: 0 of 15, 0%" in page.read_text()


def test_real_slowdowns_stand_by_what_caught_them(page: Path) -> None:
    cells = table_of(page, "Time and counters")
    assert cells[:4] == ["extra-copy", "queries, keys and values are copied before they are used", "yes", "yes"]
    assert cells[7:11] == ["item", "the loss is read back in every step", "no", "-"]
    assert cells[6] == "kernel_launches"


def test_every_rule_has_its_row_and_its_point(page: Path) -> None:
    text = page.read_text()
    cells = table_of(page, "By rule")
    assert cells[::4] == rule_names()
    drawn = re.findall(r'data-figure="([^"]+)"', text)
    assert drawn == ["power-curve", "rules", "alarms-and-power"]


def test_relabelled_runs_need_launch_pairs_enough(folder: Path, page: Path) -> None:
    assert "48 launch pairs of 6 benchmarks" in page.read_text()
    few = gate_page.page_of(kept_trials(folder / "false-alarms")[:2], [], suites=200)
    assert "12 whole launch pairs are too few to draw from" in few


def test_names_out_of_files_are_text(page: Path) -> None:
    assert "Some &lt;CPU&gt;" in page.read_text()
    assert "<CPU>" not in page.read_text()


def test_the_minutes_of_a_run_are_those_of_its_launch_pairs_or_till_it_was_kept(folder: Path) -> None:
    trial = kept_trials(folder / "power")[0]
    assert gate_page.minutes_of(trial) == 1.5
    assert trial.samples is not None
    trial.samples.pair_seconds.clear()
    trial.samples.header["started"] = "2029-12-31T00:00:00+00:00"
    minutes = gate_page.minutes_of(trial)
    assert minutes is not None
    assert abs(minutes - 24 * 60) < 14 * 60  # whatever the time zone here


def test_a_folder_without_trials_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate_page", str(tmp_path)])
    assert gate_page.main() == 3
    assert capsys.readouterr().out.startswith(f"{tmp_path} holds no trials; run gate_false_alarms")


@pytest.mark.skipif(chromium() is None, reason="no chromium on this machine")
def test_a_browser_draws_it_and_says_no_error(page: Path, tmp_path: Path) -> None:
    dom, console = opened(page, tmp_path / "profile")
    assert console == []
    assert dom.count("main-svg") >= 3
