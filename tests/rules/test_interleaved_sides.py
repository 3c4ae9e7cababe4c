"""The two trees of the gate: what is in them and left behind, what is said when they cannot be had, one at a time."""

import ast
import os
import re
import shutil
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.interleaved.sides import (
    LEFT_OUT,
    TREES,
    BesideAnotherError,
    Commit,
    TreeError,
    alone,
    find_commit,
    planted,
    state_of_head,
)
from perf_tests.user_code.named import Repository
from tests.support.fake_sides import snapshot
from tests.support.git_repository import commit, git
from tests.support.launch import ROOT


def test_base_is_the_revision_and_head_the_working_tree_as_it_is(clone: Path) -> None:
    (clone / "model/marker.py").write_text("SIDE = 'base'\n")
    commit(clone)
    (clone / "model/marker.py").write_text("SIDE = 'head, not committed'\n")
    (clone / "model/untracked.py").touch()
    (clone / "model/sizes.py").unlink()
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        base, head = snapshot(found.base), snapshot(found.head)
    assert base["model/marker.py"] == b"SIDE = 'base'\n"
    assert head["model/marker.py"] == b"SIDE = 'head, not committed'\n"
    names = {"model/untracked.py", "model/sizes.py"}
    assert (names & base.keys(), names & head.keys()) == ({"model/sizes.py"}, {"model/untracked.py"})


def test_two_trees_have_the_same_model_where_every_file_is_the_same_byte_for_byte(clone: Path) -> None:
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        for name in ("__pycache__/x.pyc", "new.py"):
            (found.head / "model" / name).parent.mkdir(exist_ok=True)
            (found.head / "model" / name).touch()
            assert found.have_the_same("model") == name.endswith(".pyc")
        (found.head / "model/new.py").rename(found.head / "model/sizes.py")
        assert not found.have_the_same("model")


def test_both_sides_measure_with_the_benchmark_code_of_head(clone: Path) -> None:
    (clone / "perf_tests/only_at_base.py").touch()
    commit(clone)
    (clone / "perf_tests/only_at_base.py").unlink()
    (clone / "perf_tests/test_forward.py").write_text("# changed\n")
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        assert snapshot(found.base / "perf_tests") == snapshot(found.head / "perf_tests")
        assert (found.base / "perf_tests/test_forward.py").read_text() == "# changed\n"


