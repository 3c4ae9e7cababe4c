"""The worker of the memory pass, which forks a process for each case: `python -m perf_tests.workers.memory SOCKET`.

It imports what a case needs, but touches no device and starts no thread. In: a benchmark's node id and the run's
settings. Out: what the rounds of the benchmark show of memory, or an outcome. pytest runs the benchmark, so that its
rounds are those of the timings.
"""

import gc
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.stash import CASE
from perf_tests.instruments.torch_private import load_compiler
from perf_tests.measures.held import HeldMeasure, Standing
from perf_tests.records.record import Json
from perf_tests.workers.channel import ClosedError, channel_of_worker
from perf_tests.workers.plugin import examined
from perf_tests.workers.process import WorkerEndedError, WorkerProcess, inherited_environment, start_worker


@dataclass
class MemoryWorker:
    """The suite's end. `root` is the folder that holds the suite; a worker that ended is started again."""

    root: Path
    _worker: WorkerProcess | None = None

    def ask(self, task: Json) -> Json:
        """The `values` or the `outcome` of a case. Raises WorkerEndedError with one sentence."""
        if self._worker is None:
            # numpy starts threads on import, and a fork does not inherit threads.
            environment = {**inherited_environment(), "OPENBLAS_NUM_THREADS": "1"}
            self._worker = start_worker("perf_tests.workers.memory", self.root, environment)
        try:
            return self._worker.ask(task)
        except WorkerEndedError as error:
            self.end()
            raise WorkerEndedError(f"the worker of the memory pass ended: {error}.") from error
        except BaseException:  # the time of the case is up: what it answers later is not the next one's
            self.end()
            raise

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None


def main() -> int:
    channel = channel_of_worker()
    if torch.version.cuda is None:
        # AdamW and torch.compile import it; a build with CUDA may ask the driver meanwhile, and no fork survives that.
        load_compiler()
    gc.freeze()  # no collection of a case need walk what is imported
    while True:
        try:
            channel.send(in_a_fork(channel.receive()))
        except ClosedError:  # the suite is done, or has died
            return 0


def in_a_fork(task: Json) -> Json:
    """The answer of a fork of this process; an outcome where it died."""
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
        return _died(signal.Signals(os.WTERMSIG(status)).name)
    try:
        answer: Json = json.loads(content)
    except ValueError:
        return _died(f"exit code {os.WEXITSTATUS(status)}")
    return answer


def _died(of: str) -> Json:
    """Linux kills with SIGKILL the process that takes the machine's last memory."""
    if of == "SIGKILL":
        reason = "its process was killed by SIGKILL, probably by the out-of-memory killer; set --memory-budget."
        return {"outcome": asdict(Outcome("out_of_memory", reason))}
    return {"outcome": asdict(Outcome("error", f"its process ended with {of}; run the case alone to see why."))}


def _answer_and_end(task: Json, write: int) -> NoReturn:
    """Ends without the clean-up that belongs to the process which was forked."""
    try:
        content = json.dumps(_examine(task)).encode()
        with os.fdopen(write, "wb") as answers:
            answers.write(content)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _examine(task: Json) -> Json:
    snapshot = None if task["snapshot"] is None else Path(task["snapshot"])
    answer = examined(
        task,
        lambda item, workbench: HeldMeasure(
            item.stash[CASE], workbench.device.torch_device, lambda: _standing(item), snapshot
        ),
    )
    return answer or {"outcome": asdict(Outcome("error", "pytest did not run it"))}


def _standing(item: Any) -> Standing:
    """The tensors that the benchmark's fixtures made."""
    fixtures = item.funcargs
    if "training" in fixtures:
        return Standing(fixtures["training"], tuple(vars(fixtures["batch"]).values()))
    return Standing(None, tuple(vars(fixtures["inputs"]).values()))


if __name__ == "__main__":
    sys.exit(main())
