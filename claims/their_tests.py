"""Whole gates of a mixed suite of somebody's: twelve pytest-benchmark tests of microseconds to a tenth of a second.

    python -m claims.their_tests [FILE] [--minutes M]

measures what FILE lacks of the gates that the claim takes with the present engine, for at most M minutes, and prints
what all of them say. Head is unchanged code, or does some more of the same work in one test. It may be stopped at any
moment and started again: each gate is added to FILE whole, as a line of `claims.gate`, and judged anew at each reading.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from claims import gate
from claims.gate import Trial, is_false_alarm
from claims.statistics import Share
from perf_tests_suite.perf_tests.gate.samples import PRESENT_ENGINE, read_samples
from perf_tests_suite.perf_tests.gate.verdicts import Verdict
from perf_tests_suite.perf_tests.records.format import table
from tests.support.git_repository import commit, git

KEPT = gate.KEPT / "their_tests.jsonl.xz"
PROOF = "their-tests"
UNCHANGED, ALONE = "unchanged", "one test of 10 ms, unchanged"
FIVE, THREE = "5% more in one test", "3% more in one test"
WANTED = {UNCHANGED: 30, FIVE: 10, THREE: 10, ALONE: 3}
"""How many gates of each kind the claim takes."""
SHARES = {FIVE: 0.05, THREE: 0.03}
SECONDS_A_TEST, SECONDS_ALONE = 30, 60
CALM_SPREAD = 0.02
"""What launch pairs scatter by at most where a slowdown of 3 % is claimed to be found."""

STEPS = {"tiny": 300, "small": 3000, "medium": 20_000, "large": 200_000, "long": 2_000_000}
"""Steps of a loop in Python that takes ten microseconds to a tenth of a second."""
STEPS_ALONE = {"alone": 350_000}
TESTS = 7 + len(STEPS)

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

FILE = """
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
    """Print what the committed gates say; the claimed figures, without those of which there are too few."""
    trials = trials_in(KEPT)
    say(trials)
    found: dict[str, float] = {}
    of = {kind: [trial for trial in trials if trial.truth["change"] == kind] for kind in WANTED}
    alarms = sum(map(is_false_alarm, of[UNCHANGED]))
    if alarms or len(of[UNCHANGED]) >= WANTED[UNCHANGED]:
        found["gates of unchanged code that fail"] = alarms
    if len(of[UNCHANGED]) >= WANTED[UNCHANGED]:
        found["minutes of twenty tests, median"] = minutes_of_twenty(of[UNCHANGED])
    calm = [trial for trial in of[THREE] if trial.pair_spread <= CALM_SPREAD]
    for name, slowed in (("found of 5%", of[FIVE]), ("found of 3% where pairs scatter by at most 2%", calm)):
        if len(slowed) >= WANTED[FIVE]:
            found[name] = sum(map(is_found, slowed)) / len(slowed)
    if len(of[ALONE]) >= WANTED[ALONE]:
        found["seconds until one test of 10 ms is decided, median"] = median(
            math.inf if trial.result.cases[0].verdict == Verdict.UNDECIDED else trial.truth["seconds"]
            for trial in of[ALONE]
        )
    return found


def trials_in(path: Path) -> list[Trial]:
    """The gates of the present engine with a verdict, the oldest first; raises ValueError for a damaged file."""
    trials = map(gate.trial_of, gate.lines_of(path, [PROOF]))
    return [trial for trial in trials if trial.engine == PRESENT_ENGINE and trial.says_something]


def minutes_of_twenty(unchanged: Sequence[Trial]) -> float:
    """Return what the median of these gates takes for so many tests, that of twelve in proportion."""
    return 20 / TESTS * median(trial.truth["seconds"] for trial in unchanged) / 60


def is_found(trial: Trial) -> bool:
    """Whether the test with more work is called slower."""
    name = f"[{trial.truth['test']}]"
    return any(row.verdict == Verdict.SLOWER for row in trial.result.cases if row.id.endswith(name))


