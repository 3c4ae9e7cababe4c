"""Rules of `report/cs336`: questions are sound data; figures are those of records, counters and published tables."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from numerics_tests.harness import exercises
from perf_tests.records.record import Json
from perf_tests.report import cs336
from perf_tests.report.cs336 import Entry, Question, problems, questions, short_page
from perf_tests.report.cs336_ours import CLOSED_FORMS, scores_saved
from perf_tests.report.cs336_sources import ROOT, Counted, Figure, Sources
from tests.support.cs336 import COUNTED, checkout, everything, with_record
from tests.support.launch import parsed
from tests.support.synthetic import BACKWARD, record, remembered, timed, traced, untimed, write_record

QUESTION = Question("Times", "a_problem", "How long?", "pytest", "Because.", ("Size", "Context"), ())
CELL: Json = {"size": "small", "context_length": 128}
SMALL, FORWARD_PASS = ("small", "128"), "How long does a forward pass take"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return checkout(tmp_path)


def entry(sources: Sources, words: str) -> Entry:
    """Answer the one question with these words."""
    (asked,) = (one for one in questions() if words in one.asked)
    return asked.entry(sources)


def here(sources: Sources, words: str) -> dict[tuple[str, ...], dict[str, str]]:
    """Our figures in that answer, by row and column."""
    by_row = groupby(sorted(entry(sources, words).here, key=lambda one: one.row), key=lambda one: one.row)
    return {row: {figure.column: figure.text for figure in of} for row, of in by_row}


def test_each_question_is_of_a_problem_asked_once_in_its_section_and_answered_why_without_a_figure() -> None:
    """A question that begins with `And` goes on from the one before, and may stand in several sections."""
    assert {question.problem for question in questions()} <= {problem.name for problem in problems()}
    asked = [question.asked for question in questions()]
    assert all(one.startswith("And ") for one in asked if asked.count(one) > 1)
    assert len({(question.section, question.asked) for question in questions()}) == len(asked) == 99
    sections = [title for title, _ in groupby(question.section for question in questions())]
    assert len(sections) == len(set(sections)) == 13
    assert [one.why for one in questions() if not re.fullmatch(r"(?:(?!(?<!\w)\d|\. ).)*\.", one.why)] == []


RANKS = "torchrun --standalone --nproc-per-node 2 --no-python"


def test_commands_have_known_files_options_and_values_and_those_of_several_sizes_name_their_contexts() -> None:
    """The default context is another one on a CPU than on a GPU; the rows are the same."""
    for command in {question.command for question in questions()}:
        program, verb, *words = shlex.split(command.removeprefix(f"{RANKS} "))
        assert program == "perf-tests", command
        typed = parsed(verb, words)
        if verb != "run":
            continue
        folder = ROOT / ("" if words[0].startswith("numerics_tests") else "perf_tests")
        assert all((folder / word).exists() for word in words if word.endswith(".py")), command
        assert typed.get("--size", "small") == "small" or "--context" in typed, command


FIGURES: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
    (FORWARD_PASS, SMALL, {"here (ms)": "1250 ± 190"}),
    ("Is a forward pass alone", SMALL,
     {"here: alone (ms)": "1250", "here: inside the step (ms)": "2000", "here: inside / alone": "1.60"}),
    ("How long do backward pass and optimizer", SMALL, {"here (ms)": "2500"}),
    ("twice its forward pass", SMALL, {"here: backward / forward": "2.00 ±"}),
    ("How does a forward pass grow", ("small", "256"), {"here: over context 128": "1.00 ±"}),
    ("How long does one layer", SMALL, {"here: one layer (ms)": "104"}),
    ("overlapped exchange is exposed", ("ddp",), {"here, small 128 (ms)": "37.3 (22.5 to 56.3)"}),
    ("one message for each gradient?", ("ddp-naive",), {"here, small 128 (ms)": "1250 ± 190"}),
    ("What peaks of a forward pass are measured", (*SMALL, "fp32", "forward"), {"here: measured (MiB)": "1024"}),
    ("With which power", ("16", "256 to 1024"), {"here: naive forward": "1.00"}),
    ("What share of a forward pass are", ("forward",), {"here, small 128": "75.0%"}),
    ("Which kinds of kernels are in each region", ("backward", "feed_forward"),
     {"here, small 128: elementwise": "23.0%", "here, small 128: matrix product": "77.0%"}),
    ("Which kinds of kernels are in each region", ("update", "optimizer"), {"here, small 128: elementwise": "100.0%"}),
    ("Which kinds of kernels are in each", ("backward", "whole pass"), {"here, small 128: elementwise": "25.0%"}),
    ("How long does the device wait", ("gap between kernels",), {"here, small 128: median (us)": "3.00"}),
    ("Do measured peaks", (*SMALL, "fp32", "forward"), {"here: measured / predicted": "0.99902"}),
    ("How much longer is the first round", ("small 128 fp32 naive", "forward"), {"here: rounds enough": "1"}),
]  # fmt: skip


def test_figures_are_those_of_the_record(root: Path) -> None:
    sources = with_record(root, everything())
    for words, row, expected in FIGURES:
        found = here(sources, words)[row]
        assert {column: found[column][: len(text)] for column, text in expected.items()} == expected, words
    assert entry(sources, "Does the same kernel").said == "Here it is the same."


def test_every_question_and_every_column_of_ours_has_a_figure_in_some_record(root: Path) -> None:
    """So each name in `cs336.toml` is one that a record or this code knows."""
    sources = with_record(root, everything()), Sources(ROOT, COUNTED)
    of_counted = "allocations of a forward pass are the largest", "checkpoint has the smallest", "compiling save in"
    for question in questions():
        if "numerics_tests" in question.command or any(words in question.asked for words in of_counted):
            continue
        of_record, of_checkout = (question.entry(one).here for one in sources)
        assert of_record, question.asked
        shown = {figure.column for figure in (*of_record, *of_checkout)}
        for head in (column for source in question.here for column in source.get("columns", ())):
            pattern = ".+".join(map(re.escape, re.split(r"\{[^}]*\}", head)))
            assert any(re.fullmatch(pattern, column) for column in shown), (question.asked, head)


def test_a_case_is_taken_from_the_newest_record_that_has_it(root: Path) -> None:
    """A new field of the identity, which an older record lacks, is null at its default."""
    newer, older = (traced(**CELL) for _ in range(2))
    newer["identity"]["scaling"] = None
    older["identity"].pop("scaling", None)
    newer["values"]["wall_seconds"] = 2.0
    old = [timed(seconds=[9.0, 9.0], **CELL), timed("another", [3.0, 3.0], **{**CELL, "context_length": 256})]
    with_record(root, {**record(old, written="2030-01-01"), "passes": [older]})
    new = record([timed(seconds=[1.0, 1.0], **CELL)], written="2030-01-02")
    sources = with_record(root, {**new, "passes": [newer]}, number=2)
    assert here(sources, FORWARD_PASS) == {SMALL: {"here (ms)": "1000"}, ("small", "256"): {"here (ms)": "3000"}}
    records = [f".benchmarks/some-machine/000{number}_run.json" for number in (2, 1)]
    assert entry(sources, FORWARD_PASS).files == [*records, "published/e2e_timing.csv"]
    assert here(sources, "profiler agree")[*SMALL, "forward"]["here: profiled (ms)"] == "2000"
    assert len(entry(sources, "profiler agree").here) == 2


def test_a_ratio_is_of_one_record_and_every_figure_of_one_machine(root: Path) -> None:
    """Two launches of the same code differ by more than their rounds. Folders that git ignores are nobody's."""
    backward = record([timed(BACKWARD, phase="backward", **CELL)], written="2030-01-02")
    with_record(root, record([timed(**CELL)], written="2030-01-01"))
    assert here(with_record(root, backward, number=2), "twice its forward pass") == {}
    newer, ignored = {**backward, "datetime": "2030-01-03"}, record([timed(**CELL)], written="2031-01-01")
    for data, machine in ((newer, "newer-machine"), (ignored, "Linux-CPython-3.11-64bit")):
        assert here(with_record(root, data, machine), FORWARD_PASS) == {}


