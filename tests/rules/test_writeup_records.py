"""Our figures in the write-up are those of the records; what nobody recorded says so."""

from pathlib import Path

from perf_tests.records.record import Json
from perf_tests.report.cs336_parts.answer import NOT_RECORDED, Question, table_of
from perf_tests.report.cs336_parts.page import entries, markdown_page
from perf_tests.report.cs336_parts.published import of_table
from perf_tests.report.cs336_parts.recorded import of_cases, plain
from perf_tests.report.cs336_parts.recorded import timed as timed_cases
from perf_tests.report.cs336_parts.sources import Sources
from tests.support.synthetic import BACKWARD, record, remembered, timed, traced, untimed
from tests.support.writeup_sources import QUESTIONS, TIMES, entry, everything, here, with_record


def test_figures_are_those_of_the_record(writeup_root: Path) -> None:
    sources = with_record(writeup_root, everything())
    assert here(sources, "How long does a forward pass take")["small", "128"] == {"here (ms)": "1250 ± 190"}
    assert here(sources, "Is a forward pass alone")["small", "128"] == {
        "here: alone (ms)": "1250", "here: inside the step (ms)": "2000", "here: inside / alone": "1.60",
    }  # fmt: skip
    assert here(sources, "How long do backward pass and optimizer")["small", "128"] == {"here (ms)": "2500"}
    assert here(sources, "twice its forward pass")["small", "128"]["here: backward / forward"].startswith("2.00 ±")
    assert here(sources, "How does a forward pass grow")["small", "256"]["here: over context 128"].startswith("1.00 ±")
    assert here(sources, "How long does one layer")["small", "128"] == {"here: one layer (ms)": "104"}
    assert here(sources, "With which power")["16", "256 to 1024"]["here: naive forward"] == "1.00"
    assert here(sources, "What share of a forward pass are")["forward",] == {"here, small 128": "75.0%"}
    kinds = here(sources, "Which kinds of kernels are in each region")
    assert kinds["backward", "feed_forward"] == {
        "here, small 128: elementwise": "23.0%", "here, small 128: matrix product": "77.0%",
    }  # fmt: skip
    assert kinds["update", "optimizer"] == {"here, small 128: elementwise": "100.0%"}
    assert kinds["backward", "whole pass"]["here, small 128: elementwise"] == "25.0%"
    assert here(sources, "How long does the device wait")["gap between kernels",] == {
        "here, small 128: median (us)": "3.00"
    }
    assert here(sources, "Do measured peaks")["small", "128", "fp32", "forward"] == {
        "here: measured / predicted": "0.99902"
    }
    first = here(sources, "How much longer is the first round")["small 128 fp32 naive", "forward"]
    assert first["here: rounds enough"] == "1"


def test_figures_follow_the_record(writeup_root: Path) -> None:
    """Twice the time shows wherever a time of the record does."""
    before = with_record(writeup_root, record([timed(size="small", context_length=128)]))
    slow = [2 * seconds for seconds in TIMES]
    texts = [entry(before, "How long does a forward pass take").answer.here[0].text]
    after = with_record(writeup_root, record([timed(seconds=slow, size="small", context_length=128)]))
    texts.append(entry(after, "How long does a forward pass take").answer.here[0].text)
    assert texts == ["1045 ± 30", "2500 ± 370"]


def test_the_newest_record_of_a_case_counts_and_an_older_one_fills_the_rest(writeup_root: Path) -> None:
    cell: Json = {"size": "small", "context_length": 128}
    old = [timed(seconds=[9.0, 9.0], **cell), timed("another", [3.0, 3.0], **{**cell, "context_length": 256})]
    with_record(writeup_root, record(old, written="2030-01-01"))
    sources = with_record(writeup_root, record([timed(seconds=[1.0, 1.0], **cell)], written="2030-01-02"), number=2)
    found = here(sources, "How long does a forward pass take")
    assert found["small", "128"] == {"here (ms)": "1000"}
    assert found["small", "256"] == {"here (ms)": "3000"}
    assert len([name for name in entry(sources, "How long does a forward").answer.files if "run" in name]) == 2


def test_a_ratio_is_of_one_record(writeup_root: Path) -> None:
    """Two launches of the same code differ by more than their rounds."""
    cell: Json = {"size": "small", "context_length": 128}
    with_record(writeup_root, record([timed(**cell)], written="2030-01-01"))
    sources = with_record(
        writeup_root, record([timed(BACKWARD, phase="backward", **cell)], written="2030-01-02"), number=2
    )
    assert here(sources, "twice its forward pass") == {}


def test_another_machine_answers_nothing_beside_the_newest(writeup_root: Path) -> None:
    cell: Json = {"size": "small", "context_length": 128}
    with_record(writeup_root, record([timed(**cell)], written="2030-01-01"), "old-machine")
    sources = with_record(writeup_root, record([timed(BACKWARD, phase="backward", **cell)], written="2030-01-02"))
    assert here(sources, "How long does a forward pass take") == {}
    sources = with_record(writeup_root, record([timed(**cell)], written="2031-01-01"), "Linux-CPython-3.11-64bit")
    assert here(sources, "How long does a forward pass take") == {}