def say(trials: Sequence[Trial]) -> None:
    """Print a line for each kind, what no alarm excludes, and what a gate of twenty tests takes."""
    rows = []
    for kind in WANTED:
        of = [trial for trial in trials if trial.truth["change"] == kind]
        if not of:
            continue
        loads, seconds, spreads = (
            sorted(values)
            for values in zip(*((t.truth["load"], t.truth["seconds"], t.pair_spread) for t in of), strict=True)
        )
        flags = Counter(row.verdict for trial in of for row in trial.result.cases if row.verdict == Verdict.UNDECIDED)
        rows.append((
            kind, f"{len(of)} of {WANTED[kind]}", str(sum(map(is_false_alarm, of))),
            str(sum(map(is_found, of))) if kind in SHARES else "-", str(flags.total()),
            f"{spreads[0]:.1%}, {median(spreads):.1%}, {spreads[-1]:.1%}",
            f"{loads[0]:.1f}, {median(loads):.1f}, {loads[-1]:.1f}",
            f"{seconds[0]:.0f}, {median(seconds):.0f}, {seconds[-1]:.0f}",
        ))  # fmt: skip
    least = ("pairs scatter by (least, median, most)", "load before", "seconds")
    print(*table(("head", "gates", "failed", "found", "tests UNDECIDED", *least), rows), sep="\n")
    if unchanged := [trial for trial in trials if trial.truth["change"] == UNCHANGED]:
        alarms = Share(sum(map(is_false_alarm, unchanged)), len(unchanged))
        excluded = f"a rate above {alarms.upper_limit:.1%} is excluded at 95 %"
        print(f"{alarms.count} of {alarms.of} gates of unchanged code fail: {excluded}.")
        minutes = minutes_of_twenty(unchanged)
        print(f"Twenty such tests, by the median: {minutes:.1f} min on {os.cpu_count()} processors.")


def missing(trials: Sequence[Trial]) -> list[str]:
    """The kinds to measure, that of which the smallest share is there first; of 3 % only calm gates count."""
    there = Counter(
        trial.truth["change"] for trial in trials if trial.truth["change"] != THREE or trial.pair_spread <= CALM_SPREAD
    )
    left = []
    while lacking := [kind for kind, most in WANTED.items() if there[kind] < most]:
        left.append(min(lacking, key=lambda kind: there[kind] / WANTED[kind]))
        there[left[-1]] += 1
    return left


def measure(kind: str, number: int) -> tuple[Trial, bytes]:
    """A gate of this kind, and its raw samples. Raises RuntimeError where it has no verdict."""
    test = [*STEPS][number % len(STEPS)] if kind in SHARES else None
    steps = STEPS_ALONE if kind == ALONE else STEPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "src").mkdir()
        (folder / "src/lib.py").write_text(LIBRARY.format(extra={}))
        (folder / "test_mixed.py").write_text(FILE.format(names=[*steps], steps=steps))
        commit(folder)
        extra = {} if test is None else {test: SHARES[kind]}
        (folder / "src/lib.py").write_text(LIBRARY.format(extra=extra))
        place, seconds = "test_mixed.py", SECONDS_A_TEST * TESTS
        if kind == ALONE:
            place, seconds = f"{place}::test_count", SECONDS_ALONE
        words = ["run", place, "--against=main", f"--gate-minutes={seconds / 60:g}", "--gate-measure-same"]
        load, start = os.getloadavg()[0], time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", "perf_tests_suite.perf_tests", *words], cwd=folder, capture_output=True, text=True
        )
        took = time.monotonic() - start
        written = sorted((folder / ".benchmarks/gate").glob("*.jsonl"))
        if not written or git(folder, "status", "--porcelain", "src", "test_mixed.py") not in ("", " M src/lib.py"):
            raise RuntimeError(f"the gate ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        raw, samples = written[-1].read_bytes(), read_samples(written[-1])
    samples.header.pop("suite", None)  # where the suite lies here
    truth = {"change": kind, "test": test, "load": round(load, 2), "seconds": round(took, 1)}
    return gate.judged(time.strftime("%Y%m%dT%H%M%S"), truth, samples, {}), raw


def main() -> int:
    """0 once every gate is there, 2 where some are missing; 130 where it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m claims.their_tests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=KEPT)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no gate that, as the longest before, would end later"
    )
    asked = parser.parse_args()
    end, longest = time.monotonic() + 60 * asked.minutes, 0.0
    try:
        while left := missing(trials := trials_in(asked.file)):
            began = time.monotonic()
            if began + longest > end:
                break
            trial, raw = measure(left[0], sum(trial.truth["change"] == left[0] for trial in trials))
            took = time.monotonic() - began
            longest = max(longest, took)
            gate.write_lines(asked.file, [*gate.lines_of(asked.file, [PROOF]), gate.line_of(PROOF, trial, raw)])
            about = f"load {trial.truth['load']}, {took:.0f} s, pairs scatter by {trial.pair_spread:.1%}"
            print(f"{left[0]}: {trial}; {about}; {len(left) - 1} are missing", flush=True)
    except KeyboardInterrupt:
        print("stopped; what is measured is kept, and the same command resumes.")
        return 130
    except (RuntimeError, ValueError) as error:
        print(error)
        return 2
    say(trials)
    return 2 if left else 0


if __name__ == "__main__":
    sys.exit(main())
