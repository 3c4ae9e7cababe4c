"""A kernel pass as a person reads it: one row for each case after a run, and everything about one case."""

from collections.abc import Sequence

from perf_tests.audit.kernel_consistency import inconsistencies, product_shares_that_do_not_fall
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, case_name, duration, shown, table

NAME_WIDTH = 60
"""Characters of a kernel's name that a table shows; names of C++ templates run to thousands."""

CALLS_HEADER = ("launches", "time", "of kernels", "of wall")


def summary_lines(passes: Sequence[Json]) -> list[str]:
    """One row for each traced case, and what is wrong with any."""
    header = ("case", "launches", "products", "share of kernel time", "busy", "softmax / products", "wall, not traced")
    lines = table(header, [_summary_row(row) for row in passes])
    lines += ["share: of the matrix products; softmax / products: times within a layer's attention, forward or back"]
    folders = sorted({row["values"]["trace"].partition("/")[0] for row in passes if row["values"].get("trace")})
    lines += [f"traces for ui.perfetto.dev: {folder}, beside the record" for folder in folders]
    for row in passes:
        sentences = [*_left_out(row["values"]), *inconsistencies(row["values"])]
        lines += [f"{case_name(row['id'])}: {sentence}" for sentence in sentences]
    return lines + product_shares_that_do_not_fall(passes)


def _summary_row(row: Json) -> tuple[str, ...]:
    values = row["values"]
    products, attention = values["matrix_products"], values["attention"] or {}
    ratios = [direction["softmax_over_products_time"] for direction in attention.values() if direction]
    return (
        case_name(row["id"]),
        f"{values['launches']}",
        f"{products['count']}",
        f"{products['share_of_kernel_time']:.1%}",
        shown(values["busy_share"], ".1%"),
        ", ".join(shown(ratio, ".2f") for ratio in ratios) or DASH,
        duration(values["plain_wall_seconds"]),
    )


def _left_out(values: Json) -> list[str]:
    return [values["left_out"]] if values.get("left_out") else []


def detail_lines(values: Json) -> list[str]:
    """Every table of one pass."""
    return [
        *_head(values),
        "", *table(("kind", *CALLS_HEADER), [(row["kind"], *_shares(row)) for row in values["kinds"]]),
        "", *_kernel_table(values),
        "", *_region_table(values),
        *_memory_lines(values),
        *_gap_lines(values),
        *_attention_lines(values),
        *_left_out(values),
        *inconsistencies(values),
    ]  # fmt: skip


def _head(values: Json) -> list[str]:
    products = values["matrix_products"]
    expected = products.get("expected_count")
    return [
        f"{values['launches']:g} kernels in a round, {duration(values['kernel_seconds'])} of "
        f"{duration(values['wall_seconds'])}; device busy {values['busy_share']:.1%}",
        f"{products['count']:g} matrix products{'' if expected is None else f' of {expected} expected'}, "
        f"{products['share_of_kernel_time']:.1%} of the kernel time",
    ]


def _shares(row: Json) -> tuple[str, ...]:
    return (
        f"{row['launches']:g}",
        duration(row["seconds"]),
        f"{row['share_of_kernel_time']:.1%}",
        f"{row['share_of_wall']:.1%}",
    )


def _kernel_table(values: Json) -> list[str]:
    rows = []
    for kernel in values["kernels"]:
        rows.append((kernel["name"][:NAME_WIDTH], *_calls(kernel), f"{kernel['share']:.1%}"))
        if len(kernel["shapes"]) > 1:
            rows += [(f"  {shape['shapes']}"[:NAME_WIDTH], *_calls(shape), "") for shape in kernel["shapes"]]
    others = values["other_kernels"]
    if others["names"]:
        name = f"{others['names']} others"
        total = duration(others["total_seconds"])
        rows.append((name, f"{others['calls']:g}", total, "", "", f"{others['share']:.1%}"))
    return table(("kernel, by shapes", "calls", "total", "mean", "std", "share"), rows)


def _calls(row: Json) -> tuple[str, ...]:
    return (
        f"{row['calls']:g}", duration(row["total_seconds"]), duration(row["mean_seconds"]),
        duration(row["stddev_seconds"]),
    )  # fmt: skip


def _region_table(values: Json) -> list[str]:
    rows = [
        (
            f"{row['region']}{', going back' if row['is_backward'] else ''}",
            *_shares(row),
            f"{row['share_of_direction']:.1%}",
        )
        for row in values["regions"]
    ]
    return table(("region", *CALLS_HEADER, "of its direction"), rows) if rows else []


def _memory_lines(values: Json) -> list[str]:
    return [
        f"{row['kind']}: {row['count']:g} operations, {row['bytes']} bytes, {duration(row['seconds'])}, "
        f"{row['share_of_wall']:.1%} of wall"
        for row in values["memory_operations"]
    ]


def _gap_lines(values: Json) -> list[str]:
    names = {
        "idle_gaps": "device idle between two kernels",
        "api_gaps": "host between two calls",
        "launch_to_start": "from a launch to its kernel's start",
    }
    return [
        f"{what}: median {duration(gap['median_seconds'])}, p95 {duration(gap['p95_seconds'])}, "
        f"max {duration(gap['max_seconds'])}, {gap['count']} in {values['rounds']} rounds"
        for name, what in names.items()
        if (gap := values.get(name))
    ]


def _attention_lines(values: Json) -> list[str]:
    lines: list[str] = []
    for name, direction in (values["attention"] or {}).items():
        if direction is None:
            continue
        rows = [_part_row(row) for row in direction["parts"]]
        header = ("part", "launches", "device", "host", "MFLOP", "MB", "bound", "std over layers")
        lines += ["", f"one of {direction['layers']} attention layers, {name}", *table(header, rows)]
        lines += [
            f"softmax / products: {shown(direction['softmax_over_products_time'], '.3g')} in time, "
            f"{shown(direction['softmax_over_products_flops'], '.3g')} in FLOPs; of {duration(direction['seconds'])}, "
            f"{duration(direction['saved_without_gaps_seconds'])} idle between kernels and "
            f"{duration(direction['saved_by_fusing_seconds'])} at most saved by fusing all but the products"
        ]
    return lines


def _part_row(row: Json) -> tuple[str, ...]:
    return (
        row["part"],
        f"{row['launches']:g}",
        duration(row["device_seconds"]),
        duration(row["host_seconds"]),
        f"{row['flops'] / 1e6:.3g}",
        f"{row['bytes'] / 1e6:.3g}",
        row["bound"] or DASH,
        duration(row["spread_over_layers"]["stddev_seconds"]),
    )
