"""A fresh checkout stays light: raw rounds of experiments are in the history, and conclusions in a compact file."""

import subprocess

import pytest

from tests.support.launch import ROOT

MOST_BYTES = 9_100_000
BLOCK_BYTES = 4096
LARGEST_FILE_BYTES = 720_000
"""The gate's trials, and the record that README, docs and most tests read."""


def test_tracked_files_take_less_than_nine_megabytes_and_a_tenth_on_a_disk() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git repository here, so nothing says which files are the checkout's")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    sizes = {path.relative_to(ROOT): path.stat().st_size for path in paths if path.is_file()}
    assert sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes.values()) < MOST_BYTES
    assert [path for path, size in sizes.items() if size > LARGEST_FILE_BYTES] == []
    at_the_top = {path.name for path in sizes if len(path.parts) == 1}
    assert at_the_top == {
        ".gitignore",
        "Makefile",
        "README.md",
        "conftest.py",
        "constraints.txt",
        "pyproject.toml",
        "pytest_perf_tests.py",
    }