def test_records_of_a_run_answer_where_they_are_taken_and_those_that_do_not_are_named(root: Path) -> None:
    """A run saves into a folder that git ignores, in which records of several machines may lie."""
    ours, ignored = "some-machine", "Linux-CPython-3.11-64bit"
    with_record(root, record([timed(seconds=[9.0, 9.0], **CELL)], written="2030-01-01"), ours)
    for number, (seconds, gpu) in enumerate([(2.0, None), (1.0, {"name": "H100"})], 1):
        data = record([timed(seconds=[seconds, seconds], **CELL)], written=f"2031-01-0{number}", gpu=gpu)
        with_record(root, data, ignored, number)
    for takes_ignored, text, said in (
        (False, "9000", [f"2 records in .benchmarks/{ignored}: git ignores them; -o FILE takes them."]),
        (True, "1000", [f"1 record in .benchmarks/{folder}: of another folder or machine than the newest record."
                        for folder in (ignored, ours)]),
    ):  # fmt: skip
        sources = Sources(root, COUNTED, takes_ignored=takes_ignored)
        assert here(sources, FORWARD_PASS) == {SMALL: {"here (ms)": text}}
        assert sources.passed_over == said


def test_without_a_record_what_it_would_tell_is_not_recorded(root: Path) -> None:
    forward = entry(Sources(root), FORWARD_PASS)
    assert forward.table is not None
    assert (forward.here, {row[2] for row in forward.table.rows}) == ([], {cs336.NOT_RECORDED})
    assert "write-up 001, P100-PCIe-16GB (ms)" in forward.table.header
    assert entry(Sources(root), "How long does a full training step take?").table is None
    assert cs336.UNKNOWN in cs336.markdown_page(Sources(root))


