"""Rows of several ranks in a terminal: which rank was slowest, what the exchange adds, what each part of it sends."""

from collections.abc import Sequence
from statistics import median

from perf_tests.records.record import Json
from perf_tests.records.scaling import Scaling, scalings
from perf_tests.views.screens.lines import DASH, Columns, case_name, column_table, duration, duration_range

NOTE = (
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
    return [*column_table(columns, shared), NOTE]


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
