"""Any damaged file ends in one sentence and an exit code, and nothing is written, whichever verb reads it.

A nightly test tries thousands of them.
"""

import io
import lzma
import tarfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from claims.expedition.__main__ import STATE, load_state
from perf_tests_suite.perf_tests.phases import FINDINGS, FINE
from tests.support.damage import JSON, Reader, Tally, fuzz, take
from tests.support.file_readers import READERS


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_ends_in_a_sentence_and_its_exit_code(name: str) -> None:
    """The file that is damaged is a valid one: where a reader refuses it as it is, damage shows nothing."""
    reader, whole = READERS[name], Tally()
    for content in (reader.content(), reader.format.write(reader.format.read(reader.content()))):
        take(reader, reader.pack(content), whole)
    assert whole.codes.keys() <= {FINE, FINDINGS}
    tally = fuzz(reader, examples=5)
    assert (tally.codes.total(), {**whole.wrong, **tally.wrong}) == (5, {})


def planted(words: list[str]) -> int:
    """A verb that writes and then refuses its file, or fails."""
    folder = Path(words[0])
    if (folder / "x").read_bytes() != b"refuse":
        raise KeyError("planted")
    (folder / "left").touch()
    print(folder)
    return 3


def test_a_verb_that_fails_on_a_file_or_writes_beside_it_is_found() -> None:
    for content, wrong in ((b"refuse", "wrote and exited with 3"), (b"fail", "KeyError at ")):
        take(Reader("{folder}", "x", bytes, JSON, verb=planted), content, tally := Tally())
        assert [found[: len(wrong)] for found in tally.wrong] == [wrong]


FILE, LINK, DEVICE, SPARSE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE
MEMBERS = [("../out", FILE), ("/out", FILE), ("a", LINK), ("a", DEVICE), ("a", SPARSE)]


@pytest.mark.parametrize("name, kind", MEMBERS)
def test_an_expedition_unpacks_nothing_but_files_below_its_folder(name: str, kind: bytes, tmp_path: Path) -> None:
    """Of an absolute path the leading slash is dropped."""
    member, buffer = tarfile.TarInfo(name), io.BytesIO()
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / STATE).write_bytes(lzma.compress(buffer.getvalue()))
    refused = pytest.raises(ValueError, match=r"cannot be read: .*; take the folder of the slice before")
    with nullcontext() if name == "/out" else refused:
        load_state(tmp_path / "state", tmp_path / "in")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left <= {f"in/{STATE}", "state/out"}
