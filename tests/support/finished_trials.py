"""Finished trials of the gate whose verdicts a test chooses."""

from dataclasses import replace
from typing import Any

from claims.gate_trials import Trial
from perf_tests.gate.samples import GateSamples, Rules
from perf_tests.gate.statistics import ClockDecision
from perf_tests.gate.verdicts import CaseResult, Effect, ExactResult, GateResult, RunVerdict, Verdict, conclude
from perf_tests.records.record import Json
from tests.support.simulated_launches import SimulatedCase, gate_run

CLOCK = ClockDecision("cpu", 0.1, 0.01)
FAILED = GateResult(RunVerdict.FAILED, "", [], [], None, None, {}, CLOCK, None, (6, 10))
FINISHED = gate_run([SimulatedCase("a::slowed"), SimulatedCase("a::other")], Rules(), seed=1)


def trial(change: str, truth: Json | None = None, samples: GateSamples | None = None, **result: Any) -> Trial:
    """A finished run; `result` says what of it is not as in one that failed without any case."""
    return Trial(change, {"change": change, **(truth or {})}, replace(FAILED, **result), samples)


def power_trial(
    slowdown: float, found: bool, cpu_spread: float = 0.01, detectable: float = 0.01, error: float = 0.001
) -> Trial:
    """A finished run of two benchmarks, of which the first is slowed."""
    verdict = Verdict.SLOWER if found else Verdict.UNDECIDED
    effect = Effect(slowdown + error, 0.0, 0.2, 10)
    rows = [CaseResult("a::slowed", verdict, effect), CaseResult("a::other", Verdict.OK, effect)]
    clock, truth = ClockDecision("cpu", 0.1, cpu_spread), {"planted": {"slowed": slowdown}}
    return trial("extra-work", truth, FINISHED, cases=rows, clock=clock, detectable=detectable)


def real_trial(change: str, by_time: bool, by_counters: bool | None) -> Trial:
    """A run of a real slowdown of one benchmark beside another; None for one that counted nothing."""
    verdict = Verdict.SLOWER if by_time else Verdict.OK
    rows = [CaseResult("a::slowed", verdict), CaseResult("a::other", Verdict.SLOWER)]
    new, counted = (8, Verdict.MORE) if by_counters else (7, Verdict.SAME)
    exact = [
        ExactResult("a::slowed", "kernel_launches", 7, new, counted),
        ExactResult("a::other", "saved_bytes", 7, 8, Verdict.MORE),
    ]
    return trial(change, {"cases": ["slowed"]}, cases=rows, exact=[] if by_counters is None else exact)


def cost_trial(
    screened_seconds: float, cleared: int, pair_spread: float = 0.003, round_seconds: float = 0.001
) -> Trial:
    """Twenty unchanged benchmarks, of which all but `cleared` scatter wildly."""
    spreads = [pair_spread] * cleared + [0.3] * (20 - cleared)
    cases = [
        SimulatedCase(f"{round_seconds}::{place}", round_seconds, pair_spread=spread)
        for place, spread in enumerate(spreads)
    ]
    samples = gate_run(cases, Rules(), seed=1, quadruples=20, most_pairs=6)
    for pair in samples.pairs(1):
        samples.add({"event": "pair", "stage": 1, "pair": pair, "seconds": screened_seconds / 6})
    return Trial("same-code", {"change": "same-code"}, conclude(samples, Rules()), samples)
