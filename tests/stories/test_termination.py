"""Ctrl-C and SIGTERM, to one process or to all of them; no worker outlives the run, whatever ends that."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.bench.workers import WorkerProcess, start_worker
from perf_tests.run.termination import TerminatedError, Termination
from tests.support.launch import ROOT, inherited


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """It never answers, and ends with this process whatever ends that."""
    program = (
        "import time\nfrom perf_tests.bench.workers import end_with_starter\nend_with_starter()\ntime.sleep(600)\n"
    )
    (tmp_path / "hangs.py").write_text(program)
    worker = start_worker("hangs", tmp_path, {**os.environ, "PYTHONPATH": str(ROOT)})
    yield worker
    worker.end()


@pytest.fixture
def termination(monkeypatch: pytest.MonkeyPatch) -> Iterator[Termination]:
    """Handles SIGTERM during the test."""
    termination = Termination()
    before = signal.signal(signal.SIGTERM, termination.note)
    yield termination
    signal.signal(signal.SIGTERM, before)


def test_a_process_ends_with_its_starter_and_not_with_the_thread_that_started_it() -> None:
    """The kernel tells of a thread's end before it closes the process's pipes, and to the process alone, not its group:
    a killed search of several threads left its gate running."""
    program = (
        "import time; from perf_tests.bench.workers import end_with_starter; "
        "end_with_starter(); print(1, flush=True); time.sleep(600)"
    )
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command, pipe = [sys.executable, "-c", program], subprocess.PIPE
        process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, process_group=0)
        begun.append(process)
        assert process.stdout is not None
        process.stdout.readline()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with begun[0] as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL


def test_sigterm_ends_the_wait_for_a_worker_once(worker: WorkerProcess, termination: Termination) -> None:
    cleaned_up = []

    def wait() -> None:
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            worker.receive(patience_seconds=60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # once more, which must not disturb this
            cleaned_up.append(worker)

    with pytest.raises(TerminatedError):
        wait()
    assert cleaned_up


def test_a_signal_that_a_model_catches_ends_the_run_before_the_next_case(termination: Termination) -> None:
    with suppress(BaseException):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(TerminatedError, match="SIGTERM has ended the run"):
        termination.pytest_runtest_protocol()


def test_a_signal_waits_until_the_journal_is_open(termination: Termination) -> None:
    opened = []

    def open_journal() -> None:
        with termination.waiting():
            os.kill(os.getpid(), signal.SIGTERM)
            opened.append("journal")

    with pytest.raises(TerminatedError):
        open_journal()
    assert opened


def test_a_signal_after_the_last_case_waits_until_everything_is_saved_and_tells_in_the_exit_code(
    termination: Termination,
) -> None:
    loop = termination.pytest_runtestloop()
    next(loop)
    with pytest.raises(StopIteration):
        loop.send(None)
    os.kill(os.getpid(), signal.SIGTERM)
    saving = termination.pytest_sessionfinish(session := Mock(exitstatus=0))
    next(saving)
    with pytest.raises(StopIteration):
        saving.send(None)
    assert session.exitstatus == 143


def test_a_worker_leaves_its_end_to_the_run_that_started_it(worker: WorkerProcess) -> None:
    """Otherwise its death would be the outcome of a case."""
    worker.process.terminate()
    time.sleep(0.1)
    assert worker.process.poll() is None
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM}, "of this process"


STARTER = """
import os, sys
from pathlib import Path
from perf_tests.bench.workers import start_worker
start_worker("busy", Path.cwd(), os.environ)
sys.stdin.read()
"""
"""Ends with the test, which holds its standard input open, whatever ends that."""

BUSY = """
import os
from pathlib import Path
from perf_tests.bench.workers import channel_of_worker
channel = channel_of_worker()
os.fork()
Path(f"worker-{os.getpid()}").touch()
while True:
    pass
"""


def test_a_worker_at_work_and_its_forks_end_at_once_when_the_run_is_killed(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    variables = inherited(PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], cwd=tmp_path, env=variables, stdin=subprocess.PIPE
    ) as starter:
        try:
            assert wait_until(lambda: len(list(tmp_path.glob("worker-*"))) == 2, seconds=60)
        finally:
            starter.kill()
    workers = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
    assert wait_until(lambda: not any(map(is_running, workers)), seconds=5)


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()


def is_running(process: int) -> bool:
    """Not a zombie, which nobody may have waited for yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
