"""A repository of its own that holds the suite, and git in it, for claims and tests."""

import shutil
import subprocess
from pathlib import Path

from tests.support.launch import ROOT


def copy_suite(folder: Path) -> None:
    """The suite as it is."""
    for name in ("model", "perf_tests", "tests/support"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml", ".gitignore", "tests/__init__.py"):
        shutil.copy(ROOT / name, folder / name)


def make_repository(folder: Path) -> Path:
    """The suite as it is, committed as `main`."""
    copy_suite(folder)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    ended = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return ended.stdout.rstrip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "a state")
