"""This tree gated against the oldest commit whose model these benchmarks still measure, from before the rooms."""

import re
import subprocess
from pathlib import Path

import pytest

from perf_tests.meta_tests.forked_python import forked_python
from perf_tests.meta_tests.git_repository import git, make_repository
from perf_tests.meta_tests.launch import ROOT, finish, start_command

OLDEST = "a554965"
ONE_CASE = (
    "perf_tests/test_attention.py", "-k=d16-seq256-fp32-naive and forward", "--device=cpu", "--threads=1",
    "--warmup-rounds=1", "-p", "perf_tests.meta_tests.quick_gate", "-p", "no:cacheprovider",
)  # fmt: skip


@pytest.fixture
def with_history(tmp_path: Path) -> Path:
    """The suite as it is, committed on top of the history of this checkout."""
    found = subprocess.run(["git", "cat-file", "-e", f"{OLDEST}^{{commit}}"], cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"{OLDEST} is not in this clone: fetch the whole history to gate against it")
    git(tmp_path, "clone", "-q", "--shared", "--no-checkout", str(ROOT), "suite")
    return make_repository(tmp_path / "suite")


def test_the_gate_still_judges_this_tree_against_its_oldest_base(with_history: Path) -> None:
    command = (forked_python(), "-m", "pytest", *ONE_CASE, "--against", OLDEST, "-v")
    ended = finish(start_command(command, with_history, with_history), with_history / ".benchmarks")

    assert ended.exit_code == 0, ended.output + ended.errors
    case = re.escape("test_attention_forward[d16-seq256-fp32-naive]")
    assert re.search(rf"{case} (OK|UNDECIDED|FASTER)", ended.output), ended.output
