"""Before the first case: the cases of a run, what it refuses, its baseline, and what its record says of it."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests import plugin
from perf_tests_suite.perf_tests.bench.options import SavingOptions, show_beside_baseline
from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession
from perf_tests_suite.perf_tests.bench.session import Run, session_of
from perf_tests_suite.perf_tests.records.comparison import Baseline, Comparison
from perf_tests_suite.perf_tests.records.journal import Journal, JournalContents, read_journal
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.records.store import BaselineError, machine_folder, rows_by_id, save_record
from perf_tests_suite.perf_tests.run import before as run_before
from perf_tests_suite.perf_tests.run.before import choose_baseline, is_restricted, of_interrupted_run
from perf_tests_suite.perf_tests.user_code.named import Repository
from tests.support.example_cases import SETTINGS, language_model_case
from tests.support.git_repository import git
from tests.support.items import benchmark, stash_of
from tests.support.launch import ROOT
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, header, machine, record, timed


def config(*arguments: str, limit: str | None = None, known: Any = None, **options: object) -> Any:
    defaults = {
        "keyword": "", "markexpr": "", "deselect": None, "ignore": None, "ignore_glob": None,
        "retry": False, "resume": False, "resume_any_driver": False, **options,
    }  # fmt: skip
    return Mock(
        option=SimpleNamespace(**defaults), args=list(arguments), invocation_params=Mock(dir=ROOT),
        stash=stash_of(**(known or {})), getoption=lambda name: limit,
    )  # fmt: skip


def test_the_first_line_says_whose_model_is_measured_where_a_user_would_not_expect_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    here, there = (config("perf_tests", known={"settings": SETTINGS}) for _ in range(2))
    there.invocation_params.dir = tmp_path
    whose, *lines = plugin.pytest_report_header(there)
    assert whose.startswith("measures the suite's own model (in ")
    assert lines == plugin.pytest_report_header(here)


@pytest.mark.parametrize(
    ("seconds", "typed", "hinted"), [(599.0, "", False), (601.0, "", True), (601.0, "--size=small", False)]
)
def test_a_long_run_that_nobody_chose_says_what_a_shorter_one_is(
    monkeypatch: pytest.MonkeyPatch, seconds: float, typed: str, hinted: bool
) -> None:
    monkeypatch.setattr(run_before, "eta", lambda *_: "6 cases")
    monkeypatch.setattr(run_before, "expected_seconds", lambda *_: seconds)
    workbench = Mock(neighbours=["busy"], session=Mock(progress=Mock(predicted_seconds={"a": 1.0})))
    suite = Mock(workbench=workbench, run=Run())
    monkeypatch.setattr(run_before, "session_of", lambda _: suite)
    asked = config()
    asked.invocation_params.args = [typed]
    first, *hints, last = run_before.how_long(asked)
    assert (first, last, ["--size tiny" in hint for hint in hints]) == ("6 cases", "busy", [True] * hinted)


CHOICES = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf")
RESTRICTS: list[tuple[str, dict[str, Any], bool]] = [
    *((words, {}, False) for words in ("perf_tests", ".", "numerics_tests .")),
    *(("perf_tests", {name: ["x"]}, True) for name in CHOICES),
    *((words, {}, True) for words in ("perf_tests/test_forward.py", "perf_tests::test_forward", "numerics_tests")),
]


def test_what_chooses_among_the_cases_of_the_axes_restricts_a_run() -> None:
    for words, options, restricts in RESTRICTS:
        chosen = config(*words.split(), **options)
        plugin.pytest_deselected([])
        assert is_restricted(chosen) is restricts, (words, options)
        plugin.pytest_deselected([Mock(config=chosen)])
        assert is_restricted(chosen), "whatever plugin deselects"


OF_OTHERS: dict[str, dict[str, Any]] = {
    "drop -n": {"dist": "load"}, "drop --codspeed": {"codspeed": True}, "-p no:rerunfailures": {"reruns": 2},
    "-p no:repeat": {"count": 2},
}  # fmt: skip
UNSAVED = {"saving": SavingOptions(Path(), disabled=True)}
OPTIONS: list[tuple[str, dict[str, Any], str | None]] = [
    *((typed, options, words) for typed in (".", "perf_tests", "perf_tests/test_forward.py::test_forward")
      for words, options in OF_OTHERS.items()),
    *((typed, {"dist": "load", "codspeed": False}, None)
      for typed in ("numerics_tests", "perf_tests/bench", "tests/rules/test_gate.py")),
    ("perf_tests", {"dist": "no", "codspeed": False, "reruns": 0, "count": 1}, None),
    ("x", {"retry": True}, "--retry .* add --resume"),
    ("x", {"resume_any_driver": True}, "--resume-any-driver .* add --resume"),
    ("x", {"resume_any_driver": True, "retry": True, "resume": True}, None),
    ("x", {"limit": "3", "known": UNSAVED}, "--time-limit keeps"),
    ("x", {"limit": "3", "known": {"settings": replace(SETTINGS, nvtx=True)}}, "--time-limit keeps"),
    ("x", {"limit": "3"}, None), ("x", {"known": UNSAVED}, None),
]  # fmt: skip


def test_an_option_or_a_plugin_that_makes_no_sense_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that time nothing may run in whatever way their user likes."""
    monkeypatch.delenv("CODSPEED_ENV", raising=False)
    for typed, options, words in OPTIONS:
        known = {"saving": SavingOptions(Path()), "settings": SETTINGS, **options.get("known", {})}
        with pytest.raises(pytest.UsageError, match=words) if words else nullcontext():
            run_before.read_run_options(config(typed, **{**options, "known": known}))


