"""Predicted peaks of memory against published ones: one table cell by cell, and all sources of known conditions."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from perf_tests.hardware.datasheets import FITS, Room, gpu_named, room_on
from perf_tests.predict.published import (
    AttentionPeak,
    ComparedPeak,
    PublishedPeak,
    compared,
    left_out_sources,
    outlier,
    predicted_bytes,
    published_peaks,
    small_attention_peaks,
)
from perf_tests.records.columns import table

TABLE_OF_TEN = "kbjiang/cs336-assignment2-systems-mine"
CARD_OF_TABLE = "A100-SXM-80GB"
"""Inferred from its kernels and from more than 67 GB in use."""

MOST_EXPLAINED = 0.02
"""A cell further off than this has a recorded condition that explains it."""


def published_memory() -> dict[str, float]:
    """Print predicted peaks beside published ones; how far off they are."""
    cells = published_peaks()
    ours = [cell for cell in cells if TABLE_OF_TEN in cell.source]
    filled = compared(cell for cell in ours if cell.bytes is not None)
    print_compared(f"{ours[0].source}, GB of 1e9 bytes", filled)
    room = room_on(gpu_named(CARD_OF_TABLE))
    empty = [(cell, predicted_bytes(cell)) for cell in ours if cell.bytes is None]
    print_empty(empty, room)
    others = compared(cell for cell in cells if cell.bytes is not None and TABLE_OF_TEN not in cell.source)
    print_compared("\nother sources, GB of 1e9 bytes", others)
    beyond = [cell for cell in others if abs(cell.error_of_stated) > MOST_EXPLAINED or outlier(cell.cell) is not None]
    print(f"\n{len(beyond)} cells beyond {MOST_EXPLAINED:.0%} or known to be off:")
    unexplained = sum(not print_explained(cell) for cell in beyond)
    steps = [cell for cell in (*filled, *others) if cell.cell.is_step]
    alone = small_attention_peaks()
    print_attention(alone)
    for source, reason in left_out_sources():
        print(f"left out: {source}: {reason}")
    without, with_them = median_errors(alone)
    return {
        "table of ten, worst cell": max(abs(cell.error) for cell in filled),
        "its empty cells that would fit": sum(room.verdict(needed) == FITS for _, needed in empty),
        "other cells, median error": median(abs(cell.error) for cell in others),
        "cells without a condition": unexplained,
        # What the printed digits can stand for: whole GB state no more than whole GB.
        "full steps of a stated order, worst": max(abs(cell.error_of_stated) for cell in steps),
        "small peaks of attention, median error": with_them,
        "the same without cuBLAS's workspaces": without,
        "worst small peak": max(abs(cell.error_with) for cell in alone),
    }


def print_compared(title: str, cells: Sequence[ComparedPeak]) -> None:
    print(title)
    rows = [
        (c.cell.name, f"{(c.cell.bytes or 0) / 1e9:.2f}", f"{c.predicted_bytes / 1e9:.2f}", f"{c.error:+.2%}")
        for c in cells
    ]
    print("\n".join(table(("cell", "published", "predicted", "error"), rows)))


def print_empty(empty: Sequence[tuple[PublishedPeak, int]], room: Room) -> None:
    print(f"\nempty cells; a card of 80 GiB has room for {room.bytes / 1e9:.1f} GB: {room.explanation}")
    for cell, needed in empty:
        with_waste = room.bytes_for(needed) / 1e9
        print(f"{cell.name}: {needed / 1e9:.1f} GB, with fragmentation {with_waste:.1f} GB: {room.verdict(needed)}")
    print()


def print_attention(cells: Sequence[AttentionPeak]) -> None:
    """Small peaks, of which workspaces are up to nine tenths."""
    groups: dict[tuple[str, str, int], list[AttentionPeak]] = defaultdict(list)
    for cell in cells:
        groups[cell.source.partition(":")[0], cell.gpu, cell.sequence_length].append(cell)
    rows = [
        (*(str(part) for part in group), str(len(found)), *(f"{error:.1%}" for error in median_errors(found)))
        for group, found in groups.items()
    ]
    header = ("attention alone", "GPU", "sequence", "cells", "median error without workspaces", "with them")
    print("\n".join(table(header, rows)))


def median_errors(cells: Sequence[AttentionPeak]) -> tuple[float, float]:
    """Without workspaces, and with them."""
    return median(abs(cell.error_without) for cell in cells), median(abs(cell.error_with) for cell in cells)


def print_explained(cell: ComparedPeak) -> bool:
    """Print what is known of one cell; whether it explains the difference."""
    known = outlier(cell.cell)
    if known is None:
        print(f"{cell.cell.name}, {cell.error:+.1%}: not explained")
        return False
    line = f"{cell.cell.name}, {cell.error:+.1%}: {known.condition}"
    if known.meant_context is not None:
        print(f"{line}; predicted at context {known.meant_context}")
        return abs(cell.error) <= MOST_EXPLAINED
    if known.recorded_bytes is None:
        print(line)
        return True
    error = cell.predicted_bytes / known.recorded_bytes - 1
    print(f"{line}; of the {known.recorded_bytes / 1e9:.2f} GB recorded there the prediction is {error:+.1%}")
    return abs(error) <= MOST_EXPLAINED
