"""No worker outlives the run, whatever ends that; what one answers too late, or can no longer say, is not mixed up.

Nine processes that import no suite, but for workers.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import cast

import pytest

from perf_tests_suite.perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests_suite.perf_tests.bench.workers import WorkerProcess, start_worker
from perf_tests_suite.perf_tests.records.journal import Journal
from perf_tests_suite.perf_tests.run import ends, termination
from tests.stories.test_passes import worker_in, write_worker
from tests.support.example_cases import language_model_case
from tests.support.items import benchmark
from tests.support.launch import ROOT, contents_of, inherited, until
from tests.support.orphans import VARIABLE, orphans
from tests.support.synthetic import BACKWARD, FORWARD, timed

HANGS = """
import time
from perf_tests_suite.perf_tests.bench.workers import end_with_starter
end_with_starter()
print(1, flush=True)
time.sleep(600)
"""
"""Never answers, and ends with its starter whatever ends that."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    (tmp_path / "hangs.py").write_text(HANGS.replace("print(1, flush=True)", ""))
    worker = start_worker("hangs", tmp_path, {**os.environ, "PYTHONPATH": str(ROOT)})
    yield worker
    worker.end()


@contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.signal(number, handler)
    yield
    signal.signal(number, before)


def test_a_process_ends_with_its_starter_and_not_with_the_thread_that_started_it() -> None:
    """The kernel tells of a thread's end before it closes the process's pipes, and to the process alone, not its group:
    a killed search of several threads left its gate running."""
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command, pipe = [sys.executable, "-c", HANGS], subprocess.PIPE
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


def test_sigterm_ends_the_wait_for_a_worker_once_and_not_the_worker(worker: WorkerProcess) -> None:
    """Otherwise its death would be the outcome of a case."""
    cleaned_up = []

    def wait() -> None:
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            worker.receive(patience_seconds=60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # once more, which must not disturb this
            worker.process.terminate()
            cleaned_up.append(worker)

    with handling(signal.SIGTERM, termination.Termination().note), pytest.raises(termination.TerminatedError):
        wait()
    assert cleaned_up
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(timeout=0.2)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM}, "of this process"


IGNORES_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from perf_tests_suite.perf_tests.run.termination import end_at_once_when_signalled
end_at_once_when_signalled()
print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
signal.raise_signal(signal.SIGINT)
signal.raise_signal(signal.SIGTERM)
"""


def test_what_a_shell_starts_in_the_background_still_ignores_ctrl_c_and_sigterm_ends_it_at_once() -> None:
    ended = subprocess.run([sys.executable, "-uc", IGNORES_CTRL_C], cwd=ROOT, capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == ("True False\n", 143)


STARTER = """
import os, sys
from pathlib import Path
from perf_tests_suite.perf_tests.bench.workers import start_worker
start_worker("busy", Path.cwd(), os.environ)
sys.stdin.read()
"""
"""Ends with the test, which holds its standard input open, whatever ends that."""

BUSY = """
import os
from pathlib import Path
from perf_tests_suite.perf_tests.bench.workers import channel_of_worker
channel = channel_of_worker()
os.fork()
Path(f"worker-{os.getpid()}").touch()
while True:
    pass
"""


def test_a_worker_at_work_and_its_forks_end_at_once_when_the_run_is_killed(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    marked = inherited(PYTHONPATH=str(ROOT), **{VARIABLE: "a test of this"})
    with subprocess.Popen([sys.executable, "-c", STARTER], cwd=tmp_path, env=marked, stdin=subprocess.PIPE) as starter:
        until(lambda: len(list(tmp_path.glob("worker-*"))) == 2)
        running = orphans("a test of this", patience_seconds=0)
        starter.kill()
    assert len(running) == 3
    assert orphans("a test of this") == []


ECHO = """
import json, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
for task in end.makefile("rb"):
    time.sleep(json.loads(task)["seconds"])
    end.sendall(task)
"""


def test_what_a_worker_answers_too_late_is_not_taken_for_the_next_answer(tmp_path: Path) -> None:
    def raise_error(number: int, frame: object) -> None:
        raise ends.TimedOutError

    write_worker(tmp_path, ECHO)
    with handling(signal.SIGALRM, raise_error), worker_in(tmp_path) as worker:
        assert worker.ask({"seconds": 0}) == {"seconds": 0}
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ends.TimedOutError):
            worker.ask({"seconds": 1})
        assert worker.ask({"seconds": 0}) == {"seconds": 0}


HOLDS_PYTHON = """
import sys, re
from pathlib import Path
from tests.support.synthetic import FORWARD, BACKWARD, header, timed
from perf_tests_suite.perf_tests.records.journal import Journal
journal = Journal.create(Path(sys.argv[1]), header([FORWARD, BACKWARD]))
journal.write("benchmark", timed(BACKWARD))
journal.write("started", FORWARD)
journal.end_process_after(0.1)
re.match("(a*)*b", "a" * 99)  # keeps the interpreter to itself
"""


def test_a_process_that_could_not_even_end_itself_tells_the_next_one(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", HOLDS_PYTHON, str(tmp_path)], timeout=60).returncode == 1
    (path,) = tmp_path.glob("journal-*")
    contents, journal = contents_of(path), cast(Journal, Journal.reopen(path))
    item = benchmark(language_model_case(), nodeid=FORWARD)
    assert ends.quarantine([item], MeasuringSession(journal, contents, Progress(None))) == []
    journal.close()
    again = contents_of(path)
    assert ([row["outcome"] for row in again.outcomes], again.benchmarks) == (["timed_out"], [timed(BACKWARD)])
