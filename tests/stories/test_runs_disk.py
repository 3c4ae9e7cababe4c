"""A disk that refuses, in real launches: one sentence, nothing finished is lost, and with room the run is completed."""

from pathlib import Path

import pytest

from perf_tests.records.journal import read_journal
from tests.support.launch import ALL_THREE, MODELS, THREE_CASES, Launch, copied, finished, launch, launched_once


@pytest.fixture(scope="module")
def disk_full(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The system refuses the journal's growth in the second of three cases."""
    storage = tmp_path_factory.mktemp("disk_full")
    return launch(storage, f"--model={MODELS}:DiskFillsAt16", *THREE_CASES, PLANTED_STORAGE=str(storage))


def test_a_full_disk_stops_the_run_with_one_sentence_and_costs_no_case_that_was_finished(disk_full: Launch) -> None:
    assert disk_full.exit_code not in (0, 5)
    said = disk_full.output + disk_full.errors
    assert said.count(f"{disk_full.journals[0]} cannot be written") == 1
    assert "Traceback" not in said
    assert "Error" not in said.replace("[Errno", "")
    assert finished(disk_full) == {"test_forward[tiny-ctx8-fp32-own]"}
    assert disk_full.records == []


def test_with_room_again_the_run_is_completed(disk_full: Launch, tmp_path: Path) -> None:
    storage = copied(disk_full, tmp_path)
    completed = launch(storage, f"--model={MODELS}:DiskFillsAt16", *THREE_CASES, "--resume")
    assert completed.exit_code == 0
    assert completed.measured.keys() == ALL_THREE


# The disk turns read-only while the cases run: the journal is open, but the record gets no name.
read_only = launched_once(f"--model={MODELS}:DiskTurnsReadOnly", *THREE_CASES, PLANTED_READ_ONLY="yes")


def test_a_record_that_cannot_be_written_is_told_and_fails_the_run(read_only: Launch) -> None:
    assert read_only.exit_code == 1
    assert read_only.output.count("The record cannot be written: [Errno 30] Read-only file system") == 1
    assert "Traceback" not in read_only.output + read_only.errors
    assert read_only.records == []
    assert finished(read_only) == ALL_THREE


def test_a_complete_journal_becomes_the_record_without_measuring_again(read_only: Launch, tmp_path: Path) -> None:
    storage = copied(read_only, tmp_path)
    journalled = read_journal(read_only.journals[0])
    assert journalled is not None
    completed = launch(storage, f"--model={MODELS}:DiskTurnsReadOnly", *THREE_CASES, "--resume")
    assert completed.exit_code == 0
    assert completed.record["benchmarks"] == journalled.benchmarks
    assert completed.journals == []
