"""The growth of attention's memory is found again where it was planted: whole squares, and tensors beside them."""

import re
from typing import Any

import pytest

from perf_tests.counting.case_counters import counters_of
from perf_tests.meta_tests.documents import block, indented, page
from perf_tests.meta_tests.example_cases import attention_case
from perf_tests.proofs.synthetic import attention_identity
from perf_tests.records.record import Json
from perf_tests.views.tables.attention_memory_fit import Fit, attention_fits

CELLS = ((256, 16), (256, 64), (1024, 16), (1024, 64))


def row(length: int, width: int, squares: int, tensors: float, mask: bool = False, **changes: Any) -> Json:
    """A forward cell that holds so many squares and tensors of float32 at every moment."""
    identity = attention_identity(sequence_length=length, head_dim=width, **changes)
    count = int((squares * length**2 + tensors * length * width) * 8 * 4) + mask * length**2
    values = {
        "peak_allocated_bytes": count, "memory_before_backward_bytes": count,
        "saved_bytes_by_part": [{"block": None, "part": "softmax", "saved_bytes": count}],
    }  # fmt: skip
    return {"id": f"seq{length}-d{width}", "identity": identity, "pass": "memory", "values": values}


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


def test_forward_and_backward_cells_have_quantities_of_their_own() -> None:
    backward = [row(*cell, 6, 6.0, phase="attention_backward") for cell in CELLS]
    fits = fits_of([*(row(*cell, 4, 4.0) for cell in CELLS), *backward])
    assert fits["naive", "forward peak"].squares == 4
    assert fits["naive", "backward peak"].squares == 6


def test_implementations_are_fitted_apart() -> None:
    rows = [row(*cell, 2, 1.0) for cell in CELLS] + [row(*cell, 0, 1.0, attention="sdpa") for cell in CELLS]
    fits = fits_of(rows)
    assert (fits["naive", "saved"].squares, fits["sdpa", "saved"].squares) == (2, 0)


def test_one_length_fits_nothing() -> None:
    assert attention_fits([row(256, 16, 2, 1.0), row(256, 64, 2, 1.0)]) == []


def test_rows_of_language_models_are_left_out() -> None:
    assert attention_fits([{"id": "x", "identity": {"size": "tiny"}, "pass": "memory", "values": {}}]) == []


def predicted(length: int, width: int, phase: str, attention: str) -> Json:
    """The cell as the counters have it, nothing run."""
    case = attention_case(phase=phase, attention=attention, head_dim=width, sequence_length=length)
    counters = counters_of(case)
    values = {
        "peak_allocated_bytes": counters.peak_bytes, "memory_before_backward_bytes": 0,
        "saved_bytes_by_part": [{"block": None, "part": "all", "saved_bytes": counters.saved_bytes}],
    }  # fmt: skip
    return {"id": "predicted", "identity": case.identity(), "pass": "memory", "values": values}


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
