"""Predicted times on hosts whose launches are known: one table of 48 cells, and every other synchronised eager source.

One cell for each source, phase and precision calibrates the host's launches and validates nothing; those are printed
apart from the configurations that were never used for fitting.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median

from claims.published_times import E2E, Validated, calibrated, comparable_cells
from claims.verdict import conclude
from perf_tests.records.format import table
from perf_tests.records.published import published_rows

# The whole table of one source. It names no GPU; 31.8 TFLOP/s in fp32 are beyond every card of its time but the H100.
TABLE_OF_48 = "charliesabino/cs336-assignment2"
GPU_OF_TABLE = "H100-SXM"

MEAN_ERROR_LIMIT = 0.05
MEDIAN_ERROR_LIMIT = 0.15
HELD_LIMIT = 0.8


def main() -> int:
    rows = published_rows(E2E)
    cells = comparable_cells((row for row in rows if TABLE_OF_48 in row["source"]), GPU_OF_TABLE)
    calibrating, validated = calibrated(cells)
    print(f"{TABLE_OF_48}: {len(cells)} cells; times in ms")
    print_cells("calibrates the host's launches", calibrating)
    print_cells("never used for fitting", validated)
    everything = [*calibrating, *validated]
    print(f"all {len(everything)}: {summary(everything)}; never used for fitting: {summary(validated)}\n")
    codes = [
        conclude(
            f"the {len(cells)} cells are predicted within {MEAN_ERROR_LIMIT:.0%} in the mean",
            mean(errors(everything)) <= MEAN_ERROR_LIMIT,
        )
    ]
    others = comparable_cells(row for row in rows if TABLE_OF_48 not in row["source"])
    calibrating, validated = calibrated(others)
    print(f"\nOther synchronised eager sources with a stated GPU: {len(others)} cells")
    print_hosts(calibrating, validated)
    print(f"never used for fitting, {len(validated)}: {summary(validated)}\n")
    codes.append(
        conclude(
            f"the others are predicted within {MEDIAN_ERROR_LIMIT:.0%} in the median",
            median(errors(validated)) <= MEDIAN_ERROR_LIMIT,
        )
    )
    codes.append(conclude_known_host(validated))
    return max(codes)


def errors(cells: Sequence[Validated]) -> list[float]:
    return [abs(cell.error) for cell in cells]


def summary(cells: Sequence[Validated]) -> str:
    found = errors(cells)
    return f"mean error {mean(found):.1%}, median {median(found):.1%}, largest {max(found):.1%}"


def print_cells(title: str, cells: Sequence[Validated]) -> None:
    header = (title, "measured", "predicted", "error", "bound")
    print("\n".join(table(header, [_row(cell) for cell in cells])), end="\n\n")


def _row(validated: Validated) -> tuple[str, ...]:
    cell, predicted = validated.cell, validated.predicted
    times = f"{cell.seconds * 1e3:.1f}", f"{predicted.seconds * 1e3:.1f}"
    return cell.name, *times, f"{validated.error:+.1%}", predicted.bound


def print_hosts(calibrating: Sequence[Validated], validated: Sequence[Validated]) -> None:
    by_host: dict[tuple[str, ...], list[Validated]] = defaultdict(list)
    for cell in validated:
        by_host[cell.cell.host].append(cell)
    header = ("source, GPU, phase, precision", "us a launch", "cells", "median error", "largest")
    lines = [
        (
            ", ".join([_short(cell.cell.source), *cell.cell.host[1:]]),
            f"{cell.launch_seconds * 1e6:.0f}",
            str(len(others)),
            f"{median(errors(others)):.1%}" if others else "-",
            f"{max(errors(others)):.1%}" if others else "-",
        )
        for cell in calibrating
        for others in [by_host[cell.cell.host]]
    ]
    print("\n".join(table(header, lines)))


def _short(source: str) -> str:
    """`owner/repository` and the beginning of the file."""
    return source if len(source) <= 60 else f"{source[:57]}..."


def conclude_known_host(cells: Sequence[Validated]) -> int:
    held = [cell.predicted.low_seconds <= cell.cell.seconds <= cell.predicted.high_seconds for cell in cells]
    print(f"in their range: {sum(held)} of {len(held)}")
    claim = f"on a host whose launches are known, {HELD_LIMIT:.0%} of times lie in their range"
    return conclude(claim, mean(held) >= HELD_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
