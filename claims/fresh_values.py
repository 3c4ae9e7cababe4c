"""What new values in each round, and checking two of them, do to a figure and to the time of a case.

`pytest -p claims.fresh_values` is the suite, except that each row says what its values and checks took; with
FIXED_IN_TURNS set, of every four rounds the first and the last keep the values that they find, and nothing is checked.
"""

import os
import re
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from claims.statistics import PairedRatio, paired_ratio_of_turns
from perf_tests_suite.perf_tests.bench.checked_rounds import CheckedRounds
from perf_tests_suite.perf_tests.bench.loop import TimedMeasure
from tests.support.launches import launch_suite

TURNS = {"not attention": 100, "attention": 480}
"""Turns by what `-k` selects: rounds of attention alone are short, and scatter more."""
SHORTEST = re.compile(r"test_attention_forward\[.*seq256-.*\]")
"""Cases whose rounds take 2 to 4 ms, with limits of their own: values written just before a round lie in a cache."""
ALLOWED_SHARE, ALLOWED_SECONDS = 0.1, 0.2
"""Share of a case's time, and the least: what new values and checks may take."""


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def seconds_since(start: tuple[float, float]) -> float:
    """Return the smaller of wall and CPU time: a neighbour lengthens the one, a second thread the other."""
    return min(now - before for now, before in zip(clocks(), start, strict=True))


def pytest_configure(config: pytest.Config) -> None:
    spent: list[float] = []
    timed: Any = TimedMeasure
    checked: Any = CheckedRounds

    def clocked(work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def with_clock(*given: Any, **named: Any) -> Any:
            start = clocks()
            try:
                return work(*given, **named)
            finally:
                spent.append(seconds_since(start))

        return with_clock

    real = timed.run_rounds

    def run_rounds(measure: Any, rounds: Any) -> None:
        if os.environ.get("FIXED_IN_TURNS") and rounds.renew is not None:
            rounds.check, renew, numbers = None, rounds.renew, iter(range(-measure.warmup_rounds, 10**9))
            rounds.renew = lambda generator: renew(generator) if next(numbers) % 4 in (1, 2) else None
        spent.clear()
        start = clocks()
        real(measure, rounds)
        case = {"values_and_checks_seconds": sum(spent), "case_seconds": seconds_since(start)}
        measure.benchmark.extra_info |= case

    timed.run_rounds = run_rounds
    for name in ("begin", "ready", "end", "finish"):
        setattr(checked, name, clocked(getattr(checked, name)))


WORDS = ("perf_tests", "-p", "claims.fresh_values", "--device=cpu")


def fresh_over_fixed() -> dict[str, float]:
    """Return the ends of the ratio's intervals, fresh over fixed values, over the default cases."""
    os.environ["FIXED_IN_TURNS"] = "1"
    try:
        runs = [launch_suite([*WORDS, f"--rounds={turns}", "-k", which]) for which, turns in TURNS.items()]
    finally:
        del os.environ["FIXED_IN_TURNS"]
    ratios, of_shortest = list[PairedRatio](), list[PairedRatio]()
    for row in (row for run in runs for row in run.benchmarks):
        # CPU time, which a neighbour moves least.
        seconds = row["extra_info"]["cpu_seconds"]
        fixed, fresh = ([x for number, x in enumerate(seconds) if number % 4 in turns] for turns in ((0, 3), (1, 2)))
        ratio = paired_ratio_of_turns(fresh, fixed)
        (of_shortest if SHORTEST.fullmatch(row["name"]) else ratios).append(ratio)
        print(f"{row['name']}: fresh over fixed {ratio}")
    return {
        "fresh over fixed, lower end": min(ratio.low for ratio in ratios),
        "fresh over fixed, upper end": max(ratio.high for ratio in ratios),
        "attention forward of 256 tokens, lower end": min(ratio.low for ratio in of_shortest),
        "attention forward of 256 tokens, upper end": max(ratio.high for ratio in of_shortest),
    }


def cost_of_checks() -> dict[str, float]:
    """The time of new values and checks over what they may take, in the default case where they take most."""
    shares = []
    for row in launch_suite(WORDS).benchmarks:
        spent, case = (row["extra_info"][name] for name in ("values_and_checks_seconds", "case_seconds"))
        shares.append(spent / max(ALLOWED_SHARE * (case - spent), ALLOWED_SECONDS))
        print(f"{row['name']}: {spent:.3f} s beside {case - spent:.2f} s, {shares[-1]:.2f} of what is allowed")
    return {"of what is allowed, worst case": max(shares)}
