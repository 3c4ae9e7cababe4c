"""What the proofs of the gate conclude from trials: each claim holds, fails or wants more runs where it should."""

from dataclasses import replace

import pytest

from claims import gate_cost, gate_power
from claims.gate_false_alarms import conclude_from
from claims.gate_simulation import CLAIMED_POWER
from claims.share import Share
from perf_tests.gate.verdicts import RunVerdict
from tests.support.finished_trials import cost_trial, power_trial, real_trial, trial


@pytest.mark.parametrize(("hits", "trials"), [(0, 299), (1, 473), (2, 628), (3, 773)])
def test_the_upper_limit_is_one_percent_where_the_tables_say(hits: int, trials: int) -> None:
    """Trials needed to state a rate below 1 % at 95 % (Clopper and Pearson)."""
    assert Share(hits, trials).upper_limit <= 0.01
    assert Share(hits, trials - 1).upper_limit > 0.01


def test_the_interval_of_a_share_is_the_exact_one() -> None:
    """8 of 20: 0.191 to 0.639, as printed in textbooks."""
    assert Share(8, 20).limits == pytest.approx((0.191, 0.639), abs=0.001)
    assert Share(0, 299).limits == pytest.approx((0.0, 1 - 0.025 ** (1 / 299)))
    assert Share(10, 10).limits[1] == 1.0
    assert str(Share(8, 20)) == "8 of 20, 40% (19% to 64%)"
    assert Share(8, 20).words(2) == "8 of 20, 40.00% (19.12% to 63.95%)"
    assert str(Share(0, 0)) == "0 of 0"


@pytest.mark.parametrize("alarms, runs, exit_code", [(0, 60, 0), (1, 60, 0), (4, 60, 1), (0, 10, 2), (10, 10, 1)])
def test_false_alarms_are_counted_against_the_promised_rate(
    alarms: int, runs: int, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    contaminated = trial("comments", verdict=RunVerdict.CONTAMINATED)
    failed = [trial("same-code")] * alarms
    passed = [trial("comments", verdict=RunVerdict.PASSED)] * (runs - alarms)
    assert conclude_from([contaminated, *failed, *passed]) == exit_code
    output = capsys.readouterr().out
    assert f"runs with a false alarm: {alarms} of {runs}" in output
    assert "contaminated runs, which the gate refused: 1 of" in output


@pytest.mark.parametrize(
    "found, trials, spread, exit_code",
    [(40, 40, 0.01, 0), (38, 40, 0.02, 0), (37, 40, 0.01, 1), (39, 39, 0.01, 2), (40, 40, 0.05, 2)],
    ids=["all", "enough", "not enough", "too few trials", "too noisy a machine"],
)
def test_power_is_claimed_from_enough_trials_on_a_machine_calm_enough(
    found: int, trials: int, spread: float, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    five = [power_trial(0.05, place < found, spread) for place in range(trials)]
    three = [power_trial(0.03, place < 32) for place in range(40)]
    real = real_trial("item", True, True)
    assert gate_power.conclude_from([*five, *three, real]) == exit_code
    output = capsys.readouterr().out
    assert f"{found} of {trials}" in next(line for line in output.splitlines() if line.strip().startswith("5%"))
    assert "+0.10% +- 0.00%" in output
    assert f"other benchmarks of these runs called slower: 0 of {trials + 40}" in output


def test_the_truth_of_a_benchmark_is_what_its_clone_took() -> None:
    noted = replace(
        power_trial(0.03, True, error=0.002), truth={"planted": {"slowed": 0.03}, "measured": {"slowed": 0.032}}
    )
    assert gate_power.errors_of(gate_power.slowed_in([noted])) == [pytest.approx(0.0)]
    assert gate_power.errors_of(gate_power.slowed_in([power_trial(0.03, True, error=0.002)])) == [pytest.approx(0.002)]


def test_an_estimate_off_by_more_than_half_a_point_refutes_the_claim(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [power_trial(size, True, error=0.006) for size in CLAIMED_POWER for _ in range(40)]
    assert gate_power.conclude_from([*runs, real_trial("item", True, True)]) == 1
    assert "a bias of at most 0.5%: does not hold" in capsys.readouterr().out


@pytest.mark.parametrize(("found", "said"), [(40, "holds"), (25, "does not hold")])
def test_a_noisy_runs_claim_is_tried_where_it_says(found: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    ten = [power_trial(0.10, place < found, cpu_spread=0.05, detectable=0.08) for place in range(40)]
    beyond = [power_trial(0.05, False, cpu_spread=0.05, detectable=0.08) for _ in range(40)]
    gate_power.conclude_from([*ten, *beyond])
    output = capsys.readouterr().out
    assert f"the slowdown that it prints with 80% power ({found} of 40, " in output
    assert f"): {said}" in output


def test_real_slowdowns_stand_in_a_table_of_what_caught_them() -> None:
    trials = [
        real_trial("copy", True, True), real_trial("sync", True, False), real_trial("launch", False, True),
        real_trial("nothing", False, False), real_trial("old", True, None),
    ]  # fmt: skip
    header, by_time, not_by_time, rest = gate_power.two_by_two(trials)
    assert header.split("  ")[-1] == "not by counters"
    assert by_time.split()[3:] == ["copy", "sync"]
    assert not_by_time.split()[3:] == ["launch", "nothing"]
    assert rest == "without counters: old"


@pytest.mark.parametrize(
    ("by_time", "by_counters", "exit_code"), [(False, False, 1), (False, True, 2), (True, None, 2)]
)
def test_a_real_slowdown_that_nothing_catches_refutes_the_claim(
    by_time: bool, by_counters: bool | None, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate_power.conclude_from([real_trial("item", by_time, by_counters)]) == exit_code
    assert ("by time or by counters: does not hold" in capsys.readouterr().out) == (exit_code == 1)


@pytest.mark.parametrize(
    "seconds, cleared, changes, exit_code",
    [(170, 20, {}, 0), (181, 20, {}, 1), (170, 15, {}, 1), (170, 20, {"pair_spread": 0.1}, 2),
     (170, 20, {"round_seconds": 0.02}, 2)],
    ids=["in time", "too long", "too few cleared", "too noisy a machine", "long rounds"],
)  # fmt: skip
def test_cost_is_claimed_of_suites_of_short_rounds_in_time_and_cleared(
    seconds: float, cleared: int, changes: dict[str, float], exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate_cost.conclude_from([cost_trial(seconds, cleared, **changes)]) == exit_code
    assert "20 benchmarks, median round" in capsys.readouterr().out


def test_the_cost_of_runs_is_told_by_suite_and_the_slowest_run_decides() -> None:
    trials = [cost_trial(150, 20), cost_trial(170, 20), cost_trial(200, 20, round_seconds=0.02)]
    short, long = gate_cost.suites_of([*trials, trial("same-code", verdict=RunVerdict.CONTAMINATED)])
    assert str(short).endswith(
        "2 runs: screened in 150 to 170 s, median 160 s; cleared 38 of 40, 95% (83% to 99%), where launch pairs "
        "scatter by at most 1% 38 of 40, 95% (83% to 99%)"
    )
    assert short.keeps_the_claim
    assert not gate_cost.SuiteRuns([cost_trial(190, 20), *trials[:2]]).keeps_the_claim
    assert not long.keeps_the_claim
