"""What a person sees of a gate run: the sentences, the table, the Markdown, and the same for machines."""

import json
from dataclasses import asdict, replace
from itertools import pairwise
from typing import get_args

import pytest

from perf_tests.gate.samples import End, Event, ExactFinding, GateSamples, NoTiming, Rules, Side, Uncounted
from perf_tests.gate.verdicts import GateResult, RunVerdict, Verdict, conclude
from perf_tests.report.gate_screens import (
    MOST_CASES,
    as_json,
    counter_lines,
    finding_sentences,
    limits_to_accept,
    markdown,
    report_lines,
    verdict_sentence,
)
from tests.support.simulated_launches import SimulatedCase, gate_run

RULES = Rules()
SLOW = "perf_tests/test_forward.py::test_forward[small-ctx128-fp32-naive]"
NOISY = "perf_tests/test_forward.py::test_forward[small-ctx128-bf16-naive]"
GONE = "perf_tests/test_backward.py::test_backward[small-ctx128-fp32-naive]"
NASTY = "t.py::test_x[a|b\x1b[2J<img src=x>`]"
SIDES = {"base": {"label": "a"}, "head": {"label": "b"}}


@pytest.fixture(scope="module")
def samples() -> GateSamples:
    cases = [SimulatedCase(f"t.py::test_quiet[{place}]") for place in range(8)]
    cases += [SimulatedCase(SLOW, slowdown=0.05), SimulatedCase(NOISY, slowdown=0.03, pair_spread=0.1)]
    cases += [SimulatedCase(GONE), SimulatedCase(NASTY)]
    samples = gate_run(cases, RULES, seed=3)
    for case, reason in ((GONE, "model/ lost\nit"), (NASTY, "a * b")):
        samples.add({"event": "outcome", "case": case, "side": "head", "outcome": "absent", "reason": reason})
    samples.add({"event": "exact", "case": SLOW, "counter": "saved_bytes", "old": 1000, "new": 1100})
    samples.add({"event": "exact", "case": SLOW, "counter": "kernel_launches", "old": 7, "new": 7})
    return samples


@pytest.fixture(scope="module")
def result(samples: GateSamples) -> GateResult:
    return conclude(samples, RULES)


@pytest.fixture(scope="module")
def lines(samples: GateSamples, result: GateResult) -> list[str]:
    return report_lines(result, samples.header, RULES)


def sentence_of(samples: GateSamples, result: GateResult, words: str) -> str:
    (found,) = [line for line in finding_sentences(result, samples.header, RULES) if words in line]
    return found


def with_events(samples: GateSamples, *events: Event, alone: bool = False) -> GateResult:
    """The verdicts with these events too, or alone of all."""
    kept: list[Event] = [End("finished")] if alone else samples.events
    return conclude(replace(samples, events=[*kept, *events]), RULES)


def test_what_fails_is_said_before_the_table_which_begins_with_it_and_has_every_case(lines: list[str]) -> None:
    header = next(place for place, line in enumerate(lines) if line.startswith("case "))
    assert [line.split(":")[0] for line in lines[:header]] == ["SLOWER", "GONE", "GONE", "MORE"]
    rows = lines[header + 1 : header + 13]
    assert ["UNDECIDED" in row for row in rows] == [place == 3 for place in range(12)]
    assert [" OK " in row for row in rows] == [place >= 4 for place in range(12)]
    assert all(line.isprintable() for line in lines), "nothing printed can move the cursor"


def test_a_slowdown_is_one_sentence_with_all_one_needs(samples: GateSamples, result: GateResult) -> None:
    found = sentence_of(samples, result, "SLOWER: forward small-ctx128-fp32-naive")
    effect = next(row for row in result.cases if row.id == SLOW).effect
    assert effect is not None
    assert f"head is {effect.effect:.1%} slower by wall time" in found
    assert f"({effect.low:+.1%} to {effect.high:+.1%} at 95 %, {effect.pairs} launch pairs)" in found
    assert "a slowdown above 0.5% is significant" in found
    assert f"pytest '{SLOW}' --against 000000000000" in found
    header = samples.header | {"options": "--against-option attention=sdpa"}
    assert any(f"'{SLOW}' --against-option attention=sdpa" in s for s in finding_sentences(result, header, RULES))


