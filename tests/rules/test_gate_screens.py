"""What a person sees of a gate run: the sentences, the table, the Markdown, and the same for machines."""

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.perf_tests.gate import verdicts as gate
from perf_tests_suite.perf_tests.gate.accepted import Acceptance, acceptance
from perf_tests_suite.perf_tests.gate.samples import ExactFinding, Uncounted
from perf_tests_suite.perf_tests.gate.stages import Shift
from perf_tests_suite.perf_tests.gate.statistics import ClockDecision
from perf_tests_suite.perf_tests.gate.verdicts import SAME_PROGRAM, CaseResult, Effect, GateResult, RunVerdict, Verdict
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.report import gate_screens as screens
from perf_tests_suite.perf_tests.report.gate_screens import (
    limits_to_accept,
    markdown,
    quiet_lines,
    report_lines,
    verdict_sentence,
)
from perf_tests_suite.perf_tests.user_code.named import CONFIGURED, SUITE
from tests.support.simulated_launches import RULES

ID = "perf_tests/test_forward.py::test_forward[small-ctx{}-fp32-naive]"
NASTY = "t.py::test_x[a|b\x1b[2J<img src=x>`]"
HEADER: Json = {"base": {"label": "a", "revision": "0" * 40}, "head": {"label": "b"}}
EFFECT = Effect(0.05, 0.04, 0.06, 10)


def case(verdict: Verdict, number: int = 0, **changes: Any) -> CaseResult:
    """A row with figures, save for `changes`."""
    known: Json = {"effect": EFFECT, "base_seconds": 0.1, "head_seconds": 0.105, "clock": "wall"}
    known |= {"slower_by": {"wall": EFFECT}} if verdict == Verdict.SLOWER else {}
    return CaseResult(ID.format(number), verdict, **known | changes)


def counted(number: int, counter: str, old: int, new: int, *accepted: Acceptance, **more: Any) -> Any:
    return gate.exact_result(ExactFinding(ID.format(number), counter, old, new), accepted, **more)


OK = [case(Verdict.OK, 10 + place, effect=Effect(0.0, -0.01, 0.01, 6)) for place in range(3)]
UNTIMED: Json = {"effect": None, "base_seconds": None, "head_seconds": None, "clock": None}
GONE = [
    replace(case(Verdict.GONE, 1, **UNTIMED, explanation="head does not have it: model/ lost\nit")),
    replace(case(Verdict.GONE, 2, **UNTIMED, explanation="head does not have it: a * b"), id=NASTY),
]
NOISY = case(Verdict.UNDECIDED, 3, effect=Effect(0.03, -0.1, 0.2, 36), launches_needed=41, minutes_needed=4.2)
CASES = [*OK, NOISY, case(Verdict.SLOWER), *GONE]
EXACT = [counted(0, "saved_bytes", 1000, 1100), counted(0, "kernel_launches", 7, 7)]


def result(cases: list[CaseResult] = CASES, exact: list[Any] = EXACT, **changes: Any) -> GateResult:
    clock = ClockDecision("wall", 0.01, None)
    return replace(
        GateResult(RunVerdict.FAILED, "", cases, exact, Shift(0.002, -0.001, 0.005, 0.5, False), None, {}, clock, 0.02,
                   (6, 10)), **changes,
    )  # fmt: skip


def said(found: GateResult, words: str, header: Json = HEADER) -> str:
    """The one line with these words."""
    (line,) = [line for line in report_lines(found, header, RULES) if words in line]
    return line


