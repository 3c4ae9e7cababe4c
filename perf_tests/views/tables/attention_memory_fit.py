"""How the memory of attention alone grows: bytes = (k L^2 + c L d) x batch x 4, by implementation.

L is the sequence length, d the head width. k counts T x T matrices in float32 and is a whole number, c tensors of the
shape of an input. What is neither, as the causal mask of one byte for each pair of positions, shows as the remainder.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perf_tests.identity import is_attention
from perf_tests.records.record import Json

FLOAT32_BYTES = 4
MOST_SQUARES = 32


@dataclass(frozen=True)
class Fit:
    """Of one quantity of one implementation in one precision, over `cells` cells."""

    quantity: str
    implementation: str
    precision: str
    squares: int
    """k, whole."""
    tensors: float
    """c, at the k above."""
    worst_remainder: float
    """The largest difference between a cell and the fit, as a share of the cell."""
    cells: int


@dataclass(frozen=True)
class _Cell:
    length: int
    width: int
    elements: float
    """Bytes over batch and 4."""


def attention_fits(passes: Sequence[Json]) -> list[Fit]:
    """Of every implementation that has cells of two lengths; with fewer any k would do."""
    by_implementation: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for row in passes:
        if is_attention(row["identity"]):
            by_implementation[row["identity"]["attention"], row["identity"]["precision"]].append(row)
    return [
        _fit(quantity, implementation, precision, cells)
        for (implementation, precision), rows in by_implementation.items()
        for quantity, cells in _quantities(rows)
        if len({cell.length for cell in cells}) >= 2
    ]


def _quantities(rows: Sequence[Json]) -> Iterator[tuple[str, list[_Cell]]]:
    forward = [row for row in rows if row["identity"]["phase"] == "attention_forward"]
    backward = [row for row in rows if row["identity"]["phase"] == "attention_backward"]
    saved = [
        (row, [part["saved_bytes"] for part in row["values"]["saved_bytes_by_part"]]) for row in forward or backward
    ]
    yield "saved", [_cell(row, sum(parts)) for row, parts in saved]
    yield "forward peak", [_cell(row, row["values"]["peak_allocated_bytes"]) for row in forward]
    yield "before backward", [_cell(row, row["values"]["memory_before_backward_bytes"]) for row in backward or forward]
    yield "backward peak", [_cell(row, row["values"]["peak_allocated_bytes"]) for row in backward]


def _cell(row: Json, count: int) -> _Cell:
    identity = row["identity"]
    elements = count / (identity["batch_size"] * FLOAT32_BYTES)
    return _Cell(identity["sequence_length"], identity["head_dim"], elements)


def _fit(quantity: str, implementation: str, precision: str, cells: Sequence[_Cell]) -> Fit:
    candidates = [
        Fit(
            quantity, implementation, precision, squares, tensors, _worst_remainder(cells, squares, tensors), len(cells)
        )
        for squares in range(MOST_SQUARES + 1)
        if (tensors := _tensors(cells, squares)) >= 0
    ]
    return min(candidates, key=lambda fit: fit.worst_remainder)


def _tensors(cells: Sequence[_Cell], squares: int) -> float:
    """c of least squares in shares of each cell, so that the longest sequence does not decide alone."""
    weights = [cell.length * cell.width / max(cell.elements, 1) for cell in cells]
    left = [(cell.elements - squares * cell.length**2) / max(cell.elements, 1) for cell in cells]
    return sum(w * rest for w, rest in zip(weights, left, strict=True)) / sum(w * w for w in weights)


def _worst_remainder(cells: Sequence[_Cell], squares: int, tensors: float) -> float:
    return max(
        abs(squares * cell.length**2 + tensors * cell.length * cell.width - cell.elements) / max(cell.elements, 1)
        for cell in cells
    )
