"""Launch pairs of a machine whose truth is known: raw samples as the engine writes them, out of a seeded generator.

Each launch has its own Gaussian offset, drawn for each launch pair with the case's standard deviation. Rounds within a
launch are correlated (AR(1)), scatter, and one in twenty takes a spike.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from perf_tests_suite.perf_tests.gate.samples import ORDERS, End, GateSamples, Rules, SamplesFile
from perf_tests_suite.perf_tests.gate.statistics import Floats
from perf_tests_suite.perf_tests.gate.verdicts import CaseResult, GateResult, next_step
from perf_tests_suite.perf_tests.records.record import Json

AUTOCORRELATION = 0.6
ROUND_SPREAD = 0.03
SPIKE_SHARE = 0.05
SPIKE_SIZE = 0.3
"""Mean of an exponential, in the logarithm of the time."""


@dataclass(frozen=True)
class SimulatedCase:
    """One benchmark; `slowdown` is that of head as a share, `pair_spread` the standard deviation of a pair value."""

    id: str
    seconds: float = 0.01
    slowdown: float = 0.0
    pair_spread: float = 0.01
    cpu_pair_spread: float | None = None
    cpu_slowdown: float | None = None


RULES = Rules()
QUIET = [SimulatedCase(f"quiet {place}") for place in range(8)]
NOISY_WALL = [SimulatedCase(f"c {place}", pair_spread=0.05, cpu_pair_spread=0.005) for place in range(10)]


def log_rounds(draw: np.random.Generator, launches: int, rounds: int) -> Floats:
    """Logarithms of rounds about 0, (launches, rounds): autocorrelated noise and one-sided spikes."""
    noise = draw.normal(size=(launches, rounds)) * ROUND_SPREAD * np.sqrt(1 - AUTOCORRELATION**2)
    noise[:, 0] /= np.sqrt(1 - AUTOCORRELATION**2)
    for place in range(1, rounds):
        noise[:, place] += AUTOCORRELATION * noise[:, place - 1]
    spikes = draw.random((launches, rounds)) < SPIKE_SHARE
    return noise + spikes * draw.exponential(SPIKE_SIZE, (launches, rounds))


def header(cases: Sequence[SimulatedCase], rules: Rules = RULES) -> Json:
    return {
        "format_version": 1,
        "kind": "gate-samples",
        "started": "2026-01-01T00:00:00+00:00",
        "base": {"revision": "0" * 40, "label": "base"},
        "head": {"revision": None, "label": "head"},
        "machine_info": {},
        "settings": asdict(rules),
        "cases": [{"id": case.id, "identity": {}} for case in cases],
        "accepted": [],
    }


def line(draw: np.random.Generator, case: SimulatedCase, stage: int, pair: int, quadruples: int = 8) -> Json:
    """One case in one launch pair, as the engine writes it."""
    orders = [ORDERS[int(coin)] for coin in draw.integers(0, 2, quadruples)]
    turns = log_rounds(draw, 1, 4 * quadruples)[0].reshape(quadruples, 4)
    clocks = {"": (case.slowdown, case.pair_spread)}
    if case.cpu_pair_spread is not None:
        cpu_slowdown = case.slowdown if case.cpu_slowdown is None else case.cpu_slowdown
        clocks["cpu_"] = (cpu_slowdown, case.cpu_pair_spread)
    entry: Json = {"stage": stage, "pair": pair, "case": case.id, "orders": orders}
    entry |= {"base_cpu_seconds": None, "head_cpu_seconds": None}
    for clock, (slowdown, spread) in clocks.items():
        shift = np.log1p(slowdown) + spread * float(draw.normal())
        for side, letter, offset in (("base", "A", 0.0), ("head", "B", shift)):
            places = [[place for place, turn in enumerate(order) if turn == letter] for order in orders]
            logs = np.take_along_axis(turns, np.asarray(places), axis=1) + offset
            entry[f"{side}_{clock}seconds"] = (case.seconds * np.exp(logs)).tolist()
    return entry


def gate_run(
    cases: Sequence[SimulatedCase],
    rules: Rules = RULES,
    seed: int = 1,
    quadruples: int = 8,
    most_pairs: int | None = None,
    path: Path | None = None,
) -> GateSamples:
    """A whole run of the gate, launched as `next_step` says, in a file where `path` says; time ends it after
    `most_pairs`."""
    draw, by_id, pair = np.random.default_rng(seed), {case.id: case for case in cases}, 0
    file = None if path is None else SamplesFile(path, header(cases, rules))
    samples = GateSamples(header(cases, rules)) if file is None else file.samples
    add = samples.add if file is None else file.append
    while (step := next_step(samples, rules)) is not None and pair != most_pairs:
        for case in step.cases:
            add(line(draw, by_id[case], step.stage, pair, quadruples))
        pair += 1
    add(End("finished" if step is None else "budget").to_line())
    if file is not None:
        file.close()
    return samples


def screened_run(cases: Sequence[SimulatedCase], *events: Json, rules: Rules = RULES) -> GateSamples:
    """Stage 1 alone, all cases in each of its pairs, with these events."""
    draw, samples = np.random.default_rng(1), GateSamples(header(cases, rules))
    for event in events:
        samples.add(event)
    for pair in range(rules.screen_pairs):
        for case in cases:
            samples.add(line(draw, case, 1, pair))
    return samples


def row(result: GateResult, case: str) -> CaseResult:
    return next(row for row in result.cases if row.id == case)


def accepted_entry(case: str = "slow", limit: float = 1.08, **more: object) -> Json:
    return {"id": case, "limit": limit, "reason": "stability", "revision": "abc"} | more
