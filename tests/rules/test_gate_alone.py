"""One gate at a time on a machine, and nothing stays of one that was killed."""

import os
import tempfile
from pathlib import Path

import pytest

from perf_tests.interleaved.sides import TREES, BesideAnotherError, TreeError, alone


@pytest.fixture(autouse=True)
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
