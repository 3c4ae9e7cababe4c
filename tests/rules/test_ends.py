"""How a run ends in time: which case still fits a limit, what a case that hangs becomes, what kills no third time."""

import hashlib
import json
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests.bench.session import noted, session_of
from perf_tests.hardware.device import CpuDevice
from perf_tests.records.journal import Journal, JournalContents
from perf_tests.run import ends
from perf_tests.run.ends import (
    TimedOutError,
    TimeLimit,
    Timeout,
    eta,
    keep_pace,
    kept_pace,
    predicted_here,
    predicted_seconds,
    quarantine,
)
from tests.support.example_cases import CEILINGS, SETTINGS, attention_case, language_model_case
from tests.support.items import benchmark, stash_of
from tests.support.synthetic import BACKWARD, header
from tests.support.synthetic import FORWARD as FORWARD_ID

CPU = CpuDevice(torch.device("cpu"))


@pytest.mark.parametrize(
    "deaths, last_words, outcome",
    [
        pytest.param(1, None, None, id="once"),
        pytest.param(2, None, "process_died", id="twice"),
        pytest.param(2, "Fatal Python error: Segmentation fault", "process_died", id="twice, and it said of what"),
        pytest.param(1, "Timeout (0:00:01)!", "timed_out", id="once, as it did not return in time"),
    ],
)
def test_a_case_that_killed_the_process_is_tried_again_once(
    deaths: int, last_words: str | None, outcome: str | None, tmp_path: Path
) -> None:
    journal = Journal.create(tmp_path, header([BACKWARD, FORWARD_ID]))
    contents = JournalContents(header([BACKWARD, FORWARD_ID]))
    for _ in range(deaths):
        journal.write("started", FORWARD_ID)
        contents.add("started", FORWARD_ID)
    contents.fatal_error = last_words if outcome == "process_died" else None
    contents.out_of_time = outcome == "timed_out"
    items = [benchmark(language_model_case(), nodeid=case_id) for case_id in (BACKWARD, FORWARD_ID)]
    spared = quarantine(items, MeasuringSession(journal, contents, Progress(None)), Outcome("process_died", "somehow"))
    journal.close()
    assert [row["outcome"] for row in contents.outcomes] == ([] if outcome is None else [outcome])
    assert spared == (items if outcome is None else items[:1])
    if outcome == "process_died":
        assert (last_words or "somehow") in contents.outcomes[0]["reason"]


@dataclass
class Played:
    """A run whose clock jumps by what each case takes, in seconds; the limit is ten minutes."""

    seconds: dict[Any, float]
    predicted: dict[Any, float]
    clock: float = 0.0
    timed_out: Any = None
    run: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit = TimeLimit(10, self.predicted.__getitem__, lambda item: self.predicted[item] > 0, self.now)

    def now(self) -> float:
        return self.clock

    def play(self) -> list[Any]:
        for item, seconds in self.seconds.items():
            noted(item).outcome = Outcome("timed_out", "it hung") if item is self.timed_out else None
            if self.limit.pytest_runtest_protocol(item) is None:
                self.run.append(item)
                self.clock += seconds
        return self.run


FORWARD, BACKWARD_CASE = (benchmark(language_model_case(phase=phase)) for phase in ("forward", "backward"))
FORWARD_AGAIN, BACKWARD_AGAIN = (benchmark(language_model_case(phase=p)) for p in ("forward", "backward"))
KERNELS = benchmark(language_model_case(), "kernels")
TEN = dict.fromkeys((FORWARD, BACKWARD_CASE, FORWARD_AGAIN, BACKWARD_AGAIN, KERNELS), 10.0)
SLOW = {FORWARD: 10.0, BACKWARD_CASE: 450.0}
"""The backward pass is far slower than predicted, the forward pass is not."""


@pytest.mark.parametrize(
    "seconds, changed, began_at, runs",
    [
        pytest.param({FORWARD: 10, BACKWARD_CASE: 580, FORWARD_AGAIN: 10}, {}, 0, 3, id="just in time"),
        pytest.param({FORWARD: 10, BACKWARD_CASE: 581, FORWARD_AGAIN: 10}, {}, 0, 2, id="a second too late"),
        pytest.param({**SLOW, FORWARD_AGAIN: 10}, {}, 0, 3, id="a slow case of another kind"),
        pytest.param({**SLOW, BACKWARD_AGAIN: 10}, {}, 0, 2, id="a slow case of its kind"),
        pytest.param({FORWARD: 400, KERNELS: 10}, {}, 0, 1, id="none of its kind yet: the last case"),
        pytest.param({FORWARD: 10, KERNELS: 10}, {KERNELS: 591}, 0, 1, id="a pass counts like a case"),
        pytest.param({FORWARD: 599, BACKWARD_CASE: 0, FORWARD_AGAIN: 10}, {BACKWARD_CASE: 0}, 0, 2, id="not tried"),
        pytest.param({FORWARD: 10, BACKWARD_CASE: 10}, {}, 595, 1, id="the first runs however long the start took"),
    ],
)
def test_a_run_ends_before_the_case_that_would_end_too_late(
    seconds: dict[Any, float], changed: dict[Any, float], began_at: float, runs: int
) -> None:
    played = Played(seconds, {**TEN, **changed}, clock=began_at)
    assert played.play() == list(seconds)[:runs]
    assert played.limit.is_reached is (runs < len(seconds))