def test_a_run_says_how_many_cases_run_the_same_program_and_why_the_others_were_measured() -> None:
    why = ["model/attention.py:48 differs"] * 2 + ["it reads a value."]
    measured = [case(Verdict.OK, number, why_measured=reason) for number, reason in enumerate(why)]
    same = [case(Verdict.SAME, 7, **UNTIMED, explanation=SAME_PROGRAM)]
    found = result([*same, *measured], [], verdict=RunVerdict.PASSED)
    assert said(found, "SAME: ").startswith("SAME: 1 case of 4 not measured, because the program is the same on both")
    assert "2 cases: model/attention.py:48 differs." in said(found, "attention.py:48")
    assert "1 case: it reads a value." in said(found, "reads a value")
    assert verdict_sentence(found) == "gate: PASSED (3 OK, 1 SAME)"
    _, rows = screens.verdict_table(found)
    assert [row[1] for row in rows] == ["OK", "OK", "OK", "SAME"]
    loud, folded = markdown(found, HEADER, RULES).split("<details>", 1)
    assert ("| SAME |" in loud, "SAME" in folded) == (False, True)
    untimed = result(same, [], verdict=RunVerdict.PASSED, pairs=(0, 0))
    assert said(untimed, ": nothing was timed: SAME and MORE need no timing.")
    rows_as_json = json.loads(screens.as_json(found, HEADER, RULES))["cases"]
    assert [(row["verdict"], row["why_measured"], row["is_failure"]) for row in rows_as_json][:2] == [
        ("SAME", "", False), ("OK", why[0], False),
    ]  # fmt: skip


def test_what_fails_is_said_before_the_table_which_begins_with_it_and_has_every_case() -> None:
    lines = report_lines(result(), HEADER, RULES)
    top = next(place for place, line in enumerate(lines) if line.startswith("case "))
    assert [line.split(":")[0] for line in lines[:top]] == ["gate", "SLOWER", "GONE", "GONE", "MORE", "UNDECIDED"]
    verdicts = ["SLOWER, MORE", "GONE", "GONE", "UNDECIDED", "OK", "OK", "OK"]
    assert [f" {verdict} " in line for verdict, line in zip(verdicts, lines[top + 1 :], strict=False)] == [True] * 7
    assert [line.split()[-1] for line in lines[top : top + 5]] == ["needed", "-", "-", "-", "41"]
    assert all(line.isprintable() for line in lines), "nothing printed can move the cursor"
    assert lines[0] == lines[-1] == "gate: FAILED (1 SLOWER, 3 OK, 1 UNDECIDED, 2 GONE; 1 counter rose in 1 case)"


@pytest.mark.parametrize(("cases", "most_lines"), [(2, 10), (30, 38)])
def test_a_quiet_screen_is_short_whatever_it_has_to_say(cases: int, most_lines: int) -> None:
    """The verdict first, then what failed, then what is undecided with one command, then the table, without SAME."""
    same = [case(Verdict.SAME, 99, **UNTIMED, explanation=SAME_PROGRAM)]
    for verdict in (Verdict.OK, Verdict.SLOWER, Verdict.UNDECIDED, Verdict.NEW, Verdict.MORE):
        rows = [case(verdict, number) for number in range(cases)]
        risen = [counted(number, "saved_bytes", 7, 8) for number in range(cases)] if verdict == Verdict.MORE else []
        lines = quiet_lines(
            result([*rows, *same], risen, minutes_needed=9.0), HEADER, RULES, ["What changed in it:", "  +1"]
        )
        assert len(lines) <= most_lines
        assert (lines[0].startswith("gate: FAILED ("), "small-ctx99" in str(lines)) == (True, False)
        told = [
            line.partition(":")[0] for line in lines[2 : next(i for i, line in enumerate(lines) if line[:5] == "case ")]
        ]
        loud = [] if verdict in (Verdict.OK, Verdict.SAME) else [verdict]
        assert [*dict.fromkeys(told)] in ([*loud, "What changed in it", "  +1"], ["What changed in it", "  +1", *loud])
        assert any("more: -v" in line for line in lines) == (cases > screens.MOST_ROWS)


def test_nothing_is_called_undecided_of_a_run_that_failed() -> None:
    assert verdict_sentence(result([NOISY], EXACT)) == "gate: FAILED (1 UNDECIDED; 1 counter rose in 1 case)"


