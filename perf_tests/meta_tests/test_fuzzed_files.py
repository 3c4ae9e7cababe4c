"""Damaged files: every reader ends in one sentence and its exit code; `proofs.fuzzed_files` runs thousands of them."""

import gzip
from pathlib import Path

import pytest

from perf_tests.proofs.file_readers import READERS, Reader
from perf_tests.proofs.fuzzed_files import Tally, fuzz, take


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_ends_in_a_sentence_and_its_exit_code(name: str) -> None:
    tally = fuzz(READERS[name], examples=6)
    assert tally.files == 6
    assert tally.wrong == {}


def planted(words: list[str]) -> int:
    folder = Path(words[0])
    if "writes" in folder.joinpath("x").read_text():
        (folder / "left").touch()
        print(folder)
        return 3
    raise KeyError("planted")


@pytest.mark.parametrize(("content", "wrong"), [(b"writes", "wrote and exited with 3"), (b"x", "KeyError at ")])
def test_a_verb_that_fails_on_a_file_or_writes_beside_it_is_found(content: bytes, wrong: str) -> None:
    tally = Tally()
    take(Reader("{folder}", "x", bytes, lambda _, content: content, verb=planted), content, tally)
    assert [found[: len(wrong)] for found in tally.wrong] == [wrong]


@pytest.mark.parametrize(("name", "pack"), [("run.jsonl.gz", gzip.compress), ("t.trace.json.gz", gzip.compress)])
def test_a_small_file_that_unpacks_to_gigabytes_is_refused(
    name: str, pack: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pass
