"""The search: both ends checked, then `git bisect run` in a clone, all of it in a temporary folder."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perf_tests.bisection.clone import SearchError, cloned, environment, git
from perf_tests.bisection.task import Judged, Task
from perf_tests.paired.alone import alone
from perf_tests.paired.trees import Commit, find_commit
from perf_tests.workers.process import last_words

FOLDERS = "perf-tests-bisect-"
"""How the name of a search's temporary folder begins."""

PYTEST = (sys.executable, "-m", "pytest")

SECONDS_TO_END = 20.0
"""Of an interrupted gate run, in which it ends its workers and removes its trees."""


class RevisionsError(Exception):
    """Between these two commits there is nothing to search; the message is one sentence."""


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    good: str
    bad: str
    case: str
    options: tuple[str, ...]
    minutes: float


@dataclass(frozen=True)
class Found:
    good: Commit
    bad: Commit
    steps: list[Judged]
    """In the order of their verdicts, BAD first."""
    suspects: list[str]
    """Full hashes, the newest first. One where the search has found the commit, more where it had to skip some, none
    where BAD is not slower."""


def search(root: Path, asked: Asked, tell: Callable[[str | Judged], None], gate: Sequence[str] = PYTEST) -> Found:
    """Find the first commit after GOOD that is slower than GOOD.

    Raises RevisionsError, TreeError for what is no revision, BesideAnotherError, SearchError and OSError.
    """
    good, bad = (find_commit(root, revision, "bisect") for revision in (asked.good, asked.bad))
    with alone("bisect", FOLDERS), tempfile.TemporaryDirectory(prefix=FOLDERS, ignore_cleanup_errors=True) as folder:
        clone = cloned(root, good, Path(folder))
        _check_order(clone, good, bad)
        between = git(clone, "rev-list", f"{good.full_hash}..{bad.full_hash}").splitlines()
        tell(f"{len(between)} commits after {good.typed}: {bad.typed} first, then at most {len(between).bit_length()}.")
        task = Task(
            folder, str(root), str(clone), good.full_hash, bad.full_hash, asked.case, asked.options, asked.minutes,
            tuple(gate),
        )  # fmt: skip
        task.write()
        task.steps.touch()
        step = (sys.executable, "-P", "-m", "perf_tests.bisection.step", folder)
        _follow(task, (*step, bad.full_hash), tell)
        first = _last(task)
        if first.state != "slower":
            return Found(good, bad, task.judged, [])
        if len(between) > 1:
            git(clone, "bisect", "start", "--no-checkout", bad.full_hash, good.full_hash)
            _follow(task, ("git", "bisect", "run", *step), tell)
            _last(task)
            between = git(clone, "rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").splitlines()
        if not {*between} <= {judged.commit for judged in task.judged}:
            raise SearchError(f"git bisect ended before its last commit: {_last_words(task)}.")
        return Found(good, bad, task.judged, between)


def _check_order(clone: Path, good: Commit, bad: Commit) -> None:
    """Raises RevisionsError unless BAD descends from GOOD."""
    both = f"GOOD {good.typed} ({good.short_hash}) and BAD {bad.typed} ({bad.short_hash})"
    if good.full_hash == bad.full_hash:
        raise RevisionsError(f"{both} are one commit; give a GOOD from before the slowdown.")
    shared = git(clone, "merge-base", good.full_hash, bad.full_hash)
    if shared == bad.full_hash:
        raise RevisionsError(f"{both} are exchanged: BAD is older; give the older commit first.")
    if shared != good.full_hash:
        raise RevisionsError(f"{both} are on two branches; give a GOOD that BAD contains, such as {shared[:12]}.")


def _last(task: Task) -> Judged:
    """The last verdict. Raises SearchError where a step ended the search instead."""
    judged = task.judged
    if not judged:
        raise SearchError(f"The search did not start: {_last_words(task)}.")
    if judged[-1].state == "stopped":
        raise SearchError(f"The search stopped at {judged[-1].commit[:12]}: {judged[-1].reason}.")
    return judged[-1]


def _log(task: Task) -> Path:
    return Path(task.folder, "log")


def _last_words(task: Task) -> str:
    return last_words(_log(task).read_text(errors="replace"))


def _follow(task: Task, command: Sequence[str], tell: Callable[[Judged], None]) -> None:
    """Run a step, or git, which runs more; tell each verdict as it comes. Ends every process on every exit."""
    suite = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (suite, os.environ.get("PYTHONPATH", ""))))
    told = len(task.judged)
    with _log(task).open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=Path(task.folder, "clone"),
            env={**environment(), "PYTHONPATH": path},
            stdin=subprocess.PIPE,  # until it closes, with this process
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C is for this process, which ends the others itself
        )
        try:
            ended = None
            while ended is None:
                with suppress(subprocess.TimeoutExpired):
                    ended = process.wait(timeout=0.2)
                for judged in task.judged[told:]:
                    tell(judged)
                    told += 1
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The gate last: it removes its trees. Nothing is left to end after a search that came to its end."""
    deadline = time.monotonic() + SECONDS_TO_END
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
