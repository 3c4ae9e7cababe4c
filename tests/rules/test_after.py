"""After the last case: how a run ends that is complete, interrupted or out of time, and what a failure does to it."""

import signal
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from perf_tests_suite.perf_tests.bench.options import SavingOptions
from perf_tests_suite.perf_tests.bench.outcomes import KILLED, Outcome
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests_suite.perf_tests.bench.session import Run, benchmark_of
from perf_tests_suite.perf_tests.records.comparison import Baseline
from perf_tests_suite.perf_tests.records.journal import Journal, read_journal
from perf_tests_suite.perf_tests.records.store import machine_folder
from perf_tests_suite.perf_tests.run.after import finish, note_report, note_start, shortened
from perf_tests_suite.perf_tests.run.ends import TimeLimit
from perf_tests_suite.perf_tests.run.termination import NAME, Termination
from tests.support.example_cases import SETTINGS, language_model_case
from tests.support.items import benchmark, stash_of
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, TEN_ROUNDS, record, timed

BOTH = Baseline("machine/0001_x", record([timed(), timed(BACKWARD)]))
CHECK: Any = SimpleNamespace(fails=lambda now, before: "slower" if now["median"] > 1.5 * before["median"] else None)
UNCHECKED, CHECKED = (SavingOptions(Path("nowhere"), compare_fail=checks) for checks in ((), (CHECK,)))
SLOW = timed(FORWARD, [2 * seconds for seconds in TEN_ROUNDS])


def ended(measuring: MeasuringSession, exit_code: int = 0, **known: Any) -> tuple[int, Run]:
    """Say how a run ends that was compared with FORWARD, whose rounds took `TEN_ROUNDS`, and BACKWARD.

    `is_reached` is the time limit and `came` a signal; other names are what its session knows.
    """
    limit = TimeLimit(3, Mock(), Mock(), Mock(), is_reached=known.pop("is_reached", False))
    plugins = {"time limit": limit, NAME: Termination(known.pop("came", None))}
    run = Run(known.pop("baseline", BOTH))
    known = {"run": run, "saving": UNCHECKED, "workbench": Mock(session=measuring), "settings": SETTINGS, **known}
    if run.baseline is not None:
        run.baseline = replace(run.baseline, checks=known["saving"].compare_fail)
    config = SimpleNamespace(stash=stash_of(**known), pluginmanager=SimpleNamespace(getplugin=plugins.get))
    session: Any = SimpleNamespace(config=config, exitstatus=exit_code)
    finish(session)
    return int(session.exitstatus), run


LEFT = [
    # a row, how it is compared and with what, pytest's exit code and ours
    (timed(), UNCHECKED, BOTH, 0, 0),
    (timed(), CHECKED, BOTH, 0, 4),
    (SLOW, CHECKED, BOTH, 0, 1),
    (timed(), CHECKED, BOTH, 1, 1),
    (timed(), CHECKED, None, 0, 4),
]


@pytest.mark.parametrize("row, saving, baseline, before, exit_code", LEFT)
def test_cases_left_are_no_success_where_the_comparison_may_fail(
    row: Any, saving: Any, baseline: Any, before: int, exit_code: int, measuring: MeasuringSession
) -> None:
    measuring.measured(row)
    code, run = ended(measuring, before, is_reached=True, saving=saving, baseline=baseline)
    assert (code, measuring.journal.path.exists()) == (exit_code, True)
    assert "--time-limit 3 is reached, 2 cases are left." in run.notes
    assert "resume with `pytest perf_tests --size tiny --resume`" in run.notes[-1]
    compared = [] if run.comparison is None else [row.id for row in run.comparison.rows]
    assert compared == ([FORWARD] if run.baseline else []), "what is left is not gone"


INTERRUPTED = [
    ([FORWARD], None, None, 0),
    ([], signal.SIGTERM, None, None),
    ([], signal.SIGTERM, Mock(), 1),  # a rank may have died of the case in flight
]


@pytest.mark.parametrize("finished, came, peers, began", INTERRUPTED)
def test_an_interrupted_run_keeps_what_is_finished_and_does_not_blame_the_case_in_flight(
    finished: list[str], came: Any, peers: Any, began: int | None, measuring: MeasuringSession
) -> None:
    for case_id in finished:
        measuring.measured(timed(case_id))
    measuring.begin(BACKWARD, 1, 1)
    code, run = ended(measuring, 2, came=came, peers=peers)
    is_kept = began is not None
    assert (code, measuring.journal.path.exists()) == (2, is_kept)
    assert (f"Incomplete: {len(finished)} of 3 cases are kept" if is_kept else "so nothing is kept") in run.notes[-1]
    contents = read_journal(measuring.journal.path) if is_kept else None
    assert (contents and contents.starts.get(BACKWARD, 0)) == began


