"""Standard output that cannot be written ends a verb with one sentence and an exit code, whatever the verb was at."""

import os
import sys
from pathlib import Path
from typing import TextIO

import pytest

from perf_tests.__main__ import VERBS, main
from tests.support.synthetic import record, timed, write_record

SENTENCE = "The output cannot be written: No space left on device; free space or print elsewhere.\n"


def full(buffering: int) -> TextIO:
    """A file that takes nothing; with a buffer of one line it fails while a verb prints, else when it has ended."""
    return Path("/dev/full").open("w", buffering=buffering)


@pytest.mark.parametrize("buffering", [1, 65536])
@pytest.mark.parametrize("words", [["tables", "RUN"], ["compare", "RUN", "RUN"]])
def test_a_full_output_is_one_sentence_and_no_fault_of_the_verbs_files(
    buffering: int,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_record(tmp_path / "run.json", record([timed()]))
    with full(buffering) as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main([str(path) if word == "RUN" else word for word in words]) == 2
    assert capsys.readouterr().err == SENTENCE


@pytest.mark.parametrize("verb", VERBS)
def test_so_is_the_help_of_every_verb(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if verb == "run":  # whose help is pytest's
        return
    with full(65536) as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main([verb, "--help"]) == 2
    assert capsys.readouterr().err == SENTENCE


@pytest.mark.parametrize("buffering", [1, 65536])
def test_a_reader_that_has_seen_enough_is_no_fault(
    buffering: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_record(tmp_path / "run.json", record([timed()]))
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=buffering) as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["tables", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_an_error_that_is_not_of_the_output_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(arguments: object) -> int:
        raise OSError(5, "a disk of theirs")

    monkeypatch.setattr("perf_tests.verbs.tables.run", fails)
    with pytest.raises(OSError, match="a disk of theirs"):
        main(["tables"])


@pytest.mark.parametrize("words", [["tables", "RUN"], ["compare", "RUN", "RUN"]])
def test_a_closed_output_is_no_fault_either(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_record(tmp_path / "run.json", record([timed()]))
    monkeypatch.setattr(sys, "stdout", None)
    assert main([str(path) if word == "RUN" else word for word in words]) == 0
    sys.stdout.close()
