"""The gate's verdicts on runs whose truth is known, its answer to all that is no timing, and what is accepted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf_tests_suite.perf_tests.gate import verdicts as gate
from perf_tests_suite.perf_tests.gate.accepted import Acceptance, effective, read_accepted, read_accepted_of_base
from perf_tests_suite.perf_tests.gate.samples import End, GateSamples, LeftOut
from perf_tests_suite.perf_tests.gate.stages import screening_of
from perf_tests_suite.perf_tests.gate.verdicts import (
    OF_TWO_BUILDS,
    ExactResult,
    RunVerdict,
    Verdict,
    conclude,
    next_step,
)
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json
from perf_tests_suite.perf_tests.report.gate_screens import offer_entries
from tests.support import simulated_launches as runs
from tests.support.gate_words import judged
from tests.support.simulated_launches import NOISY_WALL, QUIET, RULES, SimulatedCase, accepted_entry, gate_run, row

SLOW = SimulatedCase("slow", slowdown=0.03)
"""Too little for an early look."""
NOISY = replace(SLOW, pair_spread=0.1)
WAITING = replace(NOISY_WALL[0], id="slow", slowdown=1.0, cpu_slowdown=-0.1)  # work that moved to one thread
HARDLY = replace(WAITING, slowdown=0.2, cpu_slowdown=0.0)
CPU_ALONE = SimulatedCase("slow", pair_spread=0.05, cpu_pair_spread=0.002, cpu_slowdown=0.9)
CALM_CPU = [replace(CPU_ALONE, id=f"calm {place}", cpu_slowdown=0.0) for place in range(8)]
UNTIL_8 = {"rules": replace(RULES, screen_pairs=8, second_share=0.0), "seed": 3, "most_pairs": 8}
LIMITED = {"most_pairs": 14, "events": [End("time_limit")]}
INTERRUPTED = {"most_pairs": 14, "events": [End("interrupted")]}
FINISHED = End("finished").to_line()

TRUTHS: dict[str, tuple[SimulatedCase, list[SimulatedCase], Json, str]] = {
    # a case, those beside it, the run, and what is said: the verdict, clocks, launch pairs behind it, the run's verdict
    "unchanged": (replace(SLOW, slowdown=0.0), QUIET, {}, "OK by wall of 6: PASSED 0"),
    "faster": (replace(SLOW, slowdown=-0.05), QUIET, {}, "FASTER by wall of 10: PASSED 0"),
    "slower": (SLOW, QUIET, {}, "SLOWER by wall of 10: FAILED 1"),
    "slower, time up between two looks": (SLOW, QUIET, {"most_pairs": 14}, "SLOWER by wall of 8: FAILED 1"),
    "slower, time limit between two looks": (SLOW, QUIET, LIMITED, "SLOWER by wall of 8: FAILED 1"),
    "slower, interrupted": (SLOW, QUIET, INTERRUPTED, "UNDECIDED by wall of 8: INTERRUPTED 2"),
    "far slower": (replace(SLOW, slowdown=0.9), QUIET, {}, "SLOWER by wall of 3: FAILED 1"),
    "plainly slower": (replace(SLOW, slowdown=0.1, pair_spread=0.005), QUIET, {}, "SLOWER by wall of 6: FAILED 1"),
    "noisy": (NOISY, QUIET, {}, "UNDECIDED by wall of 36: PASSED 0"),
    "noisy, fails": (NOISY, QUIET, {"rules": replace(RULES, undecided="fail")}, "UNDECIDED by wall of 36: UNDECIDED 1"),
    "noisy, limit": (NOISY, QUIET, {"events": [End("time_limit")]}, "UNDECIDED by wall of 36: UNFINISHED 4"),
    "noisy, killed": (NOISY, QUIET, {"events": []}, "UNDECIDED by wall of 36: INTERRUPTED 2"),
    "wall time guards": (WAITING, NOISY_WALL, {}, "SLOWER by guarding wall of 3: FAILED 1"),
    "by both": (replace(WAITING, cpu_slowdown=0.5), NOISY_WALL, {}, "SLOWER by cpu and wall of 3: FAILED 1"),
    "not OK by wall time alone": (HARDLY, NOISY_WALL, UNTIL_8, "UNDECIDED by guarding wall of 8: PASSED 0"),
    "before wall time is chosen": (CPU_ALONE, CALM_CPU, {"most_pairs": 3}, "SLOWER by cpu of 3: FAILED 1"),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_a_case_whose_truth_is_known_gets_its_verdict_by_the_launches_and_the_clock_that_decided(name: str) -> None:
    case, beside, known, said = TRUTHS[name]
    changes = {"rules": RULES, **known}
    events = changes.pop("events", None)
    samples = gate_run([*beside, case], **changes)
    samples.events = samples.events if events is None else events
    result = conclude(samples, changes["rules"])
    found = row(result, "slow")
    assert found.effect is not None
    by = f"{'guarding ' * found.is_by_guard}{' and '.join(found.slower_by) or found.clock} of {found.effect.pairs}"
    assert f"{found.verdict} by {by}: {result.verdict} {result.exit_code}" == said
    assert (result.reason == "") == (result.verdict in ("PASSED", "FAILED"))
    assert (found.launches_needed or 0) > RULES.confirm_looks[-1] or case is not NOISY
    assert {one.verdict for one in result.cases if one.id != "slow"} <= {"OK", "UNDECIDED"}
    if found.slower_by and samples.end == "finished":  # it must be accepted by each clock that shows it
        for clocks in ({"cpu"}, {"wall"}, {"cpu", "wall"}):
            entries = [accepted_entry("slow", 2.5, clock=clock) for clock in clocks]
            assert accepting(samples, *entries).exit_code == (0 if clocks >= found.slower_by.keys() else 1)


@pytest.fixture(scope="module")
def slowed() -> GateSamples:
    return gate_run([*QUIET, SLOW])


def accepting(samples: GateSamples, *entries: Json) -> gate.GateResult:
    return conclude(replace(samples, header=samples.header | {"accepted": [*entries]}), RULES)


LOSSES = {
    "would_not_fit": "NO LONGER FITS", "out_of_memory": "NO LONGER FITS", "unsupported": "NO LONGER SUPPORTED",
    "error": "FAILED", "timed_out": "FAILED", "process_died": "FAILED", "impossible": "IMPOSSIBLE",
    "incorrect": "INCORRECT", "suspicious": "SUSPICIOUS", "absent": "GONE",
}  # fmt: skip


def test_a_side_without_timing_is_a_verdict_and_runs_no_more() -> None:
    assert LOSSES.keys() == {*OUTCOMES, "absent"}
    beside = ("base", "absent", "NEW", 0), ("base", "error", "NEW", 0), ("base head", "unsupported", "NOT MEASURED", 0)
    for sides, outcome, verdict, code in (*(("head", *loss, 1) for loss in LOSSES.items()), *beside):
        event = {"event": "outcome", "case": "slow", "outcome": outcome, "reason": "because"}
        samples = runs.screened_run([*QUIET, SLOW], *(event | {"side": side} for side in sides.split()), FINISHED)
        found = row(result := conclude(samples, RULES), "slow")
        assert (found.verdict, result.exit_code, "because" in found.explanation) == (verdict, code, True), outcome
        step = next_step(samples, RULES)
        assert step is None or "slow" not in step.cases


OF_BASE: list[tuple[list[str], int]] = [
    # outcomes of the only cases at base, "" where it was compared and "same" where it need not be, and the exit code
    (["error", "error"], 4), (["process_died", "absent"], 4), (["timed_out", "unsupported"], 4), (["error", ""], 0),
    (["error", "same"], 0), (["absent", "absent"], 0), (["absent", "out_of_memory"], 0), (["incorrect", "absent"], 0),
]  # fmt: skip


@pytest.mark.parametrize(("outcomes", "code"), OF_BASE)
def test_a_base_that_fails_in_every_case_was_not_compared_and_one_that_lacks_them_is_new(
    outcomes: list[str], code: int
) -> None:
    events: list[Json] = []
    for case, outcome in zip(QUIET, outcomes, strict=False):
        said = {"event": "outcome", "side": "base", "outcome": outcome, "reason": "no such module."}
        events += [{"case": case.id} | ({"event": "same"} if outcome == "same" else said)] * bool(outcome)
    result = conclude(runs.screened_run(QUIET[: len(outcomes)], *events, FINISHED), RULES)
    passes = RunVerdict.PASSED if {"", "same"} & {*outcomes} else RunVerdict.NOT_MEASURED
    assert (result.verdict, result.exit_code) == (RunVerdict.INCOMPARABLE if code else passes, code)
    assert ("nothing was compared, because base failed: no such module; give" in result.reason) == bool(code)


def test_a_test_of_the_users_that_base_had_is_never_green_where_it_does_not_run_there() -> None:
    case = QUIET[0].id
    lost: Json = {"event": "outcome", "case": case, "side": "base", "outcome": "error", "reason": "no such name."}
    for events, at_base, code, words in (
        ([lost], [case], 4, f"base has {case}, and head's version of the test does not run on base's code: no such"),
        ([{**lost, "outcome": "unsupported"}], [case], 4, "head's version of the test does not run on base's code"),
        ([lost], [], 0, ""),
        ([lost, {**lost, "side": "head"}], [case], 0, ""),  # it runs nowhere
        ([{**lost, "case": each.id, "side": side} for each in QUIET for side in ("base", "head")], [], 4,
         "no test could be measured"),
    ):  # fmt: skip
        samples = runs.screened_run(QUIET, *events, FINISHED)
        samples = replace(samples, header={**samples.header, "tests": {"root": ".", "at_base": at_base}})
        result = conclude(samples, RULES)
        assert (result.exit_code, words in result.reason) == (code, True), result


def test_what_is_left_out_is_measured_no_further_and_undecided() -> None:
    samples = gate_run(QUIET, most_pairs=1)
    samples.events = [LeftOut("quiet 0"), LeftOut("quiet 1"), End("budget")]
    assert next_step(samples, RULES) == gate.NextLaunch(1, tuple(case.id for case in QUIET[2:]))
    assert [row(conclude(samples, RULES), case).verdict for case in ("quiet 0", "quiet 2")] == 2 * ["UNDECIDED"]


COUNTED: list[tuple[int, Json, str, int]] = [
    # head's count where base has 100, what is accepted, verdict and exit code
    (101, {}, "MORE", 1), (100, {}, "SAME", 0), (99, {}, "LESS", 0),
    (120, {"limit": 120, "counter": "saved_bytes"}, "MORE", 0),
    (120, {"limit": 119, "counter": "saved_bytes"}, "MORE", 1),
    (120, {"limit": 120, "counter": "kernel_launches"}, "MORE", 1), (120, {"limit": 1000}, "MORE", 1),
]  # fmt: skip


def test_an_exact_counter_may_not_rise_beyond_what_is_accepted_unless_the_builds_differ() -> None:
    for new, limits, verdict, code in COUNTED:
        event = {"event": "exact", "case": "quiet 0", "counter": "saved_bytes", "old": 100, "new": new}
        samples = runs.screened_run(QUIET, event, FINISHED)
        result = accepting(samples, *([accepted_entry("quiet 0", **limits)] if limits else []))
        assert (result.exact[0].verdict, result.exit_code) == (verdict, code), (new, limits)
        samples.header["base"]["build"] = "Python 3.12"
        assert accepting(samples).exit_code == 0


def sentinel_events(shift: float, name: str = "matmul", pairs: int = 6) -> list[Json]:
    draw = np.random.default_rng(8)
    return [
        {"event": "sentinel", "stage": 1, "pair": pair, "name": name, "side": side,
         "seconds": (0.01 * np.exp(draw.normal(size=5) * 0.002 + (shift if side == "head" else 0))).tolist()}
        for pair in range(pairs)
        for side in ("base", "head")
    ]  # fmt: skip


def test_frozen_work_that_moved_contaminates_the_run() -> None:
    for shift, pairs, said in ((0.03, 6, "matmul +3"), (-0.03, 6, "matmul -"), (0.0, 6, ""), (0.03, 2, "")):
        samples = runs.screened_run([*QUIET, SLOW], *sentinel_events(shift, pairs=pairs))
        assert (next_step(samples, RULES) is None) == bool(said)
        samples.events.append(End("finished"))
        result = conclude(samples, RULES)
        assert ((result.verdict, result.exit_code) == (RunVerdict.CONTAMINATED, 4)) == bool(said)
        assert said in result.reason


def test_more_sentinels_are_each_held_to_a_stricter_level() -> None:
    moved, steady = sentinel_events(0.03), sentinel_events(0.0, "copy")
    alone, both = (runs.screened_run(QUIET, *events, FINISHED) for events in (moved, [*moved, *steady]))
    rules = replace(RULES, contamination_level=1.5 * conclude(alone, RULES).sentinels["matmul"].p_value)
    assert [conclude(run, rules).sentinels["matmul"].is_significant for run in (alone, both)] == [True, False]


def test_sides_that_cannot_be_compared_are_refused_whatever_else_they_say() -> None:
    event = {"event": "incomparable", "reason": "two builds"}
    result = conclude(runs.screened_run(QUIET, event, *sentinel_events(0.03), FINISHED), RULES)
    assert (result.verdict, result.exit_code, result.reason) == (RunVerdict.INCOMPARABLE, 4, "two builds")


def test_a_shift_of_the_whole_suite_fails_unless_accepted_though_no_case_does() -> None:
    cases = [SimulatedCase(f"case {place}", slowdown=0.015, pair_spread=0.005) for place in range(40)]
    strict = replace(RULES, screen_level=1e-9, matters=0.5)
    samples = runs.screened_run(cases, FINISHED, rules=strict)
    for limit, code in ((None, 1), (1.01, 1), (1.02, 0)):
        samples.header["accepted"] = [accepted_entry("suite", limit, clock="wall")] if limit else []
        result = conclude(samples, strict)
        assert ({one.verdict for one in result.cases}, result.exit_code) == ({"OK"}, code)
        assert result.suite is not None
        assert result.suite.is_significant


def test_launches_after_its_verdict_change_no_figure_of_a_case(slowed: GateSamples) -> None:
    more = replace(slowed, measurements=[*slowed.measurements])
    for pair in range(100, 103):
        more.add(runs.line(np.random.default_rng(pair), replace(SLOW, slowdown=0.5), 2, pair))
    assert row(conclude(more, RULES), "slow").effect == row(conclude(slowed, RULES), "slow").effect


def test_a_run_cut_short_anywhere_is_still_concluded() -> None:
    """Whatever a dead process left, from the header alone to the last line."""
    whole = gate_run([*QUIET[:2], SLOW, *NOISY_WALL[:2]], quadruples=2)
    for kept in range(0, len(whole.measurements), 13):
        part = replace(whole, measurements=whole.measurements[:kept], events=[])
        next_step(part, RULES)
        for end in (End("budget"), End("interrupted")):
            assert len(conclude(replace(part, events=[end]), RULES).cases) == 5


def test_a_suite_of_any_size_without_a_slow_case_passes_after_stage_one() -> None:
    for cases in (0, 1, 4, 5, 8):
        result = conclude(gate_run(QUIET[:cases], seed=2), RULES)
        assert {one.verdict for one in result.cases} <= {"OK"}
        assert (result.exit_code, result.pairs[1], result.suite is None) == (0, 0, cases < 5)


def test_times_without_any_scatter_get_a_verdict() -> None:
    for ratio, verdict in ((1.0, "OK"), (1.1, "SLOWER")):
        samples, pair = GateSamples(runs.header(QUIET[:3])), 0
        while (step := next_step(samples, RULES)) is not None:
            for case in step.cases:
                entry = runs.line(np.random.default_rng(0), QUIET[0], step.stage, pair, 2) | {"case": case}
                samples.add(entry | {"base_seconds": [[1.0, 1.0]] * 2, "head_seconds": [[ratio, ratio]] * 2})
            pair += 1
        assert {one.verdict for one in conclude(samples, RULES).cases} == {verdict}


def test_no_figure_of_a_suite_contradicts_its_verdict() -> None:
    rows, faults = judged(np.random.default_rng(1), 30)
    assert faults == []
    assert {Verdict.SLOWER, Verdict.OK, Verdict.UNDECIDED} <= {row.verdict for row in rows}
    assert any(row.accepted for row in rows)


# Two clocks.


CLOCKS: dict[str, tuple[list[SimulatedCase], Any, str]] = {
    "never read": (QUIET, "auto", "wall"),
    "scatters less": (NOISY_WALL, "auto", "cpu"),
    "scatters hardly less": ([replace(case, cpu_pair_spread=0.045) for case in NOISY_WALL], "auto", "wall"),
    "wall time is asked for": (NOISY_WALL, "wall", "wall"),
}


def test_cpu_time_decides_where_it_scatters_less() -> None:
    for name, (cases, asked, clock) in CLOCKS.items():
        found = screening_of(runs.screened_run(cases), replace(RULES, clock=asked)).clock
        assert (found.clock, found.guards) == (clock, clock == "cpu"), name
    with pytest.raises(ValueError, match="clock is cpu, but some cases have no CPU time: choose wall or auto"):
        screening_of(runs.screened_run(QUIET), replace(RULES, clock="cpu"))


# What `git bisect run` is told.


def test_git_is_told_good_bad_or_that_it_cannot_be_judged(slowed: GateSamples) -> None:
    """Accepted or not, slower is bad; nothing but decided cases is good."""
    found = conclude(slowed, RULES)
    ok, slow = (next(one for one in found.cases if one.verdict == verdict) for verdict in (Verdict.OK, Verdict.SLOWER))
    more = ExactResult("a", "saved_bytes", 1, 2, Verdict.MORE)
    of_two_builds = replace(more, accepted=OF_TWO_BUILDS)
    undecided, lost = replace(ok, verdict=Verdict.UNDECIDED), replace(ok, verdict=Verdict.FAILED)
    same, faster = (replace(ok, verdict=verdict) for verdict in (Verdict.SAME, Verdict.FASTER))
    for cases, exact, verdict, code in (
        ([ok, same, faster], [of_two_builds], RunVerdict.PASSED, 0),
        ([ok, slow], [], RunVerdict.FAILED, 1),
        ([replace(slow, accepted="why"), undecided], [], RunVerdict.PASSED, 1),
        ([ok], [more], RunVerdict.FAILED, 1),
        ([ok, undecided], [], RunVerdict.PASSED, 125),
        ([ok, lost], [], RunVerdict.FAILED, 125),
        ([], [], RunVerdict.PASSED, 125),
        *(([ok, slow], [], verdict, 125)
          for verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE, RunVerdict.INTERRUPTED)),
    ):  # fmt: skip
        result = replace(found, cases=cases, exact=exact, verdict=verdict, suite=None)
        assert result.bisect_code == code, (verdict, [one.verdict for one in cases])


# What is accepted.


def test_an_accepted_slowdown_passes_up_to_its_limit(slowed: GateSamples) -> None:
    for limit, clock, code in ((1.08, "wall", 0), (1.02, "wall", 1), (1.08, "cpu", 1), (1.08, None, 0)):
        result = accepting(slowed, accepted_entry(limit=limit, clock=clock), accepted_entry("other", 9))
        assert (row(result, "slow").verdict, result.exit_code) == (Verdict.SLOWER, code), (limit, clock)


WHOLE = '[[accepted]]\nid = "a"\nlimit = 1.08\nreason = "stability"\nrevision = "abc"\nclock = "wall"\n'
OLDER = WHOLE.replace('clock = "wall"\n', "")


def written(folder: Path, text: str) -> Path:
    path = folder / "accepted.toml"
    path.write_text(text, encoding="latin-1")
    return path


MALFORMED = {
    "[[accepted": "cannot be read",
    "\xff\xfe": "cannot be read",  # no UTF-8
    "x = " + 3000 * "[": "cannot be read",
    "accepted = 1": "more than",
    "accepted = [1]": "has no id: 1",
    WHOLE.replace('id = "a"', 'id = ""'): "has no id",
    OLDER.replace('id = "a"', 'id = ["a"]'): "has no id",
    WHOLE + "counters = { saved_bytez = 8 }": "of a has the counter 'saved_bytez'; write one of parameters, ",
    WHOLE.replace('"stability"', '" "'): "of a has no reason",
    WHOLE.replace('revision = "abc"', ""): "of a has no revision",
    **{WHOLE.replace("1.08", value): "of a has no limit" for value in ('"8 %"', "nan", "inf", "true")},
    WHOLE + "typo = 1": "unknown keys (typo)",
    WHOLE.replace("1.08", "1.0"): "the limit 1.0; a slowdown needs one above 1",
    WHOLE.replace('"wall"', '"sundial"'): "of a has the clock 'sundial'",
    OLDER: 'of a names no clock; add the line `clock = "wall"`',
    OLDER + 'counter = "saved_bytes"': "write `counters = { saved_bytes = 1.08 }` instead",
    WHOLE + "counters = 1": "counters that are not a table",
    WHOLE + 'counters = { saved_bytes = "x" }': "of a has no limit",
    WHOLE + WHOLE: "wall time of a is accepted 2 times against abc; keep one entry",
}


def test_a_malformed_file_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    for text, words in MALFORMED.items():
        path = written(tmp_path, text)
        with pytest.raises(ValueError, match=rf"^{path}\b.*\.$") as raised:
            read_accepted(path)
        assert words in str(raised.value)


def test_what_is_offered_is_read_back_one_entry_a_case(tmp_path: Path) -> None:
    case, reason = 't.py::f["\\x-1\n]', 'a "good" reason'
    times = [Acceptance(case, limit, reason, "abc", clock=clock) for limit, clock in ((1.08, "wall"), (1.2, "cpu"))]  # type: ignore[arg-type]
    counters = [Acceptance(case, 123456789, reason, "abc", name) for name in ("saved_bytes", "kernel_launches")]
    other = Acceptance("b", 2, reason, "abc", "saved_bytes")
    path = tmp_path / "new/offered.toml"
    assert str(path) in offer_entries([*times, other, *counters], path)
    assert read_accepted(path) == [other, times[0], *counters, times[1]]
    assert path.read_text().count("[[accepted]]") == 3
    (tmp_path / "file").touch()
    assert "cannot be written" in offer_entries([other], tmp_path / "file/offered.toml")


def test_an_entry_that_the_base_holds_too_in_whatever_form_is_spent_and_told_once(tmp_path: Path) -> None:
    old = Acceptance("a", 1.08, "stability", "abc", None, "wall")
    new, counter = replace(old, revision="def"), Acceptance("a", 8, "why", "abc", "host_reads")
    counted, (sentence,) = effective([old, counter, new], [old, counter])
    assert (counted, "of a (measured against abc) has expired" in sentence) == ([new], True)
    assert read_accepted(tmp_path / "accepted.toml") == [], "no file accepts nothing"
    assert effective([old], read_accepted_of_base(written(tmp_path, OLDER)))[0] == []
    for broken in ("[[accepted", "x = " + 3000 * "[", "accepted = 1", "accepted = [{}]"):
        assert read_accepted_of_base(written(tmp_path, broken)) == []
