"""How large the page is and how soon a browser shows it: of one committed record, and of 2000 invented ones.

    python -m claims.page_in_browser

Needs Chromium. The first paint is the median of five openings from disk.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from claims.verdict import conclude, conditions
from perf_tests.__main__ import main as verb
from perf_tests.records.record import Json
from tests.support.browser import chromium, first_paint_seconds
from tests.support.synthetic import record, timed, write_record

RECORD = Path(__file__).parents[1] / ".benchmarks/epyc-2core/0001_9e03909d2d18.json"
COMMITS, LAUNCHES, CASES = 400, 5, 30
MOST_MB, MOST_MB_OF_MANY, MOST_SECONDS = 1.8, 12.0, 1.0
OPENINGS = 5


def many_records() -> Iterator[Json]:
    """Of 400 commits with five launches each; a case steps at each thirteenth commit."""
    noise = np.random.default_rng(2027)
    for number in range(COMMITS * LAUNCHES):
        commit = number // LAUNCHES
        day = f"{2001 + commit // 28}-01-{1 + commit % 28:02}T{number % LAUNCHES:02}:00:00+00:00"
        levels = [1.0 + 0.1 * (commit > 13 * case) for case in range(CASES)]
        rows = [
            timed(f"test_forward[size{case}-ctx8-fp32-naive]", (level * noise.normal(1, 0.01, 10)).tolist(),
                  size=f"size{case}", sentinel_seconds=[1e-3, 1e-3])
            for case, level in enumerate(levels)
        ]  # fmt: skip
        yield {**record(rows, written=day), "commit_info": {"id": f"{commit:040}", "dirty": False, "time": day}}


def opened(folder: Path, words: list[str]) -> tuple[float, float, float]:
    """MB of the page, seconds to write it, and the median first paint in seconds."""
    page, start = folder / "page.html", time.perf_counter()
    assert verb(["report", *words, f"--output={page}"]) == 0
    seconds, size = time.perf_counter() - start, page.stat().st_size / 1e6
    paints = [first_paint_seconds(page, folder / f"profile{number}") for number in range(OPENINGS)]
    return size, seconds, median(paints)


def main() -> int:
    if chromium() is None:
        print("no Chromium on this machine")
        return 2
    print(conditions())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, seconds, paint = opened(folder, [str(RECORD)])
        print(f"one run: {size:.2f} MB, written in {seconds:.1f} s, first paint after {paint:.2f} s")
        for number, data in enumerate(many_records(), 1):
            write_record(folder / f"records/machine/{number:04}_run.json", data)
        many = opened(folder, [f"--storage={folder / 'records'}"])
        print(f"2000 runs: {many[0]:.2f} MB, written in {many[1]:.1f} s, first paint after {many[2]:.2f} s")
    claim = "the page of one run is below 1.8 MB and painted within 1 s, that of 2000 runs below 12 MB"
    return conclude(claim, size < MOST_MB and paint < MOST_SECONDS and many[0] < MOST_MB_OF_MANY)


if __name__ == "__main__":
    sys.exit(main())
