"""What the host may change under a run is a fact of the moment: clocks that jump, and limits of the control group."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from perf_tests.audit.rounds import RowFacts, raised
from perf_tests.hardware.machine import drifting_facts

NOW = {time.CLOCK_REALTIME: 2000.0, time.CLOCK_BOOTTIME: 500.0, time.CLOCK_MONOTONIC: 400.0}


@pytest.fixture
def facts_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], dict[str, object]]:
    def facts(clocks: dict[int, float]) -> dict[str, object]:
        with monkeypatch.context() as patch:
            patch.setattr(time, "clock_gettime", clocks.__getitem__)
            return drifting_facts(torch.device("cpu"))

    return facts


@pytest.mark.parametrize(("seconds", "flags"), [
    (dict.fromkeys(NOW, 60.0), []),
    ({time.CLOCK_REALTIME: 70.0, time.CLOCK_BOOTTIME: 70.0, time.CLOCK_MONOTONIC: 10.0}, ["suspended"]),
    ({time.CLOCK_REALTIME: -3600.0, time.CLOCK_BOOTTIME: 10.0, time.CLOCK_MONOTONIC: 10.0}, ["date_set"]),
])  # fmt: skip
def test_a_suspended_machine_and_a_date_that_is_set_are_told_apart_from_time_that_passes(
    seconds: dict[int, float], flags: list[str], facts_at: Callable[[dict[int, float]], dict[str, object]]
) -> None:
    before, after = facts_at(NOW), facts_at({clock: value + seconds[clock] for clock, value in NOW.items()})
    found = raised(RowFacts([1.0, 1.0], before=before, after=after))
    assert [flag for flag in found if flag in ("suspended", "date_set")] == flags


@pytest.mark.parametrize(("limit", "bytes_"), [("max", None), ("1073741824", 2**30)])
def test_the_memory_of_the_control_group_is_a_fact_of_the_moment(
    limit: str, bytes_: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text
    files = {"/sys/fs/cgroup/memory.max": f"{limit}\n", "/sys/fs/cgroup/memory.current": "5\n"}

    def read_text(path: Path) -> str:
        if path.is_relative_to("/sys/fs/cgroup/memory"):
            raise FileNotFoundError(path)
        return files[str(path)] if str(path) in files else read(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert drifting_facts(torch.device("cpu"))["memory_limit_bytes"] == bytes_
