"""A memory pass in a terminal: peaks beside their prediction, saved bytes, the largest blocks, attention's growth."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from perf_tests.audit.row_flags import FLAGS
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, Columns, case_name, column_table, shown
from perf_tests.views.tables.attention_memory_fit import Fit, attention_fits

LARGEST_SHOWN = 3

SUMMARY: Columns[Json] = {
    "case, MB": lambda row: _name(row),
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


def summary_lines(passes: Sequence[Json]) -> list[str]:
    """One row for each case in MB of 10^6 bytes, then its parts."""
    lines = column_table(SUMMARY, passes)
    reasons = Counter(row["values"]["prediction_reason"] for row in passes if row["values"]["prediction_reason"])
    lines += [f"{count} without a prediction: {reason}" for reason, count in reasons.items()]
    lines += _saved_lines(passes) + _largest_lines(passes)
    fits = attention_fits(passes)
    if fits:
        lines += column_table(FIT, fits)
        lines += ["k L^2 + c L d: L tokens, d the head width; k T x T matrices, c tensors like an input"]
    folders = sorted({row["values"]["snapshot"].partition("/")[0] for row in passes if row["values"].get("snapshot")})
    lines += [f"snapshots for pytorch.org/memory_viz: {folder}, beside the record" for folder in folders]
    lines += [
        f"{_name(row)}: {row['values']['snapshot_reason']}" for row in passes if row["values"].get("snapshot_reason")
    ]
    flagged: dict[str, list[str]] = defaultdict(list)
    for row in passes:
        for flag in row["values"]["flags"]:
            flagged[flag].append(_name(row))
    return lines + [f"{FLAGS[flag].sentence}: {', '.join(names)}" for flag, names in flagged.items()]


def _name(row: Json) -> str:
    return case_name(row["id"]).removeprefix("memory_of_")


def _mark(row: Json, name: str) -> int | None:
    return next((mark["allocated_bytes"] for mark in row["values"]["marks"] if mark["name"] == name), None)


def megabytes(count: int | None) -> str:
    """In MB of 10^6 bytes, at least four digits."""
    if count is None:
        return DASH
    return f"{count / 1e6:,.1f}" if count >= 1e8 else f"{count / 1e6:.4g}"


def _saved_lines(passes: Sequence[Json]) -> list[str]:
    """What one block saves, by part: one line for all cases whose blocks save the same."""
    shown: dict[tuple[tuple[str, int], ...], str] = {}
    for row in passes:
        saved = _one_block(row["values"]["saved_bytes_by_part"])
        if saved:
            shown.setdefault(tuple(saved.items()), case_name(row["id"]).partition(" ")[2])
    return [
        f"saved for the backward pass by a block of {name}: {megabytes(sum(dict(saved).values()))} MB: "
        + ", ".join(f"{part} {megabytes(count)}" for part, count in sorted(saved, key=lambda item: -item[1]))
        for saved, name in shown.items()
    ]


def _one_block(parts: Sequence[Json]) -> dict[str, int]:
    """Bytes by part of the first block; all blocks of a model save the same."""
    first = next((part["block"] for part in parts if part["block"] is not None), None)
    return {part["part"]: part["saved_bytes"] for part in parts if part["block"] == first} if first else {}


def _largest_lines(passes: Sequence[Json]) -> list[str]:
    if not passes:
        return []
    row = max(passes, key=lambda row: row["values"]["peak_allocated_bytes"])
    largest = [
        f"{made['count']} x {megabytes(made['bytes'])} MB at {made['line'] or 'no line of the model'} "
        f"({made['category']})"
        for made in row["values"]["largest_allocations"][:LARGEST_SHOWN]
    ]
    return [f"largest blocks of {_name(row)}: {'; '.join(largest)}"]
