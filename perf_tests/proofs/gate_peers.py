"""What other tools would say of kept gate trials: their rules on the very rounds that the gate was judged by.

Two views of a run: two launches apart, minutes from each other, as those who record a run and compare a later one have
it; and every round of stage 1, taken in turns, which costs what the gate's own first stage costs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from perf_tests.gate.samples import GateSamples, Measurement
from perf_tests.gate.statistics import Floats
from perf_tests.gate.verdicts import Verdict
from perf_tests.proofs.gate_power import SlowedCase, by_slowdown, slowed_in
from perf_tests.proofs.gate_trials import Trial, share
from perf_tests.proofs.peer_rules import PEERS
from perf_tests.views.screens.lines import table

GATE = "this gate"
APART = "two launches"
POOLED = "all rounds of stage 1"
VIEWS = (APART, POOLED)

Calls = dict[str, frozenset[str]]
"""Rule to the benchmarks that it calls slower."""


@dataclass(frozen=True)
class Judged:
    """Finished trials, and what every rule called slower in each."""

    trials: Sequence[Trial]
    calls: Mapping[Trial, Calls]

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> "Judged":
        """Without those that the gate itself refused."""
        valid = [trial for trial in trials if trial.says_something]
        return cls(valid, {trial: calls_of(trial) for trial in valid})

    def false_alarms(self, rule: str) -> tuple[int, int]:
        """Trials in which the rule calls any benchmark slower, of all."""
        return sum(bool(self.calls[trial][rule]) for trial in self.trials), len(self.trials)

    def called(self, rule: str) -> tuple[int, int]:
        """Benchmarks that the rule calls slower, of all."""
        called = [row.id in self.calls[trial][rule] for trial in self.trials for row in trial.result.cases]
        return sum(called), len(called)

    def found(self, rule: str, cases: Sequence[SlowedCase]) -> tuple[int, int]:
        """The same of benchmarks that were slowed."""
        return sum(case.row.id in self.calls[case.trial][rule] for case in cases), len(cases)


def rules_table(unchanged: Judged, injected: Judged) -> list[str]:
    """A line for each rule: its false alarms beside what it finds."""
    sizes = by_slowdown(slowed_in(injected.trials))
    rows = [
        (
            rule,
            share(*unchanged.false_alarms(rule)),
            *("{} of {}".format(*injected.found(rule, cases)) for cases in sizes.values()),
        )
        for rule in rule_names()
    ]
    return table(("rule", "runs with a false alarm", *(f"{size:.0%} found" for size in sizes)), rows)


def rule_names() -> list[str]:
    """The gate first, then each rule in each view."""
    return [GATE, *(f"{rule}, {view}" for view in VIEWS for rule in PEERS)]


@cache
def calls_of(trial: Trial) -> Calls:
    """What each rule calls slower in this run; worked out once, which takes most of a second."""
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
