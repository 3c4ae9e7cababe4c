"""A launch pair: two fresh worker processes, one in each side's tree, that serve the same cases in the same order."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perf_tests.gate.events import SIDES, Side
from perf_tests.paired.draws import Draw
from perf_tests.records.record import Json
from perf_tests.workers.process import WorkerProcess, inherited_environment, start_worker

STEADY = {
    # A worker that waits for its turn must leave the cores idle; by default its threads spin for milliseconds.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}
"""Environment of every worker."""

START_SECONDS = 600.0
"""Time limit for a worker to start, and to build and warm a case, which may compile."""


@contextmanager
def launched(
    trees: Mapping[Side, Path], tasks: Mapping[Side, Json], draw: Draw, python_of_base: str | None = None
) -> Iterator[dict[Side, WorkerProcess]]:
    """Both workers, started together and told what to collect; both are ended on every exit."""
    workers: dict[Side, WorkerProcess] = {}
    try:
        for side in SIDES[::-1] if draw.head_starts_first else SIDES:
            environment, python = worker_environment(draw), python_of_base if side == "base" else None
            workers[side] = start_worker("perf_tests.paired.worker", trees[side], environment, side, python)
            workers[side].send(tasks[side])
        yield workers
    finally:
        for worker in workers.values():
            worker.end()


def worker_environment(draw: Draw) -> dict[str, str]:
    """This process's environment without pytest's variables, with those of the pair's layout."""
    return {
        **environment_without_the_suite(),
        **STEADY,
        "PYTHONHASHSEED": str(draw.hash_seed),
        "PERF_TESTS_PADDING": "x" * draw.padding_bytes,
    }


def environment_without_the_suite() -> dict[str, str]:
    """Without pytest's variables and the repository on the path: its model/ would replace one that a tree lacks.

    The rest of the path is absolute, because a worker starts in another folder.
    """
    inherited, root = inherited_environment(), Path(__file__).resolve().parents[2]
    entries = [Path(entry).resolve() for entry in inherited.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**inherited, "PYTHONPATH": os.pathsep.join(str(entry) for entry in entries if entry != root)}
