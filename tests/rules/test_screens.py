"""What a run prints: every case once, every case without a timing with its reason, a memory pass in its parts."""

from typing import Any

import pytest

from perf_tests.audit.rounds import FLAGS
from perf_tests.records.columns import case_name
from perf_tests.records.record import OUTCOMES, Json
from perf_tests.report.screens import WIDTH, megabytes, memory_summary_lines, result_lines, time_line
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, attention_identity, record, remembered, timed, untimed


def naming(case_id: str, lines: list[str]) -> list[str]:
    return [line for line in lines if case_name(case_id) in line]


def test_each_measured_case_is_one_line_with_its_figures_in_straight_columns() -> None:
    lines = result_lines(record([timed(FORWARD, (0.0125,)), timed(FULL_STEP, (123.4,))]))
    (forward,), (full_step,) = naming(FORWARD, lines), naming(FULL_STEP, lines)
    assert all(figure in forward for figure in ("12.5 ms", "2,560", "25%"))
    assert "123.4 s" in full_step
    assert len(forward) == len(full_step) == len(lines[0])


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_case_without_a_timing_is_one_line_with_its_reason(outcome: str) -> None:
    lines = result_lines(record([timed(FORWARD)], [untimed(BACKWARD, outcome, "because of this")]))
    assert naming(BACKWARD, lines) == [f"{case_name(BACKWARD)}: {OUTCOMES[outcome]}: because of this"]


def test_a_case_that_failed_after_timing_says_how_many_rounds_are_kept() -> None:
    row = {**untimed(BACKWARD, "error", "NaN"), "rounds": [0.1, 0.2, 0.3]}
    assert result_lines(record([], [row])) == [f"{case_name(BACKWARD)}: failed: NaN (3 rounds kept)"]


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_is_told_in_its_sentence_and_a_short_warm_up_with_what_to_set(flag: str) -> None:
    lines = result_lines(record([timed(FORWARD, flags=[flag], suggested_warmup_rounds=8)]))
    end = "; set --warmup-rounds 8" if flag == "short_warmup" else ""
    assert f"{case_name(FORWARD)}: {FLAGS[flag].sentence}{end}" in lines


def test_what_is_not_known_is_a_dash() -> None:
    row = timed(FORWARD, tokens_per_second=None, tflops_per_second=None, share_of_matmul_ceiling=None)
    assert naming(FORWARD, result_lines(record([row])))[0].split()[-3:] == ["-", "-", "-"]


def test_what_bounds_a_case_and_its_share_of_the_roofline_are_told() -> None:
    known = timed(FORWARD, bound="memory", roofline_fraction=0.82)
    *rows, notes = result_lines(record([known, timed(BACKWARD)]))
    assert [row.split()[-2:] for row in rows] == [["bound", "roofline"], ["memory", "82%"], ["-", "-"]]
    assert "roofline: least time" in notes


def test_a_record_that_knows_no_bound_has_no_column_for_it() -> None:
    header, _, notes = result_lines(record([timed(FORWARD)]))
    assert "bound" not in header
    assert "roofline" not in notes


@pytest.mark.parametrize("length", [30, 60, 75])
def test_long_names_push_out_columns_and_never_the_bound(length: int) -> None:
    name = "perf_tests/test_forward.py::test_forward[" + "x" * length + "]"
    header, row, notes = result_lines(record([timed(name, bound="compute", roofline_fraction=0.5)]))
    assert len(header) == len(row)
    assert len(header) <= WIDTH
    assert ("of ceiling" in header) == (length == 30) == ("ceiling" in notes)
    assert row.split()[-2:] == ["compute", "50%"]


def test_a_record_without_a_timing_has_no_empty_table() -> None:
    assert result_lines(record()) == []


def test_a_case_is_called_by_its_phase_and_its_parameters() -> None:
    assert case_name(FORWARD) == "forward tiny-ctx8-fp32-naive"
    assert case_name("test_attention.py::test_attention_forward[d16-fp32]") == "attention_forward d16-fp32"


def test_the_shares_of_a_runs_time_add_up() -> None:
    line = time_line({"total": 10.0, "rounds": 6.0, "compiling": 1.0, "building": 1.0, "counting": 0.5})
    assert line.startswith("10 s: 60% in warm-up and measured rounds")
    assert "10% of all in first calls" in line
    assert "10% building models, 5% counting and ceilings, 25% start" in line


