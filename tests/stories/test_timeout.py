"""A case that hangs, seen from outside: the run goes on, or the next one learns of it. Two launches."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests.records.journal import Journal, read_journal
from perf_tests.run.ends import TimedOutError, quarantine
from tests.stories.test_passes import worker_in, write_worker
from tests.support.example_cases import language_model_case
from tests.support.items import benchmark
from tests.support.launch import ALL_THREE, MODELS, THREE_CASES, launch
from tests.support.synthetic import BACKWARD, FORWARD, timed


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
    tmp_path: Path,
) -> None:
    write_worker(tmp_path, ECHO)

    def raise_error(number: int, frame: object) -> None:
        raise TimedOutError

    before = signal.signal(signal.SIGALRM, raise_error)
    try:
        with worker_in(tmp_path) as worker:
            assert worker.ask({"seconds": 0}) == {"seconds": 0}
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(TimedOutError):
                worker.ask({"seconds": 1})
            assert worker.ask({"seconds": 0}) == {"seconds": 0}
    finally:
        signal.signal(signal.SIGALRM, before)


HOLDS_PYTHON = """
import sys, re
from pathlib import Path
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
