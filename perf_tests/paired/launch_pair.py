"""A launch pair: two fresh worker processes, one in each side's tree, that serve the same cases in the same order."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perf_tests.paired.draws import Draw
from perf_tests.records.record import Json
from perf_tests.workers.channel import ClosedError, SilentError
from perf_tests.workers.process import WorkerProcess, inherited_environment, start_worker

Side = Literal["base", "head"]
SIDES: tuple[Side, Side] = ("base", "head")

STEADY = {
    # A worker that waits for its turn must leave the cores alone; by default its threads spin on for milliseconds.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}
"""Variables of every worker, without which two launches of the same code differ more than they must."""

START_SECONDS = 600.0
"""The longest that a worker may take to start, and to build and warm a case, which may compile."""


class WorkerError(Exception):
    """A worker died, hung or cannot serve; `side` says which and the message why, without a full stop."""

    def __init__(self, side: Side, reason: str, cannot_start: bool = False) -> None:
        super().__init__(reason)
        self.side = side
        self.cannot_start = cannot_start
        """Whether the side's own code is to blame before any case began."""


@dataclass
class Worker:
    """One side's process."""

    side: Side
    worker: WorkerProcess

    @property
    def process_id(self) -> int:
        return self.worker.process.pid

    def send(self, message: Json) -> None:
        try:
            self.worker.channel.send(message)
        except ClosedError as error:
            raise WorkerError(self.side, self.worker.how_it_ended()) from error

    def receive(self, patience_seconds: float) -> Json:
        """The next message; raises WorkerError if there is none, or if it says that the worker cannot continue."""
        try:
            message = self.worker.channel.receive(patience_seconds)
        except SilentError as error:
            raise WorkerError(self.side, f"it gave no answer for {patience_seconds:.0f} s") from error
        except (ClosedError, ValueError) as error:
            raise WorkerError(self.side, self.worker.how_it_ended()) from error
        if "cannot" in message:
            raise WorkerError(self.side, str(message["cannot"]).strip().rstrip("."), cannot_start=True)
        return message

    def ask(self, message: Json, patience_seconds: float) -> Json:
        self.send(message)
        return self.receive(patience_seconds)


@contextmanager
def launched(trees: Mapping[Side, Path], tasks: Mapping[Side, Json], draw: Draw) -> Iterator[dict[Side, Worker]]:
    """Both workers, started at the same time and told what to collect; both are gone in the end, come what may."""
    workers: dict[Side, Worker] = {}
    sides: Sequence[Side] = ("head", "base") if draw.head_starts_first else SIDES
    try:
        for side in sides:
            environment = worker_environment(draw)
            workers[side] = Worker(side, start_worker("perf_tests.paired.worker", trees[side], environment))
            workers[side].send(tasks[side])
        yield workers
    finally:
        for worker in workers.values():
            worker.worker.end()


def worker_environment(draw: Draw) -> dict[str, str]:
    """Ours without pytest's own variables, and with what the pair's layout asks for."""
    inherited = inherited_environment()
    return {
        **inherited,
        **STEADY,
        "PYTHONHASHSEED": str(draw.hash_seed),
        "PERF_TESTS_PADDING": "x" * draw.padding_bytes,
        # The repository itself must not be on the path: its model/ would stand in where a tree lacks one.
        "PYTHONPATH": os.pathsep.join(_path_without_the_suite(inherited.get("PYTHONPATH", ""))),
    }


def _path_without_the_suite(path: str) -> list[str]:
    """Absolute, because a worker starts in another folder."""
    root = Path(__file__).resolve().parents[2]
    entries = [Path(entry).resolve() for entry in path.split(os.pathsep) if entry]
    return [str(entry) for entry in entries if entry != root]
