"""The two trees of the gate: what is in them and left behind, what is said when they cannot be had, one at a time."""

import os
import py_compile
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.interleaved import sides
from perf_tests_suite.perf_tests.interleaved.same import differing
from perf_tests_suite.perf_tests.interleaved.sides import TreeError, alone, find_commit, planted
from perf_tests_suite.perf_tests.user_code.named import Repository
from tests.support.fake_sides import snapshot
from tests.support.git_repository import commit, git
from tests.support.same_programs import write


def test_base_is_the_revision_and_head_the_working_tree_both_measured_by_heads_code(clone: Path) -> None:
    empty = ("perf_tests/only_at_base.py", "weights/a.py", ".benchmarks/accepted.toml", ".benchmarks/machine/1.json")
    commit(write(clone, {"model/marker.py": "base", "docs/a.md": "", **dict.fromkeys(empty, "")}))
    assert sides.state_of_head(clone) == {"commit": git(clone, "rev-parse", "HEAD"), "changed_files": 0}
    write(clone, {"model/marker.py": "staged"})
    git(clone, "add", "--all")
    write(clone, {"model/marker.py": "head", "model/untracked.py": "", "perf_tests/test_forward.py": "# changed"})
    for removed in ("model/sizes.py", "perf_tests/only_at_base.py"):
        (clone / removed).unlink()
    assert sides.state_of_head(clone)["changed_files"] == 5
    before = snapshot(clone)
    with planted(Repository(clone, files=(Path("tests/support/llama.py"),)), find_commit(clone, "HEAD")) as found:
        folder, base, head = found.folder, snapshot(found.base), snapshot(found.head)
        measuring = [snapshot(tree / "perf_tests") for tree in (found.base, found.head)]
    assert (base["model/marker.py"], head["model/marker.py"]) == (b"base", b"head")
    assert base.keys() ^ head.keys() == {"model/untracked.py", "model/sizes.py"}
    assert ("model/sizes.py" in base, measuring[0]) == (True, measuring[1])
    assert measuring[0]["test_forward.py"] == b"# changed"
    both = base.keys() & head.keys()
    assert {".benchmarks/accepted.toml", "weights/a.py", "conftest.py", "perf_tests/plugin.py"} <= both
    assert {"tests/support/llama.py", "docs/a.md"} <= both
    assert not [name for name in both if name.startswith(".benchmarks/machine")]
    assert (snapshot(clone), folder.exists()) == (before, False)


