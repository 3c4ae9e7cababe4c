"""Tests of the tools measure nothing, and may share the machine: one thread each. What they start ends with them."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `tests` and `claims` are found there alone

from perf_tests_suite.perf_tests.__main__ import main
from tests.support.forked_python import close_forked_python, forked_python
from tests.support.git_repository import git, make_repository
from tests.support.launch import Verb
from tests.support.orphans import mark, orphans

mark(os.environ)
for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
    del os.environ[name]  # what a test starts is no worker of this run, and pytest-benchmark would measure nothing


_sessions: list[pytest.Session] = []
"""The session of this process, and within it those of tests that call pytest."""


def pytest_sessionstart(session: pytest.Session) -> None:
    _sessions.append(session)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the lane, and end what is left, where a process that a test started outlives all tests."""
    if _sessions.pop() is not session or _sessions:
        return
    close_forked_python()
    if "perf_tests_suite.numerics_tests.harness.rank_pool" in sys.modules:
        sys.modules["perf_tests_suite.numerics_tests.harness.rank_pool"].POOL.stop()
    left = orphans(str(os.getpid()))
    for process in left:
        os.kill(int(process.partition(" ")[0]), signal.SIGKILL)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nLeft running by tests, and ended now: {'; '.join(left)}", file=sys.__stderr__)


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


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Type a verb in this process."""

    def typed(*words: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:  # of argparse
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return typed


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process starts as `sys.executable` is forked with torch imported."""
    monkeypatch.setattr(sys, "executable", forked_python())