def test_the_short_page_has_our_row_for_each_brief_question_and_the_range_of_others_in_its_unit(root: Path) -> None:
    """A row that both have goes before one of ours alone, and the asked one before both."""
    asked = replace(QUESTION, brief="time", at=("xl", "512"))
    large, small, xl = (
        Figure(row, "here (ms)", text)
        for row, text in ((("large", "128"), "1"), (("small", "128"), "2"), (("xl", "512"), "3"))
    )
    columns = {"a (ms)": "33.29 ± 0.71", "b, T4 (ms)": "35.0", "c (s)": "1.0", "d (ms)": "9"}
    theirs = [Figure(small.row, column, text) for column, text in columns.items()]
    assert Entry(asked, [large, small, xl], theirs).brief_row == ("time (xl, 512)", "3", "-")
    assert Entry(asked, [large, small], theirs).brief_row == ("time (small, 128)", "2", "9.000 to 35.00, 3 sources")
    assert Entry(asked, [large], theirs[:1]).brief_row == ("time (large, 128)", "1", "-")
    named = Entry(replace(asked, of=r"\(s\)$"), [Figure(small.row, "here (s)", "4")], theirs)
    assert named.brief_row == ("time (small, 128)", "4", "1.000, 1 source")
    assert Entry(asked, [], theirs).brief_row is None
    text = short_page(with_record(root, everything()))
    answered, all_of_them = map(int, re.findall(r"(\d+) of (\d+) problems have a figure", text)[0])
    headings = re.findall(r"^## \d+\. (\w+)\n\n    (.+)$", text, re.M)
    assert headings == [(problem.name, problem.command) for problem in problems()]
    assert (len(headings), answered) == (all_of_them, text.count("| figure | here | published |")) == (30, 17)
    assert "| step of ddp, ms (ddp, small 128) | 1250 ± 190 | " in text
    assert short_page(Sources(root, Counted())).count("| figure |") < answered


def test_text_of_a_record_is_no_markup_on_either_page(root: Path) -> None:
    sources = with_record(root, record([timed(**CELL)], brand_raw="<b>\x1b[2J"))
    for page in (short_page(sources), cs336.markdown_page(sources)):
        assert (r"\<b\>" in page, "<b>" in page) == (True, False)
        assert all(map(str.isprintable, page.splitlines()))


