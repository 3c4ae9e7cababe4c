"""Exact counters as a user runs them, in a copy of the suite."""

import re
import subprocess
from pathlib import Path

from tests.support.forked_python import forked_python

COUNTERS_FOLDER = "perf_tests/predict/exact_counters"
ONE_CASE = ("perf_tests/test_counters.py", "-k", "d16-seq256-fp32-naive", "-q", "-p", "no:cacheprovider")


def run(clone: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [forked_python(), "-m", "pytest", *ONE_CASE, *more]
    return subprocess.run(words, cwd=clone, capture_output=True, text=True)


def test_a_planted_copy_fails_until_it_is_accepted(clone: Path) -> None:
    source, (ledger,) = clone / "model/attention.py", (clone / COUNTERS_FOLDER).glob("torch-*[0-9].csv")
    assert run(clone).returncode == 0
    source.write_text(source.read_text().replace("q_BHTK @ k_BHTK", "q_BHTK.clone() @ k_BHTK"))
    failed, updated, accepted = (run(clone, *more) for more in ((), ("--update-counters",), ()))
    assert [ended.returncode for ended in (failed, updated, accepted)] == [1, 0, 0]
    assert "attention_forward d16-seq256-fp32-naive: kernel_launches 12 -> 13 (+1)" in failed.stdout
    assert re.search(rf"accept it with .*--update-counters` and commit {ledger.name}\.", failed.stdout)
    assert "kernel_launches 12 -> 13 (+1)" in updated.stdout


def test_a_broken_ledger_is_a_usage_error_and_without_one_the_counters_are_shown(clone: Path) -> None:
    (path,) = (clone / COUNTERS_FOLDER).glob("torch-*[0-9].csv")
    path.write_text("phase,id\n")
    broken = run(clone)
    path.unlink()
    without = run(clone)
    assert list((clone / COUNTERS_FOLDER).glob("torch-*[0-9].csv")) == []
    assert broken.returncode == 4
    assert "is not a ledger" in broken.stdout + broken.stderr
    for words in ("1 skipped", "kernel_launches 1", "has no ledger", "record one with"):
        assert words in without.stdout
