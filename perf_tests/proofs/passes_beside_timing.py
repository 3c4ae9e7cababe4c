"""Whether the extra passes leave the timings alone: the suite with and without them, launch by launch in turns.

`python -m perf_tests.proofs.passes_beside_timing` holds what `--kernels` does; other options of the suite that should
leave timings alone can be named instead: `... passes_beside_timing --memory`.
"""

import math
import sys
from statistics import median

from perf_tests.proofs.launches import launch_suite
from perf_tests.proofs.paired_ratio import FEWEST_PAIRS, paired_ratio_of_turns
from perf_tests.proofs.verdict import conclude, conditions

LIMITS = (0.98, 1.02)
PAIRS = 24
"""Two launches of a side in each: launches differ by more than their rounds do."""

# One thread: how two of them share cores with a neighbour would be noise, and the same noise on both sides.
SUITE = [
    "perf_tests", "-k", "not attention", "--device", "cpu", "--threads", "1", "--size", "tiny", "--context", "64",
    "--precision", "fp32", "--phase", "forward,backward", "--rounds", "40",
]  # fmt: skip


def main(options: list[str], pairs: int = PAIRS) -> int:
    options = options or ["--kernels"]
    assert pairs >= FEWEST_PAIRS
    print(f"{conditions(threads=1)}, {pairs} times in turns without, with, with, without {' '.join(options)}")
    without: list[float] = []
    with_passes: list[float] = []
    for _ in range(pairs):
        without.append(typical_seconds([]))
        with_passes += [typical_seconds(options), typical_seconds(options)]
        without.append(typical_seconds([]))
    ratio = paired_ratio_of_turns(with_passes, without)
    print(f"without {median(without) * 1e3:.2f} ms, with / without {ratio}")
    claim = f"timings with and without {' '.join(options)} agree within {LIMITS[0]} to {LIMITS[1]}"
    return conclude(claim, ratio.is_within(*LIMITS))


def typical_seconds(options: list[str]) -> float:
    """The geometric mean of the cases' medians in one launch of the suite."""
    medians = [benchmark["stats"]["median"] for benchmark in launch_suite([*SUITE, *options]).benchmarks]
    return math.exp(sum(map(math.log, medians)) / len(medians))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
