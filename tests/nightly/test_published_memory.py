"""Published peaks of memory are predicted, and what is further off has a recorded condition that explains it."""

from statistics import median

import pytest

from perf_tests_suite.perf_tests.hardware.datasheets import FITS, gpu_named, room_on
from tests.support.published_memory import ComparedPeak, compared, outlier
from tests.support.published_peaks import predicted_bytes, published_peaks

TABLE_OF_TEN = "kbjiang/cs336-assignment2-systems-mine"
CARD_OF_TABLE = "A100-SXM-80GB"
"""Inferred from its kernels and from more than 67 GB in use."""

CELL_LIMIT, MEDIAN_LIMIT = 0.01, 0.02


@pytest.fixture(scope="module")
def peaks() -> list[ComparedPeak]:
    return compared(cell for cell in published_peaks() if cell.bytes is not None)


def test_the_table_of_ten_is_predicted_within_one_percent_and_empty_cells_do_not_fit(peaks: list[ComparedPeak]) -> None:
    of_ten = [cell for cell in peaks if TABLE_OF_TEN in cell.cell.source]
    assert {cell.cell.name: cell.error for cell in of_ten if abs(cell.error) > CELL_LIMIT} == {}
    room = room_on(gpu_named(CARD_OF_TABLE))
    empty = [cell for cell in published_peaks() if TABLE_OF_TEN in cell.source and cell.bytes is None]
    assert len(empty) == 2
    assert FITS not in [room.verdict(predicted_bytes(cell)) for cell in empty]


def test_the_others_are_predicted_within_two_percent_and_each_outlier_is_explained(peaks: list[ComparedPeak]) -> None:
    others = [cell for cell in peaks if TABLE_OF_TEN not in cell.cell.source]
    assert median(abs(cell.error) for cell in others) <= MEDIAN_LIMIT
    beyond = [cell for cell in others if abs(cell.error_of_stated) > MEDIAN_LIMIT or outlier(cell.cell) is not None]
    assert [cell.cell.name for cell in beyond if not is_explained(cell)] == []


def is_explained(cell: ComparedPeak) -> bool:
    """Whether a recorded condition accounts for the difference, and what was recorded there is predicted."""
    known = outlier(cell.cell)
    if known is None:
        return False
    if known.meant_context is not None:
        return abs(cell.error) <= MEDIAN_LIMIT
    return known.recorded_bytes is None or abs(cell.predicted_bytes / known.recorded_bytes - 1) <= MEDIAN_LIMIT


def test_each_full_step_of_a_stated_order_is_within_one_percent_of_its_digits(peaks: list[ComparedPeak]) -> None:
    """Only figures in whole GB are further off as they are printed."""
    steps = [cell for cell in peaks if cell.is_step]
    assert len(steps) == 29
    assert {cell.cell.name: cell.error_of_stated for cell in steps if abs(cell.error_of_stated) > CELL_LIMIT} == {}
    beyond = {cell.cell.name: cell.cell.conditions["figures"] for cell in steps if abs(cell.error) > CELL_LIMIT}
    assert beyond == {
        "charliesabino/cs336-assignment2 full_step_peak 2.7B-ctx128-fp32": "rounded",
        "yyin-dev/cs336-a2 full_step_peak xl-ctx128-fp32": "cut",
        "yyin-dev/cs336-a2 full_step_peak xl-ctx128-bf16": "cut",
    }
