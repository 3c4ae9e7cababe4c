"""What a person reads: every case once, every case without a timing with its reason, in straight columns."""

import pytest

from perf_tests.audit.physics import FLAGS
from perf_tests.records.columns import case_name
from perf_tests.records.format import duration, table
from perf_tests.records.record import OUTCOMES
from perf_tests.report.screens import WIDTH, result_lines, time_line
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, record, timed, untimed


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


def test_columns_are_aligned_whatever_their_width() -> None:
    lines = table(("case", "a", "longer"), [("x", "12345", "1"), ("a long name", "1", "123456789")])
    assert lines == [
        "case             a     longer",
        "x            12345          1",
        "a long name      1  123456789",
    ]


TIMES = {"123.5 s": 123.456, "1 s": 1.0, "999.9 ms": 0.9999, "1.234 ms": 0.0012345, "12.5 us": 12.5e-6, "3 ns": 3e-9}


@pytest.mark.parametrize("text", TIMES)
def test_a_duration_has_four_digits_and_a_unit(text: str) -> None:
    assert duration(TIMES[text]) == text


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
