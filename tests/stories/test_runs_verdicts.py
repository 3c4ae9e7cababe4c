"""Verdicts in real launches: what is too fast fails with its rounds kept, and what is not carries its counters."""

import pytest

from tests.support.launch import Launch, launched_once

ARGUMENTS = ("--phase=forward,backward", "-k=ctx8")

honest = launched_once(*ARGUMENTS)

too_fast = launched_once(*ARGUMENTS, PLANTED_FLOPS_PER_SECOND="1")
"""A machine whose best product does one operation a second."""


def test_a_measured_case_carries_its_counters_and_what_follows_from_them(honest: Launch) -> None:
    assert honest.exit_code == 0
    row = honest.measured["test_forward[tiny-ctx8-fp32-naive]"]
    info = row["extra_info"]
    assert info["executed_flops"] == info["model_flops"]
    for name in ("kernel_launches", "bytes_touched", "saved_bytes", "predicted_peak_bytes", "parameters"):
        assert info[name] > 0
    assert info["roofline_fraction"] == pytest.approx(info["roofline_seconds"] / row["stats"]["median"])
    assert info["bound"] in ("launch", "compute", "memory")
    assert (info["mfu"], info["counters_reason"]) == (None, None)
    assert isinstance(honest.record["notices"], list)
    assert "counting and ceilings" in honest.output


def test_a_case_faster_than_its_machine_fails_and_is_a_row_with_its_rounds(too_fast: Launch) -> None:
    assert too_fast.exit_code == 1
    assert too_fast.measured == {}
    row = too_fast.outcomes["test_forward[tiny-ctx8-fp32-naive]"]
    assert row["outcome"] == "impossible"
    assert "Most likely" in row["reason"]
    assert len(row["rounds"]) == 2
    assert "impossible: " in too_fast.output
