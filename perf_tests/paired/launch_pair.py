"""A launch pair: two fresh worker processes, one in each side's tree, that serve the same cases in the same order."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perf_tests.gate.events import SIDES, Side
from perf_tests.own.repository import SUITE, Repository
from perf_tests.paired.draws import Draw
from perf_tests.paired.trees import Trees
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
    trees: Trees, tasks: Mapping[Side, Json], draw: Draw, python_of_base: str | None = None
) -> Iterator[dict[Side, WorkerProcess]]:
    """Both workers, started together and told what to collect; both are ended on every exit."""
    workers: dict[Side, WorkerProcess] = {}
    repository, folders = trees.repository, {"base": trees.base, "head": trees.head}
    try:
        for side in SIDES[::-1] if draw.head_starts_first else SIDES:
            tree, python = folders[side], python_of_base if side == "base" else None
            environment = worker_environment(draw, repository, tree)
            folder = tree if repository.holds_suite else repository.folder_in(tree)
            workers[side] = start_worker("perf_tests.paired.worker", folder, environment, side, python)
            workers[side].send({**tasks[side], "tree": str(tree)})
        yield workers
    finally:
        for worker in workers.values():
            worker.end()


def worker_environment(draw: Draw, repository: Repository, tree: Path) -> dict[str, str]:
    """This process's environment without pytest's variables, with those of the pair's layout and of a side's tree."""
    return {
        **(environment_without_the_suite() if repository.holds_suite else _environment_outside(repository, tree)),
        **STEADY,
        "PYTHONHASHSEED": str(draw.hash_seed),
        "PERF_TESTS_PADDING": "x" * draw.padding_bytes,
    }


def environment_without_the_suite() -> dict[str, str]:
    """Without pytest's variables and the repository on the path: its model/ would replace one that a tree lacks.

    The rest of the path is absolute, because a worker starts in another folder.
    """
    inherited = inherited_environment()
    return {**inherited, "PYTHONPATH": _joined(entry for entry in _python_path(inherited) if entry != SUITE)}


def _environment_outside(repository: Repository, tree: Path) -> dict[str, str]:
    """The path leads to `tree`, and never to the repository that it stands for."""
    inherited = inherited_environment()
    others = [entry for entry in _python_path(inherited) if not entry.is_relative_to(repository.root)]
    path = _joined((*repository.path_in(tree), *others))
    # Without the folder that the worker starts in: `model` or `perf_tests` may be the name of one of theirs.
    return {**inherited, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _python_path(environment: Mapping[str, str]) -> list[Path]:
    return [Path(entry).resolve() for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _joined(path: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, path))
