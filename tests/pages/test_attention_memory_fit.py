"""The growth of attention's memory is found again where it was planted: whole squares, and tensors beside them."""

import re

import pytest

from perf_tests.predict.counters import counters_of
from perf_tests.records.record import Json
from perf_tests.report.tables import Fit, attention_fits
from tests.support.documents import block, indented, page
from tests.support.example_cases import attention_case
from tests.support.synthetic import attention_identity

CELLS = ((256, 16), (256, 64), (1024, 16), (1024, 64))


def memory_row(identity: Json, peak: int, before_backward: int, saved: int) -> Json:
    values = {
        "peak_allocated_bytes": peak, "memory_before_backward_bytes": before_backward,
        "saved_bytes_by_part": [{"block": None, "part": "softmax", "saved_bytes": saved}],
    }  # fmt: skip
    return {"id": "a cell", "identity": identity, "pass": "memory", "values": values}


def row(length: int, width: int, squares: int, tensors: float, mask: bool = False) -> Json:
    """A forward cell that holds so many squares and tensors of float32 at every moment."""
    count = int((squares * length**2 + tensors * length * width) * 8 * 4) + mask * length**2
    return memory_row(attention_identity(sequence_length=length, head_dim=width), count, count, count)


def fits_of(rows: list[Json]) -> dict[tuple[str, str], Fit]:
    return {(fit.implementation, fit.quantity): fit for fit in attention_fits(rows)}


@pytest.mark.parametrize("squares", [0, 1, 2, 3, 6])
def test_planted_squares_and_tensors_are_found(squares: int) -> None:
    fit = fits_of([row(*cell, squares, 4.0) for cell in CELLS])["naive", "saved"]
    assert fit.squares == squares
    assert fit.tensors == pytest.approx(4.0)
    assert fit.worst_remainder < 1e-9
    assert fit.cells == 4


def test_a_mask_shows_as_the_remainder_and_changes_no_square() -> None:
    """One byte for each pair of positions, for the whole batch: a 32nd of one of its squares."""
    fit = fits_of([row(*cell, 2, 3.0, mask=True) for cell in CELLS])["naive", "forward peak"]
    assert fit.squares == 2
    assert 0.001 < fit.worst_remainder < 0.03


def test_one_length_and_rows_of_language_models_fit_nothing() -> None:
    of_a_model = {"id": "x", "identity": {"size": "tiny"}, "pass": "memory", "values": {}}
    assert attention_fits([of_a_model, row(256, 16, 2, 1.0), row(256, 64, 2, 1.0)]) == []


def predicted(length: int, width: int, phase: str, attention: str) -> Json:
    """The cell as the counters have it, nothing run."""
    case = attention_case(phase=phase, attention=attention, head_dim=width, sequence_length=length)
    counters = counters_of(case)
    return memory_row(case.identity(), counters.peak_bytes, 0, counters.saved_bytes)


def test_the_readme_has_the_squares_of_the_counters() -> None:
    shown = indented(block(page("where-memory-goes"), "attention memory"))
    header, *lines = [re.split(r"\s{2,}", line.strip()) for line in shown]
    fits = fits_of([
        predicted(*cell, phase, attention)
        for cell in CELLS for phase in ("attention_forward", "attention_backward") for attention in header[1:]
    ])  # fmt: skip
    assert len(lines) == 3
    for quantity, *squares in lines:
        assert squares == [f"k = {fits[attention, quantity].squares}" for attention in header[1:]]
