"""Whole gates of a mixed suite of somebody's, twelve pytest-benchmark tests of a microsecond to a tenth of a second.

Head is unchanged code, or does some more of the same work in one test. Each run, with the load beside it, is a line.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from perf_tests_suite.perf_tests.gate.samples import read_samples, rules_from_settings
from perf_tests_suite.perf_tests.gate.verdicts import GateResult, Verdict, conclude
from tests.support.git_repository import commit, git

UNCHANGED_RUNS, SLOWED_RUNS, MINUTES_A_TEST = 30, 10, 0.5

STEPS = {"tiny": 20, "small": 200, "medium": 20_000, "large": 200_000, "long": 2_000_000}
"""Steps of a loop in Python that takes microseconds to a tenth of a second."""

LIBRARY = (
    "EXTRA = {extra!r}\n"
    + """
def count(name, steps):
    total = 0
    for step in range(round(steps * (1 + EXTRA.get(name, 0)))):
        total += step & 7
    return total
"""
)

TESTS = """
import json
import pytest
from lib import count

@pytest.fixture(scope="module")
def rows():
    return [{{"name": str(i), "values": [*range(i % 9)]}} for i in range(20_000)]

@pytest.mark.parametrize("name", {names!r})
def test_count(benchmark, name):
    benchmark(count, name, {steps!r}[name])

@pytest.mark.parametrize("n", [20, 2000, 20_000])
def test_dumps(benchmark, rows, n):
    benchmark(json.dumps, rows[:n])

@pytest.mark.parametrize("n", [100, 10_000])
def test_sort(benchmark, n):
    benchmark.pedantic(list.sort, setup=lambda: (([i * 7919 % 100_003 for i in range(n)],), {{}}), rounds=5)

@pytest.mark.parametrize("n", [1000, 100_000])
def test_join(benchmark, n):
    benchmark(" ".join, ["word"] * n)
"""


def their_tests() -> dict[str, float]:
    """Count gates of unchanged code that fail, and planted slowdowns of a test that are not found."""
    alarms = sum(_gated({}, "unchanged").exit_code != 0 for _ in range(UNCHANGED_RUNS))
    print(
        f"{alarms} of {UNCHANGED_RUNS}: the rate is below {1 - 0.05 ** (1 / UNCHANGED_RUNS):.0%} (95 %) if it is none."
    )
    found = {"gates of unchanged code that fail": float(alarms)}
    for extra in (0.05, 0.03):
        missed = 0
        for number in range(SLOWED_RUNS):
            name = [*STEPS][number % len(STEPS)]
            result = _gated({name: extra}, f"{extra:.0%} more in {name}")
            rows = {row.id.partition("[")[2]: row.verdict for row in result.cases}
            missed += rows[f"{name}]"] != Verdict.SLOWER
        found[f"slowdowns of {extra:.0%} of {SLOWED_RUNS} not found"] = missed
    return found


def _gated(extra: dict[str, float], what: str) -> GateResult:
    """The verdict on a head that does so much more. Raises RuntimeError where there is none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "src").mkdir()
        (folder / "src/lib.py").write_text(LIBRARY.format(extra={}))
        (folder / "test_mixed.py").write_text(TESTS.format(names=[*STEPS], steps=STEPS))
        commit(folder)
        (folder / "src/lib.py").write_text(LIBRARY.format(extra=extra))
        tests = len(STEPS) + 7
        words = ["run", "test_mixed.py", "--against=main", f"--gate-minutes={tests * MINUTES_A_TEST:g}"]
        command = [sys.executable, "-m", "perf_tests_suite.perf_tests", *words, "--gate-measure-same"]
        load = os.getloadavg()[0]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        samples = sorted((folder / ".benchmarks/gate").glob("*.jsonl"))
        if not samples or git(folder, "status", "--porcelain", "src", "test_mixed.py") not in ("", " M src/lib.py"):
            raise RuntimeError(f"the gate ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        read = read_samples(samples[-1])
        result = conclude(read, rules_from_settings(read.header["settings"]))
    counts = Counter(str(row.verdict) for row in result.cases)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    spread = result.clock.cpu_spread if result.clock.cpu_spread is not None else result.clock.wall_spread
    print(f"{what}: {result.verdict} ({counted}), pairs scatter by {spread:.1%}, load {load:.1f}", flush=True)
    return result
