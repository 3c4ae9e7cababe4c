"""A machine with torch and little else: no network, no git repository, plugins of its own that must stay out."""

from pathlib import Path

import pytest

from perf_tests.bench.workers import inherited_environment
from perf_tests.interleaved.sides import TreeError, find_commit
from tests.support.forked_python import forked_python
from tests.support.git_repository import copy_suite
from tests.support.launch import SMALL, finish, start_command


def test_without_git_and_the_autoload_of_plugins_a_run_and_its_workers_measure(tmp_path: Path) -> None:
    """A copy of the suite that is no repository, in a process that loads only the plugins that it names."""
    copy_suite(tmp_path)
    suite = (forked_python(), "-m", "pytest", "perf_tests", "-p", "tests.support.quick_ceiling")
    chosen = (*SMALL, "--phase=forward", "--memory", "-k=not attention", "-p", "no:cacheprovider")
    process = start_command((*suite, *chosen), tmp_path, tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    bare = finish(process, tmp_path)
    assert bare.exit_code == 0, bare.output + bare.errors
    (record,) = bare.storage.glob(".benchmarks/*/*.json")
    assert record.stem == "0001_unversioned"
    assert "memory" in bare.output


def test_workers_keep_out_the_plugins_that_the_run_keeps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--exitfirst")
    environment = inherited_environment()
    assert environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
    assert "PYTEST_ADDOPTS" not in environment


def test_a_gate_outside_of_a_repository_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="needs a git repository"):
        find_commit(tmp_path, "main")
