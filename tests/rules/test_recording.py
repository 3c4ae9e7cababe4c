"""A run that is recorded: which interrupted run it goes on with, what of that counts, and what it says on the way."""

import io
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.bench.options import SavingOptions
from perf_tests_suite.perf_tests.bench.recording import (
    Line,
    Log,
    MeasuringSession,
    Progress,
    line_or_log,
)
from perf_tests_suite.perf_tests.bench.session import Run
from perf_tests_suite.perf_tests.records.interrupted import ResumeError, open_journal
from perf_tests_suite.perf_tests.records.journal import Journal, JournalContents
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.records.store import machine_folder, rows_by_id, save_record
from perf_tests_suite.perf_tests.run.before import choose_baseline
from tests.support.launch import contents_of
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, header, machine, passed, record, timed


def on_gpu(driver: str, **changes: Any) -> Json:
    facts = header([FORWARD, BACKWARD], gpu={"name": "H100", "driver": driver})
    return {**facts, "machine_info": {**facts["machine_info"], **changes}}


def interrupted(storage: Path, facts: Json) -> Path:
    journal = Journal.create(machine_folder(storage), facts)
    journal.write("started", FORWARD)
    journal.write("benchmark", timed(FORWARD))
    journal.write("pass", passed(FULL_STEP))
    journal.close()
    return journal.path


def resumed(storage: Path, facts: Json, **options: bool) -> tuple[Journal, JournalContents, list[str]]:
    found = open_journal(storage, facts, resume=True, **options)
    found[0].close()
    return found


def test_another_driver_is_named_and_resumed_only_on_request(tmp_path: Path) -> None:
    path = interrupted(tmp_path, on_gpu("550.54"))
    with pytest.raises(ResumeError, match=r"here: '560.28', there: '550.54'.*--resume-any-driver"):
        open_journal(tmp_path, on_gpu("560.28"), resume=True)
    journal, contents, _ = resumed(tmp_path, on_gpu("560.28"), any_driver=True)
    assert journal.path == path
    assert contents.finished_ids == {FORWARD, FULL_STEP}, "what a pass found counts as well"
    record_now = MeasuringSession(journal, contents_of(path), Progress(None)).record()
    assert record_now["suite"]["other_drivers"] == ["560.28"], "which rows of two drivers stand in one record is told"
    assert [row["id"] for row in record_now["passes"]] == [FULL_STEP]


def test_a_run_of_other_hardware_is_passed_over_and_named(tmp_path: Path) -> None:
    path = interrupted(tmp_path, on_gpu("550"))
    _, contents, (passed_over,) = resumed(tmp_path, on_gpu("550", cpu={"count": 64}))
    assert contents.finished_ids == set()
    assert path.name in passed_over
    assert "cpu.count: here: 64, there: 8" in passed_over


def test_what_would_make_it_another_run_is_named_with_how_to_resume_or_start_over(tmp_path: Path) -> None:
    path, facts = interrupted(tmp_path, on_gpu("550")), on_gpu("550")
    for change, said in (
        ({"settings": {**facts["settings"], "rounds": 99}}, "rounds (None then, 99 now); resume"),
        ({"selection": [FORWARD]}, "its selection (2 cases then, 1 now); resume"),
        ({"source": "another"}, "its code, which has changed since; go back to that code and resume"),
    ):
        with pytest.raises(ResumeError) as refusal:
            open_journal(tmp_path, {**facts, **change}, resume=True)
        assert f"{path.name} differs from this one in {said}" in str(refusal.value)
        assert f"resume it with `{facts['command']}`, or delete {path} to start over." in str(refusal.value)


def test_a_run_that_is_saved_already_only_loses_its_journal(measuring: MeasuringSession, tmp_path: Path) -> None:
    """It was killed between the two."""
    for case_id in (FORWARD, FULL_STEP, BACKWARD):
        measuring.measured(timed(case_id))
    assert measuring.is_complete
    assert [row["fullname"] for row in measuring.record()["benchmarks"]] == [FORWARD, BACKWARD, FULL_STEP]
    path = save_record(measuring.record(), machine_folder(tmp_path), "name")
    run, saving = Run(), SavingOptions(tmp_path, compare=True)
    found = choose_baseline(run, saving, machine(), rows_by_id(record([timed()])))
    assert found is None, "it is no baseline of itself"
    again = MeasuringSession(measuring.journal, measuring.contents, Progress(None))
    assert again.save(again.record(), tmp_path, "name") == again.saved == path
    assert [found.name for found in path.parent.iterdir()] == ["0001_name.json"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def played(clock: SimpleNamespace, round_seconds: float, cases: int = 4, rounds: int = 3) -> list[str]:
    """The lines of a log over cases that take as long as predicted."""
    terminal = Mock()
    clock.now = 0.0
    predicted = {f"a.py::test_x[{n}]": rounds * round_seconds for n in range(cases)}
    progress = Progress(Log(terminal, nullcontext), predicted)
    for case_id in predicted:
        progress.begin(case_id, 1, rounds - 1)
        for number in range(rounds):
            progress.round(number)
            clock.now += round_seconds
        progress.end(case_id, f"{case_id[-3:]}  1 ms")
    return [call.args[0] for call in terminal.write_line.call_args_list]


def test_a_log_gets_a_line_a_minute_with_the_cases_the_time_left_and_the_last_figure(clock: SimpleNamespace) -> None:
    assert played(clock, 20.0) == [
        "1 of 4 cases done  about 3 min left; last: [0]  1 ms",
        "2 of 4 cases done  about 2 min left; last: [1]  1 ms",
        "3 of 4 cases done  about 60 s left; last: [2]  1 ms",
        "4 of 4 cases done; last: [3]  1 ms",
    ]
    lines = played(clock, 120.0, cases=2)
    assert lines[:2] == ["case 1 of 2  round 1 of 2  test_x[0]", "case 1 of 2  round 2 of 2  test_x[0]"]
    assert "case 2 of 2  about 4 min left  round 1 of 2  test_x[1]; last: [0]  1 ms" in lines, "two of its three rounds"
    assert played(clock, 1.0) == [], "a short run says nothing"


def test_the_time_left_follows_the_pace_and_is_never_nothing_while_a_case_is_left(clock: SimpleNamespace) -> None:
    """The machine becomes ten times slower in the second of three cases: so will the third be."""
    progress = Progress(Log(terminal := Mock(), nullcontext), dict.fromkeys("abc", 60.0))
    for case_id, seconds in (("a", 60.0), ("b", 600.0)):
        progress.begin(case_id, 0, 2)
        progress.round(0)
        clock.now += seconds
        progress.round(1)
        clock.now += 0.1
        progress.end(case_id, "1 ms")
    lines = [call.args[0] for call in terminal.write_line.call_args_list]
    assert "left" not in lines[0]
    assert lines[1].startswith("case 2 of 3  about 6 min left  round 2 of 2")


def test_a_line_is_rewritten_only_at_a_terminal_that_a_person_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    standard, reporter = io.StringIO(), Mock()
    plugins = {"terminalreporter": reporter}
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=plugins.get))
    monkeypatch.setattr(sys, "__stdout__", standard)
    monkeypatch.setenv("COLUMNS", "20")
    for is_terminal, ci, kind in ((False, "", Log), (True, "true", Log), (True, "", Line)):
        monkeypatch.setattr(standard, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setenv("CI", ci)
        output: Any = line_or_log(config)
        assert type(output) is kind
    output.rewrite("x" * 99)
    reporter.rewrite.assert_called_once_with("x" * 19)  # a wrapped line cannot be overwritten
    plugins.clear()
    assert line_or_log(config) is None
