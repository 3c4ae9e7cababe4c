"""A memory pass as a person reads it: peaks beside their prediction, then what waits for the backward pass, and what
the largest blocks are; for attention alone, how it grows."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from perf_tests.audit.row_flags import FLAGS
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, case_name, shown, table
from perf_tests.views.tables.attention_memory_fit import attention_fits

LARGEST_SHOWN = 3


def summary_lines(passes: Sequence[Json]) -> list[str]:
    """One row for each case in MB of 10^6 bytes, and below it where that goes."""
    header = (
        "case, MB", "peak", "reserved", "predicted", "difference", "before backward", "before optimizer",
        "after optimizer",
    )  # fmt: skip
    lines = table(header, [_summary_row(row) for row in passes])
    lines += _reason_lines(passes)
    lines += _saved_lines(passes)
    lines += _largest_lines(passes)
    lines += _fit_lines(passes)
    folders = sorted({row["values"]["snapshot"].partition("/")[0] for row in passes if row["values"].get("snapshot")})
    lines += [f"snapshots for pytorch.org/memory_viz: {folder}, beside the record" for folder in folders]
    lines += [
        f"{_name(row)}: {row['values']['snapshot_reason']}" for row in passes if row["values"].get("snapshot_reason")
    ]
    return [*lines, *_flag_lines(passes)]


def _flag_lines(passes: Sequence[Json]) -> list[str]:
    """Each flag once, with its cases."""
    cases: dict[str, list[str]] = defaultdict(list)
    for row in passes:
        for flag in row["values"]["flags"]:
            cases[flag].append(_name(row))
    return [f"{FLAGS[flag].sentence}: {', '.join(names)}" for flag, names in cases.items()]


def _name(row: Json) -> str:
    """The case, without what every row of this pass begins with."""
    return case_name(row["id"]).removeprefix("memory_of_")


def _summary_row(row: Json) -> tuple[str, ...]:
    values = row["values"]
    marks = {mark["name"]: mark["allocated_bytes"] for mark in values["marks"]}
    before_backward = values.get("memory_before_backward_bytes", marks.get("before backward"))
    return (
        _name(row),
        megabytes(values["peak_allocated_bytes"]),
        megabytes(values["peak_reserved_bytes"]),
        megabytes(values["predicted_peak_bytes"]),
        shown(values["prediction_error"], "+.3%"),
        megabytes(before_backward),
        megabytes(marks.get("before optimizer")),
        megabytes(marks.get("after optimizer")),
    )


def megabytes(count: int | None) -> str:
    """Of 10^6 bytes, as storage is sold; four digits at least."""
    if count is None:
        return DASH
    return f"{count / 1e6:,.1f}" if count >= 1e8 else f"{count / 1e6:.4g}"


def _reason_lines(passes: Sequence[Json]) -> list[str]:
    reasons = Counter(row["values"]["prediction_reason"] for row in passes if row["values"]["prediction_reason"])
    return [f"{count} without a prediction: {reason}" for reason, count in reasons.items()]


def _saved_lines(passes: Sequence[Json]) -> list[str]:
    """For each kind of case with blocks, once: what one of its blocks saves, part by part."""
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
    """Bytes by part of the first block; those of one model are alike."""
    first = next((part["block"] for part in parts if part["block"] is not None), None)
    return {part["part"]: part["saved_bytes"] for part in parts if part["block"] == first} if first else {}


def _largest_lines(passes: Sequence[Json]) -> list[str]:
    """The largest blocks of the case with the highest peak."""
    if not passes:
        return []
    row = max(passes, key=lambda row: row["values"]["peak_allocated_bytes"])
    largest = [
        f"{made['count']} x {megabytes(made['bytes'])} MB at {made['line'] or 'no line of the model'} "
        f"({made['category']})"
        for made in row["values"]["largest_allocations"][:LARGEST_SHOWN]
    ]
    return [f"largest blocks of {_name(row)}: {'; '.join(largest)}"]


def _fit_lines(passes: Sequence[Json]) -> list[str]:
    fits = attention_fits(passes)
    if not fits:
        return []
    header = ("attention alone, float32 numbers for each of the batch", "k", "c", "remainder", "cells")
    rows = [
        (f"{fit.implementation} {fit.precision}, {fit.quantity}", f"{fit.squares}", f"{fit.tensors:.2f}",
         f"{fit.worst_remainder:.1%}", f"{fit.cells}")
        for fit in fits
    ]  # fmt: skip
    return [
        *table(header, rows),
        "k L^2 + c L d: L tokens, d the head width; k T x T matrices, c tensors like an input",
    ]
