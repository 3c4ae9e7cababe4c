"""Predicted times against published ones: one table of 48 cells, and every other synchronised eager source.

One cell for each source, phase and precision calibrates the host's launches and validates nothing; those are printed
apart from the configurations that were never used for fitting.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median, quantiles

from perf_tests.limits.ceilings import BACKWARD_LAUNCH_SECONDS, LAUNCH_SECONDS
from perf_tests.limits.predicted_time import LAUNCH, UNCERTAINTY, UNCERTAINTY_ON_A_KNOWN_HOST
from perf_tests.proofs.published_times import (
    PublishedTime,
    Validated,
    calibrated,
    comparable_cells,
    launches_of,
    predicted_cell,
    published_rows,
)
from perf_tests.proofs.verdict import conclude
from perf_tests.views.screens.lines import table

# The whole table of one source. It names no GPU; 31.8 TFLOP/s in fp32 are beyond every card of its time but the H100.
TABLE_OF_48 = "charliesabino/cs336-assignment2"
GPU_OF_TABLE = "H100-SXM"

MEAN_ERROR_LIMIT = 0.05
MEDIAN_ERROR_LIMIT = 0.15


def main() -> int:
    rows = published_rows()
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
    stated = is_within_stated(validated, UNCERTAINTY_ON_A_KNOWN_HOST)
    codes.append(
        conclude("on a host whose launches are known, 80 % of errors lie within the stated uncertainty", stated)
    )
    codes.append(conclude_typical_host(others, [*calibrating, *validated]))
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


def conclude_typical_host(cells: Sequence[PublishedTime], known: Sequence[Validated]) -> int:
    """Without a cell to calibrate with: the launches of a typical host, and how far off predictions then are."""
    typical = {phase: typical_launch_seconds(known, phase) for phase in ("forward", "backward")}
    print("\nNo cell calibrated, as `python -m perf_tests predict` has it for a GPU that is not here")
    launches = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in typical.items())
    print(f"median launch of the cells that launches bound: {launches}")
    are_typical = all(
        abs(typical[phase] / assumed - 1) < 0.1
        for phase, assumed in (("forward", LAUNCH_SECONDS), ("backward", BACKWARD_LAUNCH_SECONDS))
    )
    stated = is_within_stated([predicted_cell(cell, None) for cell in cells], UNCERTAINTY)
    return conclude(
        "launches are those of a typical host, and 80 % of errors lie within the stated uncertainty",
        are_typical and stated,
    )


def typical_launch_seconds(known: Sequence[Validated], phase: str) -> float:
    """Over the cells of the phase that launches bound on a host whose launches are known."""
    bound = [cell.cell for cell in known if cell.cell.case.phase == phase and cell.predicted.bound == LAUNCH]
    return median(cell.seconds / launches_of(cell.case) for cell in bound)


def is_within_stated(cells: Sequence[Validated], stated: Mapping[str, float]) -> bool:
    """Whether 80 % of errors of each bound lie within the stated uncertainty; prints them."""
    by_bound: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        by_bound[cell.predicted.bound].append(abs(cell.error))
    limits = {bound: quantiles(found, n=5)[3] for bound, found in by_bound.items()}
    for bound, found in by_bound.items():
        within = f"80 % within {limits[bound]:.0%}, stated {stated[bound]:.0%}"
        print(f"bound by {bound}: {len(found)} cells, median error {median(found):.0%}, {within}")
    return all(limits[bound] <= stated[bound] for bound in limits)


if __name__ == "__main__":
    sys.exit(main())
