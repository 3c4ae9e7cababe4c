"""Published all_reduce and DDP times against a latency and a rate, each predicted without the figure it is held to.

A message is predicted from the other sizes of its table, more ranks from two, the exchange of a DDP step from the
all_reduce table of the same machine, and a machine from the others.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from model.sizes import SIZES
from perf_tests.hardware.limits import Link, ParameterShapes, bus_share, fit_link, step_messages
from perf_tests.predict.ranks import parameter_shapes
from perf_tests.records.published import PUBLISHED, published_rows

WAYS = {"naive": "ddp-naive", "flat": "ddp-flat"}
FEWEST_TIMES_LONGER = 10
"""Times longer that a thousand times the bytes must take: what hardly grows was read before the device had finished."""
LONG_BYTES = 1e8

Series = tuple[str, str, str, int]
"""Source, device, backend and ranks."""
UNNAMED = "not named"


@dataclass(frozen=True)
class Held:
    """A published time beside its prediction from others."""

    name: str
    seconds: float
    predicted_seconds: float

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.seconds - 1

    @property
    def source(self) -> str:
        """The source of the figure, with which names start."""
        return self.name.partition(",")[0]


def tables() -> tuple[dict[Series, list[tuple[float, float]]], list[Series]]:
    """(bytes, seconds) of each all_reduce table, and the tables that are left out because their times do not grow."""
    found: dict[Series, list[tuple[float, float]]] = defaultdict(list)
    for row in published_rows("all_reduce.csv", PUBLISHED):
        series = row["source"].partition("/")[0], row["gpu"], row["backend"], int(row["world"])
        found[series].append((float(row["size_mb"]) * 1e6, float(row["ms"]) / 1e3))
    left_out = [series for series, messages in found.items() if not _grows(messages)]
    return {series: messages for series, messages in found.items() if series not in left_out}, left_out


def _grows(messages: Sequence[tuple[float, float]]) -> bool:
    (_, shortest), (_, longest) = min(messages), max(messages)
    return longest >= FEWEST_TIMES_LONGER * shortest


def link_of(messages: Sequence[tuple[float, float]]) -> Link:
    link = fit_link(messages)
    assert link is not None
    return link


def sizes_left_out() -> list[Held]:
    """Each message by the others of its table."""
    return [
        Held(f"{_name(series)}, {size / 1e6:g} MB", seconds, link_of([*rest[:at], *rest[at + 1 :]]).seconds(size))
        for series, rest in tables()[0].items()
        for at, (size, seconds) in enumerate(rest)
    ]


def worlds_left_out() -> list[Held]:
    """Long messages among more ranks by the bus bandwidth among two of the same machine."""
    known, held = tables()[0], []
    for series, messages in known.items():
        *machine, world = series
        if world == 2:
            continue
        of_two = link_of(known[machine[0], machine[1], machine[2], 2]).bytes_per_second * _bus(2)
        long = [(size, seconds) for size, seconds in messages if size >= LONG_BYTES]
        held += [
            Held(f"{_name(series)}, {size / 1e6:g} MB", seconds, size * _bus(world) / of_two) for size, seconds in long
        ]
    return held


def steps_left_out() -> list[Held]:
    """What DDP steps exchange, by the all_reduce table of the same write-up and card, and no DDP figure."""
    known = {(series[0], card(series[1])): link_of(found) for series, found in tables()[0].items() if is_of_two(series)}
    held = []
    for row in published_rows("ddp.csv", PUBLISHED):
        source, way = row["source"].partition("/")[0], WAYS.get(row["impl"])
        link = known.get((source, card(row["gpu"])))
        if way and row["comm_ms"] and link is not None:
            messages = step_messages(way, shapes_of(row), 2)
            seconds = sum(link.seconds(message.message_bytes) for message in messages)
            name = f"{source}, {row['impl']}, batch {row['local_batch']}, context {row['context']}"
            held.append(Held(name, float(row["comm_ms"]) / 1e3, seconds))
    return held


def machines_left_out() -> list[Held]:
    """A message of 1 GB between two GPUs by the median rate of the other machines."""
    known = tables()[0]
    rates = {_name(series): link_of(found).bytes_per_second for series, found in known.items() if is_of_two(series)}
    cards = {UNNAMED, *(card(series[1]) for series in known)}
    rates |= {
        f"{row['source'].partition('/')[0]}, {row['gpu']}": shapes_of(row).bytes / (float(row["comm_ms"]) / 1e3)
        for row in published_rows("ddp.csv", PUBLISHED)
        if row["impl"] == "flat" and row["comm_ms"] and card(row["gpu"]) not in cards
    }
    return [
        Held(name, 1e9 / rate, 1e9 / median(other for there, other in rates.items() if there != name))
        for name, rate in rates.items()
    ]


def is_of_two(series: Series) -> bool:
    """Whether a table is of two GPUs."""
    return series[2:] == ("nccl", 2)


def card(gpu: str) -> str:
    """A label without the number of cards, in which two tables of a write-up differ."""
    return UNNAMED if UNNAMED in gpu else re.sub(r"^\d+x | x\d+$", "", gpu)


def shapes_of(row: Mapping[str, str]) -> ParameterShapes:
    """Parameters of the model of a DDP table, whose label starts with its size."""
    return parameter_shapes(SIZES[re.split(r"\W", row["model"])[0]])


def _bus(world: int) -> float:
    return float(bus_share("all_reduce", world))


def _name(series: Series) -> str:
    source, device, backend, world = series
    return f"{source}, {device}, {backend}, {world} ranks"


def errors(held: Iterable[Held]) -> list[float]:
    return [abs(one.error) for one in held]


def worst_source(held: Sequence[Held]) -> float:
    """The median error of the source with the largest one."""
    return max(median(errors(one for one in held if one.source == source)) for source in {one.source for one in held})


LEFT_OUT = {
    "a message by the other sizes": (sizes_left_out, 0.1),
    "long messages among more ranks by two": (worlds_left_out, 0.2),
    "the exchange of a DDP step by all_reduce alone": (steps_left_out, 0.1),
    "a machine by the other machines": (machines_left_out, 0.4),
}
"""What predicts, and the median error that it keeps."""
