"""A few published cells, so that the proofs over all of them cannot rot, and how they are told apart."""

from dataclasses import replace

import pytest

from perf_tests.limits.ceilings import FP32_EFFICIENCY_WITH_64_LANES
from perf_tests.proofs import predicted_memory, predicted_times
from perf_tests.proofs.published_peaks import (
    OUTLIERS,
    Outlier,
    PublishedPeak,
    compared,
    left_out_sources,
    outlier,
    predicted_bytes,
    published_peaks,
    small_attention_peaks,
)
from perf_tests.proofs.published_times import calibrated, comparable_cells, published_rows

PEAKS = published_peaks()


def peak(source: str, mode: str, context: int, precision: str = "fp32") -> PublishedPeak:
    wanted = (mode, context, precision)
    (found,) = (
        cell
        for cell in PEAKS
        if source in cell.source and (cell.mode, cell.case.context_length, cell.case.precision) == wanted
    )
    return found


TABLE, OF_TABLE, ELSEWHERE = predicted_memory.TABLE_OF_TEN, predicted_memory.CELL_LIMIT, predicted_memory.MEDIAN_LIMIT
"""One per cent in the table of ten; two where the same step was measured under other conditions."""


@pytest.mark.parametrize(
    "cell, limit",
    [
        (peak(TABLE, "forward_peak(with grad)", 256, "fp32"), OF_TABLE),
        (peak(TABLE, "forward_peak(with grad)", 256, "bf16"), OF_TABLE),
        (peak(TABLE, "full_step_peak", 256, "fp32"), OF_TABLE),
        (peak(TABLE, "full_step_peak", 256, "bf16"), OF_TABLE),
        (peak("yyin-dev", "full_step_peak", 128), ELSEWHERE),
        (peak("brandon-snider", "forward_peak(with grad)", 256), ELSEWHERE),
        (peak("LINYUNLinYun", "full_step_peak", 128), ELSEWHERE),
        (peak("sandrewxu", "forward_peak(in training, states resident)", 512), ELSEWHERE),
    ],
)
def test_a_published_peak_is_predicted_within_its_limit(cell: PublishedPeak, limit: float) -> None:
    (found,) = compared([cell])
    assert abs(found.error) <= limit


@pytest.mark.parametrize("gpu", ["H100-80GB", "H20 (8x box)", "A100-80GB-class (inferred)"])
def test_a_small_peak_of_attention_is_mostly_cublas(gpu: str) -> None:
    found = [peak for peak in small_attention_peaks() if (peak.gpu, peak.sequence_length) == (gpu, 256)]
    assert len(found) >= 4
    assert min(abs(peak.error_without) for peak in found) > 0.5
    assert max(abs(peak.error_with) for peak in found) < 0.03


def test_a_condition_that_is_wrong_is_seen_in_the_prediction() -> None:
    """The same cell with the gradients cleared first is 5 GB below what was published, and more than 1 % off."""
    cell = peak(TABLE, "full_step_peak", 128)
    early = replace(cell, conditions={**cell.conditions, "zero_grad": "before_forward"})
    assert cell.bytes is not None
    assert predicted_bytes(early) / cell.bytes < 0.95


def test_every_empty_cell_of_the_table_is_compared_with_the_card() -> None:
    empty = [cell for cell in PEAKS if TABLE in cell.source and cell.bytes is None]
    assert [(cell.case.context_length, cell.case.precision) for cell in empty] == [(512, "fp32"), (512, "bf16")]


def test_no_source_of_peaks_is_left_out_without_a_reason() -> None:
    assert left_out_sources()
    assert "conditions unknown" not in {reason for _, reason in left_out_sources()}


def test_every_recorded_outlier_is_a_cell() -> None:
    known = [cell for cell in PEAKS if cell.bytes is not None and outlier(cell)]
    assert len(known) == len(OUTLIERS.read_text().splitlines()[1:])


@pytest.mark.parametrize(
    "source, mode, context",
    [("brandon-snider", "forward_peak(with grad)", 512), ("LINYUNLinYun", "forward_peak(no_grad)", 1024)],
)
def test_a_cell_that_its_log_contradicts_is_predicted_as_the_log_has_it(source: str, mode: str, context: int) -> None:
    (cell,) = compared([peak(source, mode, context)])
    known = outlier(cell.cell)
    assert known is not None
    assert known.recorded_bytes is not None
    assert abs(cell.error) > ELSEWHERE
    assert abs(cell.predicted_bytes / known.recorded_bytes - 1) <= 0.01


def test_an_outlier_without_a_condition_or_off_what_was_recorded_is_not_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = compared([peak("LINYUNLinYun", "forward_peak(no_grad)", 1024)])
    assert predicted_memory.print_explained(cell)
    for known in (Outlier("the same again", cell.cell.bytes), None):
        monkeypatch.setattr(predicted_memory, "outlier", lambda _, known=known: known)
        assert not predicted_memory.print_explained(cell)
    assert capsys.readouterr().out.splitlines()[-1].endswith("not explained")


TIMES = published_rows()
OF_48 = comparable_cells(
    (row for row in TIMES if predicted_times.TABLE_OF_48 in row["source"]), predicted_times.GPU_OF_TABLE
)


def test_cells_of_the_table_of_48_are_predicted_within_five_percent_and_those_that_calibrate_validate_nothing() -> None:
    assert len(OF_48) == 48
    small = [cell for cell in OF_48 if cell.case.precision == "fp32" and cell.case.context_length in (128, 512)]
    calibrating, validated = calibrated(small)
    assert (len(calibrating), len(validated)) == (2, 10)
    assert max(abs(cell.error) for cell in validated) <= predicted_times.MEAN_ERROR_LIMIT
    assert {cell.cell.name for cell in calibrating}.isdisjoint(cell.cell.name for cell in validated)
    assert all(cell.error == pytest.approx(0) for cell in calibrating)


def test_what_was_measured_without_waiting_or_warming_up_is_left_out() -> None:
    (row,) = [r for r in TIMES if predicted_times.TABLE_OF_48 in r["source"] and r["context"]][:1]
    assert comparable_cells([row], "H100-SXM")
    for change in ({"sync": "no"}, {"warmup": "0"}, {"compiled": "yes"}, {"context_basis": "inferred"}):
        assert not comparable_cells([{**row, **change}], "H100-SXM")
    assert not comparable_cells([row])  # its GPU is inferred


def test_the_source_that_an_efficiency_was_fitted_to_validates_nothing() -> None:
    assert FP32_EFFICIENCY_WITH_64_LANES == 0.8
    assert not [cell for cell in comparable_cells(TIMES) if "kbjiang" in cell.source]
