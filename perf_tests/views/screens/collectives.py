"""Collectives alone in a terminal: each message with its bandwidths, then the latency and rate fitted to them."""

from collections.abc import Sequence

from perf_tests.identity import is_collective
from perf_tests.records.links import CollectiveLink, links_of, without_link
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, Columns, case_name, column_table, duration

NOTE = "algorithm: bytes of the message over the median; bus: the same of what a rank must send for it (nccl-tests)"
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
    lines = [*column_table(columns, alone), NOTE]
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
