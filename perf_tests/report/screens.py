"""Extra passes over the cases in a terminal: what prints the rows of each."""

import os
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log
from statistics import median

from perf_tests.audit.rounds import FLAGS, inconsistencies, product_shares_that_do_not_fall
from perf_tests.history.series import CounterChange, Era, Point, Series
from perf_tests.history.steps import LEAST_LAUNCHES, Step
from perf_tests.phases import is_collective
from perf_tests.records.columns import (
    DASH,
    Columns,
    case_name,
    column_table,
    duration,
    duration_range,
    machine_line,
    printable,
    shown,
    table,
)
from perf_tests.records.record import Json, how_many
from perf_tests.records.store import CollectiveLink, ComparedCase, Scaling, Status, links_of, scalings, without_link
from perf_tests.report.tables import Fit, attention_fits
from perf_tests.traces.kernels import STEADY

# Collectives alone in a terminal: each message with its bandwidths, then the latency and rate fitted to them.


COLLECTIVES_NOTE = (
    "algorithm: bytes of the message over the median; bus: the same of what a rank must send for it (nccl-tests)"
)
WITHOUT_LINK = "it takes two sizes whose times grow with the bytes; measure more or larger ones with --message-size"
LINK_NOTE = "time of a message: latency, and bytes over the rate, with 95 % intervals; error: of the size furthest off"


def collective_lines(rows: Sequence[Json]) -> list[str]:
    """Nothing without a row of a collective."""
    alone = [row for row in rows if is_collective(row["extra_info"])]
    if not alone:
        return []
    columns: Columns[Json] = {
        "case": lambda row: case_name(row["fullname"]),
        "median": lambda row: duration(row["stats"]["median"]),
        "spread": lambda row: f"{row['stats']['iqr'] / row['stats']['median']:.1%}",
        "algorithm": lambda row: _rate(row["extra_info"]["algorithm_bytes_per_second"]),
        "bus": lambda row: _rate(row["extra_info"]["bus_bytes_per_second"]),
    }
    lines = [*column_table(columns, alone), COLLECTIVES_NOTE]
    if links := links_of(alone):
        lines += [*column_table(_LINK, links), LINK_NOTE]
    if unknown := without_link(alone):
        lines.append(f"no latency and rate for {', '.join(unknown)}: {WITHOUT_LINK}")
    return lines


_LINK: Columns[CollectiveLink] = {
    "link": lambda of: f"{of.collective} world{of.world} {of.backend}",
    "latency": lambda of: duration(of.link.latency_seconds),
    "latency, 95 %": lambda of: ", ".join(map(duration, of.link.latency_interval or ())) or DASH,
    "rate": lambda of: _rate(of.link.bytes_per_second),
    "rate, 95 %": lambda of: ", ".join(map(_rate, of.link.rate_interval or ())) or DASH,
    "bus": lambda of: _rate(of.bus_bytes_per_second),
    "error": lambda of: f"{of.link.largest_error:.0%}",
}


def _rate(bytes_per_second: float | None) -> str:
    return "any" if bytes_per_second is None else f"{bytes_per_second / 1e9:.3g} GB/s"


# A warm-up study in a terminal: one row for each case, and the recommendation for this machine.


