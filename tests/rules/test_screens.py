"""What a run prints: every case once, every case without a timing with its reason, each extra pass in its rows."""

import re
from typing import Any

import pytest

from perf_tests_suite.perf_tests.audit.rounds import BUSY, FLAGS
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.format import MIB
from perf_tests_suite.perf_tests.records.measured import KINDS
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json
from perf_tests_suite.perf_tests.report.screens import WIDTH, pass_lines, result_lines, time_line
from perf_tests_suite.perf_tests.report.show import tally_line
from tests.support import synthetic
from tests.support.synthetic import BACKWARD, FORWARD, record, remembered, timed, untimed, warmed, with_passes


def test_a_measured_case_is_one_line_with_its_figures_in_straight_columns() -> None:
    unknown = {"tokens_per_second": None, "tflops_per_second": None, "share_of_matmul_ceiling": None}
    for row, cells in (
        (timed(FORWARD, (0.0125, 0.0125)), "12.5 ms 400.0% 2,560 0.0200 25%"),
        (timed(FORWARD, (123.4, 123.4), tokens_per_second=999.9), "123.4 s 0.0% 1000 0.0200 25%"),
        (timed(FORWARD, (0.0125,)), "12.5 ms - 2,560 0.0200 25%"),
        (timed(FORWARD, (0.0125, 0.0125), **unknown), "12.5 ms 400.0% - - -"),
        (
            timed(FORWARD, (0.0125, 0.0125), bound="memory", roofline_fraction=0.82),
            "12.5 ms 400.0% 2,560 0.0200 25% memory 82%",
        ),
    ):
        header, first, second, notes = result_lines(record([row, timed(BACKWARD, (123.4,))]))
        assert first.split()[2:] == cells.split()
        assert len(header) == len(first) == len(second)
        assert ("bound" in header, "roofline" in notes) == ("memory" in cells,) * 2


def test_a_round_of_microseconds_shows_the_devices_own_time_beside_the_hosts() -> None:
    short, long = timed(FORWARD, (9e-5,), device_busy_seconds=2e-5), timed(BACKWARD, (0.1,), device_busy_seconds=0.09)
    header, *rows, notes = result_lines(record([short, long]))
    end = header.index("busy") + len("busy")
    assert [row[:end].split()[-1] for row in rows] == ["us", "-"]
    assert (rows[0].endswith(" 20 us"), "busy: " in notes) == (True, True)
    assert "busy" not in result_lines(record([long]))[0]


def test_long_names_push_out_columns_and_never_the_bound() -> None:
    for length in (30, 60, 75):
        name = "perf_tests/test_forward.py::test_forward[" + "x" * length + "]"
        header, row, notes = result_lines(record([timed(name, bound="compute", roofline_fraction=0.5)]))
        assert len(header) == len(row) <= WIDTH
        assert ("of ceiling" in header) == (length == 30) == ("ceiling" in notes)
        assert row.split()[-2:] == ["compute", "50%"]


def test_the_results_fit_the_terminal_and_a_reason_that_cases_share_stands_once() -> None:
    name = "perf_tests/test_attention.py::test_attention_backward[d64-seq1024-fp32-compiled]"
    lost = [untimed(f"test_forward[{n}]", "unsupported", "bf16 needs a CPU with avx512_bf16") for n in range(8)]
    lines = result_lines(record([timed(name, bound="memory", roofline_fraction=0.82)], lost), 80)
    assert max(map(len, lines[:2])) <= 80
    assert lines[1].split()[-2:] == ["memory", "82%"]
    names = ", ".join(f"forward {n}" for n in range(6))
    assert lines[3:] == [f"{names} and 2 more: unsupported: bf16 needs a CPU with avx512_bf16"]


def test_a_run_ends_with_what_failed_is_flagged_or_was_not_measured() -> None:
    rows = [timed("a", flags=["trend", "outlier"]), timed("b"), timed("c")]
    data = record(rows, [untimed("d"), untimed("e", "error"), untimed("f", "incorrect")])
    assert tally_line(data) == "3 cases measured, 2 failed, 1 flagged (trend, outlier), 1 not measured"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_case_without_a_timing_is_one_line_with_its_reason_and_the_rounds_that_are_kept(outcome: str) -> None:
    kept = {**untimed(BACKWARD, outcome, "because of this"), "rounds": [0.1, 0.2, 0.3]}
    said = f"{case_name(BACKWARD)}: {OUTCOMES[outcome]}: because of this"
    lines = result_lines(record([timed()], [{**kept, "rounds": []}]))
    assert [line for line in lines if case_name(BACKWARD) in line] == [said]
    assert result_lines(record([], [kept])) == [f"{said} (3 rounds kept)"]