BOTH_CLOCKS = {"cpu": EFFECT, "wall": Effect(1.0, 0.9, 1.1, 10)}
BY_BOTH = case(Verdict.SLOWER, accepted="why", is_by_guard=True, clock="cpu", slower_by=BOTH_CLOCKS)
SLOWER: dict[str, tuple[GateResult, Json, list[str]]] = {
    "command": (result(), {}, [f"small-ctx0-fp32-naive. Again: pytest '{ID.format(0)}' --against 000000000000"]),
    "as typed": (result(), {"options": "--against-option attention=sdpa", "suite": "/suite"},
                 [f"'/suite/{ID.format(0)}' --against-option attention=sdpa"]),
    "by two clocks, accepted": (
        result([BY_BOTH]), {}, ["naive; by wall time +100.0% (+90.0% to +110.0%); accepted: why. Again: "],
    ),
    "the suite": (result(suite=Shift(0.02, 0.01, 0.03, 1e-6, True), cases=[]), {},
                  ["the suite as a whole by 2.0% (+1.0% to +3.0% at 95 %)", "no sentinels ran"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOWER)
def test_a_slowdown_is_one_sentence_with_what_its_row_leaves_out(name: str) -> None:
    found, header, words = SLOWER[name]
    sentence = said(found, "SLOWER: forward" if found.cases else "SLOWER: the", HEADER | header)
    assert [word for word in words if word not in sentence] == []


def test_a_figure_of_a_run_is_printed_once() -> None:
    """The row of a case has its figures, the row of a counter its share; no sentence repeats them."""
    text = "\n".join(report_lines(result(), HEADER, RULES))
    assert {figure: text.count(figure) for figure in ("+5.0%", "+4.0% to +6.0%", "+10.00%", "-10.0% to", " 41")} == {
        "+5.0%": 1, "+4.0% to +6.0%": 1, "+10.00%": 1, "-10.0% to": 1, " 41": 1,
    }  # fmt: skip


UNDECIDED: list[tuple[list[CaseResult], list[str]]] = [
    ([NOISY], ["fp32-naive: a slowdown of 3.0% is neither confirmed nor excluded; the 36 fresh launch pairs of the "]),
    ([replace(NOISY, launches_needed=36)], [" neither confirmed nor excluded. To decide: "]),
    ([replace(NOISY, effect=Effect(0.3, 0.2, 0.4, 6), launches_needed=None)],
     ["fp32-naive: it needs confirmation by fresh launch pairs; the 36 ", "on a quieter machine fewer decide. "]),
    ([replace(NOISY, effect=None)], ["too few launch pairs. To decide: "]),
    ([NOISY, replace(NOISY, effect=Effect(0.3, 0.2, 0.4, 6))],
     ["of 2 cases a slowdown of 3.0% is neither", "and of 1, whose interval lies above 0.5%"]),
    ([replace(NOISY, effect=None)] * 3, ["of 3 cases"]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(UNDECIDED)))
def test_what_is_undecided_is_one_sentence_that_says_what_it_would_take(number: int) -> None:
    rows, words = UNDECIDED[number]
    header = HEADER | {"options": "--gate-minutes 1 --size tiny --against main"}
    passed = result(rows, [], verdict=RunVerdict.PASSED, minutes_needed=33.4)
    sentence = said(passed, "UNDECIDED: ", header)
    assert [word for word in words if word not in sentence] == []
    _, _, command = sentence.partition(" To decide: pytest ")
    place, minutes = ("perf_tests", 34) if rows[1:] else (f"'{ID.format(3)}'", 5)
    assert command == f"{place} --size tiny --against main --gate-minutes {minutes}"
    assert verdict_sentence(passed) == f"gate: PASSED (none decided: {len(rows)} UNDECIDED)"


def test_a_printed_command_runs_in_the_folder_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`perf-tests` by its path where the shell finds none, `pytest` with the case's whole path outside of the suite."""
    typed, case_id = "--model train/model.py:build --against main", ID.format(0)
    run = shlex.join([*CONFIGURED, *shlex.split(typed)])
    beside = tmp_path / "env/bin/perf-tests"
    beside.parent.mkdir(parents=True)
    beside.touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(beside.with_name("python")))
    of_verb = f"run '{case_id.removeprefix('perf_tests/')}' {typed}"
    for folder, on_path, options, command in (
        (SUITE, "/nowhere", typed, f"pytest '{case_id}' {typed}"),
        (tmp_path, "/nowhere", typed, f"pytest '{SUITE}/{case_id}' {typed}"),
        (tmp_path, "/nowhere", run, f"env/bin/perf-tests {of_verb}"),
        (beside.parent, "/nowhere", run, f"./perf-tests {of_verb}"),
        (beside.parent, str(beside.parent), run, f"perf-tests {of_verb}"),
    ):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PATH", on_path)
        assert said(result(), "SLOWER: forward", HEADER | {"options": options}).endswith(f" Again: {command}")
    tests = {"root": "../lib", "at_base": [], "typed": ["../lib/a b", "c.py::d"]}  # of the user's, below their rootdir
    header = HEADER | {"options": "--against=main -k 'a b'", "tests": tests}
    again = said(result(), "SLOWER: forward", header)
    assert again.endswith(f" Again: perf-tests run '../lib/{case_id}' --against=main -k 'a b'")
    many = result([replace(NOISY, effect=None)] * 2, [], verdict=RunVerdict.PASSED)
    command = "perf-tests run '../lib/a b' c.py::d --against=main -k 'a b'"
    assert said(many, "UNDECIDED: ", header).endswith(f" To decide: {command}")


@pytest.mark.parametrize("typed", ["-x --size tiny --against main", "--size tiny --against main --maxfail=1"])
def test_what_a_failure_left_unmeasured_is_not_decided_by_what_ends_at_a_failure(typed: str) -> None:
    rows = [replace(NOISY, effect=None, minutes_needed=630.0)]
    found = result(rows, [counted(0, "kernel_launches", 7, 8)], pairs=(0, 0))
    sentence = said(found, "UNDECIDED: ", HEADER | {"options": typed})
    assert sentence.endswith(f" '{ID.format(3)}' --size tiny --against main"), "nobody knows how many minutes it takes"


def test_a_case_whose_counters_rose_is_not_ok_alone_and_the_last_line_counts_such_cases() -> None:
    exact = [counted(number, name, 7, 8) for number in (10, 11) for name in ("kernel_launches", "host_reads")]
    found = result([*OK, NOISY], exact)
    _, rows = screens.verdict_table(found)
    assert [row[1] for row in rows] == ["OK, MORE", "OK, MORE", "UNDECIDED", "OK"]
    assert verdict_sentence(found) == "gate: FAILED (3 OK, 1 UNDECIDED; 4 counters rose in 2 cases)"
    loud, _ = markdown(found, HEADER, RULES).split("<details>", 1)
    assert loud.count("| OK, MORE |") == 2
    verdicts = {row["verdict"] for row in json.loads(screens.as_json(found, HEADER, RULES))["cases"]}
    assert verdicts == {"OK", "UNDECIDED"}
    accepted = acceptance({"id": ID.format(10), "limit": 9, "reason": "why", "revision": "0", "counter": "host_reads"})
    of_one = result([OK[0]], [counted(10, "host_reads", 7, 8, accepted)], verdict=RunVerdict.PASSED)
    assert screens.verdict_table(of_one)[1][0][1] == "OK"


def test_cases_without_figures_say_why_once_for_each_reason() -> None:
    rows = [case(Verdict.NEW, number, **UNTIMED, explanation="base does not have it") for number in range(5)]
    names = [f"forward small-ctx{number}-fp32-naive" for number in range(3)]
    assert said(result(rows), "NEW: ") == f"NEW: {', '.join(names)} and 2 more: base does not have it."
    uncounted = tuple(Uncounted(row.id, "base", "it knows no such thing.") for row in rows)
    found = said(result(uncounted=uncounted), "not compared")
    assert found == "Exact counters of 5 cases are not compared, because base has none: it knows no such thing."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["6 launch pairs a case at most, then 10 fresh pairs for what these left open",
              "pairs scatter by 1.0% in wall time",
              "All cases together: head takes +0.2% (-0.1% to +0.5% at 95 %).",
              "This run would find a slowdown of 2.0% in four of five tries (80 % power)."]),
        ({"clock": ClockDecision("cpu", 0.05, 0.01)}, ["and by 1.0% in CPU time", "Wall time is checked too"]),
        ({"clock": ClockDecision("wall", float("nan"), None), "detectable": None},
         ["too few launch pairs to estimate their scatter", "ended with too few launch pairs to call any case SLOWER"]),
    ],
)  # fmt: skip
def test_conditions_say_what_the_verdicts_rest_on(changes: Json, words: list[str]) -> None:
    text = "\n".join(report_lines(result(**changes), HEADER, RULES))
    assert [word for word in words if word not in text] == []


