"""A long run keeps its size: 200 tiny cases in one process.

As a plugin, `-p tests.nightly.test_steady_memory`, this file writes the process's resident bytes after each case to the
file RESIDENT_LOG. The first cases load what later ones use; after them the size may change by `MOST_GROWTH` alone.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.support.launch import ROOT, inherited

CONTEXTS, SEQUENCES = range(8, 36), range(16, 32)
CASES = 6 * len(CONTEXTS) + 2 * len(SEQUENCES)
"""A case for each phase of a language model, and attention alone in both directions."""

SUITE = (
    "perf_tests", "-p", "tests.nightly.test_steady_memory", "-p", "no:cacheprovider", "-q",
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


def test_the_resident_size_of_a_run_of_200_cases_changes_by_at_most_a_twentieth(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pytest", *SUITE, f"--benchmark-storage=file://{tmp_path}/storage"]
    variables = inherited(PYTHONPATH=str(ROOT), RESIDENT_LOG=str(log))
    run = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.returncode == 0, run.stdout[-3000:]
    resident_bytes = [int(line) for line in log.read_text().splitlines()]
    assert len(resident_bytes) == CASES == 200
    after = resident_bytes[LOADING:]
    assert max(after) / min(after) - 1 <= MOST_GROWTH
