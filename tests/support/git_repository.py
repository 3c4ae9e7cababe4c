"""A repository of its own that holds the suite, and git in it, for claims and tests."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.launch import ROOT


def copy_suite(folder: Path) -> None:
    """The suite as it is."""
    for name in ("model", "perf_tests", "tests/support"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pytest_perf_tests.py", "pyproject.toml", ".gitignore", "tests/__init__.py"):
        shutil.copy(ROOT / name, folder / name)


def make_repository(folder: Path) -> Path:
    """The suite as it is, committed as `main`."""
    copy_suite(folder)
    commit(folder)
    return folder


def git(folder: Path, *words: str, date: str = "") -> str:
    """What git prints; `date` is that of a commit."""
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    when = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), date) if date else {}
    ended = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, **when}
    )
    return ended.stdout.rstrip()


def commit(folder: Path) -> None:
    """Commit all that is there; the folder becomes a repository where it is none."""
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "a state")
