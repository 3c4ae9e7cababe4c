"""git in the repository of what is under test."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

OF_GIT = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
"""Variables by which a git that started this process, for a hook, names a repository, perhaps another one."""


def run_git(
    folder: Path, *words: str, given: str = "", errors: str = "surrogateescape", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run git in `folder`, without hooks, which are for the user's own checkouts.

    Names of files need be no UTF-8: by default what is none comes back as Python's file names have it.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in OF_GIT}
    return subprocess.run(
        ["git", "-c", f"core.hooksPath={os.devnull}", *words],
        cwd=folder, env={**inherited, "LC_ALL": "C", **variables}, capture_output=True,
        encoding="utf-8", errors=errors, input=given,
    )  # fmt: skip


def lacks(root: Path, files: Sequence[Path]) -> bool:
    """Whether git does not know one of these files, as where there is no git."""
    try:
        return bool(files) and run_git(root, "ls-files", "--error-unmatch", "--", *map(str, files)).returncode != 0
    except OSError:
        return True
