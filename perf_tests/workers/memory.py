"""Processes of their own for the cases of the memory pass: `python -m perf_tests.workers.memory READ WRITE`.

The suite starts one worker. It imports what a case needs, touches no device and starts no thread, and forks for each
case. In: the case's benchmark and the run's settings. Out: what its rounds say of memory, or why there is nothing to
say. The benchmark runs as pytest runs it, so that its rounds are the timings'.
"""

import gc
import importlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from perf_tests.bench.stash import CASE
from perf_tests.bench.workbench import Workbench
from perf_tests.measures.held import HeldMeasure, Standing
from perf_tests.measures.rounds import Measure
from perf_tests.records.record import Json
from perf_tests.workers.channel import ClosedError
from perf_tests.workers.plugin import WorkerPlugin, channel_to_the_suite
from perf_tests.workers.process import WorkerProcess, inherited_environment, start_worker
from perf_tests.workers.settings import received


class MemoryWorkerError(Exception):
    """The worker itself is gone, not just the process of a case; the message is one sentence."""


@dataclass
class MemoryWorker:
    """The suite's end. `root` is the folder that holds the suite; a worker that is gone is started again."""

    root: Path
    _worker: WorkerProcess | None = None

    def ask(self, task: Json) -> Json:
        """Its answer, however long that takes. Raises MemoryWorkerError."""
        worker = self._worker = self._worker or self._start()
        try:
            worker.channel.send(task)
            return worker.channel.receive()
        except (ClosedError, ValueError) as error:
            reason = worker.last_words().rstrip(".") or "it said nothing"
            self.end()
            raise MemoryWorkerError(f"the worker of the memory pass ended: {reason}.") from error

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def _start(self) -> WorkerProcess:
        # numpy starts threads on import, and a fork takes none along.
        environment = {**inherited_environment(), "OPENBLAS_NUM_THREADS": "1"}
        return start_worker("perf_tests.workers.memory", self.root, environment)


def main() -> int:
    channel = channel_to_the_suite()
    if torch.version.cuda is None:
        # AdamW and torch.compile import it; a build with CUDA may ask the driver meanwhile, and no fork survives that.
        importlib.import_module("torch._dynamo")
    gc.freeze()  # what is imported is nobody's memory, and no collection of a case need walk it
    while True:
        try:
            channel.send(in_a_process_of_its_own(channel.receive()))
        except ClosedError:  # the suite is done, or gone
            return 0


def in_a_process_of_its_own(task: Json) -> Json:
    """The answer of a fork of this process; `died` says of what, where it gave none."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        _answer_and_end(task, write)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        content = answers.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return {"died": signal.Signals(os.WTERMSIG(status)).name}
    try:
        answer: Json = json.loads(content)
    except ValueError:
        return {"died": f"exit code {os.WEXITSTATUS(status)}"}
    return answer


def _answer_and_end(task: Json, write: int) -> NoReturn:
    """Ends without the clean-up that belongs to the process which was forked."""
    try:
        content = json.dumps(examine(task)).encode()
        with os.fdopen(write, "wb") as answers:
            answers.write(content)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def examine(task: Json) -> Json:
    """Runs the task's benchmark in this process: `values`, or the `outcome` that takes their place."""
    snapshot = task["snapshot"]
    plugin = MemoryPlugin(settings=received(task["settings"]), snapshot=None if snapshot is None else Path(snapshot))
    plugin.run([task["benchmark"]])
    if plugin.outcome is not None:
        return {"outcome": plugin.outcome}
    if plugin.held is None or not plugin.held.values:
        return {"outcome": {"outcome": "error", "reason": plugin.trouble or "pytest did not run it"}}
    return {"values": plugin.held.values}


@dataclass(eq=False, kw_only=True)
class MemoryPlugin(WorkerPlugin):
    snapshot: Path | None
    held: HeldMeasure | None = None

    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        self.held = HeldMeasure(
            item.stash[CASE], workbench.device.torch_device, lambda: _what_stands(item), self.snapshot
        )
        return self.held


def _what_stands(item: Any) -> Standing:
    """The tensors that the benchmark's fixtures made."""
    fixtures = item.funcargs
    if "training" in fixtures:
        return Standing(fixtures["training"], tuple(vars(fixtures["batch"]).values()))
    return Standing(None, tuple(vars(fixtures["inputs"]).values()))


if __name__ == "__main__":
    sys.exit(main())