def test_power_is_said_of_a_run_with_an_undecided_case_alone() -> None:
    """Beside OK it would contradict: an interval decides OK, whatever else the run could have detected."""
    for rows in (CASES, [row for row in CASES if row is not NOISY]):
        text = "\n".join(report_lines(result(rows), HEADER, RULES))
        assert ("four of five tries" in text) == ("tries" in text) == (NOISY in rows)


def test_what_rose_is_a_sentence_a_case_or_one_for_many_and_what_moved_a_row_a_case() -> None:
    assert "saved_bytes rose from 1,000 to 1,100; counters are exact" in said(result(), "MORE:")
    risen = [counted(place, "saved_bytes", 1000, 1100 + place) for place in range(screens.MOST_CASES + 1)]
    exact = [*risen, counted(0, "host_reads", 0, 5), counted(7, "saved_bytes", 9, 7)]
    lines = report_lines(result(exact=exact), HEADER, RULES)
    (sentence,) = [line for line in lines if line.startswith("MORE")]
    most = f"{(100 + screens.MOST_CASES) / 1000:.2%}"
    assert f"counters of {len(risen)} cases rose: saved_bytes (by up to {most}), host_reads (by up to 5); " in sentence
    top = next(place for place, line in enumerate(lines) if line.startswith("exact counters"))
    rows = [line.split()[-2:] for line in lines[top : top + 6]]
    assert (rows[0], rows[1], rows[2], rows[5]) == (
        ["saved_bytes", "host_reads"], ["+10.00%", "+5"], ["+10.10%", "-"], ["-22.22%", "-"],
    )  # fmt: skip
    two_builds = result(exact=[counted(0, "kernel_launches", 12, 13, two_builds=True)])
    assert "12 to 13 (accepted: each side counts what its own build runs)." in said(two_builds, "MORE: ")


