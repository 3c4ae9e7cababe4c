"""How the memory of attention alone grows: bytes = (k L^2 + c L d) x batch x 4, by implementation.

L is the sequence length, d the head width. k counts T x T matrices in float32 and is a whole number; c counts tensors
of an input's shape. The remainder is neither: for example the causal mask, one byte for each pair of positions.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perf_tests.identity import is_attention
from perf_tests.records.record import Json

FLOAT32_BYTES = 4
MOST_SQUARES = 32

Cell = tuple[int, int, float]
"""Sequence length, head width, and bytes over batch and 4."""


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


def attention_fits(passes: Sequence[Json]) -> list[Fit]:
    """Of every implementation that has cells of two lengths; with fewer, any k would do."""
    by_implementation: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for row in passes:
        if is_attention(row["identity"]):
            by_implementation[row["identity"]["attention"], row["identity"]["precision"]].append(row)
    return [
        _fit(quantity, *names, cells)
        for names, rows in by_implementation.items()
        for quantity, cells in _quantities(rows)
        if len({length for length, _, _ in cells}) >= 2
    ]


def _quantities(rows: Sequence[Json]) -> Iterator[tuple[str, list[Cell]]]:
    forward, backward = (
        [row for row in rows if row["identity"]["phase"] == phase]
        for phase in ("attention_forward", "attention_backward")
    )
    for quantity, chosen, name in (
        ("saved", forward or backward, "saved_bytes_by_part"),
        ("forward peak", forward, "peak_allocated_bytes"),
        ("before backward", backward or forward, "memory_before_backward_bytes"),
        ("backward peak", backward, "peak_allocated_bytes"),
    ):
        yield quantity, [_cell(row["identity"], row["values"][name]) for row in chosen]


def _cell(identity: Json, found: int | list[Json]) -> Cell:
    count = found if isinstance(found, int) else sum(part["saved_bytes"] for part in found)
    return identity["sequence_length"], identity["head_dim"], count / (identity["batch_size"] * FLOAT32_BYTES)


def _fit(quantity: str, implementation: str, precision: str, cells: Sequence[Cell]) -> Fit:
    """Of all k with a c that is not negative, the one with the smallest remainder."""
    candidates = [(squares, _tensors(cells, squares)) for squares in range(MOST_SQUARES + 1)]
    fits = [(_worst_remainder(cells, *found), *found) for found in candidates if found[1] >= 0]
    remainder, squares, tensors = min(fits, key=lambda fit: fit[0])
    return Fit(quantity, implementation, precision, squares, tensors, remainder, len(cells))


def _tensors(cells: Sequence[Cell], squares: int) -> float:
    """c of least squares in shares of each cell, so that the longest sequence does not decide alone."""
    weights = [length * width / max(elements, 1) for length, width, elements in cells]
    left = [(elements - squares * length**2) / max(elements, 1) for length, _, elements in cells]
    return sum(w * rest for w, rest in zip(weights, left, strict=True)) / sum(w * w for w in weights)


def _worst_remainder(cells: Sequence[Cell], squares: int, tensors: float) -> float:
    return max(
        abs(squares * length**2 + tensors * length * width - elements) / max(elements, 1)
        for length, width, elements in cells
    )
