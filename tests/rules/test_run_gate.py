"""How a verdict shows under pytest: as the result of its test, in the exit code, in the summary."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.bench.options import Against
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.gate.samples import Rules, compile_row
from perf_tests_suite.perf_tests.gate.statistics import ClockDecision
from perf_tests_suite.perf_tests.gate.verdicts import CaseResult, Effect, ExactResult, GateResult, RunVerdict, Verdict
from perf_tests_suite.perf_tests.interleaved.measuring import GateProgress
from perf_tests_suite.perf_tests.interleaved.run import GatePlan, GateRun
from perf_tests_suite.perf_tests.run.gate import VERDICT, GateScreen, gate_eta
from tests.support.example_cases import SETTINGS, attention_case
from tests.support.items import benchmark

CASE_ID = "perf_tests/test_attention.py::test_attention_forward[d16-seq256-fp32-naive]"
EFFECT = Effect(0.052, 0.041, 0.063, 10)
OK, SLOWER = CaseResult(CASE_ID, Verdict.OK, EFFECT), CaseResult(CASE_ID, Verdict.SLOWER, EFFECT, clock="wall")
UNDECIDED = CaseResult(CASE_ID, Verdict.UNDECIDED, EFFECT)
RISEN = [ExactResult(CASE_ID, "saved_bytes", 100, 101, Verdict.MORE), ExactResult("b", "x", 1, 2, Verdict.MORE)]
COMMAND = "--against 0123456789ab"


def plugin(
    row: CaseResult | None,
    verdict: RunVerdict,
    *risen: ExactResult,
    summary: Path | None = None,
    more: Sequence[CaseResult] = (),
) -> GateScreen:
    """The plugin after a run with this outcome; without a row, its only case was not tried."""
    plan = Mock(spec=GatePlan, against=Against("main", None, 15.0, "pass", summary), rules=Rules())
    run = GateRun(plan, paths=[Path("samples.jsonl")])
    run.header = {"base": {"label": "main", "revision": "0123456789abcdef"}, "head": {"label": "working tree"}}
    rows, clock = [*([row] if row else []), *more], ClockDecision("wall", 0.01, None)
    run.result = GateResult(verdict, "it is so", rows, [*risen], None, None, {}, clock, None, (6, 10))
    return GateScreen(run, GateProgress(None, None, 3, 36, 300), {} if row else {CASE_ID: "would not fit: too large"})


@pytest.mark.parametrize(
    ("row", "verdict", "risen", "outcome", "words", "said"),
    [
        (OK, RunVerdict.PASSED, [], "passed", "OK +5.2%", ""),
        (replace(OK, verdict=Verdict.FASTER), RunVerdict.PASSED, [], "passed", "FASTER +5.2%", ""),
        (SLOWER, RunVerdict.FAILED, [], "failed", "SLOWER +5.2%", COMMAND),
        (replace(SLOWER, accepted="why"), RunVerdict.PASSED, [], "passed", "SLOWER +5.2%", ""),
        (UNDECIDED, RunVerdict.PASSED, [], "passed", "UNDECIDED +5.2%", ""),
        (UNDECIDED, RunVerdict.UNDECIDED, [], "failed", "UNDECIDED +5.2%", "it needs confirmation"),
        (OK, RunVerdict.UNDECIDED, [], "passed", "OK +5.2%", ""),
        (OK, RunVerdict.FAILED, RISEN, "failed", "OK +5.2%, MORE saved_bytes", "saved_bytes rose from 100 to 101"),
        (CaseResult(CASE_ID, Verdict.NEW), RunVerdict.PASSED, [], "passed", "NEW", ""),
        (CaseResult(CASE_ID, Verdict.NO_LONGER_FITS), RunVerdict.FAILED, [], "failed", "NO LONGER FITS", "NO LONGER"),
        (CaseResult(CASE_ID, Verdict.NOT_MEASURED, explanation="lost"), RunVerdict.PASSED, [], "skipped",
         "NOT MEASURED", "Skipped: lost"),
        (SLOWER, RunVerdict.CONTAMINATED, RISEN, "skipped", "CONTAMINATED", "Skipped: it is so"),
        (SLOWER, RunVerdict.INCOMPARABLE, [], "skipped", "INCOMPARABLE", "Skipped: it is so"),
        (None, RunVerdict.PASSED, [], "skipped", "NOT MEASURED", "Skipped: would not fit: too large"),
    ],
)  # fmt: skip
def test_a_verdict_is_its_tests_result(
    row: CaseResult | None, verdict: RunVerdict, risen: list[ExactResult], outcome: str, words: str, said: str
) -> None:
    found = plugin(row, verdict, *risen)
    where = ("test_attention.py", 3, "name")
    item = Mock(nodeid=CASE_ID, location=where, keywords={}, stash=benchmark(attention_case()).stash, path=Path("x.py"))
    assert found.pytest_runtest_protocol(item) is True
    shown: pytest.TestReport = item.ihook.pytest_runtest_logreport.call_args.kwargs["report"]
    assert (shown.outcome, dict(shown.user_properties)[VERDICT]) == (outcome, words)
    letter = {"passed": ".", "failed": "F"}.get(outcome, "s")
    quiet, verbose = (Mock(option=Mock(verbose=number)) for number in (-2, 1))
    assert found.pytest_report_teststatus(shown, verbose) == (outcome, letter, words.replace(" +5.2%", ""))
    assert found.pytest_report_teststatus(shown, quiet) == (outcome, "", ""), "no progress beside the screen"
    text = shown.longrepr[2] if isinstance(shown.longrepr, tuple) else str(shown.longrepr or "")
    assert said in text
    assert (text == "") == (said == "")
    assert ("+4.1% to +6.3%" in text) == (outcome == "failed" and row is not None and row.effect is not None)
    assert "x rose" not in text
    assert found.pytest_runtest_protocol(Mock(stash=pytest.Stash())) is None, "other tests run as ever"


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.SLOWER, Verdict.UNDECIDED])
def test_the_rows_of_compiling_a_case_are_a_part_of_its_result(verdict: Verdict) -> None:
    compiling = CaseResult(compile_row(CASE_ID, "forward", "cold"), verdict, EFFECT, clock="wall")
    other = CaseResult(compile_row("b", "forward", "cold"), Verdict.SLOWER, EFFECT, clock="wall")
    found = plugin(OK, RunVerdict.UNDECIDED, more=[compiling, other])
    outcome, words, said = found._verdict_on(CASE_ID)
    assert outcome == ("passed" if verdict == Verdict.OK else "failed")
    assert words == f"OK +5.2%{', to compile SLOWER' if verdict == Verdict.SLOWER else ''}"
    assert ("compile_forward_seconds (cold)" in said) == (verdict != Verdict.OK)


@pytest.mark.parametrize(
    ("verdict", "before", "exit_code"),
    [
        (RunVerdict.PASSED, 0, 0), (RunVerdict.PASSED, 1, 1), (RunVerdict.FAILED, 0, 1), (RunVerdict.UNDECIDED, 0, 1),
        (RunVerdict.CONTAMINATED, 0, 4), (RunVerdict.UNFINISHED, 1, 4),
    ],
)  # fmt: skip
def test_the_exit_code_is_that_of_its_verdict(verdict: RunVerdict, before: int, exit_code: int, tmp_path: Path) -> None:
    session, terminal = Mock(exitstatus=before), Mock(**{"config.option.verbose": 0})
    found = plugin(OK, verdict, summary=tmp_path / "gone/gate.md")
    found.pytest_sessionfinish(session)
    assert session.exitstatus == exit_code
    assert ("An unfinished gate is not a success" in str(found.run.notes)) == (verdict == RunVerdict.UNFINISHED)
    assert "gone/gate.md cannot be written" in found.run.notes[-1]
    found.run.result = None  # as after Ctrl-C
    found.pytest_terminal_summary(terminal)
    lines = [call.args[0] for call in terminal.write_line.call_args_list]
    assert lines[0] == "No verdict: the run did not finish."
    assert "perf-tests replay samples.jsonl" in lines[-1]


def test_the_gate_says_first_how_long_it_takes_and_that_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start for each of 6 launch pairs with all cases, and of 10 fresh ones with a fifth of them."""
    seconds_of_a_round, rules = 0.05, Rules(screen_pairs=6, confirm_looks=(10,), look_shares=(1.0,))
    of_cases = 4 * (2 * 5 * seconds_of_a_round + 16 * seconds_of_a_round)
    minutes = round((6 * (120 + of_cases) + 10 * (120 + 0.2 * of_cases)) / 60)
    assert minutes == 33
    for name, found in {
        "run.gate.kept_ceilings": None, "run.gate.kept_ratio": None, "run.gate.seconds_since_process_start": 120.0
    }.items():  # fmt: skip
        monkeypatch.setattr(f"perf_tests_suite.perf_tests.{name}", lambda *_, found=found: found)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    items: list[Any] = [benchmark(attention_case(), nodeid=str(number)) for number in range(4)]
    for others, cores, is_busy in ((0.02, 2, False), (1.6, 2, True), (0.9, 1, False), (1.2, 1, True), (None, 2, False)):
        settings = replace(SETTINGS, warmup_rounds=5, rounds=10, threads=cores)
        seconds = seconds_of_a_round * (5 + attention_case().rounds(settings))
        monkeypatch.setattr(
            "perf_tests_suite.perf_tests.run.gate.predicted_seconds", lambda *_, seconds=seconds: seconds
        )
        workbench = Workbench(settings, Mock(), Mock(), 2**30)
        said = gate_eta(items, rules, 60.0, workbench, others)
        assert said.startswith(f"4 cases to measure, about {minutes} min.")
        assert ("BUSY MACHINE: other programs use" in said) == is_busy
    assert (
        gate_eta(items, rules, 15.0, workbench, None)
        == "4 cases to measure, 15 min (--gate-minutes), too few to decide all."
    )


def test_what_the_gate_says_first_comes_before_its_first_launch_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = plugin(OK, RunVerdict.PASSED)
    found.opening = ["how long"]
    found.run.plan = Mock(cases={"one": 1})
    monkeypatch.setattr(found.watch, "say", said.append)
    monkeypatch.setattr("perf_tests_suite.perf_tests.run.gate.run_gate", lambda run, watch: said.append("measured"))
    next(found.pytest_runtestloop(Mock(testsfailed=0)))
    assert said == ["how long", "measured"]
