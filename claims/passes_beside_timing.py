"""Whether the extra passes leave the timings unchanged: the suite with and without them, launch by launch in turns.

`python -m claims.passes_beside_timing` holds what `--kernels` does; other options of the suite that should
leave timings alone can be named instead: `... passes_beside_timing --memory`.
"""

import math
import sys
from statistics import fmean, median

from claims.paired_ratio import FEWEST_PAIRS, paired_ratio_of_turns
from claims.verdict import conclude, conditions
from tests.support.launches import launch_suite

LIMITS = (0.98, 1.02)
PAIRS = 24
"""Two launches of a side in each: launches differ by more than their rounds do."""

CLOCKS = ("wall", "CPU")
"""On a shared machine CPU time is more precise; wall time is needed too, because CPU time misses waiting."""

Seconds = dict[str, float]

# One thread: how two of them share cores with a neighbour would be noise, and the same noise on both sides.
SUITE = [
    "perf_tests", "-k", "not attention", "--device", "cpu", "--threads", "1", "--size", "tiny", "--context", "64",
    "--precision", "fp32", "--phase", "forward,backward", "--rounds", "40",
]  # fmt: skip


def main(options: list[str], pairs: int = PAIRS) -> int:
    options = options or ["--kernels"]
    assert pairs >= FEWEST_PAIRS
    print(f"{conditions(threads=1)}, {pairs} times in turns without, with, with, without {' '.join(options)}")
    without: list[Seconds] = []
    with_passes: list[Seconds] = []
    for _ in range(pairs):
        without.append(typical_seconds([]))
        with_passes += [typical_seconds(options), typical_seconds(options)]
        without.append(typical_seconds([]))
    ratios = {
        clock: paired_ratio_of_turns([row[clock] for row in with_passes], [row[clock] for row in without])
        for clock in CLOCKS
    }
    for clock, ratio in ratios.items():
        print(f"{clock:4}: without {median(row[clock] for row in without) * 1e3:.2f} ms, with / without {ratio}")
    claim = f"timings with and without {' '.join(options)} agree within {LIMITS[0]} to {LIMITS[1]}"
    surest = min(ratios.values(), key=lambda ratio: ratio.high - ratio.low)
    return conclude(f"{claim}, by the clock that scatters less", surest.is_within(*LIMITS))


def typical_seconds(options: list[str]) -> Seconds:
    """By each clock, the geometric mean of the cases' medians in one launch of the suite."""
    benchmarks = launch_suite([*SUITE, *options]).benchmarks
    rounds = {
        "wall": [benchmark["stats"]["data"] for benchmark in benchmarks],
        "CPU": [benchmark["extra_info"]["cpu_seconds"] for benchmark in benchmarks],
    }
    return {clock: math.exp(fmean(math.log(median(seconds)) for seconds in rounds[clock])) for clock in CLOCKS}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
