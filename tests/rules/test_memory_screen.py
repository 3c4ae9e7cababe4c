"""The memory pass on screen: one row for each case, what a block saves, the largest blocks, the growth of attention."""

from typing import Any

from perf_tests.audit.rounds import FLAGS
from perf_tests.records.record import Json
from perf_tests.report.screens import megabytes, memory_summary_lines
from tests.support.synthetic import attention_identity, remembered

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