@pytest.mark.parametrize(
    ("low", "words"),
    [(0.2, "it needs confirmation by fresh launch pairs"), (-0.1, "neither confirmed nor excluded")],
)
def test_an_undecided_case_says_what_it_would_take_and_whether_it_is_to_be_confirmed(
    samples: GateSamples, result: GateResult, low: float, words: str
) -> None:
    needed = next(row for row in result.cases if row.id == NOISY).launches_needed
    rows = [
        replace(row, effect=replace(row.effect, effect=low + 0.1, low=low, high=low + 0.2))
        if row.verdict == Verdict.UNDECIDED and row.effect
        else row
        for row in result.cases
    ]
    found = sentence_of(samples, replace(result, cases=rows), "UNDECIDED: ")
    assert words in found
    assert f"deciding would take about {needed} fresh launch pairs" in found


def test_several_undecided_cases_are_one_sentence_and_rows_that_say_what_they_need(result: GateResult) -> None:
    rows = [replace(row, verdict=Verdict.UNDECIDED, launches_needed=41) for row in result.cases if row.effect]
    said = report_lines(replace(result, cases=rows), SIDES, RULES)
    (sentence,) = [line for line in said if line.startswith("UNDECIDED: ")]
    assert f"of {len(rows)} cases a slowdown of 3.0% is neither confirmed nor excluded" in sentence
    assert sum(line.endswith(" 41") for line in said) == len(rows)
    early = [replace(row, verdict=Verdict.UNDECIDED, effect=None) for row in result.cases]
    after_one = "\n".join(report_lines(replace(result, cases=early, pairs=(1, 0)), SIDES, RULES))
    assert "too few launch pairs to say how many would decide" in after_one
    assert "their rows" not in after_one
    assert "1 launch pair of all cases, 0 fresh pairs of the suspects" in after_one


def test_a_run_that_decided_nothing_says_so_beside_its_verdict(result: GateResult) -> None:
    cases = [row for row in result.cases if row.verdict == Verdict.UNDECIDED]
    assert cases
    passed = replace(result, verdict=RunVerdict.PASSED, reason="", exact=[])
    assert verdict_sentence(replace(passed, cases=cases)) == f"gate: PASSED (none decided: {len(cases)} UNDECIDED)"
    assert "none decided" not in verdict_sentence(passed)


def test_a_case_without_a_timing_says_why_once(samples: GateSamples, result: GateResult) -> None:
    gone = "GONE: backward small-ctx128-fp32-naive: head does not have it"
    assert gone in sentence_of(samples, result, "model/ lost")
    of_both = [NoTiming(GONE, side, "unsupported", "no compiler here.") for side in get_args(Side)]
    found = sentence_of(samples, with_events(samples, *of_both), "NOT MEASURED")
    assert found == "NOT MEASURED: backward small-ctx128-fp32-naive: on both sides unsupported: no compiler here."


def test_conditions_say_what_all_cases_say_together_and_what_the_run_could_detect(
    samples: GateSamples, result: GateResult, lines: list[str]
) -> None:
    assert f"This run could detect a {result.detectable:.1%} slowdown with 80 % power." in lines
    assert result.suite is not None
    assert any(line.startswith(f"All cases together: head takes {result.suite.effect:+.1%} (") for line in lines)
    kept = replace(samples, events=[End("budget")])
    (pairs, *_), last = samples.pairs(2), samples.pairs(2)[11]

    def ended_at(pair: int) -> float:
        measured = [m for m in samples.measurements if m.pair <= pair]
        detectable = conclude(replace(kept, measurements=measured), RULES).detectable
        assert detectable is not None
        return detectable

    assert result.detectable is not None
    assert ended_at(last) > 1.1 * result.detectable
    assert ended_at(pairs + 2) > RULES.matters, "its early looks alone could call anything SLOWER"
    without_look = conclude(replace(kept, measurements=samples.measurements[:24]), RULES)
    assert without_look.detectable is None
    said = report_lines(without_look, samples.header, RULES)
    assert "This run ended with too few launch pairs to call any case SLOWER." in said


def test_what_rose_in_one_case_is_one_sentence_that_says_by_how_much(samples: GateSamples) -> None:
    risen = [ExactFinding(SLOW, "saved_bytes", 1000, 1100), ExactFinding(SLOW, "kernel_launches", 1, 2)]
    found = sentence_of(samples, with_events(samples, *risen), "MORE")
    assert "saved_bytes rose from 1,000 to 1,100 (+10.00%)" in found
    assert "kernel_launches rose from 1 to 2" in found


def test_what_rose_in_many_cases_is_one_sentence_and_a_row_for_each_case(samples: GateSamples) -> None:
    cases = [*samples.cases[: MOST_CASES + 1]]
    risen = [ExactFinding(case, "saved_bytes", 1000, 1100 + place) for place, case in enumerate(cases)]
    found = with_events(samples, *risen, ExactFinding(cases[0], "host_reads", 0, 5), alone=True)
    (said,) = [line for line in report_lines(found, samples.header, RULES) if line.startswith("MORE")]
    most = f"{(100 + MOST_CASES) / 1000:.2%}"
    assert f"counters of {len(cases)} cases rose: saved_bytes (by up to {most}), host_reads (by up to 5); " in said
    first, second = [line.split()[-2:] for line in counter_lines(found.exact)[1:3]]
    assert (first, second) == (["+10.00%", "+5"], ["+10.10%", "-"])


