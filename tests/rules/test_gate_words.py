"""Every row of the gate says by its figures what it says by its verdict, in both modes and whatever is accepted."""

from dataclasses import replace

import numpy as np
import pytest

from perf_tests.gate.samples import Rules
from perf_tests.gate.verdicts import Acceptance, CaseResult, Effect, Verdict
from tests.support.gate_words import MODES, faults_of, judged

RULES = Rules()
EFFECT = Effect(0.1, 0.05, 0.15, 10)
SLOWER = CaseResult("a", Verdict.SLOWER, EFFECT, clock="cpu", slower_by={"cpu": EFFECT})
LIMIT = Acceptance("a", 1.2, "why", "abc", clock="cpu")


@pytest.mark.parametrize("mode", MODES)
def test_no_figure_of_a_suite_contradicts_its_verdict(mode: str) -> None:
    rows, faults = judged(np.random.default_rng(1), MODES[mode], 150)
    assert faults == []
    assert {Verdict.SLOWER, Verdict.OK, Verdict.UNDECIDED} <= {row.verdict for row in rows}
    assert any(row.accepted for row in rows)


@pytest.mark.parametrize(
    "row, fault",
    [
        (replace(SLOWER, effect=replace(EFFECT, low=0.001)), "interval below the margin"),
        (replace(SLOWER, verdict=Verdict.OK, slower_by={}), "interval above what matters"),
        (replace(SLOWER, clock="wall"), "a clock that the row does not show"),
        (replace(SLOWER, slower_by={"cpu": Effect(0.2, 0.1, 0.3, 10)}), "figures of another clock"),
        (replace(SLOWER, slower_by={"cpu": EFFECT, "wall": EFFECT}, accepted="why"), "accepted above a limit"),
    ],
)
def test_each_contradiction_is_seen(row: CaseResult, fault: str) -> None:
    assert faults_of(replace(SLOWER, accepted="why"), [LIMIT], RULES) == []
    assert any(fault in found for found in faults_of(row, [LIMIT], RULES))
