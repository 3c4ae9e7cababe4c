"""What one launch pair says, and by which clock: wall time, or the CPU time of the process."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from perf_tests.gate.samples import Measurement
from perf_tests.gate.stages import screening_of
from perf_tests.gate.statistics import pair_value
from perf_tests.gate.verdicts import Verdict, conclude
from tests.support.simulated_gate import NOISY_WALL, QUIET, RULES, accepted_entry, row, screened_run
from tests.support.simulated_launches import SimulatedCase, gate_run

HARDLY_LESS = [replace(case, cpu_pair_spread=0.045) for case in NOISY_WALL]


def measurement(base: ArrayLike, head: ArrayLike) -> Measurement:
    base, head = np.array(base), np.array(head)
    return Measurement(1, 0, "a", ("ABBA",) * len(base), base, head, None, None)


@pytest.mark.parametrize("unit", [1, 1000])
def test_the_pair_value_is_the_log_ratio_of_head_to_base_in_any_unit(unit: float) -> None:
    base = unit * np.random.default_rng(1).lognormal(size=(6, 2))
    assert pair_value(measurement(base, 1.1 * base), "wall") == pytest.approx(np.log(1.1))


def test_a_steady_drift_cancels_in_a_quadruple() -> None:
    """ABBA on a logarithmic slope: base takes the outer turns, head the inner ones."""
    slope = np.exp(0.1 * np.arange(4))
    assert pair_value(measurement([[slope[0], slope[3]]], [[slope[1], slope[2]]]), "wall") == pytest.approx(0)


def test_swapping_the_sides_flips_the_sign() -> None:
    base, head = np.random.default_rng(1).lognormal(size=(2, 6, 2))
    assert pair_value(measurement(base, head), "wall") == pytest.approx(-pair_value(measurement(head, base), "wall"))


@pytest.mark.parametrize(
    ("cases", "asked", "clock"),
    [(QUIET, "auto", "wall"), (NOISY_WALL, "auto", "cpu"), (HARDLY_LESS, "auto", "wall"), (NOISY_WALL, "wall", "wall")],
    ids=["never read", "CPU time scatters less", "CPU time scatters hardly less", "wall time is asked for"],
)
def test_the_clock_that_scatters_less_decides(cases: list[SimulatedCase], asked: Any, clock: str) -> None:
    found = screening_of(screened_run(cases), replace(RULES, clock=asked)).clock
    assert found.clock == clock
    assert found.cpu_spread is None or found.cpu_spread < found.wall_spread


def test_wall_time_guards_where_cpu_time_decides() -> None:
    """Work that moved to one thread takes no more CPU time, and twice as long."""
    waiting = replace(NOISY_WALL[0], id="waiting", slowdown=1.0, cpu_slowdown=-0.1)
    result = conclude(gate_run([*NOISY_WALL, waiting], RULES, seed=1), RULES)
    assert result.clock.clock == "cpu"
    found = row(result, "waiting")
    assert (found.verdict, found.clock, found.is_by_guard) == (Verdict.SLOWER, "wall", True)
    assert found.effect is not None
    assert found.effect.effect == pytest.approx(1, abs=0.1)


def test_what_is_slower_by_both_clocks_shows_the_one_that_decides_and_must_be_accepted_by_both() -> None:
    slow = replace(NOISY_WALL[0], id="slow", slowdown=1.0, cpu_slowdown=0.5)
    samples = gate_run([*NOISY_WALL, slow], RULES, seed=1)
    found = row(conclude(samples, RULES), "slow")
    assert (found.clock, found.is_by_guard, [*found.slower_by]) == ("cpu", False, ["cpu", "wall"])
    codes = []
    for clocks in (["cpu"], ["wall"], ["cpu", "wall"]):
        samples.header["accepted"] = [accepted_entry("slow", 2.5, clock=clock) for clock in clocks]
        codes.append(conclude(samples, RULES).exit_code)
    assert codes == [1, 1, 0]


def test_a_case_that_only_wall_time_keeps_from_being_ok_shows_wall_time() -> None:
    waits = replace(NOISY_WALL[0], id="waits", slowdown=0.2, cpu_slowdown=0.0)
    rules = replace(RULES, screen_pairs=8, second_share=0.0)
    samples = gate_run([*NOISY_WALL, waits], rules, seed=3, most_pairs=8)
    found = row(conclude(samples, rules), "waits")
    assert (found.verdict, found.clock, found.is_by_guard) == (Verdict.UNDECIDED, "wall", True)


def test_a_clock_that_was_named_and_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match="clock is cpu, but some cases have no CPU time"):
        screening_of(screened_run(QUIET), replace(RULES, clock="cpu"))
