"""The suite's figures against a hand-written loop over the same call, and what the suite itself costs in each round.

One run of the suite over `interleaved_rounds.py`, whose rounds take turns with the loop's within one process.
"""

import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from claims.interleaved_rounds import rounds_between
from claims.paired_ratio import paired_ratio_of_turns
from claims.verdict import conclude, conditions
from tests.support.launches import launch_suite

ROUNDS, WARMUP_ROUNDS = 1000, 10
LIMITS = (0.98, 1.02)
SHORTEST_SECONDS = 0.010
OWN_COST_LIMIT_SECONDS = 50e-6

# One thread: how two of them share cores with a neighbour would be noise, and the same noise on both sides.
SUITE = [
    "claims/interleaved_rounds.py", "--device", "cpu", "--threads", "1", "--precision", "fp32",
    "--phase", "inference,forward,backward", "--warmup-rounds", str(WARMUP_ROUNDS),
]  # fmt: skip


def main() -> int:
    print(f"{conditions(threads=1)}, {ROUNDS} rounds of each side, in turns suite, suite, loop, loop")
    benchmarks = launch_suite([*SUITE, "--size", "tiny", "--context", "64", "--rounds", str(ROUNDS)]).benchmarks
    agree = phases_agree(benchmarks)
    (empty,) = (benchmark for benchmark in benchmarks if "between_seconds" in benchmark["extra_info"])
    own_cost_seconds = cost_of_a_round(empty)
    claim = (
        f"the suite's figure of a phase of 10 ms and more is a hand-written loop's within {LIMITS[0]} to {LIMITS[1]}, "
        f"and its own cost per round is under {OWN_COST_LIMIT_SECONDS * 1e6:.0f} us"
    )
    return conclude(claim, agree and own_cost_seconds < OWN_COST_LIMIT_SECONDS)


def phases_agree(benchmarks: Sequence[dict[str, Any]]) -> bool:
    """Print each phase's row; whether all of them are close."""
    agree = [is_close(benchmark) for benchmark in benchmarks if "loop_seconds" in benchmark["extra_info"]]
    return all(agree)


def is_close(benchmark: dict[str, Any]) -> bool:
    """Print the phase's row; whether it is long enough and its interval lies within the limits."""
    info, suite = benchmark["extra_info"], benchmark["stats"]["data"]
    loop = rounds_between(info["loop_seconds"], WARMUP_ROUNDS, len(suite))
    ratio = paired_ratio_of_turns(suite, loop)
    cpu_ratio = paired_ratio_of_turns(
        info["cpu_seconds"], rounds_between(info["loop_cpu_seconds"], WARMUP_ROUNDS, len(suite))
    )
    print(
        f"{info['phase']:10} suite {median(suite) * 1e3:6.2f} ms  loop {median(loop) * 1e3:6.2f} ms"
        f"  suite / loop {ratio}, by CPU time {cpu_ratio}"
    )
    return median(loop) >= SHORTEST_SECONDS and ratio.is_within(*LIMITS)


def cost_of_a_round(empty: dict[str, Any]) -> float:
    """Print and return the median time from one round's set-up to the next one's, while the target does nothing."""
    info = empty["extra_info"]
    whole_seconds = median(info["between_seconds"][WARMUP_ROUNDS:])
    figure_seconds = median(empty["stats"]["data"])
    print(f"a round of nothing takes {whole_seconds * 1e6:.1f} us, {figure_seconds * 1e6:.1f} us of them in its figure")
    return whole_seconds


if __name__ == "__main__":
    sys.exit(main())
