"""A run on two ranks survives kill -9 of either at a random moment.

Each run starts under torchrun with restarts, and one of its ranks is killed once, from its first import to its record.
Nothing is timed.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf_tests.records.journal import read_journal
from perf_tests.records.record import Json
from tests.support.launch import Launch, start_command, suite

TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "-m",
)  # fmt: skip
CASES = 3
RUN = ("--parallel=ddp", "--phase=forward_backward", "--context=8,16,24", "-k=not attention")
SEED, KILLS = 2027, 50
RESTART_SECONDS, TIMES_LONGER = 90.0, 3
"""A killed run may take so many times as long as an unharmed one and, to end the other rank, so much more."""


@dataclass(frozen=True)
class Killed:
    """One run, of which a rank was killed."""

    moment_seconds: float
    rank: int
    was_alive: bool
    kept_before: dict[str, list[float]]
    """Rounds of the cases that were finished at that moment, by id."""
    seconds: float | None
    """Until the run had ended; None where it had not within its limit."""
    launch: Launch

    def wrong(self) -> Iterator[str]:
        """What does not hold."""
        if self.seconds is None:
            yield "it hung"
        elif len(self.launch.records) != 1:
            yield f"it left {len(self.launch.records)} records"
        else:
            rounds = {row["fullname"]: row["stats"]["data"] for row in self.launch.record["benchmarks"]}
            if len(rounds) != CASES:
                yield f"{len(rounds)} of {CASES} cases are measured"
            if any(rounds.get(case_id) != data for case_id, data in self.kept_before.items()):
                yield "a finished case was lost"
        if self.launch.journals:
            yield "a journal is left"


def started(storage: Path) -> "subprocess.Popen[str]":
    return start_command((*TORCHRUN, *suite(storage, *RUN)[2:]))


def ranks_of(torchrun: int) -> dict[int, int]:
    """Process ids by rank, of the children of torchrun that have said their rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, StopIteration, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0") if parent == torchrun else []
            rank = next(int(variable[5:]) for variable in variables if variable.startswith(b"RANK="))
            found[rank] = int(folder.name)
    return found


def unharmed_seconds() -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        process = started(Path(folder))
        output, errors = process.communicate()
        if process.returncode:
            pytest.fail(f"the run fails without any kill:\n{output}{errors}"[-3000:])
        return time.monotonic() - start


def killed(storage: Path, moment_seconds: float, rank: int, limit_seconds: float) -> Killed:
    start = time.monotonic()
    process = started(storage)
    time.sleep(moment_seconds)
    victim = ranks_of(process.pid).get(rank)
    while victim is None and process.poll() is None and time.monotonic() < start + limit_seconds:
        time.sleep(0.05)  # torchrun has not started it yet
        victim = ranks_of(process.pid).get(rank)
    if victim is not None:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    kept, seconds = finished_in(storage), None
    try:
        output, errors = process.communicate(timeout=max(1.0, start + limit_seconds - time.monotonic()))
        seconds = time.monotonic() - start
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        output, errors = process.communicate()
    launch = Launch(process.returncode, output, errors, storage)
    return Killed(moment_seconds, rank, victim is not None, kept, seconds, launch)


def finished_in(storage: Path) -> dict[str, list[float]]:
    """Rounds of each finished case; after the kill of rank 0 the journal cannot grow before all have restarted."""
    rows: list[Json] = []
    for path in storage.glob("*/journal-*"):
        with suppress(OSError, ValueError):
            contents = read_journal(path)
            rows = [] if contents is None else contents.benchmarks
    return {row["fullname"]: row["stats"]["data"] for row in rows}


@pytest.fixture(scope="module")
def usual_seconds() -> float:
    return unharmed_seconds()


@pytest.mark.parametrize("number", range(KILLS))
def test_after_a_kill_at_most_the_case_in_flight_is_measured_again_and_no_run_hangs(
    number: int, usual_seconds: float, tmp_path: Path
) -> None:
    draw = random.Random(f"{SEED} {number}")
    moment_seconds, rank = draw.uniform(0, usual_seconds), draw.randrange(2)
    one = killed(tmp_path, moment_seconds, rank, TIMES_LONGER * usual_seconds + RESTART_SECONDS)
    said = f"rank {rank} after {moment_seconds:.1f} s:\n{one.launch.output[-1500:]}\n{one.launch.errors[-2500:]}"
    assert list(one.wrong()) == [], said
