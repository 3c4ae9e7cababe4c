"""Whether a run on two ranks survives kill -9 of either at a random moment.

`python -m claims.killed_ranks [--kills N]` starts the run N times under torchrun with restarts, and kills
one rank of each once, from its first import to its record. Nothing is timed.
"""

import argparse
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

from claims.verdict import conclude, conditions
from perf_tests.records.journal import read_journal
from perf_tests.records.record import Json
from tests.support.launch import Launch, start_command, suite

TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "-m",
)  # fmt: skip
CASES = 3
RUN = ("--parallel=ddp", "--phase=forward_backward", "--context=8,16,24", "-k=not attention")
SEED = 2027
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
            raise SystemExit(f"the run fails without any kill:\n{output}{errors}"[-3000:])
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


def main(kills: int) -> int:
    print(conditions())
    usual = unharmed_seconds()
    limit, draw, failures = TIMES_LONGER * usual + RESTART_SECONDS, random.Random(SEED), 0
    print(f"an unharmed run takes {usual:.0f} s, so a killed one at most {limit:.0f} s", flush=True)
    for number in range(kills):
        moment, rank = draw.uniform(0, usual), draw.randrange(2)
        with tempfile.TemporaryDirectory() as folder:
            one = killed(Path(folder), moment, rank, limit)
            wrong = "; ".join(one.wrong())
        failures += bool(wrong)
        ended = "never" if one.seconds is None else f"{one.seconds:.0f} s"
        was = "killed" if one.was_alive else "had ended"
        print(f"{number + 1:3}: rank {rank} {was} after {moment:.1f} s, {len(one.kept_before)} cases finished, the run "
              f"ended after {ended}: {wrong or 'whole'}", flush=True)  # fmt: skip
        if wrong:
            print(one.launch.output[-1500:], one.launch.errors[-2500:], sep="\n")
    return conclude(
        f"after kill -9 of a rank at {kills} random moments at most the case in flight is measured again, and no run "
        "hangs", failures == 0,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    sys.exit(main(parser.parse_args().kills))
