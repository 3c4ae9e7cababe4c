"""SIGTERM: from a scheduler to one process or to all of them; no worker outlives the run."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.run.termination import TERMINATED, TerminatedError, interrupted_by_sigterm
from perf_tests.workers.process import WorkerProcess, start_worker


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """It never answers."""
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    worker = start_worker("hangs", tmp_path, os.environ)
    yield worker
    worker.end()


@pytest.fixture
def config() -> Mock:
    return Mock(stash=pytest.Stash())


def test_sigterm_ends_the_wait_for_a_worker_and_the_handler_is_restored(worker: WorkerProcess, config: Mock) -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned_up = []

    def wait() -> None:
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            worker.receive(patience_seconds=60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # once more, which must not disturb this
            cleaned_up.append(worker)

    with pytest.raises(TerminatedError), interrupted_by_sigterm(config):
        wait()
    assert cleaned_up
    assert config.stash[TERMINATED]
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_installed_outside_of_the_run(config: Mock) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupted_by_sigterm(config):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert TERMINATED not in config.stash


def test_a_worker_leaves_its_end_to_the_run_that_started_it(worker: WorkerProcess) -> None:
    """Otherwise its death would be the outcome of a case."""
    worker.process.terminate()
    time.sleep(0.1)
    assert worker.process.poll() is None
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM}, "of this process"
