"""What a record says of the code that it measured: two that differ are never taken for the same."""

from pathlib import Path

from perf_tests.run.before import names_untracked, source_digest
from perf_tests.user_code.named import Repository
from tests.support.git_repository import git


def test_a_kernel_beside_the_suite_is_part_of_its_source(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def attend(q, k, v): return v\n")
    named = Repository(tmp_path, holds_suite=True, files=(Path("kernel.py"),))
    before = source_digest(named)
    assert before != source_digest(Repository(tmp_path))
    kernel.write_text("def attend(q, k, v): return q\n")
    assert source_digest(named) != before


def test_a_file_that_git_does_not_track_is_an_uncommitted_change(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").touch()
    named = Repository(tmp_path, holds_suite=False, files=(Path("kernel.py"),))
    assert names_untracked(named), "no repository at all"
    git(tmp_path, "init", "-q")
    assert names_untracked(named)
    git(tmp_path, "add", "kernel.py")
    assert not names_untracked(named)
    assert not names_untracked(Repository(tmp_path))
