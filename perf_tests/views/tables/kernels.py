"""Where the device time of a traced case goes, as tables: its kernels, their kinds, one attention layer by part."""

from collections.abc import Callable, Sequence

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH
from perf_tests.views.tables.cells import Cell, finite
from perf_tests.views.tables.digits import count_in, figure_in, percent_in, with_spread
from perf_tests.views.tables.pass_cells import LABELS, inside, labels_of, lost_lines, lost_row, rows_in
from perf_tests.views.tables.timing import Table

TOP_KERNELS = 10
NAME_CHARACTERS = 100
"""Of a kernel's name; names of C++ templates run to thousands."""

TRACED_NOTE = "traced under a profiler, after the timings: shares are meant, times are longer than measured ones"


def kernel_table(passes: Sequence[Cell]) -> Table | None:
    """The kernels that take most, for each traced case."""
    rows = tuple(
        (*labels_of(cell), *_kernel(row))
        for cell in passes
        for row in list(rows_in(cell.info, "kernels"))[:TOP_KERNELS]
    )
    header = (*LABELS, "Kernel", "calls", "total (ms)", "mean (us)", "of kernel time (%)")
    title = f"Kernels that take most, up to {TOP_KERNELS} of a case"
    return Table("kernels", title, header, len(LABELS) + 1, rows, (TRACED_NOTE,)).or_none()


def _kernel(row: Json) -> tuple[str, ...]:
    mean, spread = finite(row.get("mean_seconds")), finite(row.get("stddev_seconds"))
    return (
        str(row.get("name"))[:NAME_CHARACTERS],
        count_in(row, "calls"),
        figure_in(row, "total_seconds", 1e3),
        DASH if mean is None else with_spread(mean * 1e6, spread and spread * 1e6),
        percent_in(row, "share"),
    )


def share_table(passes: Sequence[Cell]) -> Table | None:
    """Launches, busy share, products against everything, softmax against products; or why a case was not traced."""
    header = (*LABELS, "launches", "kernels (ms)", "device busy (%)", "products of kernel time (%)",
              "softmax / products, forward", "softmax / products, backward")  # fmt: skip
    rows = tuple(
        lost_row(cell, len(header)) if cell.outcome else (*labels_of(cell), *_shares(cell.info)) for cell in passes
    )
    notes = (TRACED_NOTE, *lost_lines(passes))
    return Table("kernel_shares", "Launches, and what products take", header, len(LABELS), rows, notes).or_none()


def _shares(values: Json) -> tuple[str, ...]:
    return (
        count_in(values, "launches"),
        figure_in(values, "kernel_seconds", 1e3),
        percent_in(values, "busy_share"),
        percent_in(inside(values, "matrix_products"), "share_of_kernel_time"),
        *(figure_in(inside(values, "attention", way), "softmax_over_products_time") for way in ("forward", "backward")),
    )


def attention_part_table(passes: Sequence[Cell]) -> Table | None:
    """One attention layer part by part: what the device takes, and the host to send it there."""
    rows = tuple(
        (*labels_of(cell), way, str(part.get("part")), count_in(part, "launches"),
         figure_in(part, "device_seconds", 1e6), figure_in(part, "host_seconds", 1e6),
         figure_in(part, "flops", 1e-6), figure_in(part, "bytes", 1e-6), str(part.get("bound") or DASH))
        for cell in passes
        for way in ("forward", "backward")
        for part in rows_in(cell.info, "attention", way, "parts")
    )  # fmt: skip
    header = (*LABELS, "Direction", "Part", "launches", "device (us)", "host (us)", "MFLOP", "MB", "bound by")
    title = "One attention layer by part"
    return Table("attention_parts", title, header, len(LABELS) + 2, rows, (TRACED_NOTE,)).or_none()


KERNEL_TABLES: tuple[Callable[[Sequence[Cell]], Table | None], ...] = (share_table, kernel_table, attention_part_table)