COLUMNS: Columns[Json] = {
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
    lines = column_table(COLUMNS, passes)
    lines += [
        "one process per column; mean (relative standard deviation); steady from: first steady round without warm-up"
    ]
    for row in passes:
        values = row["values"]
        if values["flags"] or " After " in values["recommendation"]:
            lines.append(f"{case_name(row['id'])}: {values['recommendation']}")
    return [*lines, warmup_machine_line(passes)]


def warmup_machine_line(passes: Sequence[Json]) -> str:
    needed = {row["id"]: row["values"]["recommended_warmup_rounds"] for row in passes}
    most = max(needed, key=lambda case_id: needed[case_id])
    configured = max(row["values"]["configured_warmup_rounds"] for row in passes)
    judgement = "covers every case of this study" if needed[most] <= configured else "is too few"
    return f"for this machine: --warmup-rounds {needed[most]}, which {case_name(most)} needs; {configured} {judgement}"


def _after(row: Json, rounds: int) -> Json:
    found = (one for one in row["values"]["series"] if not one["leaves_out_timed_phase"])
    return next(one for one in found if one["warmup_rounds"] == rounds)


def _mostly(parts: Json) -> str:
    grown = {name: seconds for name, seconds in parts.items() if name != STEADY and seconds > 0}
    if not grown:
        return DASH
    name = max(grown, key=lambda part: grown[part])
    return f"{name.removesuffix('_seconds').replace('_', ' ')} {grown[name] / sum(grown.values()):.0%}"


def _mean(series: Json) -> str:
    return f"{duration(series['mean_seconds'])} ({series['std_seconds'] / series['mean_seconds']:.0%})"


# Rows of several ranks in a terminal: which rank was slowest, what the exchange adds, what each part of it sends.


RANKS_NOTE = (
    "slowest: the rank with the highest median, against the median rank; exposed: what exchanging gradients adds to "
    "a round, with a 95 % interval from 6 rounds on; sent: by one rank in a round; efficiency: tokens/s of a rank over "
    "those in the row it is relative to"
)


def rank_lines(rows: Sequence[Json]) -> list[str]:
    """Nothing without a row of several ranks. All rows must be of one machine."""
    shared = [row for row in rows if row["extra_info"].get("parallel") is not None]
    if not shared:
        return []
    found = {row["fullname"]: scaling for row, scaling in scalings(rows)}
    columns: Columns[Json] = {
        "case": lambda row: case_name(row["fullname"]),
        "median": lambda row: duration(row["stats"]["median"]),
        "slowest": _slowest,
        "exposed": lambda row: _exposed(row["extra_info"]),
        "sent": lambda row: _sent(row["extra_info"]),
        "efficiency": lambda row: _efficiency(found.get(row["fullname"])),
        "relative to": lambda row: case_name(found[row["fullname"]].relative_to) if row["fullname"] in found else DASH,
    }
    if any(row["extra_info"].get("rank_peak_allocated_bytes") for row in shared):
        columns["peaks"] = lambda row: _peaks(row["extra_info"].get("rank_peak_allocated_bytes"))
    return [*column_table(columns, shared), RANKS_NOTE]


def message_lines(rows: Sequence[Json]) -> list[str]:
    """What each part of a step sends, counted and by its closed form; nothing where no rank sends anything."""
    sending = [
        (row, part)
        for row in rows
        for part, counted in (row["extra_info"].get("sent_by_part") or {}).items()
        if counted["sent_bytes"]
    ]
    columns: Columns[tuple[Json, str]] = {
        "case": lambda one: case_name(one[0]["fullname"]),
        "part": lambda one: one[1],
        "collectives": lambda one: _collectives(one, "sent_by_part"),
        "predicted": lambda one: _collectives(one, "predicted_sent_by_part"),
    }
    return column_table(columns, sending) if sending else []


def _collectives(one: tuple[Json, str], field: str) -> str:
    row, part = one
    by_part = row["extra_info"].get(field)
    if by_part is None:
        return DASH
    found = by_part.get(part, {"collectives": {}, "sent_bytes": 0})
    counts = [f"{count} {kind}" for kind, count in found["collectives"].items()]
    return f"{', '.join(counts) or 'none'}: {found['sent_bytes']:,} B"


def _slowest(row: Json) -> str:
    seconds = row["extra_info"].get("rank_seconds")
    if not isinstance(seconds, list) or len(seconds) < 2:
        return DASH
    medians = [median(own) for own in seconds]
    return f"rank {medians.index(max(medians))}, {max(medians) / median(medians) - 1:+.1%}"


def _exposed(info: Json) -> str:
    seconds = info.get("exposed_communication_seconds")
    if seconds is None:
        return DASH
    shown = duration(seconds) if seconds > 0 else "0 s"
    interval = info.get("exposed_communication_interval")
    if interval is None:
        return f"{shown} (few rounds)"
    return f"{shown} ({duration_range(max(interval[0], 0.0), max(interval[1], 0.0))})"


def _sent(info: Json) -> str:
    count = info.get("sent_bytes")
    return DASH if count is None else f"{count / 1e6:,.4g} MB"


def _peaks(rank_bytes: Sequence[int] | None) -> str:
    if not rank_bytes:
        return DASH
    low, high = (f"{count / 2**20:,.0f}" for count in (min(rank_bytes), max(rank_bytes)))
    return f"{high} MiB" if low == high else f"{low} to {high} MiB"


def _efficiency(scaling: Scaling | None) -> str:
    return DASH if scaling is None else f"{scaling.efficiency:.1%}"


# A memory pass in a terminal: peaks beside their prediction, saved bytes, the largest blocks, attention's growth.


LARGEST_SHOWN = 3

MEMORY_SUMMARY: Columns[Json] = {
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


def memory_summary_lines(passes: Sequence[Json]) -> list[str]:
    """One row for each case in MB of 10^6 bytes, then its parts."""
    lines = column_table(MEMORY_SUMMARY, passes)
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


# A kernel pass in a terminal: one row for each case after a run, and everything about one case.


NAME_WIDTH = 60
"""Characters shown of a kernel's name; names of C++ templates have thousands."""

SHARES: Columns[Json] = {
    "launches": lambda row: f"{row['launches']:g}",
    "time": lambda row: duration(row["seconds"]),
    "of kernels": lambda row: f"{row['share_of_kernel_time']:.1%}",
    "of wall": lambda row: f"{row['share_of_wall']:.1%}",
}
KERNEL_SUMMARY: Columns[Json] = {
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


def kernel_summary_lines(passes: Sequence[Json]) -> list[str]:
    """One row for each traced case, then the inconsistencies."""
    lines = column_table(KERNEL_SUMMARY, passes)
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


PASS_LINES: dict[str, Callable[[Sequence[Json]], list[str]]] = {
    "kernels": kernel_summary_lines,
    "memory": memory_summary_lines,
    "warmup": warmup_lines,
}


def pass_lines(record: Json) -> dict[str, list[str]]:
    rows = {name: [row for row in record.get("passes", []) if row["pass"] == name] for name in PASS_LINES}
    return {name: PASS_LINES[name](of_pass) for name, of_pass in rows.items() if of_pass}


# Two runs side by side in a terminal: lost cases first, then the slowest, then the rest.


NARROWEST, WIDEST = 80, 200
"""Characters that lines are fitted to; a narrower terminal breaks them, a wider one gains nothing."""
WIDTH_OF_A_FILE = 120
"""Without a terminal; COLUMNS in the environment overrides it."""

COMPARISON_NOTE = (
    "ratio: now / before, the interval within these launches; launches of one code differ by more, so this is no "
    "verdict: for one, `pytest perf_tests --against REV` or `python -m perf_tests gate BASE HEAD`"
)

STRIP_COLUMNS = 25
"""An odd number, so that the ratio 1 has its own column."""
LEAST_SHOWN = 0.02
"""The strip shows at least this much on either side of 1, so that noise does not look like a slowdown."""


@dataclass(frozen=True)
class ScreenLine:
    text: str
    is_red: bool = False
    """It repeats what the words say."""


class Reading(StrEnum):
    """The interval's meaning for these two launches only; slower and faster are verdicts, which they cannot give."""

    DIFFERS = "differs"
    SAME = "no difference"
    TOO_FEW = "too few rounds"


FIRST = (Status.GONE, Status.NO_LONGER, Status.INCOMPARABLE)
"""Without a ratio, before all ratios; new cases and those never measured come last."""


def reading(row: ComparedCase) -> Reading:
    if row.interval is None:
        return Reading.TOO_FEW
    return Reading.SAME if row.interval[0] <= 1 <= row.interval[1] else Reading.DIFFERS


def comparison_lines(rows: Sequence[ComparedCase], width: int) -> list[ScreenLine]:
    """A tally, the lost cases, the ratios from the worst on, and the cases that only one run has."""
    width = min(max(width, NARROWEST), WIDEST)
    lost = sorted((row for row in rows if row.status in FIRST), key=lambda row: FIRST.index(Status(row.status)))
    # Differences first; among equals, the largest first.
    measured = sorted(
        (row for row in rows if row.ratio is not None),
        key=lambda row: (list(Reading).index(reading(row)), -abs(log(row.ratio or 1.0))),
    )
    others = [row for row in rows if row.ratio is None and row.status not in FIRST]
    lines = [ScreenLine(_tally(rows))] if rows else []
    lines += [ScreenLine(_in_words(row), row.is_failure) for row in lost]
    if measured:
        lines += [*_table(measured, width), ScreenLine(COMPARISON_NOTE)]
    return lines + [ScreenLine(_in_words(row)) for row in others]


def _tally(rows: Sequence[ComparedCase]) -> str:
    counts = Counter(str(row.status if row.ratio is None else reading(row)) for row in rows)
    order = dict.fromkeys([*map(str, FIRST), *map(str, Reading), *map(str, Status)])
    said = ", ".join(f"{counts[name]} {_plural(name, counts[name])}" for name in order if counts[name])
    return f"{len(rows)} case{'' if len(rows) == 1 else 's'}: {said}"


def _plural(reading_or_status: str, count: int) -> str:
    return "differ" if reading_or_status == Reading.DIFFERS and count > 1 else reading_or_status


HEADER = ("case", "before", "now", "ratio", "95 % interval", "reading")
DROPPED = ("before", "now")
"""In a narrow terminal, in this order; the strip goes before them."""


def _table(rows: Sequence[ComparedCase], width: int) -> list[ScreenLine]:
    """Columns as far as they fit; then names lose their middle."""
    columns = {name: [name, *texts] for name, texts in zip(HEADER, zip(*map(_cells, rows), strict=True), strict=True)}
    for name in DROPPED:
        if _width(columns) > width:
            del columns[name]
    over = _width(columns) - width
    if over > 0:
        longest = max(map(len, columns["case"])) - over
        columns["case"] = [shortened(name, longest) for name in columns["case"]]
    elif width - _width(columns) >= STRIP_COLUMNS + 2:
        columns["strip"] = ["", *_strips(rows)]
    header, *cells = zip(*columns.values(), strict=True)
    return [ScreenLine(line.rstrip()) for line in table(header, cells, left=("case", "reading", ""))]


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(map(len, texts)) for texts in columns.values()) + 2 * (len(columns) - 1)


def _cells(row: ComparedCase) -> tuple[str, ...]:
    times = (duration(seconds or 0) for seconds in (row.before_seconds, row.now_seconds))
    return printable(case_name(row.id)), *times, f"{row.ratio:.3f}", interval_words(row), reading(row)


def interval_words(row: ComparedCase) -> str:
    return DASH if row.interval is None else f"{row.interval[0]:.3f} to {row.interval[1]:.3f}"


def shortened(name: str, length: int) -> str:
    """Both ends of a name: its phase and its last axes tell cases apart."""
    if len(name) <= length:
        return name
    start = max(length - 2, 0) // 2
    return f"{name[:start]}..{name[len(name) - max(length - 2 - start, 0) :]}"


def _strips(rows: Sequence[ComparedCase]) -> list[str]:
    """Each interval as a line with its ratio marked, 1 in the middle, all on one logarithmic scale."""
    ends = [end for row in rows for end in row.interval or (row.ratio or 1.0,)]
    most = max(abs(log(end)) for end in [1 + LEAST_SHOWN, *(end for end in ends if end > 0)])
    middle = STRIP_COLUMNS // 2

    def place(ratio: float) -> int:
        return middle + round(middle * log(ratio) / most) if ratio > 0 else 0

    def strip(row: ComparedCase) -> str:
        marks = [" "] * STRIP_COLUMNS
        marks[middle] = "|"
        low, high = map(place, row.interval or (row.ratio or 1.0, row.ratio or 1.0))
        for column in range(low, high + 1):
            marks[column] = "+" if column == middle else "-"
        marks[place(row.ratio or 1.0)] = "o"
        return "".join(marks)

    return list(map(strip, rows))


def _in_words(row: ComparedCase) -> str:
    seconds = row.before_seconds if row.now_seconds is None else row.now_seconds
    figure = "" if seconds is None else f" ({duration(seconds)}{' before' if row.now_seconds is None else ''})"
    return printable(f"{case_name(row.id)}: {why_without_ratio(row, figure)}")


def why_without_ratio(row: ComparedCase, figure: str = "") -> str:
    return f"{row.status}{figure}{': ' if row.explanation else ''}{row.explanation}"


def width() -> int:
    return shutil.get_terminal_size((WIDTH_OF_A_FILE, 24)).columns


def has_colours() -> bool:
    """In a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(line: ScreenLine) -> str:
    return f"\x1b[31m{line.text}\x1b[0m" if line.is_red and has_colours() else line.text


# A history in a terminal: what changed since which commit, then the counters, then what is new.


SUBJECT_WIDTH = 50


def history_lines(era: Era, named: str | None = None) -> list[str]:
    """Conditions, steps from the largest slowdown on, counters; `named` adds the commits of the cases so named."""
    lines = conditions(era)
    steps = steps_in(era)
    lines += column_table(STEP_COLUMNS, steps) if steps else ["no step in any case"]
    changes = counter_changes_in(era)
    lines += column_table(COUNTER_COLUMNS, changes) if changes else []
    for one in era.series:
        if named is not None and named in case_name(one.case):
            lines += [case_name(one.case), *_points(one)]
    return [printable(line).rstrip() for line in lines]


def steps_in(era: Era) -> list[tuple[Series, Step]]:
    """The largest slowdown first."""
    return sorted(((one, step) for one in era.series for step in one.steps), key=lambda row: -row[1].effect)


def counter_changes_in(era: Era) -> list[tuple[Series, CounterChange]]:
    return [(one, change) for one in era.series for change in one.counter_changes]


def conditions(era: Era) -> list[str]:
    """The machine, the launches, and what became of its drift."""
    launches = sum(len(code.launches) for code in era.codes)
    dates = f"{era.codes[0].date[:10]} to {era.codes[-1].date[:10]}"
    lines = [
        f"{machine_line(era.machine.record)}: {how_many(launches, 'launch')} of {how_many(len(era.codes), 'commit')}, "
        f"{dates}"
    ]
    if missing := sum(code.is_missing for code in era.codes):
        lines.append(
            f"git does not know {missing} of these commits, which have their records' dates and no subject; a shallow "
            "clone learns of its own by `git fetch --unshallow`"
        )
    if not era.has_sentinel:
        lines.append("these launches recorded no product beside their cases: drift of the machine is in the figures")
    elif era.spread_before is None or era.spread_after is None:
        lines.append("too few commits to tell whether the machine drifted")
    elif era.is_corrected:
        lines.append(
            f"drift of the machine taken out by a product timed beside each case: half of the commits lie within "
            f"{era.spread_after:.1%} of a case's median instead of {era.spread_before:.1%}"
        )
    else:
        lines.append(
            f"drift of the machine left in: a product timed beside each case does not explain it, half of the commits "
            f"lie within {era.spread_before:.1%} of a case's median, and {era.spread_after:.1%} without its drift"
        )
    return lines


def since(one: Series, step: Step) -> str:
    """`+19.4% (+18.4% to +20.5%) since 0e0e0e0e0e0e (2030-01-01), 10 launches against 14: subject`."""
    code = one.code_of(step)
    interval = f"{step.interval[0]:+.1%} to {step.interval[1]:+.1%}"
    launches = f"{how_many(step.launches_after, 'launch')} against {step.launches_before}"
    subject = f": {code.subject[:SUBJECT_WIDTH]}" if code.subject else ""
    return f"{step.effect:+.1%} ({interval}) since {code.name} ({code.date[:10]}), {launches}{subject}"


STEP_COLUMNS: Columns[tuple[Series, Step]] = {
    "case": lambda row: case_name(row[0].case),
    "change": lambda row: f"{row[1].effect:+.1%}",
    "95 % interval": lambda row: f"{row[1].interval[0]:+.1%} to {row[1].interval[1]:+.1%}",
    "since": lambda row: row[0].code_of(row[1]).name,
    "date": lambda row: row[0].code_of(row[1]).date[:10],
    "launches": lambda row: f"{row[1].launches_after} against {row[1].launches_before}",
    "subject": lambda row: row[0].code_of(row[1]).subject[:SUBJECT_WIDTH] or DASH,
}
COUNTER_COLUMNS: Columns[tuple[Series, CounterChange]] = {
    "counter": lambda row: case_name(row[0].case),
    "name": lambda row: row[1].counter,
    "before": lambda row: f"{row[1].before:,}",
    "after": lambda row: f"{row[1].after:,}",
    "since": lambda row: row[1].code.name,
    "date": lambda row: row[1].code.date[:10],
    "subject": lambda row: row[1].code.subject[:SUBJECT_WIDTH] or DASH,
}


def _points(one: Series) -> list[str]:
    starts = {step.start for step in one.steps}
    return column_table(_POINT_COLUMNS, [(point, place in starts) for place, point in enumerate(one.points)])


_POINT_COLUMNS: Columns[tuple[Point, bool]] = {
    "commit": lambda row: row[0].code.name,
    "date": lambda row: row[0].code.date[:10],
    "median": lambda row: duration(row[0].seconds),
    "95 % interval": lambda row: " to ".join(map(duration, row[0].interval)) if row[0].interval else DASH,
    "launches": lambda row: str(row[0].launches),
    "": lambda row: "step" if row[1] else "",
    "subject": lambda row: row[0].code.subject[:SUBJECT_WIDTH] or DASH,
}


def verdict_line(eras: Sequence[Era], new: Sequence[tuple[Series, Step]]) -> str:
    steps = sum(len(one.steps) for era in eras for one in era.series)
    changes = sum(len(one.counter_changes) for era in eras for one in era.series)
    said = f"history: {how_many(steps, 'step')}, {how_many(changes, 'counter change')}"
    if new:
        return f"{said}; {how_many(len(new), 'slowdown')} shown first by the newest commit's launches"
    return f"{said}; no slowdown is new with the newest commit (a step needs {LEAST_LAUNCHES} launches on either side)"


def series_json(era: Era) -> dict[str, object]:
    return {
        "machine": machine_line(era.machine.record),
        "has_sentinel": era.has_sentinel,
        "drift_taken_out": era.is_corrected,
        "spread_between_commits": era.spread_before,
        "spread_without_drift": era.spread_after,
        "commits": [
            {"name": code.name, "commit": code.commit, "date": code.date, "subject": code.subject,
             "records": [launch.name for launch in code.launches]}
            for code in era.codes
        ],
        "cases": list(map(_case_json, era.series)),
    }  # fmt: skip


def _case_json(one: Series) -> dict[str, object]:
    return {
        "case": one.case,
        "identity": dict(one.identity),
        "points": [
            {"commit": point.code.name, "median_seconds": point.seconds, "interval_seconds": point.interval,
             "launches": point.launches}
            for point in one.points
        ],
        "steps": [
            {"since": one.code_of(step).name, "effect": step.effect, "interval": step.interval,
             "launches_before": step.launches_before, "launches_after": step.launches_after}
            for step in one.steps
        ],
        "counter_changes": [_change_json(change) for change in one.counter_changes],
    }  # fmt: skip


def _change_json(change: CounterChange) -> dict[str, object]:
    return {"counter": change.counter, "before": change.before, "after": change.after, "since": change.code.name}
