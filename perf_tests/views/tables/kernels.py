"""Where the device time of a traced case goes, as tables: its kernels, launches and shares, one attention layer."""

from collections.abc import Sequence

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, Columns
from perf_tests.views.tables.cells import Cell, inside, lost_lines, rows_in
from perf_tests.views.tables.digits import count_in, figure_in, mean_in, percent_in
from perf_tests.views.tables.table import Table, pass_table

TOP_KERNELS = 10
NAME_CHARACTERS = 100
"""Of a kernel's name; names of C++ templates have thousands."""
TRACED_NOTE = "traced under a profiler after the timings: use the shares; times include the profiler's overhead"
WAYS = ("forward", "backward")

KERNEL: Columns[Json] = {
    "Kernel": lambda row: str(row.get("name"))[:NAME_CHARACTERS],
    "calls": lambda row: count_in(row, "calls"),
    "total (ms)": lambda row: figure_in(row, "total_seconds", 1e3),
    "mean (us)": lambda row: mean_in(row, "stddev_seconds", 1e6),
    "of kernel time (%)": lambda row: percent_in(row, "share"),
}
SHARES: Columns[Json] = {
    "launches": lambda row: count_in(row, "launches"),
    "kernels (ms)": lambda row: figure_in(row, "kernel_seconds", 1e3),
    "device busy (%)": lambda row: percent_in(row, "busy_share"),
    "products of kernel time (%)": lambda row: percent_in(inside(row, "matrix_products"), "share_of_kernel_time"),
    "softmax / products, forward": lambda row: _softmax_over_products(row, "forward"),
    "softmax / products, backward": lambda row: _softmax_over_products(row, "backward"),
}
ATTENTION_PART: Columns[Json] = {
    "Direction": lambda row: str(row["way"]),
    "Part": lambda row: str(row.get("part")),
    "launches": lambda row: count_in(row, "launches"),
    "device (us)": lambda row: figure_in(row, "device_seconds", 1e6),
    "host (us)": lambda row: figure_in(row, "host_seconds", 1e6),
    "MFLOP": lambda row: figure_in(row, "flops", 1e-6),
    "MB": lambda row: figure_in(row, "bytes", 1e-6),
    "bound by": lambda row: str(row.get("bound") or DASH),
}


def kernel_table(cells: Sequence[Cell]) -> Table | None:
    title = f"Kernels that take most, up to {TOP_KERNELS} of a case"
    rows = [(cell, row) for cell in cells for row in list(rows_in(cell.info, "kernels"))[:TOP_KERNELS]]
    return pass_table("kernels", title, KERNEL, rows, [TRACED_NOTE], words=1)


def share_table(cells: Sequence[Cell]) -> Table | None:
    """Launches, busy share, matrix products against everything, softmax against products."""
    rows = [(cell, cell.info) for cell in cells]
    notes = (TRACED_NOTE, *lost_lines(cells))
    return pass_table("kernel_shares", "Launches and matrix-product share", SHARES, rows, notes)


def attention_part_table(cells: Sequence[Cell]) -> Table | None:
    rows = [
        (cell, {"way": way, **part})
        for cell in cells
        for way in WAYS
        for part in rows_in(cell.info, "attention", way, "parts")
    ]
    return pass_table("attention_parts", "One attention layer by part", ATTENTION_PART, rows, [TRACED_NOTE], words=2)


def _softmax_over_products(row: Json, way: str) -> str:
    return figure_in(inside(row, "attention", way), "softmax_over_products_time")


KERNEL_TABLES = (share_table, kernel_table, attention_part_table)