@pytest.mark.parametrize("before, exit_code", [(0, 1), (5, 1), (2, 2)])
def test_a_run_in_which_the_process_was_killed_twice_is_not_saved_before_its_user_has_seen_it(
    before: int, exit_code: int, measuring: MeasuringSession, tmp_path: Path
) -> None:
    for case_id in (FORWARD, FULL_STEP):
        measuring.measured(timed(case_id))
    measuring.not_measured(BACKWARD, language_model_case(), KILLED)
    code, run = ended(measuring, before)
    assert (code, run.record) == (exit_code, None)
    assert "--resume --retry` measures again, `pytest perf_tests --size tiny --resume` saves" in run.notes[-1]
    journal: Any = Journal.reopen(measuring.journal.path)
    again = MeasuringSession(journal, measuring.contents, Progress(None))
    code, run = ended(again, before, saving=SavingOptions(tmp_path))
    assert (code, again.journal.path.exists()) == (exit_code, False)
    assert [row["outcome"] for row in (run.record or {})["outcomes"]] == ["process_died"]


COMPLETE = [
    # a row, how the two other cases ended, what it is compared with, pytest's exit code and ours
    (timed(), "unsupported", None, 0, 0),
    (timed(), "unsupported", None, 5, 0),  # a resumed run whose cases were all done
    (timed(), "error", None, 0, 1),  # in the part of the run before
    (timed(), "error", None, 2, 2),
    (SLOW, "unsupported", BOTH, 0, 1),
]


@pytest.mark.parametrize("row, outcome, baseline, before, exit_code", COMPLETE)
@pytest.mark.parametrize("is_written", [True, False])
def test_a_complete_run_is_saved_and_its_findings_decide_the_exit_code(
    row: Any, outcome: str, baseline: Any, before: int, exit_code: int, is_written: bool,
    measuring: MeasuringSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    measuring.measured(row)
    for case_id in (BACKWARD, FULL_STEP):
        measuring.not_measured(case_id, language_model_case(), Outcome(outcome, "why"))
    record, whole = machine_folder(tmp_path) / "0001_name.json", tmp_path / "whole.json"
    if not is_written:
        record.mkdir()
        monkeypatch.setattr(
            "perf_tests_suite.perf_tests.bench.recording.save_record", Mock(side_effect=OSError("no space"))
        )
    saving = SavingOptions(tmp_path, save_name="name", json_path=whole, compare_fail=(CHECK,) if baseline else ())
    code, run = ended(measuring, before, peers=(peers := Mock()), saving=saving, baseline=baseline)
    assert (code, whole.is_file()) == (exit_code if is_written else exit_code or 1, True)
    assert peers.end_for_good.called is record.is_file() is (not measuring.journal.path.exists()) is is_written
    assert is_written or "cannot be written: no space. The journal" in run.failures[0]


def test_a_failure_stops_a_process_whose_device_is_lost() -> None:
    for when, passed, is_alive in product(("setup", "call", "teardown"), (False, True), (False, True)):
        workbench = Mock(session=None, **{"device.is_alive.return_value": is_alive})
        item: Any = Mock(config=Mock(stash=stash_of(workbench=workbench)), session=Mock(shouldstop=False))
        note_report(item, Mock(when=when, passed=passed, sections=[]))
        assert bool(item.session.shouldstop) is not (passed or is_alive), when


ENTRIES = [
    # the step, how it ended, the pass, and timings, values of passes and rounds of outcomes in the journal
    ("setup", "", None, 0, [], []),
    ("call", "", None, 1, [], []),
    ("call", "", "kernels", 0, [{"launches": 60}], []),
    ("setup", "error", None, 0, [], [[]]),
    ("call", "error", "kernels", 0, [], [[1.0, 2.0]]),
    ("call", "incorrect", None, 0, [], [[]]),  # what computed something else took no time of its own
    ("teardown", "error", None, 0, [], []),
]


@pytest.mark.parametrize("when, ended, extra_pass, timings, passes, outcomes", ENTRIES)
def test_each_case_is_a_timing_a_pass_or_an_outcome_with_its_rounds_in_the_journal(
    when: str, ended: str, extra_pass: str | None, timings: int, passes: Any, outcomes: Any,
    measuring: MeasuringSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    item, workbench = benchmark(language_model_case(), extra_pass, FORWARD), Mock(session=measuring)
    stats = MagicMock(**{"__getitem__.return_value": [1.0, 2.0], "as_dict.return_value": timed()})
    item.config = Mock(stash=stash_of(workbench=workbench))
    item.funcargs = {} if when == "setup" else {"benchmark": Mock(stats=stats)}
    benchmark_of(item).values, benchmark_of(item).outcome = {"launches": 60}, Outcome(ended or "error", "why")
    note_report(item, Mock(when=when, passed=not ended, sections=[]))
    contents: Any = read_journal(measuring.journal.path)
    found = [row["values"] for row in contents.passes], [row["rounds"] for row in contents.outcomes]
    assert (len(contents.benchmarks), *found) == (timings, passes, outcomes)
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError("no space")))
    with pytest.raises(pytest.exit.Exception, match=r"cannot be written: no space.* resume with"):
        note_start(item, workbench)


def test_of_what_a_failed_case_printed_the_end_is_shown() -> None:
    printed = "".join(f"line {number}\n" for number in range(100_000))
    assert shortened("short") == "short"
    assert len(shortened(printed)) < 5000
    assert shortened(printed).startswith("[1,084,890 characters are left out]\n")
    assert shortened(printed).endswith("line 99999\n")
