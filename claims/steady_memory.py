"""Whether a long run keeps its size: `python -m claims.steady_memory`, 200 tiny cases in one process.

As a plugin, `-p claims.steady_memory`, it writes the process's resident bytes after each case to the file
RESIDENT_LOG. The first cases load what later ones use; after them the size may change by `MOST_GROWTH` alone.
"""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from claims.verdict import conclude, conditions
from tests.support.launch import ROOT, inherited

CONTEXTS, SEQUENCES = range(8, 36), range(16, 32)
CASES = 6 * len(CONTEXTS) + 2 * len(SEQUENCES)
"""A case for each phase of a language model, and attention alone in both directions."""

SUITE = (
    "perf_tests", "-p", "claims.steady_memory", "-p", "no:cacheprovider", "-q",
    "--device=cpu", "--threads=1", "--size=narrow=64x128x2x2", "--vocab-size=1000", "--precision=fp32", "--phase=all",
    f"--context={','.join(map(str, CONTEXTS))}", "--head-dim=16", f"--sequence-length={','.join(map(str, SEQUENCES))}",
    "--attention=naive", "--rounds=2", "--warmup-rounds=1",
)  # fmt: skip

LOADING = 20
"""Cases at the beginning that may still grow it."""

MOST_GROWTH = 0.05


def pytest_runtest_logfinish() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    with open(os.environ["RESIDENT_LOG"], "a") as log:
        log.write(f"{pages * resource.getpagesize()}\n")


def growth(resident_bytes: Sequence[int]) -> float:
    """The largest change from the smallest size after `LOADING` cases, as a share of that."""
    after = resident_bytes[LOADING:]
    return max(after) / min(after) - 1


def measured() -> list[int]:
    """Resident bytes after each case of a run; raises RuntimeError with its output if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [sys.executable, "-m", "pytest", *SUITE, f"--benchmark-storage=file://{folder}/storage"]
        variables = inherited(PYTHONPATH=str(ROOT), RESIDENT_LOG=str(log))
        run = subprocess.run(
            command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if run.returncode:
            raise RuntimeError(f"The run exited with {run.returncode}:\n{run.stdout[-3000:]}")
        return [int(line) for line in log.read_text().splitlines()]


def main() -> int:
    print(conditions(threads=1))
    sizes = measured()
    print("cases      resident MB, median")
    for first in range(0, len(sizes), 20):
        print(f"{first + 1:3} to {min(first + 20, len(sizes)):3} {median(sizes[first : first + 20]) / 1e6:12.1f}")
    found = growth(sizes)
    claim = (
        f"after {LOADING} cases the resident size of a run of {CASES} changes by at most {MOST_GROWTH:.0%}: {found:.1%}"
    )
    return conclude(claim, len(sizes) == CASES and found <= MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
