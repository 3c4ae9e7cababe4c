"""What the documentation says that the gate is worth, and draws, is what its kept runs say today."""

import sys
from pathlib import Path

import pytest

from perf_tests.meta_tests.documents import ROOT, block, indented, page
from perf_tests.proofs import gate_worth
from perf_tests.proofs.gate_page import curves_of
from perf_tests.proofs.gate_trials import Trial, kept_trials, trials_under

KEPT = ROOT / ".benchmarks/epyc-2core/gate"


@pytest.fixture(scope="module")
def trials() -> tuple[list[Trial], list[Trial]]:
    return trials_under(KEPT)


def test_the_page_says_what_the_kept_runs_say(
    trials: tuple[list[Trial], list[Trial]], capsys: pytest.CaptureFixture[str]
) -> None:
    gate_worth.say(*trials, kept_trials(KEPT / "cost"))
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line]
    assert [line.rstrip() for line in indented(block(page("gate"), "worth")) if line] == said


@pytest.mark.parametrize("name", ["gate-power-curve.svg", "gate-alarms-and-power.svg"])
def test_each_picture_shows_the_kept_runs(name: str, trials: tuple[list[Trial], list[Trial]]) -> None:
    assert (ROOT / "pictures" / name).read_text() == curves_of(*trials)[name]
    assert f"(../pictures/{name})" in page("gate")


def test_a_folder_without_runs_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate_worth", str(tmp_path)])
    assert gate_worth.main() == 3
    assert capsys.readouterr().out.startswith(f"{tmp_path} holds no trials; run gate_false_alarms")
