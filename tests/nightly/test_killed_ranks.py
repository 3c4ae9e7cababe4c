"""A run on two ranks survives kill -9 of either at a random moment.

Each run starts under torchrun with restarts, and one of its ranks is killed once, from its first import to its record.
Nothing is timed.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.journal import read_journal
from tests.support.launch import Launch, finish, start_command, suite

TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "-m",
)  # fmt: skip
RUN = ("--parallel=ddp", "--phase=forward_backward", "--context=8,16,24", "-k=not attention")
SEED, KILLS = 2027, 50
RESTART_SECONDS, TIMES_LONGER = 90.0, 3
"""A killed run may take so many times as long as an unharmed one and, to end the other rank, so much more."""


def started(storage: Path) -> subprocess.Popen[str]:
    return start_command((*TORCHRUN, *suite(storage, *RUN)[2:]))


@pytest.fixture(scope="module")
def usual_seconds(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds of a run without any kill."""
    start, storage = time.monotonic(), tmp_path_factory.mktemp("unharmed")
    finish(started(storage), storage, exits=0)
    return time.monotonic() - start


def process_of(torchrun: int, rank: int) -> int | None:
    """The process id of a rank, a child of torchrun that has said its rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == torchrun and f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
    return None


def finished_in(storage: Path) -> dict[str, list[float]]:
    """Rounds of each finished case; after the kill of rank 0 the journal cannot grow before all have restarted."""
    for path in storage.glob("*/journal-*"):
        with suppress(OSError, ValueError):
            if (contents := read_journal(path)) is not None:
                return {row["fullname"]: row["stats"]["data"] for row in contents.benchmarks}
    return {}


def wrong_with(ended: Launch, kept_before: dict[str, list[float]]) -> Iterator[str]:
    """What does not hold."""
    if len(ended.records) != 1:
        yield f"it left {len(ended.records)} records"
        return
    rounds = {row["fullname"]: row["stats"]["data"] for row in ended.record["benchmarks"]}
    if len(rounds) != 3:
        yield f"{len(rounds)} of 3 cases are measured"
    if any(rounds.get(case_id) != data for case_id, data in kept_before.items()):
        yield "a finished case was lost"
    if ended.journals:
        yield "a journal is left"


@pytest.mark.parametrize("number", range(KILLS))
def test_a_kill_costs_at_most_the_case_in_flight(number: int, usual_seconds: float, tmp_path: Path) -> None:
    draw = random.Random(f"{SEED} {number}")
    moment_seconds, rank = draw.uniform(0, usual_seconds), draw.randrange(2)
    deadline = time.monotonic() + TIMES_LONGER * usual_seconds + RESTART_SECONDS
    process = started(tmp_path)
    time.sleep(moment_seconds)
    while (victim := process_of(process.pid, rank)) is None and process.poll() is None:
        assert time.monotonic() < deadline, "torchrun never started it"
        time.sleep(0.05)
    if victim is not None:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    kept, hangs = finished_in(tmp_path), False
    try:
        output, errors = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        hangs = True
        process.terminate()  # torchrun ends its ranks
        output, errors = process.communicate()
    wrong = ["it hangs"] if hangs else list(wrong_with(Launch(process.returncode, output, errors, tmp_path), kept))
    assert wrong == [], f"rank {rank} after {moment_seconds:.1f} s:\n{output[-1500:]}\n{errors[-2500:]}"
