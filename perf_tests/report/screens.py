"""What a run prints at its end: its results, and the rows of each extra pass.

Plain lines, pure functions of the data.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from perf_tests.audit.rounds import FLAGS, inconsistencies, product_shares_that_do_not_fall
from perf_tests.phases import is_collective
from perf_tests.records.columns import case_name
from perf_tests.records.format import DASH, Columns, column_table, duration, shown
from perf_tests.records.record import OUTCOMES, Json
from perf_tests.report.tables import Fit, attention_fits
from perf_tests.traces.kernels import STEADY

WIDTH = 120
"""Characters per line of the table of results."""

RESULTS: Columns[Json] = {
    "case": lambda row: case_name(row["fullname"]),
    "median": lambda row: duration(row["stats"]["median"]),
    "spread": lambda row: f"{row['stats']['iqr'] / row['stats']['median']:.1%}",
    "tokens/s": lambda row: _rounded_rate(row["extra_info"].get("tokens_per_second")),
    "TFLOP/s": lambda row: _rounded_rate(row["extra_info"].get("tflops_per_second")),
    "of ceiling": lambda row: shown(row["extra_info"].get("share_of_matmul_ceiling"), ".0%"),
    "bound": lambda row: row["extra_info"].get("bound") or DASH,
    "roofline": lambda row: shown(row["extra_info"].get("roofline_fraction"), ".0%"),
}
DROPPED_FIRST = ("of ceiling", "tokens/s", "TFLOP/s")
"""Columns that go first where names of cases are long: the roofline and the median say nearly the same."""
RESULT_NOTES = {
    "spread": "spread: interquartile range over median",
    "of ceiling": "ceiling: the best square product in this precision here",
    "roofline": "roofline: least time of its kernels here over median",
}


def result_lines(record: Json) -> list[str]:
    """One row for each case that computes: median, spread, throughput; then flags, and cases without a timing.

    The table is at most `WIDTH` characters wide while a column can be dropped; what bounds a case is shown where it is
    known.
    """
    lines: list[str] = []
    rows = [row for row in record["benchmarks"] if not is_collective(row["extra_info"])]
    if rows:
        unknown = {"bound", "roofline"} if all(row["extra_info"].get("bound") is None for row in rows) else set()
        columns = {name: cell for name, cell in RESULTS.items() if name not in unknown}
        for name in DROPPED_FIRST:
            if len(column_table(columns, rows)[0]) > WIDTH:
                del columns[name]
        notes = (note for name, note in RESULT_NOTES.items() if name in columns)
        lines += [*column_table(columns, rows), "; ".join(notes)]
    for row in record["benchmarks"]:
        for flag in row["extra_info"].get("flags", ()):
            rounds = row["extra_info"].get("suggested_warmup_rounds") if flag == "short_warmup" else None
            advice = "" if rounds is None else f"; set --warmup-rounds {rounds}"
            lines.append(f"{case_name(row['fullname'])}: {FLAGS[flag].sentence}{advice}")
    for row in record["outcomes"]:
        kept = f" ({len(row['rounds'])} rounds kept)" if row.get("rounds") else ""
        lines.append(f"{case_name(row['id'])}: {OUTCOMES[row['outcome']]}: {row['reason']}{kept}")
    return lines


def _rounded_rate(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def time_line(seconds: dict[str, float]) -> str:
    """Shares of what the time of a run went to."""
    total = seconds["total"] or 1.0
    counting, passes, sharing = (seconds.get(kind, 0.0) for kind in ("counting", "passes", "communication"))
    rest = total - seconds["rounds"] - seconds["building"] - counting - passes - sharing
    extra = f"{passes / total:.0%} in extra passes, " if passes else ""
    extra += f"{sharing / total:.0%} in rounds that show what communication costs, " if sharing else ""
    return (
        f"{total:.0f} s: {seconds['rounds'] / total:.0%} in warm-up and measured rounds with their set-up "
        f"({seconds['compiling'] / total:.0%} of all in first calls that compile), "
        f"{seconds['building'] / total:.0%} building models, {counting / total:.0%} counting and ceilings, {extra}"
        f"{rest / total:.0%} start, checks and clean-up"
    )


def pass_lines(record: Json) -> dict[str, list[str]]:
    """The lines of each extra pass that has rows, by its name."""
    rows = {name: [row for row in record.get("passes", []) if row["pass"] == name] for name in PASS_LINES}
    return {name: PASS_LINES[name](of_pass) for name, of_pass in rows.items() if of_pass}


# The kernel pass: one row for each traced case, then the inconsistencies.


KERNEL_SUMMARY: Columns[Json] = {
    "case": lambda row: case_name(row["id"]),
    "launches": lambda row: f"{row['values']['launches']}",
    "products": lambda row: f"{row['values']['matrix_products']['count']}",
    "share of kernel time": lambda row: f"{row['values']['matrix_products']['share_of_kernel_time']:.1%}",
    "busy": lambda row: shown(row["values"]["busy_share"], ".1%"),
    "softmax / products": lambda row: _softmax_over_products(row["values"]["attention"] or {}),
    "wall, not traced": lambda row: duration(row["values"]["plain_wall_seconds"]),
}


def kernel_summary_lines(passes: Sequence[Json]) -> list[str]:
    """A row for each traced case, where the traces lie, and what does not fit together."""
    lines = column_table(KERNEL_SUMMARY, passes)
    lines += ["share: of the matrix products; softmax / products: times in a layer's attention, forward, backward"]
    folders = sorted({row["values"]["trace"].partition("/")[0] for row in passes if row["values"].get("trace")})
    lines += [f"traces for ui.perfetto.dev: {folder}, beside the record" for folder in folders]
    for row in passes:
        sentences = [*missing_parts(row["values"]), *inconsistencies(row["values"])]
        lines += [f"{case_name(row['id'])}: {sentence}" for sentence in sentences]
    return lines + product_shares_that_do_not_fall(passes)


def _softmax_over_products(attention: Json) -> str:
    ratios = [direction["softmax_over_products_time"] for direction in attention.values() if direction]
    return ", ".join(shown(ratio, ".2f") for ratio in ratios) or DASH


def missing_parts(values: Json) -> list[str]:
    """Why there is no trace file, and what the trace lacks."""
    return [values[name] for name in ("trace_reason", "left_out") if values.get(name)]


# The memory pass: peaks beside their prediction, saved bytes, the largest blocks, attention's growth.
# In MB of 10^6 bytes.


LARGEST_SHOWN = 3

MEMORY_SUMMARY: Columns[Json] = {
    "case, MB": lambda row: _memory_name(row),
    "peak": lambda row: megabytes(row["values"]["peak_allocated_bytes"]),
    "reserved": lambda row: megabytes(row["values"]["peak_reserved_bytes"]),
    "predicted": lambda row: megabytes(row["values"]["predicted_peak_bytes"]),
    "difference": lambda row: shown(row["values"]["prediction_error"], "+.3%"),
    "before backward": lambda row: megabytes(
        row["values"].get("memory_before_backward_bytes", _mark(row, "before backward"))
    ),
    "before optimizer": lambda row: megabytes(_mark(row, "before optimizer")),
    "after optimizer": lambda row: megabytes(_mark(row, "after optimizer")),
}
FIT: Columns[Fit] = {
    "attention alone, float32 numbers for each of the batch": lambda fit: (
        f"{fit.implementation} {fit.precision}, {fit.quantity}"
    ),
    "k": lambda fit: f"{fit.squares}",
    "c": lambda fit: f"{fit.tensors:.2f}",
    "remainder": lambda fit: f"{fit.worst_remainder:.1%}",
    "cells": lambda fit: f"{fit.cells}",
}


def memory_summary_lines(passes: Sequence[Json]) -> list[str]:
    """One row for each case, at least one, then its parts and what is to be said of it."""
    lines = column_table(MEMORY_SUMMARY, passes)
    reasons = Counter(row["values"]["prediction_reason"] for row in passes if row["values"]["prediction_reason"])
    lines += [f"{count} without a prediction: {reason}" for reason, count in reasons.items()]
    lines += _saved_lines(passes)
    highest = max(passes, key=lambda row: row["values"]["peak_allocated_bytes"])
    blocks = [
        f"{made['count']} x {megabytes(made['bytes'])} MB at {made['line'] or 'no line of the model'} "
        f"({made['category']})"
        for made in highest["values"]["largest_allocations"][:LARGEST_SHOWN]
    ]
    lines.append(f"largest blocks of {_memory_name(highest)}: {'; '.join(blocks)}")
    if fits := attention_fits(passes):
        lines += column_table(FIT, fits)
        lines += ["k L^2 + c L d: L tokens, d the head width; k T x T matrices, c tensors like an input"]
    folders = sorted({row["values"]["snapshot"].partition("/")[0] for row in passes if row["values"].get("snapshot")})
    lines += [f"snapshots for pytorch.org/memory_viz: {folder}, beside the record" for folder in folders]
    lines += [
        f"{_memory_name(row)}: {row['values']['snapshot_reason']}"
        for row in passes
        if row["values"].get("snapshot_reason")
    ]
    flagged: dict[str, list[str]] = defaultdict(list)
    for row in passes:
        for flag in row["values"]["flags"]:
            flagged[flag].append(_memory_name(row))
    return lines + [f"{FLAGS[flag].sentence}: {', '.join(names)}" for flag, names in flagged.items()]


def _memory_name(row: Json) -> str:
    return case_name(row["id"]).removeprefix("memory_of_")


def _mark(row: Json, name: str) -> int | None:
    return next((mark["allocated_bytes"] for mark in row["values"]["marks"] if mark["name"] == name), None)


def megabytes(count: int | None) -> str:
    """Bytes in MB of 10^6, at least four digits."""
    if count is None:
        return DASH
    return f"{count / 1e6:,.1f}" if count >= 1e8 else f"{count / 1e6:.4g}"


def _saved_lines(passes: Sequence[Json]) -> list[str]:
    """What one block saves, by part: one line for all cases whose blocks save the same."""
    names: dict[tuple[tuple[str, int], ...], str] = {}
    for row in passes:
        parts = row["values"]["saved_bytes_by_part"]
        # All blocks of a model save the same, so the first one stands for them.
        first = next((part["block"] for part in parts if part["block"] is not None), None)
        saved = {part["part"]: part["saved_bytes"] for part in parts if first is not None and part["block"] == first}
        if saved:
            names.setdefault(tuple(saved.items()), case_name(row["id"]).partition(" ")[2])
    return [
        f"saved for the backward pass by a block of {name}: {megabytes(sum(dict(saved).values()))} MB: "
        + ", ".join(f"{part} {megabytes(count)}" for part, count in sorted(saved, key=lambda item: -item[1]))
        for saved, name in names.items()
    ]


# The warm-up study: one row for each case, and the recommendation for this machine.


WARMUP: Columns[Json] = {
    "case": lambda row: case_name(row["id"]),
    "first round": lambda row: duration(_after(row, 0)["seconds"][0]),
    "of it mostly": lambda row: _mostly(_after(row, 0)["first_round_parts"]),
    "mean after 0": lambda row: _mean(_after(row, 0)),
    "after 1": lambda row: _mean(_after(row, 1)),
    "after 5": lambda row: _mean(_after(row, 5)),
    "steady from": lambda row: (
        f"round {steady}" if (steady := _after(row, 0)["steady_from_round"]) is not None else DASH
    ),
    "enough": lambda row: f"{row['values']['recommended_warmup_rounds']}",
}


def warmup_lines(passes: Sequence[Json]) -> list[str]:
    """Rows, remarks on single cases, and one recommendation for the machine."""
    lines = column_table(WARMUP, passes)
    lines += [
        "one process per column; mean (relative standard deviation); steady from: first steady round without warm-up"
    ]
    for row in passes:
        values = row["values"]
        if values["flags"] or " After " in values["recommendation"]:
            lines.append(f"{case_name(row['id'])}: {values['recommendation']}")
    needed = {row["id"]: row["values"]["recommended_warmup_rounds"] for row in passes}
    most = max(needed, key=lambda case_id: needed[case_id])
    configured = max(row["values"]["configured_warmup_rounds"] for row in passes)
    judgement = "covers every case of this study" if needed[most] <= configured else "is too few"
    machine = f"for this machine: --warmup-rounds {needed[most]}, which {case_name(most)} needs"
    return [*lines, f"{machine}; {configured} {judgement}"]


def _after(row: Json, rounds: int) -> Json:
    found = (one for one in row["values"]["series"] if not one["leaves_out_timed_phase"])
    return next(one for one in found if one["warmup_rounds"] == rounds)


def _mostly(parts: Json) -> str:
    """The part that the first round grew by most, and its share of the growth."""
    grown = {name: seconds for name, seconds in parts.items() if name != STEADY and seconds > 0}
    if not grown:
        return DASH
    name = max(grown, key=lambda part: grown[part])
    return f"{name.removesuffix('_seconds').replace('_', ' ')} {grown[name] / sum(grown.values()):.0%}"


def _mean(series: Json) -> str:
    return f"{duration(series['mean_seconds'])} ({series['std_seconds'] / series['mean_seconds']:.0%})"


PASS_LINES: dict[str, Callable[[Sequence[Json]], list[str]]] = {
    "kernels": kernel_summary_lines,
    "memory": memory_summary_lines,
    "warmup": warmup_lines,
}
