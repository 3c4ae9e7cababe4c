"""A case that hangs: an error where Python runs again, the end of the process where it does not."""

import hashlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests.bench.session import noted, session_of
from perf_tests.records.journal import Journal, read_journal
from perf_tests.run.ends import TimedOutError, Timeout, quarantine
from tests.stories.test_runs_memory import worker_in, write_worker
from tests.support.example_cases import language_model_case
from tests.support.items import benchmark, stash_of
from tests.support.launch import ALL_THREE, MODELS, THREE_CASES, launch
from tests.support.synthetic import BACKWARD, FORWARD, header, timed


@pytest.fixture
def timeout() -> Timeout:
    session = Mock()
    session.contents.header = header()
    config = Mock(stash=stash_of(workbench=Mock(session=session)))
    config.pluginmanager.getplugin.return_value = None
    limit = Timeout(config, Mock(), Mock())
    limit.least_seconds = limit.grace_seconds = 0.1
    limit.predict = lambda item: 0.0
    return limit


def test_a_case_that_waits_for_ever_gets_its_outcome_and_the_next_one_runs(timeout: Timeout) -> None:
    item, handler = benchmark(language_model_case()), signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimedOutError), timeout.limited(item):
        threading.Event().wait(60)
    assert noted(item).outcome.in_words == "timed out: took longer than 0 s; 0 s were predicted."
    time.sleep(0.2)
    timeout.end_process.assert_not_called()  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_case_of_twenty_times_its_prediction_is_left_alone(timeout: Timeout) -> None:
    timeout.predict = lambda item: 1.0
    with timeout.limited(benchmark(language_model_case())):
        time.sleep(0.3)


def test_c_code_that_does_not_return_ends_the_process_with_the_outcome_in_the_journal(
    timeout: Timeout, capfd: pytest.CaptureFixture[str]
) -> None:
    item = benchmark(language_model_case())
    with pytest.raises(TimedOutError), timeout.limited(item):
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)  # a second in which Python raises nothing
    timeout.end_process.assert_called_once_with(2)  # type: ignore[attr-defined]
    session: Any = session_of(timeout.config).workbench.session
    assert session.not_measured.call_args.args[2].outcome == "timed_out"
    assert "It does not return, so this process ends; resume with `pytest" in capfd.readouterr().err


def test_a_run_goes_on_after_a_case_that_hangs(tmp_path: Path) -> None:
    impatient = ("-p", "tests.support.impatient_at_16")
    hung = launch(
        tmp_path, f"--model={MODELS}:WaitsAt16", *THREE_CASES, *impatient, PLANTED_GATE=str(tmp_path / "never")
    )
    assert hung.exit_code == 1
    assert hung.measured.keys() | hung.outcomes.keys() == ALL_THREE
    assert hung.outcomes["test_forward[tiny-ctx16-fp32-own]"]["outcome"] == "timed_out"
    assert hung.journals == []


ECHO = """
import json, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
for task in end.makefile("rb"):
    time.sleep(json.loads(task)["seconds"])
    end.sendall(task)
"""


def test_what_a_worker_answers_once_the_time_of_its_case_is_up_is_not_taken_for_the_answer_of_the_next(
    timeout: Timeout, tmp_path: Path
) -> None:
    write_worker(tmp_path, ECHO)
    with worker_in(tmp_path) as worker:
        assert worker.ask({"seconds": 0}) == {"seconds": 0}
        with pytest.raises(TimedOutError), timeout.limited(benchmark(language_model_case())):
            worker.ask({"seconds": 1})
        assert worker.ask({"seconds": 0}) == {"seconds": 0}


HOLDS_PYTHON = """
import sys, re
from pathlib import Path
from typing import Any
from tests.support.synthetic import FORWARD, BACKWARD, header, timed
from perf_tests.records.journal import Journal
journal = Journal.create(Path(sys.argv[1]), header([FORWARD, BACKWARD]))
journal.write("benchmark", timed(BACKWARD))
journal.write("started", FORWARD)
journal.end_process_after(0.1)
re.match("(a*)*b", "a" * 99)  # keeps the interpreter to itself
"""


def test_a_process_that_could_not_even_end_itself_tells_the_next_one(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", HOLDS_PYTHON, str(tmp_path)], timeout=60)
    assert ended.returncode == 1
    (path,) = tmp_path.glob("journal-*")
    contents, journal = read_journal(path), Journal.reopen(path)
    assert contents is not None
    assert journal is not None
    session = MeasuringSession(journal, contents, Progress(None))
    assert quarantine([benchmark(language_model_case(), nodeid=FORWARD)], session) == []
    journal.close()
    again = read_journal(path)
    assert again is not None
    assert [row["outcome"] for row in again.outcomes] == ["timed_out"]
    assert again.benchmarks == [timed(BACKWARD)]
