"""What a page over recorded runs costs: over one run of the whole grid, and over hundreds of them, all invented."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perf_tests.proofs.launches import ROOT
from perf_tests.proofs.synthetic_grid import grid_record, with_every_pass
from perf_tests.proofs.verdict import conclude, conditions

ONE_RUN_SECONDS, MANY_RUNS_SECONDS = 10, 30
PAGE_BYTES = 8_000_000
MEMORY_BYTES = 2**30
MANY_RUNS = 200


def main() -> int:
    print(conditions())
    with tempfile.TemporaryDirectory() as folder:
        storage = Path(folder) / "records"
        cases = write_runs(storage, 1)
        write_passes(storage)
        one_seconds, one_bytes, _ = page_cost(storage)
        print(f"1 run of {cases} cases with every extra pass: {one_seconds:.1f} s, {one_bytes / 1e6:.2f} MB")
        write_runs(storage, MANY_RUNS)
        read_bytes = sum(path.stat().st_size for path in storage.glob("*/*.json"))
        many_seconds, many_bytes, peak_bytes = page_cost(storage)
    print(
        f"{MANY_RUNS} runs, {read_bytes / 1e6:.0f} MB of records: {many_seconds:.1f} s, {many_bytes / 1e6:.2f} MB, "
        f"peak memory {peak_bytes / 2**20:.0f} MiB"
    )
    claim = (
        f"a page over {cases} cases, each with every extra pass, takes less than {ONE_RUN_SECONDS} s and "
        f"{PAGE_BYTES / 1e6:.0f} MB, over {MANY_RUNS} runs without them less than {MANY_RUNS_SECONDS} s and "
        f"{MEMORY_BYTES / 2**30:.0f} GiB of memory"
    )
    is_quick = one_seconds < ONE_RUN_SECONDS and many_seconds < MANY_RUNS_SECONDS
    return conclude(claim, is_quick and one_bytes < PAGE_BYTES and peak_bytes < MEMORY_BYTES)


def write_runs(storage: Path, count: int) -> int:
    """Records as they lie on disk; how many cases each of them has."""
    folder = storage / "machine"
    folder.mkdir(parents=True, exist_ok=True)
    cases = 0
    for number in range(1, count + 1):
        data = grid_record(number)
        cases = len(data["benchmarks"]) + len(data["outcomes"])
        (folder / f"{number:04}_run.json").write_text(json.dumps(data, indent=1))
    return cases


def write_passes(storage: Path) -> None:
    """The first run again, each case traced, its memory followed and its warm-up studied."""
    (path,) = storage.glob("*/0001_run.json")
    path.write_text(json.dumps(with_every_pass(grid_record(1)), indent=1))


def page_cost(storage: Path) -> tuple[float, int, int]:
    """Seconds, size of the page in bytes, and peak of resident memory in bytes of a process of its own."""
    page = storage.parent / "page.html"
    command = [sys.executable, "-m", "perf_tests", "report", f"--storage={storage}", f"--output={page}"]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return seconds, page.stat().st_size, usage.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
