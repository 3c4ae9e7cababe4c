"""What other tools would say of kept gate trials: their rules on the very rounds that the gate was judged by.

Two views of a run: two launches apart, minutes from each other, as those who record a run and compare a later one have
it; and every round of stage 1, taken in turns, which costs what the gate's own first stage costs.
"""

from collections.abc import Iterable

import numpy as np

from perf_tests.proofs.gate_trials import Trial
from perf_tests.proofs.peer_rules import PEERS
from perf_tests.records.gate.samples import GateSamples, Measurement
from perf_tests.records.gate.statistics import Floats
from perf_tests.records.gate.verdicts import Verdict

GATE = "this gate"
APART = "two launches"
POOLED = "all rounds of stage 1"
VIEWS = (APART, POOLED)

Calls = dict[str, frozenset[str]]
"""Rule to the benchmarks that it calls slower."""


def rule_names() -> list[str]:
    """The gate first, then each rule in each view."""
    return [GATE, *(f"{rule}, {view}" for view in VIEWS for rule in PEERS)]


def calls_of(trial: Trial) -> Calls:
    """What each rule calls slower in this run."""
    assert trial.samples is not None
    slower: dict[str, set[str]] = {name: set() for name in rule_names()}
    slower[GATE] = {row.id for row in trial.result.cases if row.verdict == Verdict.SLOWER}
    for case in trial.samples.cases:
        for view in VIEWS:
            rounds = _rounds(trial.samples, case, view)
            if rounds is None:
                continue
            for rule, says_slower in PEERS.items():
                if says_slower(*rounds):
                    slower[f"{rule}, {view}"].add(case)
    return {name: frozenset(found) for name, found in slower.items()}


def _rounds(samples: GateSamples, case: str, view: str) -> tuple[Floats, Floats] | None:
    """Wall times of base and head (n,), in seconds; None where too few launch pairs measured the case."""
    lines = [line for line in samples.measurements if (line.stage, line.case) == (1, case)]
    if len(lines) < 2:
        return None
    if view == APART:
        return lines[0].base_seconds.ravel(), lines[-1].head_seconds.ravel()
    return _pooled(lines, "base"), _pooled(lines, "head")


def _pooled(lines: Iterable[Measurement], side: str) -> Floats:
    return np.concatenate([getattr(line, f"{side}_seconds").ravel() for line in lines])
