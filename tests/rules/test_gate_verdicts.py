"""The gate's verdicts on runs whose truth is known, its answer to all that is no timing, and what is accepted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf_tests.gate.samples import Clock, End, GateSamples, Rules
from perf_tests.gate.stages import screening_of
from perf_tests.gate.verdicts import (
    LOST,
    Acceptance,
    GateResult,
    RunVerdict,
    Verdict,
    conclude,
    effective,
    next_step,
    read_accepted,
    read_accepted_of_base,
)
from perf_tests.records.record import Json
from perf_tests.report.gate_screens import offer_entries
from tests.support.simulated_gate import NOISY_WALL, QUIET, RULES, accepted_entry, row, screened_run
from tests.support.simulated_launches import SimulatedCase, gate_run, header, line

SLOW = SimulatedCase("slow", slowdown=0.03)
"""Too little for an early look."""
FAST = SimulatedCase("fast", slowdown=-0.05)


def verdicts(result: GateResult) -> dict[str, Verdict]:
    return {row.id: row.verdict for row in result.cases}


def finished(cases: Sequence[SimulatedCase], events: Sequence[Json]) -> GateSamples:
    """Stage 1 with these events, and an end."""
    return screened_run(cases, [*events, {"event": "end", "reason": "finished"}])


def test_slow_fast_and_unchanged_cases_get_their_verdicts() -> None:
    result = conclude(gate_run([*QUIET, SLOW, FAST], RULES, seed=1), RULES)
    assert verdicts(result) == dict.fromkeys((case.id for case in QUIET), Verdict.OK) | {
        "slow": Verdict.SLOWER,
        "fast": Verdict.FASTER,
    }
    assert (result.verdict, result.exit_code) == (RunVerdict.FAILED, 1)
    assert conclude(gate_run([*QUIET, FAST], RULES, seed=1), RULES).exit_code == 0


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
        *(("head", outcome, verdict, 1) for outcome, verdict in LOST.items()),
        ("base", "absent", Verdict.NEW, 0),
        ("base", "error", Verdict.NEW, 0),
        ("base head", "unsupported", Verdict.NOT_MEASURED, 0),
    ],
)
def test_a_side_without_a_timing_is_a_verdict_and_launched_no_more(
    sides: str, outcome: str, verdict: Verdict, code: int
) -> None:
    event = {"event": "outcome", "case": "slow", "outcome": outcome, "reason": "because"}
    samples = finished([*QUIET, SLOW], [event | {"side": side} for side in sides.split()])
    found = row(result := conclude(samples, RULES), "slow")
    assert (found.verdict, result.exit_code) == (verdict, code)
    assert "because" in found.explanation
    step = next_step(samples, RULES)
    assert step is None or "slow" not in step.cases


def test_every_outcome_that_a_case_can_lose_its_timing_by_has_its_verdict() -> None:
    assert {outcome: str(verdict) for outcome, verdict in LOST.items()} == {
        "would_not_fit": "NO LONGER FITS", "out_of_memory": "NO LONGER FITS", "unsupported": "NO LONGER SUPPORTED",
        "error": "FAILED", "timed_out": "FAILED", "process_died": "FAILED", "impossible": "IMPOSSIBLE",
        "incorrect": "INCORRECT", "absent": "GONE",
    }  # fmt: skip


@pytest.mark.parametrize(("new", "code", "verdict"), [(101, 1, Verdict.MORE), (100, 0, Verdict.SAME), (99, 0, "LESS")])
def test_an_exact_counter_may_not_rise_at_all(new: int, code: int, verdict: str) -> None:
    event = {"event": "exact", "case": "quiet 0", "counter": "saved_bytes", "old": 100, "new": new}
    result = conclude(finished(QUIET, [event]), RULES)
    assert (result.exact[0].verdict, result.exit_code) == (verdict, code)


def sentinel_events(shift: float, name: str = "matmul") -> list[Json]:
    draw = np.random.default_rng(8)
    return [
        {"event": "sentinel", "stage": 1, "pair": pair, "name": name, "side": side,
         "seconds": (0.01 * np.exp(draw.normal(size=5) * 0.002 + (shift if side == "head" else 0))).tolist()}
        for pair in range(6)
        for side in ("base", "head")
    ]  # fmt: skip


@pytest.mark.parametrize(("shift", "said"), [(0.03, "matmul +3"), (-0.03, "matmul -"), (0.0, None)])
def test_frozen_work_that_moved_contaminates_the_run(shift: float, said: str | None) -> None:
    samples = screened_run([*QUIET, SLOW], sentinel_events(shift))
    assert (next_step(samples, RULES) is None) == bool(said)
    samples.events.append(End("finished"))
    result = conclude(samples, RULES)
    assert ((result.verdict, result.exit_code) == (RunVerdict.CONTAMINATED, 4)) == bool(said)
    assert (said or "") in result.reason


def test_more_sentinels_are_each_held_to_a_stricter_level() -> None:
    events = sentinel_events(0.01)
    alone = conclude(screened_run(QUIET, events), RULES).sentinels["matmul"]
    rules = replace(RULES, contamination_level=1.5 * alone.p_value)
    for more, is_significant in (([], True), (sentinel_events(0.0, "copy"), False)):
        found = conclude(screened_run(QUIET, [*events, *more]), rules).sentinels["matmul"]
        assert found.is_significant is is_significant


def test_sides_that_cannot_be_compared_are_refused() -> None:
    result = conclude(finished(QUIET, [{"event": "incomparable", "reason": "two builds"}]), RULES)
    assert (result.verdict, result.exit_code, result.reason) == (RunVerdict.INCOMPARABLE, 4, "two builds")


@pytest.mark.parametrize(
    ("end", "verdict"),
    [("budget", Verdict.SLOWER), ("time_limit", Verdict.SLOWER), ("interrupted", Verdict.UNDECIDED)],
)
def test_only_a_clock_that_ends_the_run_between_two_looks_gives_it_a_last_one(end: Any, verdict: Verdict) -> None:
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
    assert (result.suite.is_significant, result.exit_code) == (True, 1)


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
    samples, pair = GateSamples(header(QUIET[:3], RULES)), 0
    while (step := next_step(samples, RULES)) is not None:
        for case in step.cases:
            entry = line(np.random.default_rng(0), QUIET[0], step.stage, pair, 2, False) | {"case": case}
            samples.add(entry | {"base_seconds": [[1.0, 1.0]] * 2, "head_seconds": [[ratio, ratio]] * 2})
        pair += 1
    assert set(verdicts(conclude(samples, RULES)).values()) == {verdict}


# Two clocks.

HARDLY_LESS = [replace(case, cpu_pair_spread=0.045) for case in NOISY_WALL]


@pytest.mark.parametrize(
    ("cases", "asked", "clock"),
    [(QUIET, "auto", "wall"), (NOISY_WALL, "auto", "cpu"), (HARDLY_LESS, "auto", "wall"), (NOISY_WALL, "wall", "wall")],
    ids=["never read", "CPU time scatters less", "CPU time scatters hardly less", "wall time is asked for"],
)
def test_the_clock_that_scatters_less_decides(cases: list[SimulatedCase], asked: Any, clock: str) -> None:
    found = screening_of(screened_run(cases), replace(RULES, clock=asked)).clock
    assert found.clock == clock
    assert found.cpu_spread is None or found.cpu_spread < found.wall_spread


def test_a_clock_that_was_named_and_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match="clock is cpu, but some cases have no CPU time"):
        screening_of(screened_run(QUIET), replace(RULES, clock="cpu"))


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
    found = row(conclude(gate_run([*NOISY_WALL, waits], rules, seed=3, most_pairs=8), rules), "waits")
    assert (found.verdict, found.clock, found.is_by_guard) == (Verdict.UNDECIDED, "wall", True)


# What is accepted.


@pytest.mark.parametrize(
    ("limit", "clock", "code"),
    [(1.08, "wall", 0), (1.02, "wall", 1), (1.08, "cpu", 1), (1.08, None, 0)],
    ids=["below", "above", "by another clock", "in older samples"],
)
def test_an_accepted_slowdown_passes_up_to_its_limit(limit: float, clock: str | None, code: int) -> None:
    samples = gate_run([*QUIET, SLOW], RULES, seed=1)
    samples.header["accepted"] = [accepted_entry(limit=limit, clock=clock)]
    result = conclude(samples, RULES)
    assert (row(result, "slow").verdict, result.exit_code) == (Verdict.SLOWER, code)


@pytest.mark.parametrize(
    ("limit", "counter", "code"),
    [(120, "saved_bytes", 0), (119, "saved_bytes", 1), (1000, None, 1)],
    ids=["to its new value", "to less", "an accepted time"],
)
def test_an_accepted_counter_passes_up_to_its_new_value(limit: float, counter: str | None, code: int) -> None:
    event = {"event": "exact", "case": "quiet 0", "counter": "saved_bytes", "old": 100, "new": 120}
    samples = finished(QUIET, [event])
    samples.header["accepted"] = [accepted_entry("quiet 0", limit, counter=counter)]
    assert conclude(samples, RULES).exit_code == code


@pytest.mark.parametrize(
    ("revision", "counts_here"), [("b" * 40, True), ("bbbbbbb", True), ("bbb", False), ("a" * 40, False)]
)
def test_an_entry_counts_for_the_base_it_was_measured_against(revision: str, counts_here: bool) -> None:
    assert Acceptance("case", 1.1, "why", revision).is_of("b" * 12) is counts_here


WHOLE = '[[accepted]]\nid = "a"\nlimit = 1.08\nreason = "stability"\nrevision = "abc"\nclock = "wall"\n'
OLDER = WHOLE.replace('clock = "wall"\n', "")


def written(folder: Path, text: str) -> Path:
    path = folder / "accepted.toml"
    path.write_text(text, encoding="latin-1")
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[accepted", "cannot be read"),
        ("\xff\xfe", "cannot be read"),  # no UTF-8
        ("x = " + 3000 * "[", "cannot be read"),
        ("x = 1", "more than"),
        ("accepted = 1", "more than"),
        ("accepted = [1]", "has no id: 1"),
        (WHOLE.replace('id = "a"', ""), "has no id"),
        (WHOLE.replace('id = "a"', 'id = ""'), "has no id"),
        (OLDER.replace('id = "a"', 'id = ["a"]'), "has no id"),
        (WHOLE + "counters = { saved_bytez = 8 }", "of a has the counter 'saved_bytez'; write one of parameters, "),
        (WHOLE.replace('"stability"', '" "'), "of a has no reason"),
        (WHOLE.replace('revision = "abc"', ""), "of a has no revision"),
        (WHOLE.replace("1.08", '"8 %"'), "of a has no limit"),
        (WHOLE.replace("1.08", "nan"), "of a has no limit"),
        (WHOLE.replace("1.08", "true"), "of a has no limit"),
        (WHOLE.replace("1.08", "0.08"), "of a has the limit 0.08"),
        (WHOLE + "typo = 1", "unknown keys (typo)"),
        (WHOLE.replace("1.08", "1.0"), "a slowdown needs one above 1"),
        (WHOLE.replace('"wall"', '"sundial"'), "of a has the clock 'sundial'"),
        (OLDER, 'of a names no clock; add the line `clock = "wall"`'),
        (OLDER + 'counter = "saved_bytes"', "write `counters = { saved_bytes = 1.08 }` instead"),
        (WHOLE + "counters = 1", "counters that are no table"),
        (WHOLE + 'counters = { saved_bytes = "x" }', "of a has no limit"),
        (WHOLE + WHOLE, "wall time of a is accepted 2 times against abc; keep one entry"),
    ],
)
def test_a_malformed_file_is_one_sentence_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=r"accepted\.toml") as raised:
        read_accepted(path)
    assert words in str(raised.value)


def limit(revision: str = "abc", clock: Clock | None = "wall", counter: str | None = None) -> Acceptance:
    return Acceptance("a", 1.08, "stability", revision, counter, clock)


def test_an_entry_that_the_base_holds_too_is_spent_and_told_once() -> None:
    old, counter, new = limit(), limit(clock=None, counter="saved_bytes"), limit("def")
    counted, (sentence,) = effective([old, counter, new], [old, counter])
    assert counted == [new]
    assert "of a (measured against abc) has expired" in sentence


def test_a_base_of_an_older_form_is_no_obstacle_and_what_it_holds_is_spent(tmp_path: Path) -> None:
    assert read_accepted(tmp_path / "accepted.toml") == [], "no file accepts nothing"
    assert effective([limit()], read_accepted_of_base(written(tmp_path, OLDER)))[0] == []
    for broken in ("[[accepted", "x = " + 3000 * "["):
        assert read_accepted_of_base(written(tmp_path, broken)) == []


def test_what_is_offered_is_read_back_one_entry_a_case(tmp_path: Path) -> None:
    case, reason = 't.py::f["\\x-1\n]', 'a "good" reason'
    time = Acceptance(case, 1.08, reason, "abc", clock="wall")
    counters = [Acceptance(case, 123456789, reason, "abc", name) for name in ("saved_bytes", "kernel_launches")]
    other = Acceptance("b", 2, reason, "abc", "saved_bytes")
    path = tmp_path / "new/offered.toml"
    assert str(path) in offer_entries([time, other, *counters], path)
    assert read_accepted(path) == [other, time, *counters]
    assert path.read_text().count("[[accepted]]") == 2
    (tmp_path / "file").touch()
    assert "cannot be written" in offer_entries([limit()], tmp_path / "file/offered.toml")
