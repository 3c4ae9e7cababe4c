"""The clone in which commits are tried: nothing is written to the user's repository, and a kill cannot change it."""

import os
import shutil
import subprocess
from pathlib import Path

from perf_tests.bisection.task import Task
from perf_tests.paired.needed_files import LEFT_OUT, MEASURING_CODE
from perf_tests.paired.trees import Commit, copy_measuring_code


class SearchError(Exception):
    """The search cannot go on; the message is one sentence."""


def cloned(root: Path, commit: Commit, folder: Path) -> Path:
    """The suite's folder in a clone of the repository of `root`, which shares its objects and has no files yet.

    Raises SearchError.
    """
    top = git(root, "rev-parse", "--show-toplevel")
    git(folder, "clone", "--quiet", "--shared", "--no-checkout", top, "clone")
    (clone := folder / "clone" / commit.prefix).mkdir(parents=True, exist_ok=True)
    return clone


def check_out(task: Task, commit: str) -> None:
    """The commit in the clone, with the measuring code of the user's working tree, and nothing accepted.

    Raises SearchError and OSError.
    """
    clone = Path(task.clone)
    git(clone, "checkout", "--quiet", "--force", "--detach", commit)
    git(Path(git(clone, "rev-parse", "--show-toplevel")), "clean", "--quiet", "-ffdx")
    clone.mkdir(parents=True, exist_ok=True)
    copy_measuring_code(Path(task.root), clone)
    shutil.rmtree(clone / ".benchmarks", ignore_errors=True)


def has_the_same_code(task: Task, commit: str, other: str) -> bool:
    """Whether the two differ in nothing that a benchmark runs."""
    is_ours = not any(word.startswith("--model") for word in task.options)
    passed_over = [f":(exclude){name}" for name in (*MEASURING_CODE, *(LEFT_OUT if is_ours else ()))]
    return _run(Path(task.clone), "diff", "--quiet", other, commit, "--", ".", *passed_over).returncode == 0


def subject_of(clone: Path, commit: str) -> str:
    return git(clone, "log", "-1", "--format=%s", commit)


def git(folder: Path, *words: str) -> str:
    """What it prints. Raises SearchError with its last line."""
    ended = _run(folder, *words)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"it exited with {ended.returncode}"]
        raise SearchError(f"git {words[0]} failed in {folder}: {lines[-1].rstrip('.')}.")
    return ended.stdout.strip()


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ("git", "-c", f"core.hooksPath={os.devnull}", *words)  # hooks are for the user's own checkouts
    return subprocess.run(command, cwd=folder, env={**environment(), "LC_ALL": "C"}, capture_output=True, text=True)


def environment() -> dict[str, str]:
    """This process's, without the variables of a git that started it, which name another repository."""
    of_git = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in of_git}
