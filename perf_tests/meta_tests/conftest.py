"""Tests of the tools measure nothing, and may share the machine: one thread each."""

from pathlib import Path

import pytest
import torch

from perf_tests.meta_tests.git_repository import git, make_repository


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite in a repository of its own; clone it to change anything."""
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def clone(repository: Path, tmp_path: Path) -> Path:
    """A working tree to change."""
    git(tmp_path, "clone", "-q", str(repository), "clone")
    return tmp_path / "clone"
