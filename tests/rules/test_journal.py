"""The journal: every finished case is on disk before the next one starts, whatever ends the process."""

import errno
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.records.journal import Journal, JournalContents, read_journal, remove_headless, unfinished_journals
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, header, passed, timed, untimed

HEADER = header([FORWARD, BACKWARD, FULL_STEP])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.create(tmp_path / "machine", HEADER)
    yield journal
    journal.close()


def contents_of(path: Path) -> JournalContents:
    contents = read_journal(path)
    assert contents is not None
    return contents


def test_what_was_written_is_read_back_with_how_often_each_case_began(journal: Journal) -> None:
    for case_id in (FORWARD, BACKWARD, BACKWARD):
        journal.write("started", case_id)
    journal.write("benchmark", timed(FORWARD))
    journal.write("outcome", untimed(BACKWARD))
    journal.write("pass", passed(FULL_STEP))
    assert contents_of(journal.path) == JournalContents(
        HEADER, [timed(FORWARD)], [untimed(BACKWARD)], [passed(FULL_STEP)], {FORWARD: 1, BACKWARD: 2}
    )
    assert contents_of(journal.path).finished_ids == {FORWARD, BACKWARD, FULL_STEP}


def test_a_finished_case_is_on_disk_when_the_call_returns(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Safe against a kill, for it can be read elsewhere, and against a power cut, for it was synchronised."""
    sizes_on_disk = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes_on_disk.append(os.fstat(number).st_size))
    journal.write("benchmark", timed(FORWARD))
    assert contents_of(journal.path).finished_ids == {FORWARD}
    assert sizes_on_disk == [journal.path.stat().st_size]


def test_a_number_that_json_does_not_know_is_null_in_the_journal(journal: Journal) -> None:
    journal.write("benchmark", timed(FORWARD, peak_allocated_bytes=math.nan))
    assert contents_of(journal.path).benchmarks[0]["extra_info"]["peak_allocated_bytes"] is None
    assert b"NaN" not in journal.path.read_bytes()


def test_a_line_torn_anywhere_is_dropped_and_the_lines_before_survive(journal: Journal) -> None:
    journal.write("benchmark", timed(FORWARD))
    whole = journal.path.read_bytes()
    journal.write("benchmark", timed(BACKWARD))
    longer = journal.path.read_bytes()
    for length in range(len(whole), len(longer)):
        journal.path.write_bytes(longer[:length])
        assert contents_of(journal.path).finished_ids == {FORWARD}, f"torn after {length} of {len(longer)} bytes"


def test_a_journal_torn_inside_its_header_holds_nothing(journal: Journal) -> None:
    journal.path.write_bytes(journal.path.read_bytes().splitlines()[0])
    assert read_journal(journal.path) is None


@pytest.mark.parametrize("content", [b"", b'{"header": {"sett'])
def test_a_journal_without_a_first_line_goes_at_the_next_start_once_its_process_is_dead(
    content: bytes, journal: Journal
) -> None:
    """Process ids end below 2**22 on Linux."""
    folder = journal.path.parent
    dead, living = (folder / f"journal-20300101T000000000000-{process}.jsonl" for process in (2**22 + 1, os.getppid()))
    foreign = folder / f"journal-{2**22 + 1}.jsonl"
    for path in (dead, living, foreign):
        path.write_bytes(content)
    remove_headless(folder)
    assert set(folder.iterdir()) == {journal.path, living, foreign}


def test_a_journal_that_a_full_disk_refuses_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        Journal.create(tmp_path / "machine", HEADER)
    assert list((tmp_path / "machine").iterdir()) == []


def test_a_reopened_journal_goes_on_after_its_last_whole_line(journal: Journal) -> None:
    journal.write("benchmark", timed(FORWARD))
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b'{"benchmark": {"fulln' + b"." * 9999)
    reopened = Journal.reopen(journal.path)
    assert reopened is not None
    reopened.write("started", BACKWARD)
    reopened.write("benchmark", timed(BACKWARD))
    reopened.close()
    assert [row["fullname"] for row in contents_of(journal.path).benchmarks] == [FORWARD, BACKWARD]


def test_a_journal_that_its_run_completed_is_not_reopened(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run discards it between another process's opening it and locking it."""
    file = journal.path.open("r+b")
    journal.discard()
    monkeypatch.setattr(Path, "open", lambda path, mode: file)
    assert Journal.reopen(journal.path) is None


@pytest.mark.parametrize(
    "content", [b"[]\n", b"{}\n", b'{"header": 5}\n', b'{"header": {}}\n', b"no json\n", b"\xff\xfe\n", b"\x00\n"]
)
def test_a_foreign_file_under_a_journals_name_is_told_apart_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal-foreign.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no journal of this suite, or is damaged"):
        read_journal(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"garbage", b"[]", b"5", b'{"benchmark": 1}', b'{"other": {}}'])
def test_a_journal_damaged_in_the_middle_is_told_apart(journal: Journal, line: bytes) -> None:
    journal.write("benchmark", timed(FORWARD))
    last_line = journal.path.read_bytes().splitlines()[-1]
    with journal.path.open("ab") as file:
        file.write(line + b"\n" + last_line + b"\n")
    with pytest.raises(ValueError, match="is no journal of this suite, or is damaged"):
        read_journal(journal.path)


@pytest.mark.parametrize(("name", "value"), [("commit_info", "abc"), ("machine_info", None), ("selection", {})])
def test_a_header_that_would_end_in_no_record_is_refused(journal: Journal, name: str, value: object) -> None:
    path = journal.path.with_name("journal-damaged.jsonl")
    path.write_text(json.dumps({"header": {**HEADER, name: value}}) + "\n")
    with pytest.raises(ValueError, match=f"its header.{name} is "):
        read_journal(path)


def test_interrupted_runs_are_listed_newest_first(tmp_path: Path) -> None:
    names = ["journal-20300101T000000-7.jsonl", "journal-20300102T000000-1.jsonl", "journal-20291231T235959-9.jsonl"]
    (tmp_path / "machine").mkdir()
    for name in names:
        (tmp_path / "machine" / name).touch()
    assert [path.name for path in unfinished_journals(tmp_path)] == [names[1], names[0], names[2]]
