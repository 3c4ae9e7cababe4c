"""The gate's words against its figures, on random simulated suites: whole runs, and recorded launches.

Cases are slower by one clock, by both or by none, by anything from 1 % to three times; runs end early or not; some
slowdowns are accepted, by one clock, up to some limit. Whatever the verdicts are: a SLOWER row shows an interval above
the margin, an OK row one below what matters, both by the clock that decided, and what is accepted lies below its limit
by every clock that shows a slowdown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from perf_tests.gate import recorded
from perf_tests.gate.recorded import conclude_recorded
from perf_tests.gate.samples import Clock, End, GateSamples, Rules
from perf_tests.gate.verdicts import Acceptance, CaseResult, Verdict, conclude
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord
from tests.support.simulated_launches import SimulatedCase, gate_run

CASES = 6
CLOCKS: tuple[Clock, ...] = ("wall", "cpu")
SLOWDOWNS = (0.0, 0.0, 0.01, 0.03, 0.05, 0.1, 0.5, 2.0)
QUICK = Rules(alpha=0.1, screen_pairs=4, confirm_looks=(5, 8), look_shares=(0.4, 0.6))
"""A dozen launch pairs decide, at levels that leave an interval of 95 % more room to disagree."""


Judge = Callable[[np.random.Generator], tuple[list[CaseResult], list[Acceptance], Rules]]


def judged(draw: np.random.Generator, judge: Judge, suites: int) -> tuple[list[CaseResult], list[str]]:
    """The rows of so many suites, and what is wrong with them."""
    found = [judge(draw) for _ in range(suites)]
    faults = [fault for rows, accepted, rules in found for row in rows for fault in faults_of(row, accepted, rules)]
    return [row for rows, _, _ in found for row in rows], faults


def faults_of(row: CaseResult, accepted: Iterable[Acceptance], rules: Rules) -> list[str]:
    """What a row says that its own figures contradict."""
    if row.effect is None:
        return [f"{row.verdict} without an effect"] if row.verdict in (Verdict.SLOWER, Verdict.OK) else []
    low, effect, high = row.effect.low, row.effect.effect, row.effect.high
    allowed = {
        clock: max((a.limit for a in accepted if (a.id, a.clock) == (row.id, clock)), default=0.0) for clock in CLOCKS
    }
    checks = {
        "an effect outside of its interval": low <= effect <= high,
        "SLOWER with an interval below the margin": row.verdict != Verdict.SLOWER or low >= rules.margin,
        "OK with an interval above what matters": row.verdict != Verdict.OK or high <= rules.matters,
        "SLOWER by a clock that the row does not show": [*row.slower_by][:1]
        == ([row.clock] if row.verdict == Verdict.SLOWER else []),
        "figures of another clock": not row.slower_by or next(iter(row.slower_by.values())) == row.effect,
        "accepted above a limit": not row.accepted
        or all(1 + found.effect <= allowed[clock] for clock, found in row.slower_by.items()),
    }
    return [f"{row}: {fault}" for fault, holds in checks.items() if not holds]


def judged_run(draw: np.random.Generator) -> tuple[list[CaseResult], list[Acceptance], Rules]:
    """A run of the gate, which may end early."""
    has_cpu = bool(draw.integers(2))
    spread = float(draw.choice((0.005, 0.02, 0.1)))
    cases = [
        SimulatedCase(
            f"case {place}",
            slowdown=float(draw.choice(SLOWDOWNS)),
            pair_spread=spread * float(np.exp(draw.normal() / 2)),
            cpu_pair_spread=spread / 5 if has_cpu else None,
            cpu_slowdown=float(draw.choice(SLOWDOWNS)),
        )
        for place in range(CASES)
    ]
    most = int(draw.integers(QUICK.screen_pairs + 3, 20))
    samples = gate_run(cases, QUICK, int(draw.integers(2**32)), quadruples=2, most_pairs=most)
    accepted = random_limits(draw, samples.cases)
    samples = GateSamples(
        {**samples.header, "accepted": [*map(asdict, accepted)]}, samples.measurements, [End("budget")]
    )
    return conclude(samples, QUICK).cases, accepted, QUICK


def judged_launches(draw: np.random.Generator) -> tuple[list[CaseResult], list[Acceptance], Rules]:
    """Recorded launches of base and head."""
    spreads: dict[Clock, float] = {
        "wall": float(draw.choice((0.005, 0.02, 0.1))),
        "cpu": float(draw.choice((0.005, 0.02))),
    }
    ratios = {clock: 1 + draw.choice(SLOWDOWNS, CASES) for clock in CLOCKS}
    ones = dict.fromkeys(CLOCKS, np.ones(CASES))
    base = [_launch(draw, ones, spreads) for _ in range(int(draw.integers(5, 11)))]
    head = [_launch(draw, ratios, spreads) for _ in range(int(draw.integers(3, 6)))]
    accepted = random_limits(draw, [row["fullname"] for row in base[0].data["benchmarks"]])
    return conclude_recorded(base, head, recorded.RULES, accepted).cases, accepted, recorded.RULES


def _launch(draw: np.random.Generator, ratios: dict[Clock, np.ndarray], spreads: dict[Clock, float]) -> StoredRecord:
    seconds = {clock: ratios[clock] * np.exp(spreads[clock] * draw.normal(size=CASES)) for clock in CLOCKS}
    rows: list[Json] = [
        {
            "fullname": f"case {place}",
            "stats": {"data": [float(seconds["wall"][place])]},
            "extra_info": {"cpu_seconds": [float(seconds["cpu"][place])]},
        }
        for place in range(CASES)
    ]
    return StoredRecord(Path("launch.json"), {"benchmarks": rows, "outcomes": []})


def random_limits(draw: np.random.Generator, cases: Sequence[str]) -> list[Acceptance]:
    return [
        Acceptance(case, float(draw.choice((1.02, 1.2, 4.0))), "why", "abc", clock=clock)
        for case in cases
        for clock in CLOCKS
        if draw.integers(2)
    ]


MODES: dict[str, Judge] = {"gate runs": judged_run, "recorded launches": judged_launches}