def test_without_a_record_what_it_would_tell_is_not_recorded(writeup_root: Path) -> None:
    found = {entry.question.asked: entry for entry in entries(Sources(writeup_root))}
    forward = found["How long does a forward pass take, by size?"]
    assert forward.answer.here == []
    assert forward.table is not None
    assert {row[2] for row in forward.table.rows} == {NOT_RECORDED}
    assert "write-up 001, P100-PCIe-16GB (ms)" in forward.table.header
    step = found["How long does a full training step take?"]
    assert step.table is None
    assert "Not recorded on this machine" in markdown_page(Sources(writeup_root))


def test_every_question_is_answered_with_our_figures_by_a_record_of_every_pass(writeup_root: Path) -> None:
    sources = with_record(writeup_root, everything())
    unknown = {entry.question.asked for entry in entries(sources) if not entry.answer.here}
    played = {question.asked for question in QUESTIONS if "numerics_tests" in question.command} | {
        "Which checkpoint has the smallest peak?", "How much memory does compiling save in attention?",
        "Which allocations of a forward pass are the largest, and where are they made?",
    }  # fmt: skip
    assert unknown <= played


def test_an_older_record_that_lacks_a_field_of_the_identity_is_of_the_same_case(writeup_root: Path) -> None:
    """A new field is null where it is at its default."""
    newer = traced(size="small", context_length=128)
    older = traced(size="small", context_length=128)
    newer["identity"]["scaling"] = None
    older["identity"].pop("scaling", None)
    newer["values"]["wall_seconds"] = 2.0
    with_record(writeup_root, {**record([], written="2030-01-01"), "passes": [older]})
    sources = with_record(writeup_root, {**record([], written="2030-01-02"), "passes": [newer]}, number=2)
    assert here(sources, "profiler agree")["small", "128", "forward"]["here: profiled (ms)"] == "2000"
    assert len(entry(sources, "profiler agree").answer.here) == 2


def test_regions_are_in_the_order_of_a_step(writeup_root: Path) -> None:
    """A trace lists the optimizer among the forward pass, whose backward pass comes later."""
    of_step = traced(phase="full_step", size="small", context_length=128)
    row = {"launches": 1, "share_of_kernel_time": 0.25, "seconds": 1.0, "seconds_by_kind": {"copy": 1.0}}
    named = (("optimizer", False), ("residual", False), ("norm", True))
    of_step["values"]["regions"] = [{"region": name, "is_backward": backward, **row} for name, backward in named]
    table = entry(with_record(writeup_root, {**record([]), "passes": [of_step]}), "Which part of the model").table
    assert table is not None
    assert [row[0] for row in table.rows] == ["forward", "backward", "update"]


def test_kernels_of_each_recorded_size_are_shown_smallest_first(writeup_root: Path) -> None:
    medium = traced(size="medium", d_model=1024, context_length=128)
    small = traced(size="small", d_model=768, context_length=128)
    sources = with_record(writeup_root, {**record([]), "passes": [medium, small]})
    shares = here(sources, "What share of a forward pass are")["forward",]
    assert list(shares) == ["here, small 128", "here, medium 128"]
    tops = [row[1] for row in here(sources, "Which kernel takes most of a forward pass")]
    assert tops == ["small 128", "small 128", "medium 128", "medium 128"]


def test_a_new_question_is_one_row(writeup_root: Path) -> None:
    question = Question(
        "How long is the longest round?", "pytest perf_tests/test_forward.py", "One round may meet other work.",
        ("Size", "Context"),
        [of_cases(timed_cases(plain("forward")), {"here: {precision} (s)": lambda cell: f"{max(cell.rounds):g}"})],
        [of_table("e2e_timing.csv", "mean_ms", "ms", phase="forward", size="small", context="128", precision="fp32")],
    )  # fmt: skip
    answer = question.answer(with_record(writeup_root, record([timed(size="small", context_length=128)])))
    table = table_of(answer)
    assert table is not None
    assert table.header[:4] == ("Size", "Context", "here: fp32 (s)", "write-up 000, P100-PCIe-16GB (ms)")
    assert [row[:4] for row in table.rows] == [("small", "128", "1.09", "35")]
    assert answer.files == [".benchmarks/some-machine/0001_run.json", "published/e2e_timing.csv"]


def test_a_peak_that_was_not_measured_has_its_outcome(writeup_root: Path) -> None:
    measured = remembered(size="small", context_length=512)
    lost = {**untimed(measured["id"], "would_not_fit", size="small", context_length=512), "pass": "memory"}
    question = "What peaks are measured here"
    sources = with_record(writeup_root, record([], [lost]))
    assert here(sources, question)["small", "512", "fp32", "forward"] == {"here: measured (MiB)": "would not fit"}
    sources = with_record(writeup_root, {**record([], written="1999"), "passes": [measured]}, number=2)
    assert "would not fit" not in here(sources, question)["small", "512", "fp32", "forward"].values()
