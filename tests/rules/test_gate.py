"""The gate's verdicts on runs whose truth is known, and its answer to everything that is no timing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perf_tests.gate.samples import End, GateSamples, Rules, rules_from_settings
from perf_tests.gate.stages import replay_stages, screening_of, shift_of_the_suite
from perf_tests.gate.verdicts import GateResult, RunVerdict, Verdict, conclude, next_step
from perf_tests.records.record import Json
from tests.support.simulated_gate import NOISY_WALL, QUIET, RULES, accepted_entry, row, screened_run
from tests.support.simulated_launches import SimulatedCase, gate_run, header, line

SLOW = SimulatedCase("slow", slowdown=0.03)
"""Too little for an early look."""
FAST = SimulatedCase("fast", slowdown=-0.05)


def verdicts(result: GateResult) -> dict[str, Verdict]:
    return {row.id: row.verdict for row in result.cases}


def finished(samples: GateSamples) -> GateSamples:
    samples.add({"event": "end", "reason": "finished"})
    return samples


def test_slow_fast_and_unchanged_cases_get_their_verdicts() -> None:
    result = conclude(gate_run([*QUIET, SLOW, FAST], RULES, seed=1), RULES)
    assert verdicts(result) == dict.fromkeys((case.id for case in QUIET), Verdict.OK) | {
        "slow": Verdict.SLOWER,
        "fast": Verdict.FASTER,
    }
    assert (result.verdict, result.exit_code) == (RunVerdict.FAILED, 1)
    assert conclude(gate_run([*QUIET, FAST], RULES, seed=1), RULES).exit_code == 0


def test_only_suspects_are_launched_again() -> None:
    samples = gate_run([*QUIET, SLOW], RULES, seed=2)
    launched_again = {m.case for m in samples.measurements if m.stage == 2}
    assert launched_again == set(screening_of(samples, RULES).candidates)
    assert "slow" in launched_again
    assert len(launched_again) < len(samples.cases)


def test_a_decided_case_is_launched_no_more() -> None:
    samples = gate_run([*QUIET, SLOW], RULES, seed=1)
    course = replay_stages(samples, RULES)
    *_, last = course.looks
    assert (course.screening.names(course.confirmed.slower), last.undecided, last.pairs) == (("slow",), (), 10)
    assert next_step(samples, RULES) is None


@pytest.mark.parametrize("rules, code", [(RULES, 0), (replace(RULES, undecided="fail"), 1)], ids=["passes", "fails"])
def test_a_noisy_case_ends_undecided_with_the_launches_it_would_take(rules: Rules, code: int) -> None:
    noisy = SimulatedCase("noisy", slowdown=0.03, pair_spread=0.1)
    result = conclude(gate_run([*QUIET, noisy], rules, seed=1), rules)
    assert row(result, "noisy").verdict == Verdict.UNDECIDED
    assert (row(result, "noisy").launches_needed or 0) > RULES.confirm_looks[-1]
    assert (result.verdict == RunVerdict.UNDECIDED, result.exit_code) == (bool(code), code)


@pytest.mark.parametrize(
    ("sides", "outcome", "verdict", "code"),
    [
        ("head", "would_not_fit", Verdict.NO_LONGER_FITS, 1),
        ("head", "out_of_memory", Verdict.NO_LONGER_FITS, 1),
        ("head", "impossible", Verdict.IMPOSSIBLE, 1),
        ("head", "incorrect", Verdict.INCORRECT, 1),
        ("head", "error", Verdict.FAILED, 1),
        ("head", "unsupported", Verdict.NO_LONGER_SUPPORTED, 1),
        ("head", "absent", Verdict.GONE, 1),
        ("base", "absent", Verdict.NEW, 0),
        ("base", "error", Verdict.NEW, 0),
        ("base head", "unsupported", Verdict.NOT_MEASURED, 0),
    ],
)
def test_a_side_without_a_timing_is_a_verdict(sides: str, outcome: str, verdict: Verdict, code: int) -> None:
    event = {"event": "outcome", "case": "quiet 0", "outcome": outcome, "reason": "because"}
    result = conclude(finished(screened_run(QUIET, [event | {"side": side} for side in sides.split()])), RULES)
    assert (row(result, "quiet 0").verdict, result.exit_code) == (verdict, code)
    assert "because" in row(result, "quiet 0").explanation


def test_a_case_without_a_timing_is_launched_no_more() -> None:
    event = {"event": "outcome", "case": "slow", "side": "head", "outcome": "error", "reason": "it died twice"}
    step = next_step(screened_run([*QUIET, SLOW], [event]), RULES)
    assert step is None or "slow" not in step.cases


@pytest.mark.parametrize(("new", "code", "verdict"), [(101, 1, Verdict.MORE), (100, 0, Verdict.SAME), (99, 0, "LESS")])
def test_an_exact_counter_may_not_rise_at_all(new: int, code: int, verdict: str) -> None:
    event = {"event": "exact", "case": "quiet 0", "counter": "saved_bytes", "old": 100, "new": new}
    result = conclude(finished(screened_run(QUIET, [event])), RULES)
    assert (result.exact[0].verdict, result.exit_code) == (verdict, code)


def sentinel_events(shift: float) -> list[Json]:
    draw = np.random.default_rng(8)
    return [
        {"event": "sentinel", "stage": 1, "pair": pair, "name": "matmul", "side": side,
         "seconds": (0.01 * np.exp(draw.normal(size=5) * 0.002 + (shift if side == "head" else 0))).tolist()}
        for pair in range(6)
        for side in ("base", "head")
    ]  # fmt: skip


@pytest.mark.parametrize(("shift", "said"), [(0.03, "matmul +3"), (-0.03, "matmul -"), (0.0, None)])
def test_frozen_work_that_moved_contaminates_the_run(shift: float, said: str | None) -> None:
    samples = screened_run([*QUIET, SLOW], sentinel_events(shift))
    assert (next_step(samples, RULES) is None) == bool(said)
    result = conclude(finished(samples), RULES)
    assert ((result.verdict, result.exit_code) == (RunVerdict.CONTAMINATED, 4)) == bool(said)
    assert (said or "") in result.reason


def test_sides_that_cannot_be_compared_are_refused() -> None:
    result = conclude(finished(screened_run(QUIET, [{"event": "incomparable", "reason": "two builds"}])), RULES)
    assert (result.verdict, result.exit_code, result.reason) == (RunVerdict.INCOMPARABLE, 4, "two builds")


@pytest.mark.parametrize(("end", "verdict"), [("budget", Verdict.SLOWER), ("interrupted", Verdict.UNDECIDED)])
def test_only_a_budget_that_ends_between_two_looks_gets_a_last_one(end: Any, verdict: Verdict) -> None:
    samples = gate_run([*QUIET, SLOW], RULES, seed=1, most_pairs=6 + 8)
    assert samples.end == "budget"
    samples.events[-1] = End(end)
    assert row(conclude(samples, RULES), "slow").verdict == verdict


def test_a_shift_of_the_whole_suite_fails_though_no_case_does() -> None:
    cases = [SimulatedCase(f"case {place}", slowdown=0.015, pair_spread=0.005) for place in range(40)]
    strict = replace(RULES, screen_level=1e-9, matters=0.5)
    result = conclude(gate_run(cases, strict, seed=1, quadruples=30), strict)
    assert set(verdicts(result).values()) == {Verdict.OK}
    assert result.suite is not None
    assert result.suite.is_significant
    assert result.exit_code == 1


@pytest.mark.parametrize(("has_cpu_time", "is_significant"), [(False, True), (True, False)])
def test_two_clocks_to_choose_from_halve_the_level_of_the_suite(has_cpu_time: bool, is_significant: bool) -> None:
    """Both runs have the same wall times, whose p-value lies between half the level and the level."""
    cases = [SimulatedCase(f"case {place}", slowdown=0.02, pair_spread=0.01) for place in range(9)]
    alone = shift_of_the_suite(screening_of(screened_run(cases), RULES), RULES)
    assert alone is not None
    rules = replace(RULES, alpha=1.5 * alone.p_value / RULES.suite_share)
    samples = screened_run(cases)
    if has_cpu_time:
        samples.measurements = [
            replace(m, base_cpu_seconds=m.base_seconds, head_cpu_seconds=m.head_seconds) for m in samples.measurements
        ]
    shift = shift_of_the_suite(screening_of(samples, rules), rules)
    assert shift is not None
    assert shift.p_value == pytest.approx(alone.p_value)
    assert shift.is_significant == is_significant


def test_launches_after_its_verdict_change_no_figure_of_a_case() -> None:
    samples = gate_run([*QUIET, SLOW], RULES, seed=1)
    before = row(conclude(samples, RULES), "slow")
    for pair in range(100, 103):
        samples.add(line(np.random.default_rng(pair), replace(SLOW, slowdown=0.5), 2, pair, 8, False))
    assert row(conclude(samples, RULES), "slow").effect == before.effect


def test_a_run_cut_short_anywhere_is_still_concluded() -> None:
    """Whatever a dead process left, from the header alone to the last line."""
    whole = gate_run([*QUIET[:2], SLOW, *NOISY_WALL[:2]], RULES, seed=1, quadruples=2)
    for kept in range(0, len(whole.measurements), 7):
        for events in ([End("budget")], [End("interrupted")], []):
            part = GateSamples(whole.header, whole.measurements[:kept], [*events])
            assert len(conclude(part, RULES).cases) == 5
        next_step(part, RULES)


@pytest.mark.parametrize("cases", [0, 1, 2, 8])
def test_a_suite_of_any_size_without_a_slow_case_passes_after_stage_one(cases: int) -> None:
    result = conclude(gate_run(QUIET[:cases], RULES, seed=2), RULES)
    assert set(verdicts(result).values()) <= {Verdict.OK}
    assert (result.verdict, result.exit_code, result.pairs[1]) == (RunVerdict.PASSED, 0, 0)
    assert (result.suite is None) == (cases < 8)
    assert conclude(screened_run(QUIET[:4]), RULES).suite is None, "four cases are no suite"


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, Verdict.OK), (1.1, Verdict.SLOWER)])
def test_times_without_any_scatter_get_a_verdict(ratio: float, verdict: Verdict) -> None:
    samples = GateSamples(header(QUIET[:3], RULES))
    pair = 0
    while (step := next_step(samples, RULES)) is not None:
        for case in step.cases:
            entry = line(np.random.default_rng(0), QUIET[0], step.stage, pair, 2, False) | {"case": case}
            samples.add(entry | {"base_seconds": [[1.0, 1.0]] * 2, "head_seconds": [[ratio, ratio]] * 2})
        pair += 1
    assert set(verdicts(conclude(samples, RULES)).values()) == {verdict}


def test_more_sentinels_are_each_held_to_a_stricter_level() -> None:
    alone = conclude(screened_run(QUIET, sentinel_events(0.01)), RULES).sentinels["matmul"]
    rules = replace(RULES, contamination_level=1.5 * alone.p_value)
    others = [event | {"name": "copy"} for event in sentinel_events(0.0)]
    events = sentinel_events(0.01)
    assert conclude(screened_run(QUIET, events), rules).sentinels["matmul"].is_significant
    assert not conclude(screened_run(QUIET, [*events, *others]), rules).sentinels["matmul"].is_significant


def test_stage_two_is_judged_by_its_own_launches_alone() -> None:
    """Launches of stage 1 under the numbers of stage 2 change nothing: each line says whose it is."""
    samples = gate_run([*QUIET, SLOW], RULES, seed=1)
    course = replay_stages(samples, RULES)
    assert course.by_clock["wall"].shape[1] == len(samples.pairs(2)) == RULES.confirm_looks[1]
    quiet = samples.cases.index("quiet 0")
    assert np.isnan(course.by_clock["wall"][quiet]).all()


@pytest.mark.parametrize(
    ("limit", "clock", "code"),
    [(1.08, "wall", 0), (1.02, "wall", 1), (1.08, "cpu", 1), (1.08, None, 0)],
    ids=["below", "above", "by another clock", "in older samples"],
)
def test_an_accepted_slowdown_passes_up_to_its_limit(limit: float, clock: str | None, code: int) -> None:
    samples = gate_run([*QUIET, SLOW], RULES, seed=1)
    samples.header["accepted"] = [accepted_entry(limit=limit, clock=clock)]
    result = conclude(samples, RULES)
    assert row(result, "slow").verdict == Verdict.SLOWER
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("limit", "counter", "code"),
    [(120, "saved_bytes", 0), (119, "saved_bytes", 1), (1000, None, 1)],
    ids=["to its new value", "to less", "an accepted time"],
)
def test_an_accepted_counter_passes_up_to_its_new_value(limit: float, counter: str | None, code: int) -> None:
    event = {"event": "exact", "case": "quiet 0", "counter": "saved_bytes", "old": 100, "new": 120}
    samples = finished(screened_run(QUIET, [event]))
    samples.header["accepted"] = [accepted_entry("quiet 0", limit, counter=counter)]
    assert conclude(samples, RULES).exit_code == code


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.7}, "alpha is 0.7"),
        ({"margin": 0.05}, "margin 0.05"),
        ({"screen_pairs": 2}, "screen_pairs is 2"),
        ({"confirm_looks": [10, 18, 300]}, "at most 40"),
        ({"confirm_looks": []}, "must rise"),
        ({"look_shares": [0.5, 0.5, 0.5]}, "add up to 1"),
        ({"look_shares": [-1, 1, 1]}, "positive"),
        ({"clock": "sundial"}, "sundial"),
        ({"alpha": "small"}, "not a number"),
        ({"confirm_looks": 7}, "not a number"),
        ({"screen_pairs": 6.5}, "screen_pairs is 6.5"),
        ({"confirm_looks": [10, 18.5, 30]}, "18.5"),
    ],
)
def test_rules_that_make_no_sense_are_refused_in_a_sentence(change: Json, words: str) -> None:
    with pytest.raises(ValueError, match="gate's") as raised:
        rules_from_settings(RULES.settings() | change)
    assert words in str(raised.value)