def test_each_flag_is_told_in_its_sentence_and_a_short_warm_up_with_what_to_set() -> None:
    found = record([timed(FORWARD, flags=list(FLAGS), suggested_warmup_rounds=8)])
    busy, *lines = result_lines(found)
    assert "other programs ran beside 1 of 1 cases" in busy
    ends = {"short_warmup": "; set --warmup-rounds 8"}
    assert lines[3:] == [
        f"{case_name(FORWARD)}: {FLAGS[flag].sentence}{ends.get(flag, '')}" for flag in FLAGS if flag != BUSY
    ]


def test_what_was_compiled_is_told_with_each_break_and_nothing_compiled_by_its_first_reason() -> None:
    def said(**info: Any) -> str:
        return result_lines(record([timed(FORWARD, **info)]))[-1].removeprefix(f"{case_name(FORWARD)}: ")

    parts = {"graphs": 3, "graph_breaks": 2, "shape_recompiles": 1, "compiler_lines": ["m.py:7 `x`: why", "n"]}
    assert said(**parts) == "compiled in parts: 3 graphs, 2 graph breaks, 1 recompile; m.py:7 `x`: why; n"
    many = {"graphs": 1, "graph_breaks": 0, "compiler_lines": list(map(str, range(11))), "compiler_reason": "it fails"}
    assert said(**many) == "compiled: 1 graph, 0 graph breaks; 0; 1; 2; 3; 4; 5; 6; 7; 3 more; it fails"
    nothing = {"graphs": 0, "flags": ["not_compiled"]}
    assert said(**nothing, compiler_lines=["m.py:7", "m.py:8"]).endswith(f"{FLAGS['not_compiled'].sentence}: m.py:7")
    assert said(**nothing, compiler_reason="switched off").endswith(": switched off")
    assert said(compiler_reason="it cannot be compiled") == "it cannot be compiled"


def test_a_busy_machine_is_told_above_the_results_with_what_others_used() -> None:
    quiet = timed(FORWARD, other_cores=0.0, before={"usable_processors": 2})
    busy = timed(BACKWARD, other_cores=1.61, before={"usable_processors": 2}, flags=["busy_machine"])
    assert "up to 1.6 of 2 cores beside 1 of 2 cases" in result_lines(record([quiet, busy]))[0]
    assert result_lines(record([quiet]))[0].startswith("case")


def test_a_case_without_a_bound_says_why_once_for_each_reason() -> None:
    rows = [timed(case, counters_reason="compiled") for case in (FORWARD, BACKWARD)]
    said = [line for line in result_lines(record([*rows, timed("other")])) if "no bound" in line]
    assert said == [f"{case_name(FORWARD)}, {case_name(BACKWARD)}: no bound and roofline: compiled"]


def test_a_record_without_a_timing_has_no_empty_table() -> None:
    assert result_lines(record()) == []
    assert pass_lines(record()) == {}


def test_the_shares_of_a_runs_time_add_up() -> None:
    known = {"total": 10.0, "rounds": 5.0, "compiling": 1.0, "building": 0.5, "counting": 0.4}
    line = time_line({**known, "passes": 0.3, "communication": 2.0})
    assert re.findall(r"\d+%", line) == ["50%", "5%", "4%", "3%", "20%", "18%"]
    assert re.search("10 s: .*rounds.*compile: 1 s.* models.* ceilings.* passes.* communication costs.* start", line)
    assert ("passes" in time_line(known), "communication" in time_line(known)) == (False, False)
    assert "41% start" in time_line(known)


# The extra passes.


STEP = "perf_tests/test_memory.py::test_memory_of_full_step[tiny-ctx8-fp32-naive]"
NAME = "full_step tiny-ctx8-fp32-naive"


def examined(**changes: Any) -> Json:
    """A full step of 60 MiB, predicted to the byte; `changes` go to its values."""
    marks = (("after init", 40), ("before backward", 50), ("before optimizer", 55), ("after optimizer", 45))
    saved = (("block 0", "norm", 1), ("block 0", "softmax", 3), ("block 1", "softmax", 3), (None, "loss", 2))
    known = {
        "peak_allocated_bytes": 60 * MIB, "predicted_peak_bytes": 60 * MIB, "prediction_error": 0.0,
        "marks": [{"name": name, "allocated_bytes": count * MIB} for name, count in marks],
        "saved_bytes_by_part": [{"block": of, "part": part, "saved_bytes": count * MIB} for of, part, count in saved],
        "largest_allocations": [
            {"bytes": 5 * MIB, "count": 2, "line": "model/transformer.py:88", "category": "activations"},
            {"bytes": 4 * MIB, "count": 1, "line": "", "category": "gradients"},
        ],
        "peak_by_category_bytes": {"parameters": 20 * MIB, "activations": 40 * MIB},
    }  # fmt: skip
    row = remembered(STEP, phase="full_step")
    return {**row, "values": {**row["values"], **known, **changes}}


