"""How a run ends in time: which case still fits a limit, what a case that hangs becomes, what a signal waits for."""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession
from perf_tests_suite.perf_tests.bench.session import benchmark_of, session_of
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.records.journal import Journal
from perf_tests_suite.perf_tests.run import ends as run_ends
from perf_tests_suite.perf_tests.run.ends import TimeLimit, Timeout, eta, keep_ratio, kept_ratio, predicted_seconds
from perf_tests_suite.perf_tests.run.termination import TerminatedError, Termination
from tests.support.example_cases import CEILINGS, CPU, SETTINGS, attention_case, language_model_case
from tests.support.items import benchmark, stash_of
from tests.support.synthetic import BACKWARD, header
from tests.support.synthetic import FORWARD as FORWARD_ID

DEVICE = CpuDevice(CPU)


TIMED_OUT, FAULT = "Timeout (0:00:01)!", "Fatal Python error: Segmentation fault"
DEATHS: list[tuple[int, str | None, str | None]] = [
    # how often the process died in a case, what it said last, and the outcome
    (0, TIMED_OUT, None),  # of a case of another run
    (1, None, None),
    (2, None, "process_died"),
    (2, FAULT, "process_died"),
    (1, TIMED_OUT, "timed_out"),
]


@pytest.mark.parametrize("deaths, last_words, outcome", DEATHS)
def test_a_case_that_killed_it_is_tried_once_more(
    deaths: int,
    last_words: str | None,
    outcome: str | None,
    measuring: MeasuringSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contents = measuring.contents
    for _ in range(deaths):
        contents.add("started", FORWARD_ID)
    contents.out_of_time = last_words == TIMED_OUT
    contents.fatal_error = None if contents.out_of_time else last_words
    monkeypatch.setattr(Journal, "log_crashes", keep := Mock())
    items = [benchmark(language_model_case(), "kernels", case_id) for case_id in (BACKWARD, FORWARD_ID)]
    spared = run_ends.quarantine(items, measuring, Outcome("process_died", "somehow"))
    assert [(row["outcome"], row["pass"]) for row in contents.outcomes] == ([(outcome, "kernels")] if outcome else [])
    assert spared == (items if outcome is None else items[:1])
    assert keep.called is (deaths == 1 and outcome is None), "for the one that is tried again"
    assert outcome != "process_died" or (last_words or "somehow") in contents.outcomes[0]["reason"]


class Played:
    """A run whose clock jumps by what each case takes, in seconds; the limit is ten minutes."""

    def __init__(self, predicted: dict[Any, float], clock: float = 0.0) -> None:
        self.clock = clock
        self.limit = TimeLimit(10, predicted.__getitem__, lambda item: predicted[item] > 0, lambda: self.clock)

    def play(self, seconds: dict[Any, float], timed_out: Any = None) -> list[Any]:
        ran = []
        for item, taken in seconds.items():
            benchmark_of(item).outcome = Outcome("timed_out", "it hung") if item is timed_out else None
            if self.limit.pytest_runtest_protocol(item) is None:
                ran.append(item)
                self.clock += taken
        return ran


FORWARD, BACKWARD_CASE, FORWARD_AGAIN, BACKWARD_AGAIN = (
    benchmark(language_model_case(phase=phase)) for phase in ("forward", "backward", "forward", "backward")
)
KERNELS = benchmark(language_model_case(), "kernels")
TEN = dict.fromkeys((FORWARD, BACKWARD_CASE, FORWARD_AGAIN, BACKWARD_AGAIN, KERNELS), 10.0)
SLOW = {FORWARD: 10.0, BACKWARD_CASE: 450.0}
"""The backward pass is far slower than predicted, the forward pass is not."""


RUNS: dict[str, tuple[dict[Any, float], dict[Any, float], float, int]] = {
    # seconds of each case, predictions that differ from ten, when the first begins, and how many run
    "just in time": ({FORWARD: 10, BACKWARD_CASE: 580, FORWARD_AGAIN: 10}, {}, 0, 3),
    "a second too late": ({FORWARD: 10, BACKWARD_CASE: 581, FORWARD_AGAIN: 10}, {}, 0, 2),
    "a slow case of another kind": ({**SLOW, FORWARD_AGAIN: 10}, {}, 0, 3),
    "a slow case of its kind": ({**SLOW, BACKWARD_AGAIN: 10}, {}, 0, 2),
    "none of its kind yet: the last case": ({FORWARD: 400, KERNELS: 10}, {}, 0, 1),
    "a pass counts like a case": ({FORWARD: 10, KERNELS: 10}, {KERNELS: 591}, 0, 1),
    "not tried": ({FORWARD: 599, BACKWARD_CASE: 0, FORWARD_AGAIN: 10}, {BACKWARD_CASE: 0}, 0, 2),
    "the first runs however long the start took": ({FORWARD: 10, BACKWARD_CASE: 10}, {}, 595, 1),
}


def test_a_run_ends_before_the_case_that_would_end_too_late() -> None:
    for name, (seconds, changed, began_at, runs) in RUNS.items():
        played = Played({**TEN, **changed}, began_at)
        assert played.play(seconds) == list(seconds)[:runs], name
        assert played.limit.is_reached is (runs < len(seconds))


def test_a_case_that_timed_out_says_nothing_of_the_next() -> None:
    seconds = {FORWARD: 10.0, BACKWARD_CASE: 400.0, BACKWARD_AGAIN: 10.0}
    assert Played(TEN).play(seconds) == [FORWARD, BACKWARD_CASE]
    assert Played(TEN).play(seconds, timed_out=BACKWARD_CASE) == list(seconds)


def test_a_limit_shorter_than_a_case_is_refused_with_the_longest_case_its_seconds_and_the_limit() -> None:
    unlimited = TimeLimit(float("inf"), Mock(), Mock(), Mock())
    unlimited.refuse_if_too_short([FORWARD])
    unlimited.predict.assert_not_called()  # type: ignore[attr-defined]  # which may have to measure first
    limit = Played({FORWARD: 592.0, KERNELS: 650.0, BACKWARD_CASE: 700.0}, clock=8.0).limit
    limit.refuse_if_too_short([FORWARD])
    with pytest.raises(pytest.UsageError, match=r"backward.* 700 s .*--time-limit 10 leaves 592 s.* more minutes"):
        limit.refuse_if_too_short([FORWARD, BACKWARD_CASE, KERNELS])


@pytest.mark.parametrize("typed", [{}, {"most_minutes": 3.0}])
def test_only_a_typed_limit_may_measure_ceilings(typed: dict[str, Any]) -> None:
    workbench = Mock(settings=SETTINGS, **{"ceilings_for.return_value": CEILINGS})
    limit = run_ends.time_limit_of(Mock(stash=stash_of(workbench=workbench, **typed)))
    ceilings = CEILINGS if typed else run_ends.NOMINAL["cpu"]
    assert limit.predict(FORWARD) == predicted_seconds(FORWARD, SETTINGS, ceilings)
    assert workbench.ceilings_for.called is bool(typed)


LONGER = {
    "compiling": (language_model_case(execution="compiled"), language_model_case()),
    "set-up": (language_model_case(phase="optimizer"), language_model_case(phase="forward_backward")),
    "size": (attention_case(sequence_length=4096), attention_case()),
    "compiled attention": (attention_case(attention="compiled"), attention_case()),
}


def test_a_prediction_holds_set_up_and_compiling() -> None:
    for name, cases in LONGER.items():
        seconds = [predicted_seconds(benchmark(case), SETTINGS, CEILINGS) for case in cases]
        assert seconds[0] > seconds[1] > 0, name


@pytest.fixture
def timeout() -> Timeout:
    """Gives a case a tenth of a second, and as long again to return."""
    session = Mock(**{"contents.header": header()})
    config = Mock(stash=stash_of(workbench=Mock(session=session)), **{"pluginmanager.getplugin.return_value": None})
    limit = Timeout(config, Mock(seconds=lambda item: 0.0), Mock())
    limit.least_seconds = limit.grace_seconds = 0.1
    return limit


def test_a_case_that_waits_for_ever_gets_its_outcome_and_the_next_one_runs(timeout: Timeout) -> None:
    item, handler = benchmark(language_model_case()), signal.getsignal(signal.SIGALRM)
    with pytest.raises(run_ends.TimedOutError), timeout.limited(item):
        threading.Event().wait(60)
    assert benchmark_of(item).outcome == Outcome("timed_out", "took longer than 0 s; 0 s were predicted.")
    time.sleep(0.2)
    timeout.end_process.assert_not_called()  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_case_of_twenty_times_its_prediction_is_left_alone(timeout: Timeout) -> None:
    timeout.predict = lambda item: 1.0
    session: Any = session_of(timeout.config).workbench.session
    assert timeout.limit_seconds(benchmark(language_model_case())) == 20
    with timeout.limited(benchmark(language_model_case())):
        time.sleep(0.3)
    session.journal.end_process_after.assert_called_once_with(20.2)
    timeout.end_process.assert_not_called()  # type: ignore[attr-defined]


def test_c_code_that_does_not_return_ends_the_process_with_the_outcome_in_the_journal(
    timeout: Timeout, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(run_ends.TimedOutError), timeout.limited(benchmark(language_model_case())):
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)  # a second in which Python raises nothing
    timeout.end_process.assert_called_once_with(2)  # type: ignore[attr-defined]
    session: Any = session_of(timeout.config).workbench.session
    assert session.not_measured.call_args.args[2].outcome == "timed_out"
    assert "this process ends; resume with `pytest" in capfd.readouterr().err


@pytest.mark.usefixtures("cache")
def test_the_next_run_is_as_much_slower_than_predicted_as_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {0.5: "1 s", 89.0: "89 s", 90.0: "2 min", 150.0: "2 min"}
    first = [eta({"a": seconds}, DEVICE) for seconds in words]
    assert first == [
        f"1 case, about {said} (rough: a first run here also measures ceilings)" for said in words.values()
    ]
    keep_ratio(DEVICE, measured_seconds=300.0, predicted=60.0)
    next_one = [eta({"a": seconds / 10, "b": seconds / 10}, DEVICE) for seconds in words]
    assert next_one == [f"2 cases, about {said}" for said in words.values()]
    monkeypatch.setattr(run_ends, "kept_ceilings", lambda device: None)
    predicted = run_ends.predicted_here([FORWARD, Mock(stash=pytest.Stash())], Mock(settings=SETTINGS, device=DEVICE))
    assert predicted == {FORWARD.nodeid: predicted_seconds(FORWARD, SETTINGS)}


@pytest.mark.usefixtures("cache")
def test_a_pace_of_little_work_or_without_sense_is_not_kept() -> None:
    for measured, predicted in ((9.9, 9.9), (100.0, 0.0), (1e9, 1.0), (10.0, 1e5)):
        keep_ratio(DEVICE, measured, predicted)
        assert kept_ratio(DEVICE) is None, (measured, predicted)
    keep_ratio(DEVICE, 10.0, 10.0)
    assert kept_ratio(DEVICE) == 1.0


def test_a_file_that_is_broken_or_of_another_machine_is_no_pace(cache: Path) -> None:
    keep_ratio(DEVICE, 100.0, 50.0)
    assert kept_ratio(DEVICE) == 2.0
    (path,) = cache.rglob("pace-cpu.json")
    data = json.loads(path.read_text())
    changed = {**data, "identity": {**data["identity"], "cpu": "another"}}, {**data, "pace": 1e99}
    broken = ("", "[]", '{"pace": 2}', '{"pace": "x", "identity": {}}', "[" * 9999)
    for content in (*broken, *map(json.dumps, changed)):
        path.write_text(content)
        assert kept_ratio(DEVICE) is None, content[:99]


@pytest.mark.usefixtures("cache")
def test_ranks_have_their_own_pace_and_a_cache_that_cannot_be_written_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_ratio(DEVICE, 100.0, 50.0)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert kept_ratio(DEVICE) is None
    keep_ratio(DEVICE, 300.0, 50.0)
    assert kept_ratio(DEVICE) == 6.0
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert kept_ratio(DEVICE) == 2.0
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    keep_ratio(DEVICE, 100.0, 50.0)
    assert kept_ratio(DEVICE) is None


@pytest.fixture
def termination() -> Iterator[Termination]:
    """Handles SIGTERM during the test."""
    termination = Termination()
    before = signal.signal(signal.SIGTERM, termination.note)
    yield termination
    signal.signal(signal.SIGTERM, before)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_a_model_catches_ends_the_run_before_the_next_case(termination: Termination) -> None:
    termination.pytest_runtest_protocol()
    with suppress(BaseException):
        kill()
    with pytest.raises(TerminatedError, match="SIGTERM has ended the run"):
        termination.pytest_runtest_protocol()
    kill()  # later ones do not disturb the clean-up


def test_a_signal_waits_until_the_journal_is_open(termination: Termination) -> None:
    opened = []

    def open_journal() -> None:
        with termination.waiting():
            kill()
            opened.append("journal")

    with pytest.raises(TerminatedError):
        open_journal()
    assert opened
    with Termination().waiting():
        pass


@pytest.mark.parametrize("has_loop", [True, False])
def test_a_signal_after_the_last_case_waits_until_everything_is_saved_and_tells_in_the_exit_code(
    has_loop: bool, termination: Termination
) -> None:
    session = Mock(exitstatus=0)
    steps = [*([termination.pytest_runtestloop()] if has_loop else []), termination.pytest_sessionfinish(session)]
    for step in steps:
        next(step)
        if step is steps[-1]:
            kill()
        with pytest.raises(StopIteration):
            step.send(None)
    assert session.exitstatus == 143