def test_both_trees_have_the_valid_byte_code_of_the_suite_that_measures_and_none_of_what_is_measured(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", None)
    for file in ("perf_tests/plugin.py", "model/sizes.py"):
        py_compile.compile(str(clone / file))
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        for tree in (found.base, found.head):
            (kept,) = tree.rglob("*.pyc")
            source = (tree / "perf_tests/plugin.py").stat()
            assert kept.name.startswith("plugin.")
            assert struct.unpack("<II", kept.read_bytes()[8:16]) == (int(source.st_mtime), source.st_size)


def test_two_trees_have_the_same_model_where_every_file_is_the_same_byte_for_byte(clone: Path) -> None:
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        model = found.head / "model"
        (model / "__pycache__").mkdir(exist_ok=True)
        for name, differ in (("__pycache__/x.pyc", []), ("new.py", ["new.py"])):
            (model / name).touch()
            assert differing(found.base / "model", model) == differ
        (model / "new.py").rename(model / "sizes.py")
        assert differing(found.base / "model", model) == ["sizes.py"]


def test_what_is_written_counts_unless_it_is_data_that_both_sides_have_alike_before_and_after(clone: Path) -> None:
    commit(write(clone, dict.fromkeys(("a/b.json", "a/c.json", "d.py"), "x")))
    write(clone, {"a/c.json": "y"})
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        sides_of = (found.base, found.head)
        write(found.base, {"a/b.json": "1"})
        assert found.written() == "a/b.json in the tree of base", "where nobody knows what differed"
        found.differed = frozenset(differing(*sides_of)) - {"a/b.json"}
        assert (found.written(), found.written_alike()) == ("a/b.json in the tree of base", [])
        write(found.head, {"a/b.json": "1"})
        assert (found.written(), found.written_alike()) == (None, ["a/b.json"])
        for name in ("a/c.json", "d.py"):
            for side in sides_of:
                write(side, {name: "1"})
            assert found.written() == f"{name} in the tree of base"
            found.seal()


def test_code_that_both_sides_take_from_head_has_no_base(clone: Path) -> None:
    """Base would be measured as head, and called the same."""
    for file, why in (("perf_tests/kernels/mine.py", "is the same on both sides"), ("kernels/mine.py", None)):
        said = sides.why_no_side(Repository(clone, files=(Path(file),)))
        assert (said is None) == (why is None)
        assert why is None or why in str(said)
    assert sides.why_no_side(Repository(clone, holds_suite=False, files=(Path("perf_tests/mine.py"),))) is None


def test_a_suite_below_the_top_of_its_repository_is_found(tmp_path: Path) -> None:
    suite = write(tmp_path / "deep/down", {"model/a.py": "", "perf_tests/b.py": ""})
    commit(tmp_path)
    with planted(Repository(suite), find_commit(suite, "HEAD")) as found:
        assert snapshot(found.base).keys() == snapshot(found.head).keys() == {"model/a.py", "perf_tests/b.py"}


@pytest.mark.parametrize("below", ["", "deep/down"])
def test_base_has_the_line_ends_of_its_own_attributes(below: str, tmp_path: Path) -> None:
    suite = write(tmp_path / below, {"model/a.txt": "1\n", "perf_tests/b.py": ""})
    write(tmp_path, {".gitattributes": "*.md text\n"})
    commit(tmp_path)
    write(tmp_path, {".gitattributes": "*.txt text eol=crlf\n"})
    with planted(Repository(suite), find_commit(suite, "HEAD")) as found:
        assert snapshot(found.base)["model/a.txt"] == b"1\n"


NO_REVISION = "names no revision of this repository; give a branch, a tag or a commit"
UNKNOWN = [
    *(("clone", revision, NO_REVISION) for revision in ("no-such", "", "-q", "--all", "HEAD~99", "HEAD:model")),
    ("clone", "mian", r"names no revision of this repository; did you mean main\? Else give a branch"),
    ("shallow", "v1", "v1 is not in this shallow clone; fetch it first with `git fetch --depth=1 origin v1`"),
    ("shallow", "HEAD~9", "HEAD~9 is not in this shallow clone; .*git fetch --unshallow"),
    ("shallow", "", "--against '' names no revision of this repository"),
    ("clone", "gone", "but origin/gone is there: --against origin/gone"),
    ("clone", "FETCH_HEAD", "FETCH_HEAD is a commit of another project: it shares no history with HEAD"),
    (".", "main", r"needs a git repository, and .* is in none"),
    ("empty", "main", "has no commit yet; commit one"),
]
IN_THE_WAY = {
    ("PATH", "/nowhere"): "needs git, and there is none on the PATH",
    ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1"): r"belongs to another user; allow it with .*safe\.directory .*/clone`\.$",
}


def test_what_is_no_revision_is_refused_with_the_next_step(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{clone}", "shallow")
    git(tmp_path, "init", "-q", "empty")
    git(clone, "update-ref", "refs/remotes/origin/gone", "HEAD")
    commit(write(tmp_path / "other", {"a": ""}))
    git(clone, "fetch", "-q", str(tmp_path / "other"), "HEAD")
    for where, revision, words in UNKNOWN:
        with pytest.raises(TreeError, match=words):
            find_commit(tmp_path / where, revision)
    for variable, words in IN_THE_WAY.items():
        with monkeypatch.context() as patch:
            patch.setenv(*variable)
            with pytest.raises(TreeError, match=words):
                find_commit(clone, "HEAD")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_full_disk_is_told_and_nothing_is_left(clone: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "copy2", Mock(side_effect=OSError(28, "No space left on device")))
    for words in ("No space left on device; set TMPDIR", r"MiB are free; make room, or set TMPDIR"):
        with pytest.raises(TreeError, match=words), planted(Repository(clone), None):
            pytest.fail("planted although the disk was full")
        with (clone / "large.bin").open("wb") as file:
            file.truncate(1 << 42)  # a hole, which takes no room until it is copied
    assert [*temporary.iterdir()] == []


def test_one_gate_at_a_time_measures_and_removes_the_trees_of_one_that_was_killed(temporary: Path) -> None:
    for name in (f"{sides.TREES}dead", "perf-tests", "gate-of-another-program"):
        (temporary / name / "model").mkdir(parents=True)
    with alone():
        assert {path.name for path in temporary.iterdir() if path.is_dir()} == {"perf-tests", "gate-of-another-program"}
        (trees := temporary / f"{sides.TREES}running").mkdir()
        with (
            pytest.raises(sides.BesideAnotherError, match=rf"^Another gate, process {os.getpid()}, is measuring"),
            alone(),
        ):
            pass
        assert trees.exists()
    (temporary / "perf-tests-gate.lock").unlink()
    (temporary / "perf-tests-gate.lock").symlink_to(temporary / "elsewhere")
    with pytest.raises(TreeError, match=r"^The gate cannot lock the machine: .*; set TMPDIR to a folder"), alone():
        pass
    assert not (temporary / "elsewhere").exists()


def test_a_gate_removes_no_trees_that_a_process_uses(clone: Path, temporary: Path) -> None:
    """Such as `diff`, or a gate that measures no time, which need not be alone."""
    with planted(Repository(clone), None) as used, alone():
        assert used.base.is_dir()
    assert not [*temporary.glob(f"{sides.TREES}*")]


def test_no_repository_of_a_hook_is_asked_or_run(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git sets GIT_DIR for the hooks of one repository, from which another one may be gated."""
    other = write(tmp_path / "other", {"a": "elsewhere"})
    commit(other)
    write(clone, {".git/hooks/post-index-change": f"#!/bin/sh\ntouch {tmp_path}/ran\n"})
    (clone / ".git/hooks/post-index-change").chmod(0o755)
    ours = git(clone, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    base = find_commit(clone, "HEAD")
    assert (base.full_hash, sides.state_of_head(clone)) == (ours, {"commit": ours, "changed_files": 0})
    with planted(Repository(clone), base) as found:
        assert differing(found.base, found.head) == []
    assert not (tmp_path / "ran").exists()


def test_a_file_whose_name_is_no_utf_8_is_in_both_trees(clone: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    commit(write(clone, {name: "kept"}))
    write(clone, {name: "changed", os.fsdecode(b"new\xff.txt"): ""})
    assert sides.state_of_head(clone)["changed_files"] == 2
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        assert [(tree / name).read_text() for tree in (found.base, found.head)] == ["kept", "changed"]