def test_a_counter_that_fell_is_in_the_table_and_fails_nothing(samples: GateSamples) -> None:
    found = with_events(samples, ExactFinding(samples.cases[0], "kernel_launches", 9, 7), alone=True)
    assert not any(row.is_failure for row in found.exact)
    said = report_lines(found, samples.header, RULES)
    header, row = next((line.split(), after.split()) for line, after in pairwise(said) if line.startswith("exact"))
    assert (header[-1], row[-1]) == ("kernel_launches", "-22.22%")


def test_cases_without_counters_are_told_once_for_each_reason(samples: GateSamples) -> None:
    uncounted = [Uncounted(case, "base", "it knows no such thing.") for case in samples.cases]
    said = report_lines(with_events(samples, *uncounted), samples.header, RULES)
    (found,) = [line for line in said if "not compared" in line]
    assert f"of {len(samples.cases)} cases are not compared, because base has none: it knows no such thing." in found


def test_what_is_offered_to_paste_accepts_exactly_what_fails(samples: GateSamples, result: GateResult) -> None:
    accepted = limits_to_accept(result, samples.header)
    assert {(limit.id, limit.clock, limit.counter) for limit in accepted} == {
        (SLOW, "wall", None),
        (SLOW, None, "saved_bytes"),
    }
    entries = [asdict(limit) for limit in accepted]
    again = replace(samples, header=samples.header | {"accepted": entries})
    assert not any(row.is_failure for row in with_events(again, *samples.of(ExactFinding), alone=True).cases)
    assert [limit.limit for limit in accepted if limit.counter] == [1100]


def test_counters_of_two_builds_are_shown_and_fail_nothing() -> None:
    samples = gate_run([SimulatedCase("a")], RULES, seed=1)
    samples.add({"event": "exact", "case": "a", "counter": "kernel_launches", "old": 12, "new": 13})
    assert conclude(samples, RULES).verdict == RunVerdict.FAILED
    samples.header["base"]["build"] = "Python 3.12.1 with torch 2.11.0"
    result = conclude(samples, RULES)
    said = "\n".join(report_lines(result, samples.header, RULES))
    assert result.verdict == RunVerdict.PASSED
    assert "kernel_launches rose from 12 to 13 (+8.33%) (accepted: each side counts what its own build runs)." in said
    assert limits_to_accept(result, samples.header) == []


def test_markdown_names_the_findings_folds_the_rest_and_keeps_hostile_text_as_text(
    samples: GateSamples, result: GateResult
) -> None:
    text = markdown(result, samples.header, RULES)
    assert text.startswith("### gate: FAILED")
    assert f"<details><summary>All {len(result.cases)} cases</summary>" in text
    assert "```toml\n[[accepted]]" in text
    assert text.count("[[accepted]]") == 1
    assert "<img" not in text.replace(r"\<img", "")
    assert "\x1b" not in text
    cells = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in cells} == {10, 5}  # cases, counters


def test_json_says_the_same(samples: GateSamples, result: GateResult) -> None:
    data = json.loads(as_json(result, samples.header, RULES))
    assert (data["verdict"], data["exit_code"]) == ("FAILED", 1)
    assert [row["verdict"] for row in data["cases"]] == [row.verdict for row in result.cases]
    assert [row["is_failure"] for row in data["exact"]] == [True, False]
    assert data["rules"]["alpha"] == RULES.alpha
    assert data["findings"] == finding_sentences(result, samples.header, RULES)


def test_the_times_shown_are_those_of_the_clock_that_decides_and_the_table_says_which() -> None:
    cases = [SimulatedCase(f"t.py::test_waits[{place}]", pair_spread=0.2, cpu_pair_spread=0.01) for place in range(6)]
    samples = gate_run(cases, RULES, seed=1)
    for place, line in enumerate(samples.measurements):
        assert line.base_cpu_seconds is not None
        samples.measurements[place] = replace(line, base_cpu_seconds=line.base_cpu_seconds / 4)
    result = conclude(samples, replace(RULES, clock="cpu"))
    assert all(row.base_seconds is not None and 0.002 < row.base_seconds < 0.004 for row in result.cases)
    table = [line.split() for line in report_lines(result, samples.header, RULES) if line.startswith("waits ")]
    assert {row[row.index("ms") - 2] for row in table} == {"CPU"}
