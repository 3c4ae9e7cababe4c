"""Launch pairs of a machine whose truth is known: raw samples as the engine writes them, out of a seeded generator.

Each launch has its own offset, drawn for each launch pair with the case's standard deviation (from a
Gaussian, or Student's t with four degrees of freedom at the same standard deviation). Rounds within a launch are
correlated (AR(1)), scatter, and one in twenty takes a spike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf_tests.gate.samples import ORDERS, End, GateSamples, Rules
from perf_tests.gate.statistics import Floats
from perf_tests.gate.verdicts import next_step
from perf_tests.records.record import Json

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


def spread_draws(draw: np.random.Generator, shape: tuple[int, ...], heavy_tails: bool) -> Floats:
    """Draws of mean 0 and standard deviation 1."""
    return draw.standard_t(4, shape) / np.sqrt(2) if heavy_tails else draw.normal(size=shape)


def log_rounds(draw: np.random.Generator, launches: int, rounds: int) -> Floats:
    """Logarithms of rounds about 0, (launches, rounds): autocorrelated noise and one-sided spikes."""
    noise = draw.normal(size=(launches, rounds)) * ROUND_SPREAD * np.sqrt(1 - AUTOCORRELATION**2)
    noise[:, 0] /= np.sqrt(1 - AUTOCORRELATION**2)
    for place in range(1, rounds):
        noise[:, place] += AUTOCORRELATION * noise[:, place - 1]
    spikes = draw.random((launches, rounds)) < SPIKE_SHARE
    return noise + spikes * draw.exponential(SPIKE_SIZE, (launches, rounds))


def header(cases: Sequence[SimulatedCase], rules: Rules, accepted: Sequence[Json] = ()) -> Json:
    return {
        "format_version": 1,
        "kind": "gate-samples",
        "started": "2026-01-01T00:00:00+00:00",
        "base": {"revision": "0" * 40, "label": "base"},
        "head": {"revision": None, "label": "head"},
        "machine_info": {},
        "settings": rules.settings(),
        "cases": [{"id": case.id, "identity": {}} for case in cases],
        "accepted": list(accepted),
    }


def line(draw: np.random.Generator, case: SimulatedCase, stage: int, pair: int, quadruples: int, heavy: bool) -> Json:
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
        shift = np.log1p(slowdown) + spread * float(spread_draws(draw, (), heavy))
        for side, letter, offset in (("base", "A", 0.0), ("head", "B", shift)):
            places = [[place for place, turn in enumerate(order) if turn == letter] for order in orders]
            logs = np.take_along_axis(turns, np.asarray(places), axis=1) + offset
            entry[f"{side}_{clock}seconds"] = (case.seconds * np.exp(logs)).tolist()
    return entry


def gate_run(
    cases: Sequence[SimulatedCase],
    rules: Rules,
    seed: int,
    quadruples: int = 8,
    heavy_tails: bool = False,
    most_pairs: int | None = None,
) -> GateSamples:
    """A whole run of the gate on this machine, launched as `next_step` says; the budget ends after `most_pairs`."""
    draw = np.random.default_rng(seed)
    samples = GateSamples(header(cases, rules))
    by_id = {case.id: case for case in cases}
    pair = 0
    while (step := next_step(samples, rules)) is not None and pair != most_pairs:
        for case in step.cases:
            samples.add(line(draw, by_id[case], step.stage, pair, quadruples, heavy_tails))
        pair += 1
    samples.add(End("finished" if step is None else "budget").to_line())
    return samples