def test_a_tree_holds_what_a_benchmark_needs_and_is_small() -> None:
    base = commit_of(ROOT, "HEAD")
    with planted(Repository(ROOT), base) as found:
        for tree in (found.base, found.head):
            blocks = sum(-(-len(content) // 4096) for content in snapshot(tree).values())
            assert 4096 * blocks < 2_000_000
            assert {"model/attention.py", "perf_tests/plugin.py", "conftest.py"} <= snapshot(tree).keys()
            assert not [name for name in LEFT_OUT if list(tree.glob(name))]


def test_what_an_option_names_is_in_both_trees_with_its_folder(clone: Path) -> None:
    file = Path("tests/support/llama.py")
    with planted(Repository(clone, files=(file,)), find_commit(clone, "HEAD")) as found:
        for tree in (found.base, found.head):
            assert {"tests/support/llama.py", "tests/support/__init__.py"} <= snapshot(tree).keys()
            assert not (tree / "tests/rules").exists()


def test_accepted_regressions_and_files_beside_the_model_are_in_both_trees_and_records_in_neither(clone: Path) -> None:
    kept, left_out = {".benchmarks/accepted.toml", "weights/a.csv"}, {".benchmarks/machine/1.json", "docs/a.md"}
    for name in kept | left_out:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    commit(clone)
    with planted(Repository(clone), find_commit(clone, "HEAD")) as found:
        for tree in (found.base, found.head):
            assert snapshot(tree).keys() & (kept | left_out) == kept


def commit_of(root: Path, revision: str) -> Commit:
    try:
        return find_commit(root, revision)
    except TreeError as error:
        pytest.skip(str(error))


EARLIEST_BASE = "a5549656718519e5e9baefcfd4f9c335759d8e2b"
"""Revisions from here on can be bases of the gate."""


def names_taken_from_model(source: str) -> set[tuple[str, str]]:
    """Module and name of each import from `model` that happens when the module is loaded."""
    top = [(node.module or "", node) for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    return {(module, alias.name) for module, node in top for alias in node.names if module.startswith("model")}


def defines(source: str, name: str) -> bool:
    """At the top of a module, wherever it comes from."""
    return re.search(rf"^(def |class |from .* import .*\b)?{name}\b", source, re.MULTILINE) is not None


def test_what_the_suite_takes_from_model_as_it_loads_the_earliest_base_has() -> None:
    """Both sides measure with head's `perf_tests`; what is newer in `model` is imported late."""
    commit_of(ROOT, EARLIEST_BASE)
    files = [*(ROOT / "perf_tests").rglob("*.py")]
    taken = set().union(*(names_taken_from_model(path.read_text()) for path in files))
    assert ("model.attention", "ATTENTION") in taken
    paths = {module: f"{module.replace('.', '/')}.py" for module, _ in taken}
    there = git(ROOT, "ls-tree", "-r", "--name-only", EARLIEST_BASE, "model").splitlines()
    assert set(paths.values()) <= set(there)
    sources = {module: git(ROOT, "show", f"{EARLIEST_BASE}:{path}") for module, path in paths.items()}
    assert {(module, name) for module, name in taken if not defines(sources[module], name)} == set()


def test_a_name_that_is_new_in_model_is_found_where_a_module_takes_it_as_it_loads() -> None:
    late = "from model.attention import ATTENTION\n\ndef later():\n    from model.attention import new\n"
    assert names_taken_from_model(late) == {("model.attention", "ATTENTION")}
    early = names_taken_from_model("from model.attention import ATTENTION, new\n")
    assert {name for _, name in early if not defines("import os\n\nATTENTION = {}\n", name)} == {"new"}


def test_the_repository_is_not_touched(clone: Path) -> None:
    (clone / "model/sizes.py").write_text("# staged\n")
    git(clone, "add", "model/sizes.py")
    (clone / "model/sizes.py").write_text("# staged, then changed again\n")
    before = snapshot(clone)
    with planted(Repository(clone), find_commit(clone, "main")) as found:
        folder = found.folder
    assert snapshot(clone) == before
    assert not folder.exists()


def test_a_suite_below_the_top_of_its_repository_is_found(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for name in ("model/a.py", "perf_tests/b.py"):
        (tmp_path / "deep/down" / name).parent.mkdir(parents=True)
        (tmp_path / "deep/down" / name).touch()
    commit(tmp_path)
    with planted(Repository(tmp_path / "deep/down"), find_commit(tmp_path / "deep/down", "HEAD")) as found:
        assert snapshot(found.base).keys() == snapshot(found.head).keys() == {"model/a.py", "perf_tests/b.py"}


def test_uncommitted_changes_are_counted(clone: Path) -> None:
    assert state_of_head(clone) == {"commit": git(clone, "rev-parse", "HEAD"), "changed_files": 0}
    (clone / "new.py").touch()
    (clone / "conftest.py").unlink()
    assert state_of_head(clone)["changed_files"] == 2


def test_a_branch_a_tag_and_a_part_of_a_hash_are_revisions(clone: Path) -> None:
    git(clone, "tag", "v1")
    full_hash = git(clone, "rev-parse", "HEAD")
    assert {find_commit(clone, name).full_hash for name in ("main", "v1", full_hash[:8], "HEAD~0")} == {full_hash}


@pytest.mark.parametrize("revision", ["nothing-of-the-kind", "", "-q", "--all", "HEAD~99", "HEAD:model"])
def test_what_is_no_revision_is_refused_with_the_next_step(clone: Path, revision: str) -> None:
    with pytest.raises(TreeError, match="names no revision of this repository; give a branch, a tag or a commit"):
        find_commit(clone, revision)


@pytest.mark.parametrize(
    "revision, words",
    [
        ("v1", "v1 is not in this shallow clone; fetch it first with `git fetch --depth=1 origin v1`"),
        ("HEAD~9", "HEAD~9 is not in this shallow clone; .*git fetch --unshallow"),
        ("", "--against '' names no revision of this repository"),
    ],
)
def test_a_shallow_clone_is_told_what_to_fetch(repository: Path, tmp_path: Path, revision: str, words: str) -> None:
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", "shallow")
    with pytest.raises(TreeError, match=words):
        find_commit(tmp_path / "shallow", revision)


def test_a_commit_of_another_project_is_refused_although_it_was_fetched(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "other")
    (tmp_path / "other/file").touch()
    commit(tmp_path / "other")
    git(clone, "fetch", "-q", str(tmp_path / "other"), "HEAD")
    with pytest.raises(TreeError, match="FETCH_HEAD is a commit of another project: it shares no history with HEAD"):
        find_commit(clone, "FETCH_HEAD")


def test_a_branch_that_only_the_remote_has_is_named(clone: Path) -> None:
    git(clone, "checkout", "-q", "-b", "work")
    git(clone, "branch", "-q", "-D", "main")
    with pytest.raises(TreeError, match="but origin/main is there: --against origin/main"):
        find_commit(clone, "main")


def test_a_folder_a_repository_and_a_machine_without_what_a_base_needs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TreeError, match=r"needs a git repository, and .* is in none"):
        find_commit(tmp_path, "main")
    git(tmp_path, "init", "-q")
    with pytest.raises(TreeError, match="has no commit yet; commit one"):
        find_commit(tmp_path, "main")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TreeError, match="needs git, and there is none on the PATH"):
        find_commit(tmp_path, "main")


def test_a_full_disk_is_told_before_any_copy(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (clone / "large.bin").open("wb") as file:
        file.truncate(1 << 42)  # a hole, which takes no room until it is copied
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = list(tmp_path.iterdir())
    with pytest.raises(TreeError, match="MiB are free; make room, or set TMPDIR"), planted(Repository(clone), None):
        pytest.fail("planted although there was no room")
    assert list(tmp_path.iterdir()) == before


def test_a_disk_that_fills_up_is_told_and_nothing_is_left(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "copy2", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(TreeError, match="No space left on device; set TMPDIR"), planted(Repository(clone), None):
        pytest.fail("planted although the disk was full")


def test_a_checkout_of_another_user_which_git_does_not_read_is_told_with_the_way_to_allow_it(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(TreeError, match=rf"belongs to another user; allow it with .*safe\.directory {clone}`\.$"):
        find_commit(clone, "HEAD")


# One gate at a time on a machine, and nothing stays of one that was killed.


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_gate_beside_a_gate_is_refused_with_the_process_of_the_other(temporary: Path) -> None:
    with alone():
        (trees := temporary / f"{TREES}running").mkdir()
        with pytest.raises(BesideAnotherError, match=rf"^Another gate, process {os.getpid()}, is measuring"), alone():
            pass
        assert trees.exists()


def test_the_next_gate_removes_the_trees_of_one_that_was_killed_and_no_other_folder(temporary: Path) -> None:
    for name in (f"{TREES}dead", "perf-tests", "gate-of-another-program"):
        (temporary / name / "model").mkdir(parents=True)
    with alone():
        pass
    with alone():
        assert {path.name for path in temporary.iterdir() if path.is_dir()} == {"perf-tests", "gate-of-another-program"}


def test_a_temporary_folder_that_takes_no_lock_is_said_in_one_sentence(temporary: Path) -> None:
    (temporary / "perf-tests-gate.lock").symlink_to(temporary / "elsewhere")
    with pytest.raises(TreeError, match=r"^The gate cannot lock the machine: .*; set TMPDIR to a folder"), alone():
        pass
    assert not (temporary / "elsewhere").exists()
