"""What tests of the gate share: simulated runs, the row of a case in a result, an accepted slowdown."""

from collections.abc import Sequence

import numpy as np

from perf_tests.gate.samples import GateSamples, Rules
from perf_tests.gate.verdicts import CaseResult, GateResult
from perf_tests.records.record import Json
from tests.support.simulated_launches import SimulatedCase, header, line

RULES = Rules()
QUIET = [SimulatedCase(f"quiet {place}") for place in range(8)]
NOISY_WALL = [SimulatedCase(f"c {place}", pair_spread=0.05, cpu_pair_spread=0.005) for place in range(10)]


def row(result: GateResult, case: str) -> CaseResult:
    return next(row for row in result.cases if row.id == case)


def screened_run(cases: Sequence[SimulatedCase], events: Sequence[Json] = (), rules: Rules = RULES) -> GateSamples:
    """Stage 1 alone."""
    draw = np.random.default_rng(1)
    samples = GateSamples(header(cases, rules))
    for event in events:
        samples.add(event)
    for pair in range(rules.screen_pairs):
        for case in cases:
            samples.add(line(draw, case, 1, pair, 8, False))
    return samples


def accepted_entry(case: str = "slow", limit: float = 1.08, **more: object) -> Json:
    return {"id": case, "limit": limit, "reason": "stability", "revision": "abc"} | more
