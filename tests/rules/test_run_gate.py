"""How a verdict shows under pytest: as the result of its test, in the exit code, in the summary."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.bench.options import Against
from perf_tests.gate.samples import Rules
from perf_tests.gate.statistics import ClockDecision
from perf_tests.gate.verdicts import CaseResult, Effect, ExactResult, GateResult, RunVerdict, Verdict
from perf_tests.interleaved.measuring import Watch
from perf_tests.interleaved.run import GatePlan, GateRun
from perf_tests.run.gate import VERDICT, GatePlugin
from tests.support.example_cases import attention_case
from tests.support.items import benchmark

CASE_ID = "perf_tests/test_attention.py::test_attention_forward[d16-seq256-fp32-naive]"
EFFECT = Effect(0.052, 0.041, 0.063, 10)


def plugin(row: CaseResult | None, verdict: RunVerdict, summary: Path | None = None) -> GatePlugin:
    """After a run with this outcome; without a row, its only case was not tried."""
    plan = Mock(spec=GatePlan, against=Against("main", None, 15.0, "pass", summary), rules=Rules())
    run = GateRun(plan)
    run.header = {"base": {"label": "main", "revision": "0123456789abcdef"}, "head": {"label": "working tree"}}
    rows, clock = [row] if row else [], ClockDecision("wall", 0.01, None)
    run.result = GateResult(verdict, "", rows, [], None, None, {}, clock, None, (6, 10))
    found = GatePlugin(run, Watch(None, None, 3, 300), {} if row else {CASE_ID: "would not fit: too large"})
    found.rows = {CASE_ID: row} if row else {}
    return found


def report(found: GatePlugin) -> pytest.TestReport:
    where = ("test_attention.py", 3, "name")
    item = Mock(nodeid=CASE_ID, location=where, keywords={}, stash=benchmark(attention_case()).stash, path=Path("x.py"))
    assert found.pytest_runtest_protocol(item) is True
    made: pytest.TestReport = item.ihook.pytest_runtest_logreport.call_args.kwargs["report"]
    return made


@pytest.mark.parametrize(
    "row, verdict, outcome, words",
    [
        (CaseResult(CASE_ID, Verdict.OK, EFFECT), RunVerdict.PASSED, "passed", "OK +5.2%"),
        (CaseResult(CASE_ID, Verdict.FASTER, EFFECT), RunVerdict.PASSED, "passed", "FASTER +5.2%"),
        (CaseResult(CASE_ID, Verdict.SLOWER, EFFECT), RunVerdict.FAILED, "failed", "SLOWER +5.2%"),
        (CaseResult(CASE_ID, Verdict.SLOWER, EFFECT, accepted="why"), RunVerdict.PASSED, "passed", "SLOWER +5.2%"),
        (CaseResult(CASE_ID, Verdict.UNDECIDED, EFFECT), RunVerdict.PASSED, "passed", "UNDECIDED +5.2%"),
        (CaseResult(CASE_ID, Verdict.UNDECIDED, EFFECT), RunVerdict.UNDECIDED, "failed", "UNDECIDED +5.2%"),
        (CaseResult(CASE_ID, Verdict.NEW), RunVerdict.PASSED, "passed", "NEW"),
        (CaseResult(CASE_ID, Verdict.NO_LONGER_FITS), RunVerdict.FAILED, "failed", "NO LONGER FITS"),
        (CaseResult(CASE_ID, Verdict.NOT_MEASURED), RunVerdict.PASSED, "skipped", "NOT MEASURED"),
        (CaseResult(CASE_ID, Verdict.SLOWER, EFFECT), RunVerdict.CONTAMINATED, "skipped", "CONTAMINATED"),
        (None, RunVerdict.PASSED, "skipped", "NOT MEASURED"),
    ],
)
def test_a_verdict_is_its_tests_result(row: CaseResult | None, verdict: RunVerdict, outcome: str, words: str) -> None:
    found = plugin(row, verdict)
    shown = report(found)
    assert shown.outcome == outcome
    assert dict(shown.user_properties)[VERDICT] == words
    assert found.pytest_report_teststatus(shown) == (outcome, outcome[0].replace("f", "F").replace("p", "."), words)


SLOWER = CaseResult(CASE_ID, Verdict.SLOWER, EFFECT, clock="wall")


def test_a_failed_test_says_by_how_much_and_how_to_see_it_again() -> None:
    text = report(plugin(SLOWER, RunVerdict.FAILED)).longreprtext
    assert "5.2% slower" in text
    assert "--against 0123456789ab" in text


@pytest.mark.parametrize(
    "verdict, before, exit_code",
    [
        (RunVerdict.PASSED, 0, 0),
        (RunVerdict.PASSED, 1, 1),
        (RunVerdict.FAILED, 0, 1),
        (RunVerdict.UNDECIDED, 0, 1),
        (RunVerdict.CONTAMINATED, 0, 4),
    ],
)
def test_the_run_ends_in_the_exit_code_of_its_verdict(verdict: RunVerdict, before: int, exit_code: int) -> None:
    session = Mock(exitstatus=before)
    plugin(CaseResult(CASE_ID, Verdict.OK, EFFECT), verdict).pytest_sessionfinish(session)
    assert session.exitstatus == exit_code


def test_a_summary_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    found = plugin(SLOWER, RunVerdict.FAILED, tmp_path / "gone/gate.md")
    found.pytest_sessionfinish(Mock(exitstatus=1))
    assert any("gone/gate.md cannot be written" in note for note in found.run.notes)


def test_a_counter_that_rose_fails_its_case_however_fast_it_is() -> None:
    found = plugin(CaseResult(CASE_ID, Verdict.OK, EFFECT), RunVerdict.FAILED)
    assert found.run.result is not None
    exact = [ExactResult(CASE_ID, "saved_bytes", 100, 101, Verdict.MORE), ExactResult("b", "x", 1, 2, Verdict.MORE)]
    found.run.result = replace(found.run.result, exact=exact)
    made = report(found)
    assert made.outcome == "failed"
    assert "saved_bytes rose from 100 to 101" in made.longreprtext
    assert "x rose" not in made.longreprtext


def test_other_tests_run_as_ever() -> None:
    assert plugin(None, RunVerdict.PASSED).pytest_runtest_protocol(Mock(stash=pytest.Stash())) is None


def test_an_interrupted_run_names_its_samples_and_judges_nothing() -> None:
    found = plugin(None, RunVerdict.PASSED)
    found.run = replace(found.run, result=None, paths=[Path("samples.jsonl")])
    terminal = Mock()
    found.pytest_terminal_summary(terminal)
    lines = [call.args[0] for call in terminal.write_line.call_args_list]
    assert lines[0] == "No verdict: the run did not finish."
    assert "python -m perf_tests replay samples.jsonl" in lines[-1]
