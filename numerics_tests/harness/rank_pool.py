"""Three processes on this machine that talk by gloo, started once and kept for every test that needs ranks.

A second import of this suite, over a copy of `model/` with a fault, shares them: they import the copy themselves.
"""

import atexit
import importlib
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exc
from typing import Any

import torch
import torch.distributed as dist

RANKS = 3
SECONDS = 60
"""Limit of one task, and of a collective in it: far more than any takes, so that a hang ends."""
PRELOADED = ["torch.distributed.fsdp", "torch.distributed.optim", "numerics_tests.harness.tiny"]


class RankError(RuntimeError):
    """A rank failed, in its own words, or did not answer."""


@dataclass(frozen=True)
class Task:
    """What the last `world` ranks shall call: `function` of `module` over the `model` in `folder`, which repeats.

    The last ones, because among the first each rank has the same number in its group as in the whole pool.
    """

    folder: str
    module: str
    function: str
    world: int
    arguments: tuple[Any, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """The same for two folders with the same sources."""
        sources = sorted(Path(self.folder, "model").glob("*.py"))
        digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        return digest, self.module, self.function, self.world, self.arguments


@dataclass
class RankPool:
    """Started by its first task, and anew after an error; a task that was run is remembered."""

    workers: list[tuple[Any, Connection]] = field(default_factory=list)
    folder: TemporaryDirectory[str] | None = None
    remembered: dict[tuple[object, ...], list[Any]] = field(default_factory=dict)

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
        key = task.key
        if key not in self.remembered:
            self.remembered[key] = self.answers(task)
        return self.remembered[key]

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
    loaded: tuple[str, str] | None = None
    module = None
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            # The left side is still the last task's: Python reads it before the walrus replaces it.
            if loaded != (loaded := (task.folder, task.module)):
                module = imported(*loaded)
            function: Callable[..., Any] = getattr(module, task.function)
            answer = function(groups[task.world], *task.arguments) if rank >= RANKS - task.world else None
            # Tensors by value: a connection's `send` passes a file descriptor for each, which ends with the process.
            reply = pickle.dumps((False, answer))
        except Exception:
            reply = pickle.dumps((True, format_exc()))
        connection.send_bytes(reply)


def imported(folder: str, module: str) -> Any:
    """`module` over the `model` in `folder`."""
    # But not this module, which runs the loop of the process.
    for known in [known for known in sys.modules if known.partition(".")[0] in ("model", "numerics_tests")]:
        if known != __name__:
            del sys.modules[known]
    sys.path[:0] = [folder, str(Path(__file__).parents[2])]
    try:
        importlib.invalidate_caches()
        return importlib.import_module(module)
    finally:
        del sys.path[:2]