def test_rounds_that_show_the_cost_of_communication_have_a_share_of_their_own() -> None:
    line = time_line({"total": 10.0, "rounds": 5.0, "compiling": 0.0, "building": 1.0, "communication": 3.0})
    assert "30% in rounds that show what communication costs, 10% start" in line


# The memory pass.


STEP = "perf_tests/test_memory.py::test_memory_of_full_step[tiny-ctx8-fp32-naive]"
MB = 10**6


def examined(**changes: Any) -> Json:
    """A full step of 60 MB, predicted to the byte; `changes` go to its values."""
    marks = (("after init", 40), ("before backward", 50), ("before optimizer", 55), ("after optimizer", 45))
    saved = (("block 0", "softmax", 3), ("block 0", "norm", 1), ("block 1", "softmax", 3), (None, "loss", 2))
    known = {
        "peak_allocated_bytes": 60 * MB, "predicted_peak_bytes": 60 * MB, "prediction_error": 0.0,
        "marks": [{"name": name, "allocated_bytes": count * MB} for name, count in marks],
        "saved_bytes_by_part": [{"block": of, "part": part, "saved_bytes": count * MB} for of, part, count in saved],
        "largest_allocations": [
            {"bytes": 5 * MB, "count": 2, "line": "model/transformer.py:88", "category": "activations"},
            {"bytes": 4 * MB, "count": 1, "line": "", "category": "gradients"},
        ],
    }  # fmt: skip
    row = remembered(STEP, phase="full_step")
    return {**row, "values": {**row["values"], **known, **changes}}


def test_a_row_has_the_peak_its_prediction_and_the_moments_of_a_step() -> None:
    header, row, *_ = memory_summary_lines([examined()])
    assert row.split() == ["full_step", "tiny-ctx8-fp32-naive", "60", "-", "60", "+0.000%", "50", "55", "45"]
    assert len(header) == len(row)


def test_one_block_is_told_part_by_part_the_largest_first_and_once_for_cases_that_save_the_same() -> None:
    saved = [line for line in memory_summary_lines([examined(), examined()]) if line.startswith("saved for")]
    assert saved == ["saved for the backward pass by a block of tiny-ctx8-fp32-naive: 4 MB: softmax 3, norm 1"]


def test_the_largest_blocks_are_those_of_the_case_with_the_highest_peak() -> None:
    small = {**examined(peak_allocated_bytes=1), "id": STEP.replace("full_step", "forward")}
    (line,) = (line for line in memory_summary_lines([small, examined()]) if line.startswith("largest"))
    assert line == (
        "largest blocks of full_step tiny-ctx8-fp32-naive: 2 x 5 MB at model/transformer.py:88 (activations); "
        "1 x 4 MB at no line of the model (gradients)"
    )


def test_a_case_without_a_prediction_says_why() -> None:
    row = examined(predicted_peak_bytes=None, prediction_error=None, prediction_reason="it is fused.")
    assert "2 without a prediction: it is fused." in memory_summary_lines([row, row])


def test_a_flag_is_told_with_its_sentence_and_its_cases() -> None:
    lines = memory_summary_lines([examined(flags=["peak_off"]), examined()])
    assert lines[-1] == f"{FLAGS['peak_off'].sentence}: full_step tiny-ctx8-fp32-naive"


def test_a_snapshot_is_pointed_to_and_a_missing_one_explained() -> None:
    lines = memory_summary_lines(
        [examined(snapshot="files-1/it.pickle"), examined(snapshot_reason="there is no room.")]
    )
    assert "snapshots for pytorch.org/memory_viz: files-1, beside the record" in lines
    assert "full_step tiny-ctx8-fp32-naive: there is no room." in lines


def test_attention_alone_is_told_by_how_it_grows() -> None:
    rows = []
    for length in (256, 512):
        count = (2 * length**2 + 3 * length * 16) * 8 * 4
        saved = [{"block": None, "part": "softmax", "saved_bytes": count}]
        row = examined(peak_allocated_bytes=count, memory_before_backward_bytes=count, saved_bytes_by_part=saved)
        rows.append({**row, "identity": attention_identity(sequence_length=length)})
    lines = memory_summary_lines(rows)
    assert ["naive", "fp32,", "saved", "2", "3.00", "0.0%", "2"] in [line.split() for line in lines]


def test_megabytes_are_of_a_million_bytes() -> None:
    counts = (None, 123, 4_567_890, 2_273_054_252)
    assert [megabytes(count) for count in counts] == ["-", "0.000123", "4.568", "2,273.1"]
