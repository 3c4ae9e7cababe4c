"""The gate's words against its figures, on random simulated suites.

Cases are slower by one clock, by both or by none, by anything from 1 % to three times; runs end early or not; some
slowdowns are accepted, by one clock, up to some limit. Whatever the verdicts are: a SLOWER row shows an interval above
the margin, an OK row one below what matters, both by the clock that decided, and what is accepted lies below its limit
by every clock that shows a slowdown.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import get_args

import numpy as np

from perf_tests_suite.perf_tests.gate.accepted import Acceptance
from perf_tests_suite.perf_tests.gate.samples import Clock, End, Rules
from perf_tests_suite.perf_tests.gate.verdicts import CaseResult, Verdict, conclude
from tests.support.simulated_launches import SimulatedCase, gate_run

CASES = [f"case {place}" for place in range(6)]
CLOCKS: tuple[Clock, ...] = get_args(Clock)
SLOWDOWNS = (0.0, 0.0, 0.01, 0.03, 0.05, 0.1, 0.5, 2.0)
QUICK = Rules(alpha=0.1, screen_pairs=4, confirm_looks=(5, 8), look_shares=(0.4, 0.6))
"""A dozen launch pairs decide, at levels that leave an interval of 95 % more room to disagree."""


def judged(draw: np.random.Generator, suites: int) -> tuple[list[CaseResult], list[str]]:
    """The rows of so many suites, and what is wrong with them."""
    all_rows, faults = [], []
    for _ in range(suites):
        limits = [(case, clock) for case in CASES for clock in CLOCKS if draw.integers(2)]
        accepted = [Acceptance(c, float(draw.choice((1.02, 1.2, 4.0))), "why", "abc", clock=by) for c, by in limits]
        rows, rules = judged_run(draw, accepted)
        all_rows += rows
        faults += [f"{row}: {fault}" for row in rows for fault in faults_of(row, accepted, rules)]
    return all_rows, faults


def faults_of(row: CaseResult, accepted: Sequence[Acceptance], rules: Rules) -> list[str]:
    """What a row says that its own figures contradict."""
    if row.effect is None:
        return [f"{row.verdict} without an effect"] if row.verdict in (Verdict.SLOWER, Verdict.OK) else []
    limits = {(limit.id, limit.clock): limit.limit for limit in accepted}
    shown, is_slower = [*row.slower_by.items()], row.verdict == Verdict.SLOWER
    checks = {
        "an effect outside of its interval": row.effect.low <= row.effect.effect <= row.effect.high,
        "SLOWER with an interval below the margin": not is_slower or row.effect.low >= rules.margin,
        "OK with an interval above what matters": row.verdict != Verdict.OK or row.effect.high <= rules.matters,
        "SLOWER by a clock that the row does not show": shown[:1] == ([(row.clock, row.effect)] if is_slower else []),
        "accepted above a limit": not row.accepted
        or all(1 + found.effect <= limits.get((row.id, clock), 0.0) for clock, found in shown),
    }
    return [fault for fault, holds in checks.items() if not holds]


def judged_run(draw: np.random.Generator, accepted: Sequence[Acceptance]) -> tuple[list[CaseResult], Rules]:
    """A run of the gate, which may end early."""
    has_cpu, spread = bool(draw.integers(2)), float(draw.choice((0.005, 0.02, 0.1)))
    cases = [
        SimulatedCase(
            case, slowdown=float(draw.choice(SLOWDOWNS)), pair_spread=spread * float(np.exp(draw.normal() / 2)),
            cpu_pair_spread=spread / 5 if has_cpu else None, cpu_slowdown=float(draw.choice(SLOWDOWNS)),
        )
        for case in CASES
    ]  # fmt: skip
    most = int(draw.integers(QUICK.screen_pairs + 3, 20))
    samples = gate_run(cases, QUICK, int(draw.integers(2**32)), quadruples=2, most_pairs=most)
    header = {**samples.header, "accepted": [*map(asdict, accepted)]}
    return conclude(replace(samples, header=header, events=[End("budget")]), QUICK).cases, QUICK
