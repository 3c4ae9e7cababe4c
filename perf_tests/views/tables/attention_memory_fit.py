"""How the memory of attention alone grows: bytes = (k L^2 + c L d) x batch x 4, by implementation.

L is the sequence length, d the head width. k counts T x T matrices in float32 and is a whole number; c counts tensors
of an input's shape. The remainder is neither: for example the causal mask, one byte for each pair of positions.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from perf_tests.identity import is_attention
from perf_tests.limits.least_work import FLOAT32_BYTES
from perf_tests.records.record import Json

MOST_SQUARES = 32

Cell = tuple[float, float, float]
"""L^2, L d and the float32 numbers for each of the batch, as shares of these numbers, so that no long cell decides."""


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
        Fit(quantity, attention, precision, *_fit([_cell(row, field) for row in chosen]), len(chosen))
        for (attention, precision), rows in by_implementation.items()
        for quantity, chosen, field in _quantities(rows)
        if len({row["identity"]["sequence_length"] for row in chosen}) >= 2
    ]


def _quantities(rows: Sequence[Json]) -> Sequence[tuple[str, list[Json], str]]:
    forward, backward = (
        [row for row in rows if row["identity"]["phase"] == phase]
        for phase in ("attention_forward", "attention_backward")
    )
    return (
        ("saved", forward or backward, "saved_bytes_by_part"),
        ("forward peak", forward, "peak_allocated_bytes"),
        ("before backward", backward or forward, "memory_before_backward_bytes"),
        ("backward peak", backward, "peak_allocated_bytes"),
    )


def _cell(row: Json, field: str) -> Cell:
    identity, found = row["identity"], row["values"][field]
    count = found if isinstance(found, int) else sum(part["saved_bytes"] for part in found)
    length, numbers = identity["sequence_length"], count / (identity["batch_size"] * FLOAT32_BYTES)
    whole = max(numbers, 1)
    return length**2 / whole, length * identity["head_dim"] / whole, numbers / whole


def _fit(cells: Sequence[Cell]) -> tuple[int, float, float]:
    """k, c and the worst remainder: of all k whose c of least squares is not negative, the one that leaves least."""
    fits = []
    for k in range(MOST_SQUARES + 1):
        c = sum(tensor * (whole - k * square) for square, tensor, whole in cells) / sum(of**2 for _, of, _ in cells)
        if c >= 0:
            fits.append((max(abs(k * square + c * tensor - whole) for square, tensor, whole in cells), k, c))
    remainder, k, c = min(fits, key=lambda fit: fit[0])
    return k, c, remainder
