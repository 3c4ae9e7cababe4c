"""Standard output that cannot be written ends a verb with one sentence and an exit code, whatever the verb was at."""

import os
import sys
from pathlib import Path
from typing import TextIO
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.__main__ import VERBS, main
from tests.support.synthetic import record, timed, write_record

HELP = [[verb, "--help"] for verb in VERBS if verb != "run"]  # whose help is pytest's
READING = [["tables", "RUN"], ["compare", "RUN", "RUN"]]
BUFFERS = (1, 65536)
"""Sizes: an output fails with a buffer of one line while a verb prints, else when it has ended."""


def ended(words: list[str], folder: Path, output: TextIO | None, monkeypatch: pytest.MonkeyPatch) -> int:
    path = write_record(folder / "run.json", record([timed()]))
    monkeypatch.setattr(sys, "stdout", output)
    return main([str(path) if word == "RUN" else word for word in words])


@pytest.mark.parametrize(
    "words, buffer", [*((of, size) for of in READING for size in BUFFERS), *((of, 1) for of in HELP)]
)
def test_a_full_output_is_one_sentence_and_no_fault_of_the_verbs_files(
    words: list[str], buffer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", buffering=buffer) as output:
        assert ended(words, tmp_path, output, monkeypatch) == 2
    said = "The output cannot be written: No space left on device; free space or print elsewhere.\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_reader_that_has_seen_enough_or_a_closed_output_is_no_fault(
    buffer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=buffer) as output:
        assert ended(["tables", "RUN"], tmp_path, output, monkeypatch) == 0
    assert capsys.readouterr().err == ""
    for words in READING:
        assert ended(words, tmp_path, None, monkeypatch) == 0
        sys.stdout.close()


def test_an_output_of_few_characters_shows_the_others_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "shown").open("w", encoding="ascii") as output:
        assert ended(["tables", "RUN"], tmp_path, output, monkeypatch) == 0
    assert "\\xb1" in (tmp_path / "shown").read_text()


def test_an_output_never_replaces_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = write_record(tmp_path / "run.json", record([timed()]))
    (tmp_path / "link.html").symlink_to(kept)
    before = kept.read_bytes()
    for output in (kept, tmp_path / "link.html"):
        assert main(["report", str(kept), "-o", str(output)]) == 2
        assert f"{output} is what was read, and would be lost; name another file with -o." in capsys.readouterr().err
        assert kept.read_bytes() == before


def test_a_folder_that_is_gone_is_one_sentence_and_stops_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for words, code in ((["run", "--size", "tiny"], 3), (["run", "--bisect", "--against=HEAD"], 255)):
        assert main(words) == code
        assert capsys.readouterr() == ("", "The folder that you are in is gone; go to one that is there.\n")


def test_an_error_that_is_not_of_the_output_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(arguments: object) -> int:
        raise OSError(5, "a disk of theirs")

    monkeypatch.setattr("perf_tests_suite.perf_tests.verbs.tables.run", fails)
    with pytest.raises(OSError, match="a disk of theirs"):
        main(["tables"])


def test_ctrl_c_is_one_sentence_and_a_shells_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perf_tests_suite.perf_tests.report.comparison.run", Mock(side_effect=KeyboardInterrupt))
    assert main(["compare", "a.json", "b.json"]) == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")