def test_a_resumed_run_takes_the_cases_that_it_had_chosen_by_how_they_ended_before(tmp_path: Path) -> None:
    Journal.create(machine_folder(tmp_path), header([FORWARD, BACKWARD])).close()
    items = [benchmark(language_model_case(), nodeid=case_id) for case_id in (FORWARD, FULL_STEP)]
    table: list[tuple[dict[str, Any], list[Any]]] = [
        ({"resume": True, "lf": True}, items[:1]), ({"resume": True, "stepwise": True}, items[:1]),
        ({"resume": False, "lf": True}, items), ({"resume": True}, items),
    ]  # fmt: skip
    for options, left in table:
        asked = config(known={"saving": SavingOptions(tmp_path)}, **options)
        run_before.keep_selection(asked)
        assert getattr(asked.option, "lf", False) is (not options["resume"])
        assert of_interrupted_run(asked, items) == left
        assert asked.hook.pytest_deselected.called is (left != items)
    assert of_interrupted_run(asked, items[1:]) == items[1:], "none of it is left"


def test_retry_measures_again_what_ended_in_an_error(measuring: MeasuringSession) -> None:
    items = [benchmark(language_model_case(), nodeid=case_id) for case_id in (FORWARD, BACKWARD, FULL_STEP)]
    for item, outcome in zip(items, ("error", "out_of_memory"), strict=False):
        measuring.not_measured(item.nodeid, language_model_case(), Outcome(outcome, "why"))
    assert run_before.cases_left(items, measuring, retries=False) == items[2:]
    assert run_before.cases_left(items, measuring, retries=True) == [items[0], items[2]]
    contents: Any = read_journal(measuring.journal.path)
    assert contents.finished_ids == {BACKWARD}, "the journal says it too"


BOTH, ONE, NONE = record([timed(FORWARD), timed(BACKWARD)]), record([timed(FORWARD)]), record([timed("other")])
BOTH_OTHERWISE = record([timed(FORWARD, batch_size=2), timed(BACKWARD, batch_size=2)])


@pytest.mark.parametrize("named", [None, "0001"])
@pytest.mark.parametrize("earlier, words", [(BOTH_OTHERWISE, "batch_size was 2, is 4"), (NONE, "none of these cases")])
def test_what_should_fail_on_a_slower_case_is_refused_where_none_can_be_compared(
    named: str | None, earlier: Json, words: str, tmp_path: Path
) -> None:
    data = {**earlier, "benchmarks": [*earlier["benchmarks"], timed("unrelated")]}
    save_record(data, machine_folder(tmp_path), "run")
    saving = SavingOptions(tmp_path, compare=True, compare_with=named, compare_fail=(Mock(),))
    with pytest.raises(BaselineError, match="has nothing to compare with") as caught:
        choose_baseline(Run(), saving, machine(), rows_by_id(BOTH))
    assert words in str(caught.value) or named is None
    for selection in (rows_by_id(earlier), {}) if named else (rows_by_id(earlier),):
        assert choose_baseline(Run(), saving, machine(), selection) is not None


WITHOUT_BASELINE: list[tuple[Json | None, Json, str]] = [
    (None, {}, "No baseline yet: .* this run becomes the first"),
    (NONE, {}, "None of 1 records is comparable; .*it has none of these cases"),
    (BOTH, {"torch": "0.4.1"}, r"None of 1 records is comparable; .*torch: here: '0\.4\.1'"),
    (ONE, {}, ""),
]


