"""A kernel pass in a terminal: one row for each case after a run, and everything about one case."""

from collections.abc import Sequence

from perf_tests.audit.kernel_consistency import inconsistencies, product_shares_that_do_not_fall
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, Columns, case_name, column_table, duration, shown, table

NAME_WIDTH = 60
"""Characters shown of a kernel's name; names of C++ templates have thousands."""

SHARES: Columns[Json] = {
    "launches": lambda row: f"{row['launches']:g}",
    "time": lambda row: duration(row["seconds"]),
    "of kernels": lambda row: f"{row['share_of_kernel_time']:.1%}",
    "of wall": lambda row: f"{row['share_of_wall']:.1%}",
}
SUMMARY: Columns[Json] = {
    "case": lambda row: case_name(row["id"]),
    "launches": lambda row: f"{row['values']['launches']}",
    "products": lambda row: f"{row['values']['matrix_products']['count']}",
    "share of kernel time": lambda row: f"{row['values']['matrix_products']['share_of_kernel_time']:.1%}",
    "busy": lambda row: shown(row["values"]["busy_share"], ".1%"),
    "softmax / products": lambda row: _softmax_over_products(row["values"]["attention"] or {}),
    "wall, not traced": lambda row: duration(row["values"]["plain_wall_seconds"]),
}
REGION: Columns[Json] = {
    "region": lambda row: f"{row['region']}{', backward' if row['is_backward'] else ''}",
    **SHARES,
    "of its direction": lambda row: f"{row['share_of_direction']:.1%}",
}
ATTENTION_PART: Columns[Json] = {
    "part": lambda row: str(row["part"]),
    "launches": lambda row: f"{row['launches']:g}",
    "device": lambda row: duration(row["device_seconds"]),
    "host": lambda row: duration(row["host_seconds"]),
    "MFLOP": lambda row: f"{row['flops'] / 1e6:.3g}",
    "MB": lambda row: f"{row['bytes'] / 1e6:.3g}",
    "bound": lambda row: row["bound"] or DASH,
    "std over layers": lambda row: duration(row["spread_over_layers"]["stddev_seconds"]),
}


def summary_lines(passes: Sequence[Json]) -> list[str]:
    """One row for each traced case, then the inconsistencies."""
    lines = column_table(SUMMARY, passes)
    lines += ["share: of the matrix products; softmax / products: times in a layer's attention, forward, backward"]
    folders = sorted({row["values"]["trace"].partition("/")[0] for row in passes if row["values"].get("trace")})
    lines += [f"traces for ui.perfetto.dev: {folder}, beside the record" for folder in folders]
    for row in passes:
        sentences = [*_missing(row["values"]), *inconsistencies(row["values"])]
        lines += [f"{case_name(row['id'])}: {sentence}" for sentence in sentences]
    return lines + product_shares_that_do_not_fall(passes)


def _softmax_over_products(attention: Json) -> str:
    ratios = [direction["softmax_over_products_time"] for direction in attention.values() if direction]
    return ", ".join(shown(ratio, ".2f") for ratio in ratios) or DASH


def _missing(values: Json) -> list[str]:
    """Why there is no trace file, and what the trace lacks."""
    return [values[name] for name in ("trace_reason", "left_out") if values.get(name)]


def detail_lines(values: Json) -> list[str]:
    products = values["matrix_products"]
    expected = products.get("expected_count")
    kind: Columns[Json] = {"kind": lambda row: str(row["kind"]), **SHARES}
    return [
        f"{values['launches']:g} kernels in a round, {duration(values['kernel_seconds'])} of "
        f"{duration(values['wall_seconds'])}; device busy {values['busy_share']:.1%}",
        f"{products['count']:g} matrix products{'' if expected is None else f' of {expected} expected'}, "
        f"{products['share_of_kernel_time']:.1%} of the kernel time",
        "",
        *column_table(kind, values["kinds"]),
        "",
        *_kernel_table(values),
        "",
        *(column_table(REGION, values["regions"]) if values["regions"] else []),
        *(
            f"{row['kind']}: {row['count']:g} operations, {row['bytes']} bytes, {duration(row['seconds'])}, "
            f"{row['share_of_wall']:.1%} of wall"
            for row in values["memory_operations"]
        ),
        *_gap_lines(values),
        *_attention_lines(values),
        *_missing(values),
        *inconsistencies(values),
    ]


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
    return f"{row['calls']:g}", *(duration(row[f"{name}_seconds"]) for name in ("total", "mean", "stddev"))


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
        lines += ["", f"one of {direction['layers']} attention layers, {name}"]
        lines += column_table(ATTENTION_PART, direction["parts"])
        lines += [
            f"softmax / products: {shown(direction['softmax_over_products_time'], '.3g')} in time, "
            f"{shown(direction['softmax_over_products_flops'], '.3g')} in FLOPs; of {duration(direction['seconds'])}: "
            f"{duration(direction['saved_without_gaps_seconds'])} idle between kernels, at most "
            f"{duration(direction['saved_by_fusing_seconds'])} saved by fusing everything except the products"
        ]
    return lines
