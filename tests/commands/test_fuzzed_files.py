"""Damaged files: every reader ends in one sentence and its exit code. A nightly test tries thousands."""

import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from claims.expedition.__main__ import STATE, load_state
from perf_tests.__main__ import main
from perf_tests.phases import FINDINGS, FINE
from perf_tests.records.record import unpacked
from tests.support.file_readers import READERS, Reader, record
from tests.support.fuzzing import Tally, fuzz, take


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_ends_in_a_sentence_and_its_exit_code(name: str) -> None:
    tally = fuzz(READERS[name], examples=5)
    assert tally.files == 5
    assert tally.wrong == {}


@pytest.mark.parametrize("name", READERS)
def test_the_file_that_is_damaged_is_a_valid_one(name: str) -> None:
    """Where a reader refuses it as it is, damage shows nothing."""
    reader, tally = READERS[name], Tally()
    take(reader, reader.pack(reader.content()), tally)
    assert tally.codes.keys() <= {FINE, FINDINGS}
    assert tally.wrong == {}


def planted(words: list[str]) -> int:
    """A verb that writes and then refuses its file, or fails."""
    folder = Path(words[0])
    if (folder / "x").read_bytes() != b"refuse":
        raise KeyError("planted")
    (folder / "left").touch()
    print(folder)
    return 3


@pytest.mark.parametrize(("content", "wrong"), [(b"refuse", "wrote and exited with 3"), (b"fail", "KeyError at ")])
def test_a_verb_that_fails_on_a_file_or_writes_beside_it_is_found(content: bytes, wrong: str) -> None:
    tally = Tally()
    take(Reader("{folder}", "x", bytes, lambda _, content: content, verb=planted, writes="out"), content, tally)
    assert [found[: len(wrong)] for found in tally.wrong] == [wrong]


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("txt", bytes)])
def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(suffix: str, pack: Any, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(pack(bytes(1000)))
    assert unpacked(path, 1000) == bytes(1000)
    with pytest.raises(ValueError, match=f"x.{suffix} cannot be used: it is larger than 999 bytes"):
        unpacked(path, 999)


FILE, LINK, DEVICE, SPARSE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("a", LINK), ("a", DEVICE), ("a", SPARSE)],
)
def test_an_expedition_unpacks_nothing_but_files_below_its_folder(name: str, kind: bytes, tmp_path: Path) -> None:
    member, buffer = tarfile.TarInfo(name), io.BytesIO()
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / STATE).write_bytes(lzma.compress(buffer.getvalue()))
    if name == "/out":  # the leading slash is dropped
        load_state(tmp_path / "state", tmp_path / "in")
    else:
        with pytest.raises(ValueError, match=r"cannot be read: .*; take the folder of the slice before"):
            load_state(tmp_path / "state", tmp_path / "in")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left <= {f"in/{STATE}", "state/out"}


HOSTILE = "</script><img src=x onerror=pwned()>\u2028\u2029<!-- ' \" &"
KEPT = ("outcome", "pass", "phase")
"""Fields whose words select what a page shows."""


def hostile(tree: Any, key: str = "") -> Any:
    """The same with hostile text behind every string."""
    if isinstance(tree, dict):
        return {name: hostile(value, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [hostile(value, key) for value in tree]
    if isinstance(tree, str) and key not in KEPT:
        return tree + HOSTILE
    return tree


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def names_of(elements: Elements) -> Iterator[str]:
    yield from (tag for tag, _ in elements.found)
    yield from (name for _, attributes in elements.found for name, _ in attributes)


def test_no_string_of_a_record_breaks_out_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "0001_a.json").write_text(json.dumps(hostile(json.loads(record()))))
    assert main(["report", str(tmp_path / "0001_a.json"), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    elements = Elements(page)
    assert sum(tag == "script" for tag, _ in elements.found) == 3
    assert not {name for name in names_of(elements) if name == "img" or name.startswith("on")}
    assert "pwned()" in page
    assert "<img src=x" not in page