def test_a_peak_that_was_not_measured_has_its_outcome(root: Path) -> None:
    measured = remembered(size="small", context_length=512)
    lost = {**untimed(measured["id"], "would_not_fit", size="small", context_length=512), "pass": "memory"}
    question, row = "What peaks of a forward pass are measured here", ("small", "512", "fp32", "forward")
    assert here(with_record(root, record([], [lost])), question)[row] == {"here: measured (MiB)": "would not fit"}
    sources = with_record(root, {**record([], written="1999"), "passes": [measured]}, number=2)
    assert "would not fit" not in here(sources, question)[row].values()


def test_a_name_that_nobody_knows_is_no_empty_answer() -> None:
    for source in (
        {"from": "timd", "columns": {}}, {"from": "timed", "columns": {}, "phases": ["forward"]},
        {"from": "kernels.csv", "columns": {"{whose}": "no_such_column"}},
        {"from": "closed_forms", "columns": {"here": "no_such_form"}},
    ):  # fmt: skip
        with pytest.raises((KeyError, TypeError, ValueError), match=r"timd|phases|no_such"):
            replace(QUESTION, here=[source]).entry(Sources(ROOT))


def test_the_exercises_are_the_numerics_suites() -> None:
    """Their tables hold what numerics_tests asserts, and a question's label is their header's."""
    tables = exercises.tables()
    totals = {row[0]: row[1] for row in tables["accumulation"][1:]}
    assert totals == {name: f"{total:.10g}" for name, (_, _, total) in exercises.LOOPS.items()}
    asked = {question.here[0]["name"]: question for question in questions() if "numerics_tests" in question.command}
    assert {name: one.rows for name, one in asked.items()} == {name: (rows[0][0],) for name, rows in tables.items()}


def test_closed_forms_are_those_of_shapes_and_ledger() -> None:
    sources = Sources(ROOT)
    printed = {row["size"]: [int(row[name]) for name in ("d_model", "d_ff", "n_layers", "n_heads")]
               for row in sources.published("e2e_timing.csv")
               if row["size"] in sources.shapes and row["edition"] == "2025" and row["d_ff"].isdigit()}  # fmt: skip
    assert printed == {name: list(vars(config).values())[:4] for name, config in sources.shapes.items()}
    assert CLOSED_FORMS["crossover"](sources.shapes["small"], 0) == f"{3072 // 12}"
    squares = {figure.row: figure.text for figure in scores_saved(sources, ()) if "matrices" in figure.column}
    assert squares == {("naive",): f"{2 + 1 / 32:.2f}", ("sdpa",): "0.00"}


FIRST = ("not stated", "forward_backward", "write-up 009, H100 (ms)", "2.0")
OTHERS = [("small", "full_step", "who/what (ms)", "OOM"), ("xl", "forward", "who/else, T4 (ms)", "876 ± 12")]
CHOSEN: list[tuple[str, Json, Sequence[tuple[str, ...]]]] = [
    ("write-ups", {}, 4 * [FIRST]), ("write-ups", {"warm_eager": "yes"}, [FIRST]), ("who/what", {}, OTHERS[:1]),
    ("write-ups", {"warm": "no"}, 2 * [FIRST]), ("anyone", {"warm_eager": "yes"}, [FIRST, *OTHERS]),
]  # fmt: skip


def test_published_rows_are_chosen_and_named_as_asked(tmp_path: Path) -> None:
    lines = ["source,gpu,size,phase,compiled,warmup,mean_ms,std_ms,status"]
    ran = ("no,5", "no,1", "no,0", "yes,5")
    lines += [f"write-up 009 (a/b):x,H100 (inferred),,fwd_bwd,{how},2.0,,ok" for how in ran]
    lines += ["who/what: y,unknown,small,full pass,no,5,,,OOM", "who/else,T4,xl,forward,no,5,875.5,12.1,ok\n"]
    write_record(tmp_path / "published/times.csv", "\n".join(lines))
    for whose, where, expected in CHOSEN:
        source = {"from": "times.csv", "whose": whose, "where": where, "columns": {"{whose} (ms)": "time"}}
        asked = replace(QUESTION, rows=("Size", "Phase"), published=[source])
        found = asked.entry(Sources(tmp_path)).published
        assert [(*one.row, one.column, one.text) for one in found] == expected, (whose, where)
