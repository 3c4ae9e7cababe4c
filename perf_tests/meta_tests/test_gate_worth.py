"""What the documentation says that the gate is worth is what its kept runs say today."""

import sys
from pathlib import Path

import pytest

from perf_tests.meta_tests.documents import ROOT, block, indented, page
from perf_tests.proofs import gate_worth
from perf_tests.proofs.compact_trials import trials_under

KEPT = ROOT / ".benchmarks/epyc-2core/gate"


def test_the_page_says_what_the_kept_runs_say(capsys: pytest.CaptureFixture[str]) -> None:
    gate_worth.say(trials_under(KEPT))
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line]
    assert [line.rstrip() for line in indented(block(page("gate"), "worth")) if line] == said


def test_a_folder_without_runs_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate_worth", str(tmp_path)])
    assert gate_worth.main() == 3
    assert capsys.readouterr().out.startswith(f"{tmp_path} holds no trials; run gate_false_alarms")
