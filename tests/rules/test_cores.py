"""Binding processes to cores, tried on real ones."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from perf_tests.hardware.machine import (
    can_bind,
    drifting_facts,
    keep_on,
    let_go,
    processor_of_each_core,
    processor_quota,
    processors_for,
)

THREE_THREADS = """
import threading, time
for _ in range(2):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""

several_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process may use one processor only")


@pytest.fixture
def process_id() -> Iterator[int]:
    """A process of three threads."""
    process = subprocess.Popen([sys.executable, "-c", THREE_THREADS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def cores_of_threads(process_id: int) -> list[set[int]]:
    """The main thread's first."""
    return [os.sched_getaffinity(thread) for thread in sorted(map(int, os.listdir(f"/proc/{process_id}/task")))]


@several_cores
def test_the_main_thread_has_the_first_core_to_itself_and_all_threads_share_a_single_one(process_id: int) -> None:
    second, first = sorted(os.sched_getaffinity(0))[:2]
    keep_on(process_id, [first, second])
    assert cores_of_threads(process_id) == [{first}, {second}, {second}]
    keep_on(process_id, [first])
    assert cores_of_threads(process_id) == [{first}] * 3


@several_cores
def test_a_process_let_go_works_wherever_this_one_may(process_id: int) -> None:
    keep_on(process_id, [min(os.sched_getaffinity(0))])
    let_go(process_id)
    assert cores_of_threads(process_id) == [os.sched_getaffinity(0)] * 3


def test_a_process_that_has_ended_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: asked.append(thread))
    keep_on(ended.pid, [0])
    let_go(ended.pid)
    assert asked == []


def test_a_machine_may_forbid_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_bind()

    def refuse(process_id: int, cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert not can_bind()


def test_each_core_is_there_once() -> None:
    cores = processor_of_each_core()
    assert len(set(cores)) == len(cores) > 0
    assert set(cores) <= os.sched_getaffinity(0)


def test_of_two_hardware_threads_of_a_core_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process_id: {0, 1, 2, 3})
    siblings = {0: "0,2\n", 1: "1,3\n", 2: "0,2\n", 3: "1,3\n"}
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: siblings[int(path.parts[5].removeprefix("cpu"))])
    assert processor_of_each_core() == processors_for(1) == processors_for(2) == [0, 1]
    assert processors_for(3) == [0, 1, 2, 3], "threads that are more than the cores would share one processor"


@pytest.mark.parametrize("limits, quota", [
    ({}, None), ({"ci/job": "max 100000"}, None), ({"ci/job": "150000 100000"}, 1.5),
    ({"ci/job": "max 100000", "ci": "50000 100000"}, 0.5), ({"ci/job": "200000 100000", "ci": "50000 100000"}, 0.5),
])  # fmt: skip
def test_the_quota_is_the_least_of_the_control_groups_above(
    limits: dict[str, str], quota: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/proc/self/cgroup": "1:cpu:/\n0::/ci/job\n"}
    files |= {f"/sys/fs/cgroup/{group}/cpu.max": f"{limit}\n" for group, limit in limits.items()}

    def read(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert processor_quota() == quota


@several_cores
def test_a_processor_taken_away_is_a_fact_of_the_moment() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert drifting_facts(torch.device("cpu"))["usable_processors"] == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert drifting_facts(torch.device("cpu"))["usable_processors"] == len(allowed)
