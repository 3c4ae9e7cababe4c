"""Verdicts in real launches: what is too fast fails with its rounds kept, and what is not carries its counters."""

import pytest

from perf_tests.meta_tests.launch import Launch, launch

ARGUMENTS = ("--phase=forward,backward", "-k=ctx8")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch(tmp_path_factory.mktemp("honest"), *ARGUMENTS)


@pytest.fixture(scope="module")
def too_fast(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A machine whose best product does one operation a second."""
    return launch(tmp_path_factory.mktemp("fast"), *ARGUMENTS, PLANTED_FLOPS_PER_SECOND="1")


def test_a_measured_case_carries_its_counters_and_what_follows_from_them(honest: Launch) -> None:
    assert honest.exit_code == 0
    info = honest.measured["test_forward[tiny-ctx8-fp32-naive]"]["extra_info"]
    assert info["executed_flops"] == info["model_flops"]
    for name in ("kernel_launches", "bytes_touched", "saved_bytes", "predicted_peak_bytes", "parameters"):
        assert info[name] > 0
    assert info["roofline_fraction"] == pytest.approx(info["roofline_seconds"] / honest_median(honest))
    assert info["bound"] in ("launch", "compute", "memory")
    assert (info["mfu"], info["counters_reason"]) == (None, None)
    assert isinstance(honest.record["notices"], list)


def honest_median(honest: Launch) -> float:
    return float(honest.measured["test_forward[tiny-ctx8-fp32-naive]"]["stats"]["median"])


def test_a_case_faster_than_its_machine_fails_and_is_a_row_with_its_rounds(too_fast: Launch) -> None:
    assert too_fast.exit_code == 1
    assert too_fast.measured == {}
    row = too_fast.outcomes["test_forward[tiny-ctx8-fp32-naive]"]
    assert row["outcome"] == "impossible"
    assert "Most likely" in row["reason"]
    assert len(row["rounds"]) == 2
    assert "impossible: " in too_fast.output


def test_a_run_says_what_counting_cost(honest: Launch) -> None:
    assert "counting and ceilings" in honest.output
