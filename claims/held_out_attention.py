"""Two tables of attention judged by products and bytes alone: fused kernels, and compiled passes against eager ones.

This file uses no code of the audit, so that a mistake there cannot confirm itself. A cell breaks physics if
its time is below what its matrix products take at the datasheet's peak for the precision in its label, or below what
its least traffic takes at the datasheet's bandwidth. Each bound is the lower one where there is a doubt.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Cell = Mapping[str, str]


@dataclass(frozen=True)
class Peak:
    """The highest peaks of the cards of a name."""

    flops_per_second: Mapping[str, float]
    bytes_per_second: float
    cache_bytes: int


PEAKS = {
    "A800": Peak({"fp32": 19.5e12, "bf16": 312e12}, 2.039e12, 40 * 2**20),
    "A100": Peak({"fp32": 19.5e12, "bf16": 312e12}, 2.039e12, 40 * 2**20),
    "H100": Peak({"fp32": 66.9e12, "bf16": 989.4e12}, 3.35e12, 50 * 2**20),
}
"""Peaks by the first letters of a label. NVIDIA A100 datasheet (SXM, 80 GB), which holds for the A800, and H100
datasheet (SXM), dense; fp32 without tensor cores, which is what the label says."""

ELEMENT_BYTES = {"fp32": 4, "bf16": 2}

PRODUCTS = {
    "naive": {"forward": 2, "backward": 4, "fwd_bwd": 6},
    "triton_fa2": {"forward": 2, "backward": 5, "fwd_bwd": 7},
}
"""Products over the T x T square: two forward, four gradients; FlashAttention-2 computes the scores once more (Dao,
arXiv:2307.08691, section 3.1.2)."""


def breaks_physics(cell: Cell) -> bool:
    """Whether the time is shorter than the cell's label allows on the fastest card of its name."""
    return float(cell["mean_ms"]) / 1e3 < least_seconds(cell)


def least_seconds(cell: Cell) -> float:
    peak = PEAKS[cell["gpu"][:4]]
    arithmetic = least_flops(cell) / peak.flops_per_second[cell["precision"]]
    return max(arithmetic, least_bytes(cell, peak.cache_bytes) / peak.bytes_per_second)


def least_flops(cell: Cell) -> float:
    """2 T T d a product; a fused causal kernel may leave out the part above the diagonal, torch.compile never does."""
    tokens, width = int(cell["seq_len"]), int(cell["d_model"])
    square = PRODUCTS[cell["attention"]][cell["phase"]] * 2 * int(cell["batch"]) * tokens**2 * width
    return square if cell["attention"] == "naive" else square / 2


def least_bytes(cell: Cell, cache_bytes: int) -> float:
    """Scores written once and read once by separate kernels, where no cache holds them; else, and where a compiler may
    have replaced them, queries, keys, values and output once."""
    tokens, width = int(cell["seq_len"]), int(cell["d_model"])
    element = ELEMENT_BYTES[cell["precision"]]
    scores = int(cell["batch"]) * tokens**2 * element
    if cell["attention"] == "naive" and cell["compiled"] == "no" and scores > 2 * cache_bytes:
        return 2 * scores
    return 4 * int(cell["batch"]) * tokens * width * element