def test_a_case_that_timed_out_says_nothing_of_the_next() -> None:
    seconds = {FORWARD: 10.0, BACKWARD_CASE: 400.0, BACKWARD_AGAIN: 10.0}
    assert Played(seconds, TEN).play() == [FORWARD, BACKWARD_CASE]
    assert Played(seconds, TEN, timed_out=BACKWARD_CASE).play() == list(seconds)


def test_a_limit_shorter_than_a_case_is_refused_with_its_name_its_seconds_and_the_limit() -> None:
    limit = Played({}, {FORWARD: 10.0, BACKWARD_CASE: 700.0}, clock=8.0).limit
    limit.refuse_if_too_short([FORWARD])
    with pytest.raises(pytest.UsageError, match=r"backward .* 700 s .*--time-limit 10 leaves 592 s.* more minutes"):
        limit.refuse_if_too_short([FORWARD, BACKWARD_CASE])


@pytest.mark.parametrize(
    "longer, shorter",
    [
        (language_model_case(execution="compiled"), language_model_case()),
        (language_model_case(phase="optimizer"), language_model_case(phase="forward_backward")),
        (attention_case(sequence_length=4096), attention_case()),
        (attention_case(attention="compiled"), attention_case()),
    ],
    ids=["compiling", "set-up", "size", "compiled attention"],
)
def test_a_prediction_holds_set_up_and_compiling(longer: Any, shorter: Any) -> None:
    seconds = [predicted_seconds(benchmark(case), SETTINGS, CEILINGS) for case in (longer, shorter)]
    assert seconds[0] > seconds[1] > 0


@pytest.fixture
def timeout() -> Timeout:
    """Gives a case a tenth of a second, and as long again to return."""
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
    assert noted(item).outcome == Outcome("timed_out", "took longer than 0 s; 0 s were predicted.")
    time.sleep(0.2)
    timeout.end_process.assert_not_called()  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_case_of_twenty_times_its_prediction_is_left_alone(timeout: Timeout) -> None:
    timeout.predict = lambda item: 1.0
    assert timeout.limit_seconds(benchmark(language_model_case())) == 20
    with timeout.limited(benchmark(language_model_case())):
        time.sleep(0.3)


def test_c_code_that_does_not_return_ends_the_process_with_the_outcome_in_the_journal(
    timeout: Timeout, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TimedOutError), timeout.limited(benchmark(language_model_case())):
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)  # a second in which Python raises nothing
    timeout.end_process.assert_called_once_with(2)  # type: ignore[attr-defined]
    session: Any = session_of(timeout.config).workbench.session
    assert session.not_measured.call_args.args[2].outcome == "timed_out"
    assert "this process ends; resume with `pytest" in capfd.readouterr().err


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_next_run_is_as_much_slower_than_predicted_as_the_last_one(cache: Path) -> None:
    predicted = {"a": 60.0, "b": 60.0}
    assert eta(predicted, CPU).startswith("2 cases, about 2 min, by round figures")
    keep_pace(CPU, measured_seconds=300.0, predicted=60.0)
    assert eta(predicted, CPU) == "2 cases, about 10 min"
    assert eta({"a": 0.5}, CPU) == "1 case, about 2 s"


@pytest.mark.parametrize("measured, predicted", [(1.0, 1.0), (100.0, 0.0), (1e9, 1.0)])
def test_a_pace_of_little_work_or_without_sense_is_not_kept(measured: float, predicted: float, cache: Path) -> None:
    keep_pace(CPU, measured, predicted)
    assert kept_pace(CPU) is None


@pytest.mark.parametrize(
    "content", ["", "[]", '{"pace": 2}', '{"pace": "x", "identity": {}}', "[" * 9999, "other", "nan"]
)
def test_a_file_that_is_broken_or_of_another_machine_is_no_pace(content: str, cache: Path) -> None:
    keep_pace(CPU, 100.0, 50.0)
    assert kept_pace(CPU) == 2.0
    (path,) = cache.rglob("pace-cpu.json")
    data = json.loads(path.read_text())
    changed = {"other": {**data, "identity": {**data["identity"], "cpu": "another"}}, "nan": {**data, "pace": 1e99}}
    path.write_text(json.dumps(changed[content]) if content in changed else content)
    assert kept_pace(CPU) is None


def test_ranks_have_a_pace_of_their_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_pace(CPU, 100.0, 50.0)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert kept_pace(CPU) is None
    keep_pace(CPU, 300.0, 50.0)
    assert kept_pace(CPU) == 6.0
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert kept_pace(CPU) == 2.0


def test_a_cache_that_cannot_be_written_costs_only_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    keep_pace(CPU, 100.0, 50.0)
    assert kept_pace(CPU) is None


def test_a_run_is_predicted_without_measuring(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "kept_ceilings", lambda device: None)
    (seconds,) = predicted_here([benchmark(language_model_case())], Mock(settings=SETTINGS, device=CPU)).values()
    assert seconds > 0
