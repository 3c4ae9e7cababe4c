"""What a run of several ranks adds to its record and to its screen: their efficiency, and the links between them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from statistics import median

from perf_tests_suite.perf_tests.audit.figures import Finding, timings_of
from perf_tests_suite.perf_tests.audit.physics import judge
from perf_tests_suite.perf_tests.hardware.limits import COLLECTIVES, bus_share, fit_link
from perf_tests_suite.perf_tests.phases import is_collective
from perf_tests_suite.perf_tests.records.columns import (
    EVERY_COLUMN,
    CaseColumn,
    CaseContext,
    case_name,
    timed_cells,
)
from perf_tests_suite.perf_tests.records.format import (
    GIGABYTES_PER_SECOND,
    Column,
    column_table,
    fitting,
    text_column,
)
from perf_tests_suite.perf_tests.records.record import (
    AMOUNT,
    NUMBER,
    TEXT,
    Json,
    OrNull,
    Some,
    Value,
    collected,
    identity_of,
    misshapen,
)
from perf_tests_suite.perf_tests.report.comparison import width

# Whether rows hold what the tables below take for granted.


WORLD = Value(lambda value: isinstance(value, int) and 1 <= value <= 10**9, "a number of ranks")
SENT: Json = {"collectives": {}, "sent_bytes": AMOUNT}
BYTES_BY_PART = Value(
    lambda value: isinstance(value, dict) and not any(misshapen(part, SENT, "") for part in value.values()),
    "what each part sends",
)
POSITIVE = Value(lambda value: AMOUNT.is_right(value) and value > 0, "a number above 0")
INTERVAL = Value(
    lambda value: isinstance(value, list) and [*map(NUMBER.is_right, value)] == [True, True], "a list of two numbers"
)
SHARED = {
    "world": WORLD, "tokens_per_second?": OrNull(AMOUNT), "sent_bytes?": OrNull(AMOUNT),
    "rank_seconds?": OrNull([Some(POSITIVE)]),
    "exposed_communication_seconds?": OrNull(NUMBER), "exposed_communication_interval?": OrNull(INTERVAL),
    "rank_peak_allocated_bytes?": OrNull([AMOUNT]), "sent_by_part?": OrNull(BYTES_BY_PART),
    "predicted_sent_by_part?": OrNull(BYTES_BY_PART),
}  # fmt: skip
OTHER = {"world?": OrNull(WORLD), "tokens_per_second?": OrNull(AMOUNT)}
ALONE = {
    "collective": Value(lambda value: value in COLLECTIVES, "a collective"), "world": WORLD, "backend": TEXT,
    "exchanged_bytes": AMOUNT, "algorithm_bytes_per_second": AMOUNT, "bus_bytes_per_second": AMOUNT,
}  # fmt: skip
"""What rows of several ranks, any others and those of a collective alone must hold; they may come from strangers."""


def why_damaged(rows: Sequence[Json]) -> str | None:
    """What is wrong with the first row that no suite wrote; None where all can be shown."""
    for row in rows:
        info = row["extra_info"]
        shape: Json = ALONE if is_collective(info) else SHARED if info.get("parallel") is not None else OTHER
        if wrong := misshapen(info, shape, "its row"):
            return f"{case_name(row['fullname'])} is damaged: {wrong}"
    return None


# Scaling efficiency: tokens per second and rank, over those of a row with fewer ranks or of one device.


OF_THE_WAY = {"parallel", "bucket_bytes", "reshard", "reduce_dtype", "backend"}
OF_THE_NUMBER = {"world", "nodes", "mesh", "scaling", "global_batch_size", "per_rank_batch_size"}

RANKS_NOTE = (
    "slowest: the rank with the highest median, against the median rank; exposed: what exchanging gradients adds to "
    "a round, with a 95 % interval from 6 rounds on; sent: by one rank in a round; efficiency: tokens/s of a rank over "
    "those in the row it is relative to"
)


NOISE, MOST_EFFICIENT = " (!)", 1.05
"""The mark of a figure that only noise can explain; ranks may be a little faster where caches hold their shares."""
NOISE_NOTE = (
    "(!) noise, no figure: a part of a round is not longer than the round, and a rank does not do more than the one "
    "it is relative to; measure again on a quiet machine"
)


def scalings(rows: Sequence[Json]) -> Iterator[tuple[Json, float, str]]:
    """Each row of several ranks that has a row to be relative to: its efficiency, and that row's node id.

    The efficiency is 1 where each rank does as much in a second as there. All rows must be of one machine.
    """
    for row in rows:
        # The same way on one rank, else one device, else the same way and scaling on the fewest ranks.
        identity, ways = identity_of(row), list[tuple[int, int, Json]]()
        for other in rows if identity.get("parallel") is not None else ():
            there = identity_of(other)
            world = there.get("world") or 1
            differ = {name for name, value in identity.items() if there.get(name) != value} - OF_THE_NUMBER
            if differ - OF_THE_WAY or _rate_of_a_rank(other) == 0.0:
                continue
            if there.get("parallel") is None:
                ways.append((1, world, other))
                continue
            is_like = world == 1 or there.get("scaling") == identity.get("scaling")
            if is_like and world < identity["world"] and not differ:
                ways.append((0 if world == 1 else 2, world, other))
        if ways:
            base = min(ways, key=lambda way: way[:2])[2]
            yield row, _rate_of_a_rank(row) / _rate_of_a_rank(base), base["fullname"]


def _rate_of_a_rank(row: Json) -> float:
    info = row["extra_info"]
    rate = info.get("tokens_per_second")
    return float(rate) / (info.get("world") or 1) if isinstance(rate, int | float) else 0.0


RANKS = (
    "case", "median_seconds", "slowest", "exposed", "sent_bytes", "scaling_efficiency", "relative to", "peaks",
)  # fmt: skip
"""Columns of cases on several ranks; the last where one is known."""
DROPPED_FIRST = ("relative to", "sent_bytes", "slowest", "peaks", "median_seconds", "scaling_efficiency")
"""Columns that a narrow terminal loses, in this order; the results have the median."""


def rank_lines(rows: Sequence[Json]) -> list[str]:
    """The slowest rank of each row, what the exchange adds, how well more ranks help; nothing without several ranks.

    All rows must be of one machine. The table is at most as wide as the terminal while a column can be dropped.
    """
    found = {row["fullname"]: {"scaling_efficiency": share, "relative_to": base} for row, share, base in scalings(rows)}
    shared = [
        CaseContext(replace(cell, info=cell.info | found.get(cell.id, {})))
        for cell in timed_cells({"benchmarks": rows}) if cell.label("parallel")
    ]  # fmt: skip
    if not shared:
        return []
    columns = [_marked(EVERY_COLUMN[name]) for name in RANKS]
    if not any(map(columns[-1].has_value, shared)):
        columns.pop()
    left = fitting(columns, shared, width(), DROPPED_FIRST)
    lines = column_table(left, shared)
    lines.append(RANKS_NOTE + ("" if left == columns else "; a wider terminal has every column"))
    return [*lines, NOISE_NOTE] if any(NOISE in line for line in lines) else lines


def _is_noise(name: str, known: CaseContext) -> bool:
    if name == "exposed":
        return (known.cell.measured.exposed_communication_seconds or 0.0) > known.cell.rounds.median
    return name == "scaling_efficiency" and (known.cell.number(name) or 0.0) > MOST_EFFICIENT


def _marked(column: CaseColumn) -> CaseColumn:
    """The column as text, marked where only noise can explain the figure."""
    return replace(
        column,
        kind=str,
        heading=column.label,
        of=lambda known: column.alone(known) + NOISE * _is_noise(column.name, known),
    )


# Collectives alone, with the latency and rate of the link between their ranks.


COLLECTIVES_NOTE = (
    "algorithm: bytes of the message over the median; bus: the same of what a rank must send for it (nccl-tests)"
)
WITHOUT_LINK = "it takes two sizes whose times grow with the bytes; measure more or larger ones with --message-size"
LINK_NOTE = "time of a message: latency, and bytes over the rate, with 95 % intervals; error: of the size furthest off"


def _add_efficiencies(record: Json) -> None:
    for row, efficiency, base in scalings(record["benchmarks"]):
        row["extra_info"] |= {"scaling_efficiency": efficiency, "relative_to": base}


def _add_links(record: Json) -> None:
    if links := links_of(record["benchmarks"]):
        record["links"] = links


def _add_notices(record: Json) -> None:
    """Add the figures that are impossible."""
    said = chain.from_iterable(map(judge, timings_of(record)))
    record["notices"] = [{**asdict(one), "sentence": one.sentence()} for one in said if isinstance(one, Finding)]


CONCLUSIONS = (_add_efficiencies, _add_links, _add_notices)


def conclude(record: Json) -> None:
    """Add to a record what all of its rows say together."""
    for conclusion in CONCLUSIONS:
        conclusion(record)


def links_of(rows: Sequence[Json]) -> list[Json]:
    """One link for each collective and number of ranks, from the medians of all sizes, in the rows' order, as a record
    holds it: a `Link` flat, with the bandwidth of long messages on the bus.

    None for one rank, which sends nothing, and none where the sizes show no rate.
    """
    found = []
    for (collective, world, backend), points in _messages(rows).items():
        if (link := fit_link(points)) is not None:
            own = {"collective": collective, "world": world, "backend": backend, "sizes": len(points)}
            bus = link.bytes_per_second * float(bus_share(collective, world))
            found.append({**own, **asdict(link), "bus_bytes_per_second": bus})
    return found


def _messages(rows: Sequence[Json]) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """(bytes, median seconds) by collective, world and backend."""
    return collected(
        ((info["collective"], info["world"], info["backend"]),
         (info["exchanged_bytes"], median(row["stats"]["data"])))
        for row in rows if is_collective(info := row["extra_info"]) and info["world"] > 1
    )  # fmt: skip


COLLECTIVE = ("case", "median_seconds", "rounds_spread", "algorithm_bytes_per_second", "bus_bytes_per_second")
LINK: tuple[Column[Json], ...] = (
    text_column("link", lambda link: f"{link['collective']} world{link['world']} {link['backend']}"),
    Column("latency_seconds", float, "", lambda link: link["latency_seconds"], heading="latency"),
    Column("latency_interval_seconds", tuple, "", lambda link: link["latency_interval"], heading="latency, 95 %"),
    Column("bytes_per_second", float, "", lambda link: link["bytes_per_second"], heading="rate"),
    text_column("rate, 95 %", lambda link: ", ".join(map(_rate, link["rate_interval"] or ()))),
    Column("bus_bytes_per_second", float, "", lambda link: link["bus_bytes_per_second"], heading="bus"),
    Column("largest_error", float, "", lambda link: link["largest_error"], heading="error"),
)


def _rate(bytes_per_second: float | None) -> str:
    """The rate, of which the times may set no upper limit."""
    return "any" if bytes_per_second is None else GIGABYTES_PER_SECOND.alone(bytes_per_second)


def collective_lines(rows: Sequence[Json]) -> list[str]:
    """Each message with its bandwidths, then the links fitted to them; nothing without a row of a collective."""
    alone = [row for row in rows if is_collective(row["extra_info"])]
    if not alone:
        return []
    columns = [EVERY_COLUMN[name] for name in COLLECTIVE]
    cells = map(CaseContext, timed_cells({"benchmarks": alone}))
    lines = [*column_table(columns, list(cells)), COLLECTIVES_NOTE]
    if links := links_of(alone):
        lines += [*column_table(LINK, links), LINK_NOTE]
    fitted = {(link["collective"], link["world"], link["backend"]) for link in links}
    # Only one size, or times that shrink with the bytes.
    if unknown := [f"{name} world{world}" for name, world, of in _messages(alone) if (name, world, of) not in fitted]:
        lines.append(f"no latency and rate for {', '.join(unknown)}: {WITHOUT_LINK}")
    return lines
