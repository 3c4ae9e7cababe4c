"""Three processes on this machine that talk by gloo, started once and kept for every test that needs ranks."""

import atexit
import importlib
import multiprocessing
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from traceback import format_exc
from typing import Any

import torch
import torch.distributed as dist

from perf_tests_suite.numerics_tests.harness.planting import Planted, in_force, planted

RANKS = 3
SECONDS = 60
"""Limit of one task, and of a collective in it: far more than any takes, so that a hang ends."""
PRELOADED = ["perf_tests_suite.numerics_tests.harness.rank_imports"]


class RankError(RuntimeError):
    """A rank failed, in its own words, or did not answer."""


@dataclass(frozen=True)
class Task:
    """What the last `world` ranks shall call: `function` of `module`, which repeats.

    The last ones, because among the first each rank has the same number in its group as in the whole pool.
    """

    module: str
    function: str
    world: int
    arguments: tuple[Any, ...]

    fault: str = field(default_factory=in_force)
    """What is planted here, and so in each rank."""


@dataclass
class RankPool:
    """Started by its first task, and anew after an error; a task that was run is remembered."""

    workers: list[tuple[Any, Connection]] = field(default_factory=list)
    folder: TemporaryDirectory[str] | None = None
    remembered: dict[Task, list[Any]] = field(default_factory=dict)

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.folder = TemporaryDirectory()
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, rank, f"{self.folder.name}/store"), daemon=True)
            process.start()
            theirs.close()
            self.workers.append((process, ours))

    def stop(self) -> None:
        for process, connection in self.workers:
            connection.close()
            process.kill()
            process.join()
        self.workers.clear()
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None

    def run(self, task: Task) -> list[Any]:
        """What each rank returns, in their order. Raises RankError."""
        if task not in self.remembered:
            self.remembered[task] = self.answers(task)
        return self.remembered[task]

    def answers(self, task: Task) -> list[Any]:
        if not self.workers:
            self.start()
        connections = [connection for _, connection in self.workers]
        for connection in connections:
            connection.send(task)
        answers: dict[Connection, Any] = {}
        while len(answers) < RANKS:
            ready = wait([connection for connection in connections if connection not in answers], SECONDS)
            try:
                failure = None if ready else f"no answer after {SECONDS} s"
                for connection in (connection for connection in connections if connection in ready):
                    failed, answers[connection] = pickle.loads(connection.recv_bytes())
                    failure = answers[connection] if failed else failure
            except EOFError:
                failure = "a rank died"
            if failure is not None:
                self.stop()
                raise RankError(f"{task}: {failure}")
        return [answers[connection] for connection in connections[RANKS - task.world :]]


POOL = RankPool()
atexit.register(POOL.stop)


def serve(connection: Connection, rank: int, store: str) -> None:
    """Serve as one rank: call what comes in until the other end is gone."""
    torch.set_num_threads(1)
    timeout = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timeout)
    groups = {world: dist.new_group(range(RANKS - world, RANKS)) for world in range(1, RANKS)}
    groups[RANKS] = dist.group.WORLD
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(task.module), task.function)
            with planted(fault_named(task.fault)) if task.fault else nullcontext():
                answer = function(groups[task.world], *task.arguments) if rank >= RANKS - task.world else None
            # Tensors by value: a connection's `send` passes a file descriptor for each, which ends with the process.
            reply = pickle.dumps((False, answer))
        except Exception:
            reply = pickle.dumps((True, format_exc()))
        connection.send_bytes(reply)


def fault_named(name: str) -> Planted:
    """The fault of the kill matrix with this name; only a rank that is asked for one imports it, in a checkout."""
    found: Planted = importlib.import_module("tests.kill_matrix.planted").PLANTED[name]
    return found
