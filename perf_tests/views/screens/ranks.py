"""Rows of several ranks in a terminal: which rank was slowest, what the exchange adds, how well more ranks help."""

from collections.abc import Sequence
from statistics import median

from perf_tests.records.record import Json
from perf_tests.records.scaling import Scaling, scalings
from perf_tests.views.screens.lines import DASH, Columns, case_name, column_table, duration

NOTE = (
    "slowest: the rank with the highest median, against the median rank; exposed: what exchanging gradients adds to "
    "a round; sent: by one rank in a round; efficiency: tokens/s of a rank over those in the row it is relative to"
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
    return [*column_table(columns, shared), NOTE]


def _slowest(row: Json) -> str:
    seconds = row["extra_info"].get("rank_seconds")
    if not isinstance(seconds, list) or len(seconds) < 2:
        return DASH
    medians = [median(own) for own in seconds]
    return f"rank {medians.index(max(medians))}, {max(medians) / median(medians) - 1:+.1%}"


def _exposed(info: Json) -> str:
    seconds = info.get("exposed_communication_seconds")
    return DASH if seconds is None else duration(seconds) if seconds > 0 else "0 s"


def _sent(info: Json) -> str:
    count = info.get("sent_bytes")
    return DASH if count is None else f"{count / 1e6:,.4g} MB"


def _efficiency(scaling: Scaling | None) -> str:
    return DASH if scaling is None else f"{scaling.efficiency:.1%}"
