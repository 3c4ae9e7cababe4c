"""A machine with torch and little else: no network, no git repository, plugins of its own that must stay out."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from perf_tests.bench.workers import inherited_environment
from perf_tests.interleaved.sides import TreeError, find_commit
from tests.support.forked_python import forked_python
from tests.support.git_repository import copy_suite
from tests.support.launch import ROOT, SMALL, Launch, finish, start_command


def distributions(lines: list[str]) -> set[str]:
    """Names of distributions, without versions."""
    return {found[0] for line in lines if (found := re.match(r"[\w-]+", line))}


def test_every_dependency_has_the_exact_version_that_make_wheels_packs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = distributions([*project["dependencies"], *project["optional-dependencies"]["nvidia"]])
    assert needed <= distributions((ROOT / "constraints.txt").read_text().splitlines())


def test_of_the_dependencies_make_wheels_leaves_out_torch_alone() -> None:
    (left_out,) = re.findall(r"sed -E '/\^\(#\|(.*)=\)/d' constraints\.txt", (ROOT / "Makefile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = distributions([*project["dependencies"], *project["optional-dependencies"]["nvidia"]])
    assert needed & set(left_out.split("=|")) == {"torch"}


def test_another_torch_is_installed_into_a_folder_of_its_own_and_pinned_by_nothing_else() -> None:
    make = ["make", "--dry-run", "--always-make", "test-suites", "TORCH=2.11.0"]
    planned = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".venv-2.11.0/bin/pytest perf_tests" in planned
    assert ".venv/" not in planned
    assert "sed '/^torch==/d' constraints.txt" in planned


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A copy of the suite that is no repository, in a process that loads only the plugins that it names."""
    tree = tmp_path_factory.mktemp("bare")
    copy_suite(tree)
    suite = (forked_python(), "-m", "pytest", "perf_tests", "-p", "tests.support.quick_ceiling")
    chosen = (*SMALL, "--phase=forward", "--memory", "-k=not attention", "-p", "no:cacheprovider")
    return finish(start_command((*suite, *chosen), tree, tree, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"), tree)


def test_without_git_and_the_autoload_of_plugins_a_run_and_its_workers_measure(bare: Launch) -> None:
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
