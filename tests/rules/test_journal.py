"""The journal: every finished case is on disk before the next one starts, whatever ends the process."""

import errno
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.records.journal import (
    Journal,
    JournalContents,
    read_journal,
    remove_headless,
    unfinished_journals,
)
from perf_tests_suite.perf_tests.records.store import is_locked
from tests.support.launch import contents_of
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, header, passed, timed, untimed

HEADER = header([FORWARD, BACKWARD, FULL_STEP])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.create(tmp_path / "machine", HEADER)
    yield journal
    journal.close()


def test_what_was_written_is_read_back_with_how_often_each_case_began(journal: Journal) -> None:
    """What was begun again counts from there on; a number that JSON lacks is null."""
    for case_id in (FORWARD, BACKWARD, BACKWARD, FULL_STEP):
        journal.write("started", case_id)
    journal.write("benchmark", timed(FORWARD, peak_allocated_bytes=math.nan))
    for lost in (BACKWARD, FULL_STEP):
        journal.write("outcome", untimed(lost))
    journal.write("pass", passed(FULL_STEP))
    journal.write("again", FULL_STEP)
    for driver in ("570", "580", "570"):
        journal.write("driver", driver)
    contents = contents_of(journal.path)
    assert contents == JournalContents(
        {**HEADER, "other_drivers": ["570", "580"]}, [timed(FORWARD, peak_allocated_bytes=None)], [untimed(BACKWARD)],
        [passed(FULL_STEP)], {FORWARD: 1, BACKWARD: 2},
    )  # fmt: skip
    assert contents.finished_ids == {FORWARD, BACKWARD, FULL_STEP}
    assert (contents.last_started, contents.process) == (FULL_STEP, os.getpid())
    assert b"NaN" not in journal.path.read_bytes()


WORDS = {
    "Fatal Python error: Segmentation fault\n\nThread 0x1:\n": ("Segmentation fault", False),
    "Timeout (0:00:05)!\nThread 0x1:\n": (None, True),
    '{"benchmark": {"fulln': (None, False),
    "": (None, False),
}


@pytest.mark.parametrize("torn", WORDS)
def test_a_reopened_journal_says_how_its_process_ended_and_goes_on_from_there(torn: str, journal: Journal) -> None:
    journal.write("benchmark", timed(FORWARD))
    assert is_locked(journal.path)
    assert Journal.reopen(journal.path) is None, "its process is alive"
    journal.close()
    assert not is_locked(journal.path)
    with journal.path.open("ab") as file:
        file.write(torn.encode())
    assert ((found := contents_of(journal.path)).fatal_error, found.out_of_time) == WORDS[torn]
    reopened = Journal.reopen(journal.path)
    assert reopened is not None
    reopened.write("benchmark", timed(BACKWARD))
    reopened.close()
    contents = contents_of(journal.path)
    assert [row["fullname"] for row in contents.benchmarks] == [FORWARD, BACKWARD]
    assert (contents.fatal_error, contents.out_of_time) == (None, False)


def test_a_finished_case_is_on_disk_when_the_call_returns(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Safe against a kill, for it can be read elsewhere, and against a power cut, for it was synchronised."""
    sizes_on_disk = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes_on_disk.append(os.fstat(number).st_size))
    journal.write("benchmark", timed(FORWARD))
    assert contents_of(journal.path).finished_ids == {FORWARD}
    assert sizes_on_disk == [journal.path.stat().st_size]


def test_a_line_torn_anywhere_is_dropped_and_the_lines_before_survive(journal: Journal) -> None:
    journal.write("benchmark", timed(FORWARD))
    whole = journal.path.read_bytes()
    journal.write("benchmark", timed(BACKWARD))
    longer = journal.path.read_bytes()
    for length in range(len(whole), len(longer)):
        journal.path.write_bytes(longer[:length])
        assert contents_of(journal.path).finished_ids == {FORWARD}, f"torn after {length} of {len(longer)} bytes"
    journal.path.write_bytes(longer.splitlines()[0])
    assert read_journal(journal.path) is None, "a torn header"


def test_a_journal_without_a_first_line_goes_once_its_process_is_dead(journal: Journal) -> None:
    """Process ids end below 2**22 on Linux."""
    folder, ended = journal.path.parent, 2**22 + 1
    dead, living = (folder / f"journal-20300101T000000000000-{process}.jsonl" for process in (ended, os.getppid()))
    foreign = folder / f"journal-{ended}.jsonl"
    whole = journal.path.rename(dead.with_name(dead.name.replace("2030", "2031")))
    for content in (b"", b'{"header": {"sett'):
        for path in (dead, living, foreign):
            path.write_bytes(content)
        remove_headless(folder)
        assert unfinished_journals(folder.parent) == [foreign, whole, living], "by name, the newest first"


def test_a_journal_that_a_full_disk_refuses_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        Journal.create(tmp_path / "machine", HEADER)
    assert list((tmp_path / "machine").iterdir()) == []


def test_a_journal_that_its_run_completed_is_not_reopened(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run discards it between another process's opening it and locking it."""
    file = journal.path.open("r+b")
    journal.discard()
    monkeypatch.setattr(Path, "open", lambda path, mode: file)
    assert Journal.reopen(journal.path) is None


FIRST = json.dumps({"header": HEADER}).encode()
DAMAGED = {
    **dict.fromkeys((b"[]", b"{}", b'{"header": 5}', b"no json", b"\xff\xfe", b"\x00"), ""),
    **dict.fromkeys((FIRST + b"\n" + line for line in (b"garbage", b"[]", b'{"benchmark": 1}', b'{"other": {}}',
                                                       b'{"started": []}', b'{"again": 1, "driver": 2}')), ""),
    **{json.dumps({"header": {**HEADER, name: value}}).encode(): f"its header.{name} is "
       for name, value in (("commit_info", "abc"), ("machine_info", None), ("selection", {}))},
}  # fmt: skip


def test_what_is_no_journal_or_is_damaged_before_its_end_is_told_apart_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal-foreign.jsonl"
    for content, wrong in DAMAGED.items():
        path.write_bytes(content + b"\n" + b'{"started": "a"}\n')
        with pytest.raises(ValueError, match=f"is not a journal of this suite, or is damaged: .*{wrong}"):
            read_journal(path)
        assert path.read_bytes().startswith(content)
