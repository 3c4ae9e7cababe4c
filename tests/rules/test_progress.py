"""What a run says of its progress: a line a minute in a log, and before the first case how long it will take."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests.bench.recording import SECONDS_BETWEEN_LINES, Log, Progress
from perf_tests.hardware.device import CpuDevice
from perf_tests.run import ends as pace
from perf_tests.run.ends import eta, keep_pace, kept_pace, predicted_here
from tests.support.example_cases import SETTINGS, language_model_case
from tests.support.items import benchmark

CPU = CpuDevice(torch.device("cpu"))


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str) -> None:
        self.lines.append(line)

    def flush(self) -> None:
        pass


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(time, "monotonic", lambda: Clock.now)
    Clock.now = 0.0
    return Clock


def played(clock: type[Clock], round_seconds: float, cases: int = 4, rounds: int = 3) -> list[str]:
    """The lines of a log over cases that take as long as predicted."""
    terminal: Any = Terminal()
    progress = Progress(
        Log(terminal, nullcontext), {f"a.py::test_x[{n}]": rounds * round_seconds for n in range(cases)}
    )
    for case_id in progress.predicted_seconds:
        progress.begin(case_id, 1, rounds - 1)
        for number in range(rounds):
            progress.round(number)
            clock.now += round_seconds
        progress.end(case_id, f"{case_id[-3:]}  1 ms")
    return terminal.lines


def test_a_log_gets_a_line_a_minute_with_the_cases_the_time_left_and_the_last_figure(clock: type[Clock]) -> None:
    assert played(clock, 20.0) == [
        "1 of 4 cases done  about 3 min left; last: [0]  1 ms",
        "2 of 4 cases done  about 2 min left; last: [1]  1 ms",
        "3 of 4 cases done  about 60 s left; last: [2]  1 ms",
        "4 of 4 cases done  about 0 s left; last: [3]  1 ms",
    ]


def test_a_long_case_says_its_round_and_a_short_run_says_nothing(clock: type[Clock]) -> None:
    lines = played(clock, 2 * SECONDS_BETWEEN_LINES, cases=1)
    assert lines[:2] == ["case 1 of 1  round 1 of 2  test_x[0]", "case 1 of 1  round 2 of 2  test_x[0]"]
    clock.now = 0.0
    assert played(clock, 1.0) == []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_next_run_is_as_much_slower_than_predicted_as_the_last_one(cache: Path) -> None:
    predicted = {"a": 60.0, "b": 60.0}
    assert eta(predicted, CPU) == "2 cases, about 2 min, by round figures, as no run has ended here yet"
    keep_pace(CPU, measured_seconds=300.0, predicted=60.0)
    assert eta(predicted, CPU) == "2 cases, about 10 min"
    assert eta({"a": 0.5}, CPU) == "1 case, about 2 s"


@pytest.mark.parametrize("measured, predicted", [(1.0, 1.0), (100.0, 0.0), (1e9, 1.0)])
def test_a_pace_of_little_work_or_without_sense_is_not_kept(measured: float, predicted: float, cache: Path) -> None:
    keep_pace(CPU, measured, predicted)
    assert kept_pace(CPU) is None


@pytest.mark.parametrize("content", ["", "[]", '{"pace": 2}', '{"pace": "x", "identity": {}}', "other", "nan"])
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
    monkeypatch.setattr(pace, "kept_ceilings", lambda device: None)
    item: Any = benchmark(language_model_case())
    (seconds,) = predicted_here([item], Mock(settings=SETTINGS, device=CPU)).values()
    assert seconds > 0