@pytest.mark.parametrize("earlier, facts, note", WITHOUT_BASELINE)
def test_a_comparison_that_was_not_named_says_why_it_has_no_baseline(
    earlier: Json | None, facts: Json, note: str, tmp_path: Path
) -> None:
    if earlier is not None:
        save_record(earlier, machine_folder(tmp_path), "run")
    run = Run()
    baseline = choose_baseline(run, SavingOptions(tmp_path, compare=True), machine(**facts), rows_by_id(BOTH))
    assert (baseline is None, [bool(re.search(note, words)) for words in run.notes]) == (
        bool(note),
        [True] * bool(note),
    )
    assert choose_baseline(run, SavingOptions(tmp_path), machine(), rows_by_id(BOTH)) is None
    with pytest.raises(BaselineError, match="add --benchmark-compare"):
        choose_baseline(run, SavingOptions(tmp_path, compare_fail=(Mock(),)), machine(), rows_by_id(BOTH))


def test_a_baseline_of_another_machine_that_was_named_is_refused_by_what_differs(tmp_path: Path) -> None:
    save_record(ONE, machine_folder(tmp_path), "run")
    saving = SavingOptions(tmp_path, compare=True, compare_with="0001")
    with pytest.raises(BaselineError, match="on another machine, build or setting") as refusal:
        choose_baseline(Run(), saving, machine(torch="0.4.1", threads=999), rows_by_id(ONE))
    assert all(words in str(refusal.value) for words in ("here: 999", "here: '0.4.1'"))


def test_a_users_check_is_applied_to_comparable_cases_only() -> None:
    slower = Mock(fails=lambda current, compared: "slower" if current["median"] > compared["median"] else None)
    before = record([timed("a", (1.0,)), timed("b", (1.0,), batch_size=2), timed("c", (3.0,))])
    now = record([timed(case_id, (2.0,)) for case_id in "abcd"])
    assert Comparison.of(now, Baseline("before", before, checks=[slower])).failures == ["a: slower"]


def test_the_table_shows_the_baselines_row_before_each_comparable_row() -> None:
    rows = [timed("a", (2.0,)), timed("b", (2.0,))]
    show_beside_baseline(rows, record([timed("a", (1.0,)), timed("b", (1.0,), batch_size=2)]), "Linux/0007_name")
    shown = [("a", "0007", 1.0), ("a", "NOW", None), ("b", None, None)]
    assert [(row["fullname"], row.get("source"), row.get("median")) for row in rows] == shown


def test_the_table_is_shown_where_it_is_asked_for_and_has_the_valid_rows_with_a_value_on_each_axis() -> None:
    session = Mock(contents=JournalContents(header(), benchmarks=[timed(FORWARD)]))
    asked = config(known={"run": Run(), "workbench": Mock(session=session)})
    rows = [{**timed(FORWARD), "params": {"model_size": "tiny"}}, timed(BACKWARD)]
    asked.invocation_params.args = ["--benchmark-sort=name"]
    run_before.prepare_table(asked, rows)
    assert [(row["params"]["model_size"], row["params"]["head_dim"]) for row in rows] == [("tiny", "-")]
    asked.invocation_params.args = ["--benchmark-save=a", "-v"]
    run_before.prepare_table(asked, rows)
    assert rows == [], "the suite's own table has the figures"
    session_of(asked).run = None
    run_before.prepare_table(asked, rows := [timed(BACKWARD)])
    assert len(rows) == 1


def test_the_commit_is_that_of_what_is_under_test_and_an_untracked_file_is_a_change(tmp_path: Path) -> None:
    """Wherever pytest was started."""
    hook = Mock(pytest_benchmark_generate_commit_info=lambda config: {"id": f"of {Path.cwd()}", "dirty": False})
    (tmp_path / "new.py").touch()
    for files, words, is_dirty in (
        ((), "version", False), ((Path("new.py"),), "version", True), ((Path("new.py"),), "init -q", True),
        ((Path("new.py"),), "add new.py", False),
    ):  # fmt: skip
        git(tmp_path, *words.split())
        info = run_before.commit_info_of(Mock(stash=stash_of(repository=Repository(tmp_path, files=files)), hook=hook))
        assert info == {"id": f"of {tmp_path}", "dirty": is_dirty}, words


def test_what_drifts_is_no_part_of_the_machine() -> None:
    info = {"cpu": {"brand_raw": "x", "hz_actual": [1], "hz_advertised_friendly": "1"}}
    run_before.complete_machine_info(None, info)
    assert info == {"cpu": {"brand_raw": "x"}}