UNPREDICTED = {"predicted_peak_bytes": None, "prediction_error": None, "prediction_reason": "it is fused."}
SMALL = {**examined(peak_allocated_bytes=1, peak_by_category_bytes={}), "id": STEP.replace("full_step", "forward")}


def grown(length: int) -> Json:
    count = (2 * length**2 + 3 * length * 16) * 8 * 4
    saved = [{"block": None, "part": "softmax", "saved_bytes": count}]
    row = examined(peak_allocated_bytes=count, memory_before_backward_bytes=count, saved_bytes_by_part=saved)
    shape = {"head_dim": 16, "sequence_length": length, "batch_size": 8, "precision": "fp32", "attention": "naive"}
    return {**row, "identity": {"phase": "attention_forward", "device": "cpu", **shape}}


LABELS = "tiny 8 full_step fp32 naive"

EXAMINED: list[tuple[list[Json], str]] = [
    ([examined()], f"{LABELS} 60.00 60.00 1.00000 40.00 50.00 55.00 45.00"),
    ([examined(peak_requested_bytes=58 * MIB, peak_reserved_bytes=64 * MIB)],
     f"{LABELS} 60.00 60.00 0.96667 64.00 40.00 50.00 55.00 45.00"),
    ([examined()], f"{LABELS} softmax 2 3.000 6.000 66.7"),
    ([examined(**UNPREDICTED)] * 2, "no prediction: it is fused."),
    ([examined(flags=["peak_off"]), SMALL], f"{LABELS}: {FLAGS['peak_off'].sentence}"),
    ([examined(snapshot="files-1/it.pickle")], "snapshots for pytorch.org/memory_viz: files-1, beside the record"),
    ([examined(snapshot_reason="there is no room.")], f"{LABELS}: there is no room."),
    ([grown(256), grown(512)], "naive fp32, saved 2 3.00 0.0% 2"),
]  # fmt: skip


def test_a_memory_pass_is_told_in_its_parts() -> None:
    for rows, line in EXAMINED:
        lines = [" ".join(one.split()) for one in pass_lines(with_passes(record(), *rows))["memory"]]
        assert lines.count(line) == 1, (line, lines)


STRANGE: list[Any] = [None, 7, "word", [], {"a": 1}]


def test_what_a_row_says_may_be_damaged_or_of_another_suite() -> None:
    for strange in [*STRANGE, 10**400]:
        row = timed(**dict.fromkeys(KINDS, strange))
        row["extra_info"]["flags"] = ["of_another_suite"]
        lines = result_lines(record([row]))
        assert lines[1].startswith("forward tiny-ctx8-fp32-naive")
        assert "forward tiny-ctx8-fp32-naive: of_another_suite" in lines


def test_what_a_pass_found_may_be_damaged() -> None:
    for strange in STRANGE:
        for name in ("kernels", "memory", "warmup"):
            row = {"id": "x[y]", "pass": name, "identity": {"attention": strange}, "values": {
                key: strange for rows in (synthetic.traced(), examined(), warmed()) for key in rows["values"]
            }}  # fmt: skip
            assert pass_lines({"passes": [row], "outcomes": []}).keys() <= {name}


def study(name: str, needed: int, **changes: Any) -> Json:
    row = warmed(f"test_forward[{name}]")
    known = {"recommended_warmup_rounds": needed, "configured_warmup_rounds": 5, **changes}
    return {**row, "values": {**row["values"], **known}}


@pytest.mark.parametrize("most, judgement", [(5, "5 covers every case of this study"), (7, "5 is too few")])
def test_a_warm_up_study_is_a_row_a_case_and_one_recommendation(most: int, judgement: str) -> None:
    slow = study("slow", most, recommendation="Steady. After 3 it is.")
    lines = pass_lines(with_passes(record(), study("quick", 1), slow))["warmup"]
    title, header, row, *_ = lines
    assert (title, len(header)) == ("Time after warm-up rounds", len(row))
    assert [line for line in lines if "Steady. After 3 it is." in line] != []
    assert [line.rpartition("; ")[2] for line in lines if line.startswith("for this machine: ")] == [judgement]
