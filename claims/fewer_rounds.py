"""What fewer rounds of a launch would cost: recorded pair values computed again from a part of their quadruples.

    python -m claims.fewer_rounds SAMPLES...

SAMPLES are raw samples of the gate. Were the launches what scatters, a part of the rounds would do. Of each launch only
the first so many quadruples count, half of them in either order, and of the cases those that have more of them in every
launch; their stage 1 is taken.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from claims.verdict import conclude
from perf_tests.gate.samples import ORDERS, Clock, GateSamples, Measurement, read_samples
from perf_tests.gate.statistics import pair_value
from perf_tests.records.format import table

FEW = (2, 4, 6)
"""Quadruples of a launch; even, because the cost of a change of turns cancels between the two orders."""
MOST_GROWTH = 1.1
"""Of the standard deviation: what a saving of rounds might cost."""
CLOCKS: tuple[Clock, ...] = ("wall", "cpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+", help="raw samples")
    try:
        runs = [read_samples(path) for path in parser.parse_args().samples]
    except (OSError, ValueError) as error:
        print(error)
        return 3
    found = {few: [growth(runs, few, clock) for clock in CLOCKS] for few in FEW}
    rows = [(str(few), *(f"{times:.2f}" for times in of_clocks)) for few, of_clocks in found.items()]
    print("\n".join(table(("quadruples", *(f"scatter by {clock} time" for clock in CLOCKS)), rows)))
    claim = f"launch pairs of {FEW[0]} quadruples scatter by more than {MOST_GROWTH} times as much as those of all"
    return conclude(claim, min(found[FEW[0]]) > MOST_GROWTH)


def growth(runs: Iterable[GateSamples], quadruples: int, clock: Clock) -> float:
    """How many times the standard deviation of pair values is larger with so few quadruples; NaN without any case."""
    of_few, of_all = 0.0, 0.0
    for run in runs:
        for case in run.cases:
            launches = [line for line in run.measurements if line.case == case and line.stage == 1]
            parts = [part_of(line, quadruples) for line in launches]
            whole = [line for line in launches if len(line.orders) > quadruples]
            if len(launches) >= 2 and len(whole) == len(launches) and None not in parts:
                of_few += variance([part for part in parts if part is not None], clock)
                of_all += variance(launches, clock)
    return math.sqrt(of_few / of_all) if of_all else math.nan


def variance(launches: Sequence[Measurement], clock: Clock) -> float:
    return float(np.var([pair_value(line, clock) for line in launches], ddof=1))


def part_of(line: Measurement, quadruples: int) -> Measurement | None:
    """The first so many quadruples, half of them in either order; None where it has too few of one."""
    places = [[place for place, order in enumerate(line.orders) if order == wanted] for wanted in ORDERS]
    half = quadruples // 2
    if min(map(len, places)) < half:
        return None
    kept = sorted(place for of_order in places for place in of_order[:half])
    base_cpu, head_cpu = (None if cpu is None else cpu[kept] for cpu in (line.base_cpu_seconds, line.head_cpu_seconds))
    return replace(
        line,
        orders=tuple(line.orders[place] for place in kept),
        base_seconds=line.base_seconds[kept],
        head_seconds=line.head_seconds[kept],
        base_cpu_seconds=base_cpu,
        head_cpu_seconds=head_cpu,
    )


if __name__ == "__main__":
    sys.exit(main())
