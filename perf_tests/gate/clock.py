"""Pair values, and their clock: wall time, or the CPU time of the process, which a busy neighbour hardly affects."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perf_tests.gate.events import Measurement
from perf_tests.gate.rules import Clock, Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.gate.statistics import Floats, hodges_lehmann, robust_spread

CPU_TIME_ADVANTAGE = 0.8
"""CPU time decides only where its spread is below this fraction of wall time's, because users wait in wall time."""


@dataclass(frozen=True)
class ClockDecision:
    """The clock that decides, with the typical spread of a case's pair values by each clock."""

    clock: Clock
    wall_spread: float
    cpu_spread: float | None
    """None where CPU time was not read on both sides of every case."""

    @property
    def guards(self) -> bool:
        """Whether wall time is checked too, because CPU time misses waiting and lost parallelism."""
        return self.clock == "cpu"


@lru_cache(maxsize=2**16)  # the engine asks again after each launch pair
def pair_value(line: Measurement, clock: Clock) -> float:
    """The log ratio, head over base, of one case in one launch pair: the unit of all inference.

    The Hodges-Lehmann centre over the quadruples of 1/2 [(ln h1 + ln h2) - (ln b1 + ln b2)], in which a steady drift
    cancels. NaN where the clock was not read.
    """
    base, head = line.seconds_by(clock)
    if base is None or head is None:
        return math.nan
    return hodges_lehmann((np.log(head).sum(axis=1) - np.log(base).sum(axis=1)) / 2)


def pair_values(samples: GateSamples, stage: int, pairs: Sequence[int], clock: Clock) -> Floats:
    """Pair values (cases, pairs) of these launch pairs; NaN where a case was not measured in a pair."""
    row = {case: place for place, case in enumerate(samples.cases)}
    column = {pair: place for place, pair in enumerate(pairs)}
    values = np.full((len(row), len(column)), np.nan)
    for line in samples.measurements:
        if line.stage == stage and line.pair in column:
            values[row[line.case], column[line.pair]] = pair_value(line, clock)
    return values


def decide_clock(samples: GateSamples, rules: Rules, pairs: Sequence[int] | None = None) -> ClockDecision:
    """The clock by which the suite scatters less in these pairs of stage 1, by default all, unless the rules name one.

    The choice biases no test: those of single cases use the fresh launches of stage 2; the first look and the
    suite-wide test split their level between the clocks. Raises ValueError when the rules name CPU time and it was not
    read.
    """
    pairs = samples.pairs(1) if pairs is None else pairs
    wall, cpu = (_typical_spread(pair_values(samples, 1, pairs, clock)) for clock in ("wall", "cpu"))
    screening = [line for line in samples.measurements if line.stage == 1 and line.pair in pairs]
    has_cpu = bool(screening) and all(seconds is not None for line in screening for seconds in line.seconds_by("cpu"))
    if rules.clock == "cpu" and screening and not has_cpu:
        raise ValueError("The gate's clock is cpu, but some cases have no CPU time: choose wall or auto.")
    better = has_cpu and cpu < CPU_TIME_ADVANTAGE * wall
    clock: Clock = "cpu" if rules.clock == "cpu" or (rules.clock == "auto" and better) else "wall"
    return ClockDecision(clock, wall, cpu if has_cpu else None)


def _typical_spread(values: Floats) -> float:
    """The median over the cases; NaN when no case has two values."""
    values = values[np.sum(~np.isnan(values), axis=1) >= 2]
    return float(np.median(robust_spread(values))) if len(values) else math.nan