def test_what_is_offered_to_paste_accepts_exactly_what_fails() -> None:
    found = result(suite=Shift(0.021, 0.01, 0.031, 1e-6, True))
    limits = limits_to_accept(found, "0" * 12)
    assert [(limit.id, limit.limit, limit.clock, limit.counter) for limit in limits] == [
        (ID.format(0), 1.06, "wall", None), ("suite", 1.04, "wall", None), (ID.format(0), 1100, None, "saved_bytes"),
    ]  # fmt: skip
    entries = [acceptance(asdict(limit)) for limit in limits]
    risen = counted(0, "saved_bytes", 1000, 1100, *entries)
    again = result([gate.with_acceptance(row, entries) for row in CASES], [risen])
    assert limits_to_accept(again, "0" * 12) == []


def test_markdown_names_the_findings_folds_the_rest_and_keeps_hostile_text_as_text() -> None:
    text = markdown(result(), HEADER, RULES)
    assert text.startswith("### gate: FAILED")
    assert f"<details><summary>All {len(CASES)} cases</summary>" in text
    assert "<details><summary>1 of 2 exact counters changed</summary>" in text
    assert text.count("```toml\n[[accepted]]") == text.count("[[accepted]]") == 1
    assert "<img" not in text.replace(r"\<img", "")
    assert "\x1b" not in text
    cells = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in cells} == {10, 5}  # cases, counters
    assert "````toml" in markdown(result([replace(case(Verdict.SLOWER), id="a```b")]), HEADER, RULES)
    assert "0 of 1 exact counters changed." in markdown(result(exact=EXACT[1:]), HEADER, RULES)


def test_json_has_null_for_what_is_unknown() -> None:
    assert json.loads(screens.as_json(result(detectable=float("nan")), HEADER, RULES))["detectable"] is None
