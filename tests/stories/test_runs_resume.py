"""Runs that are killed, interrupted or doubled, in real launches: nothing finished is lost."""

import shlex
import signal
import time
from pathlib import Path

import pytest

from perf_tests.records.journal import read_journal
from tests.support.forked_python import forked_python
from tests.support.launch import (
    ALL_THREE,
    MODELS,
    THREE_CASES,
    Launch,
    copied,
    finish,
    finished,
    launch,
    launched_once,
    start,
    start_command,
)

DIES_AT_16 = (f"--model={MODELS}:DiesAt16", *THREE_CASES)


# Both in the second of three cases.
killed = launched_once(*DIES_AT_16, PLANTED_SIGNAL="SIGKILL")
interrupted = launched_once(*DIES_AT_16, PLANTED_SIGNAL="SIGINT")


@pytest.fixture(scope="module")
def resumed(killed: Launch, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch(copied(killed, tmp_path_factory.mktemp("resumed")), *DIES_AT_16, "--resume")


def test_a_run_that_is_killed_or_interrupted_loses_only_the_case_in_flight(killed: Launch, interrupted: Launch) -> None:
    assert (killed.exit_code, interrupted.exit_code) == (-signal.SIGKILL, 2)
    for ended in (killed, interrupted):
        assert finished(ended) == {"test_forward[tiny-ctx8-fp32-own]"}
        assert ended.records == []


def test_a_resumed_run_ends_in_one_record_with_every_case_once_and_no_journal(resumed: Launch) -> None:
    assert resumed.exit_code == 0
    assert resumed.measured.keys() == ALL_THREE
    assert len(resumed.record["benchmarks"]) == 3
    assert resumed.record["outcomes"] == []
    assert resumed.journals == []
    assert "1 of 3 cases were done" in resumed.output


def test_a_resumed_run_keeps_the_rounds_that_were_measured_before(killed: Launch, resumed: Launch) -> None:
    contents = read_journal(killed.journals[0])
    assert contents is not None
    assert contents.benchmarks == [resumed.measured["test_forward[tiny-ctx8-fp32-own]"]]


def test_an_interrupted_run_is_not_gone_on_with_under_other_options(killed: Launch, tmp_path: Path) -> None:
    refused = launch(copied(killed, tmp_path), *DIES_AT_16, "--resume", "--rounds=3", "--batch-size=2")
    assert refused.exit_code == 4
    assert "rounds (2 then, 3 now)" in refused.errors
    assert "batch_sizes ([4] then, [2] now)" in refused.errors
    assert refused.records == []
    assert [path.read_bytes() for path in refused.journals] == [path.read_bytes() for path in killed.journals]


def test_a_case_that_brings_a_signal_upon_itself_is_given_up(killed: Launch, tmp_path: Path) -> None:
    storage = copied(killed, tmp_path)
    again = launch(storage, *DIES_AT_16, "--resume", PLANTED_SIGNAL="SIGSEGV")
    last = launch(storage, *DIES_AT_16, "--resume", PLANTED_SIGNAL="SIGSEGV")
    assert again.exit_code == -signal.SIGSEGV
    assert last.exit_code == 1
    assert last.measured.keys() | last.outcomes.keys() == ALL_THREE
    given_up = last.outcomes["test_forward[tiny-ctx16-fp32-own]"]
    assert given_up["outcome"] == "process_died"
    assert "died twice while this case ran, last of: Segmentation fault" in given_up["reason"]


def test_a_case_in_which_the_process_was_killed_twice_is_the_users_to_decide(killed: Launch, tmp_path: Path) -> None:
    storage = copied(killed, tmp_path)
    launch(storage, *DIES_AT_16, "--resume", PLANTED_SIGNAL="SIGKILL")
    third = launch(storage, *DIES_AT_16, "--resume")
    assert third.exit_code == 1
    assert third.records == []
    assert "the process was killed twice while forward tiny-ctx16-fp32-own ran" in third.output
    assert "--resume --retry` measures again" in third.output
    retried = launch(copied(third, tmp_path / "retried"), *DIES_AT_16, "--resume", "--retry")
    assert retried.exit_code == 0
    assert retried.measured.keys() == ALL_THREE
    saved = launch(storage, *DIES_AT_16, "--resume")
    assert saved.exit_code == 1
    assert saved.outcomes["test_forward[tiny-ctx16-fp32-own]"]["outcome"] == "process_died"
    assert saved.journals == []


def test_the_command_that_an_interrupted_run_prints_completes_it(interrupted: Launch) -> None:
    command = interrupted.output.partition("resume with `")[2].partition("`")[0]
    pytest_name, *arguments = shlex.split(command)
    completed = finish(start_command((forked_python(), "-m", pytest_name, *arguments)), interrupted.storage)
    assert completed.exit_code == 0
    assert completed.measured.keys() == ALL_THREE
    assert completed.journals == []


def test_a_run_that_stops_at_its_first_failure_keeps_its_journal(tmp_path: Path) -> None:
    stopped = launch(tmp_path, f"--model={MODELS}:FailsWithoutGraph", *THREE_CASES, "--phase=inference", "--exitfirst")
    assert stopped.exit_code == 1
    assert stopped.records == []
    assert finished(stopped) == {f"test_inference[tiny-ctx{context}-fp32-own]" for context in (8, 16)}
    assert "2 of 3 cases are kept" in stopped.output


def test_a_second_run_beside_the_first_is_refused_with_its_process(tmp_path: Path) -> None:
    """They would slow each other; resuming would be to take the first one's journal away."""
    arguments = (f"--model={MODELS}:WaitsAt16", *THREE_CASES)
    gate = tmp_path / "gate"
    first = start(tmp_path, *arguments, PLANTED_GATE=str(gate))
    try:
        wait_until_a_case_is_finished(tmp_path)
        (journal,) = tmp_path.glob("*/journal-*")
        seconds = [launch(tmp_path, *arguments, *resume) for resume in ([], ["--resume"])]
    finally:
        gate.touch()
        complete = finish(first, tmp_path)
    for second in seconds:
        assert second.exit_code == 4
        assert f"Process {journal.stem.rpartition('-')[2]} is measuring here already" in second.errors
    assert complete.exit_code == 0
    assert complete.measured.keys() == ALL_THREE
    assert complete.journals == []


def wait_until_a_case_is_finished(storage: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for journal in storage.glob("*/journal-*"):
            contents = read_journal(journal)
            if contents is not None and contents.finished_ids:
                return
        time.sleep(0.05)
    raise AssertionError("the first run never finished a case")
