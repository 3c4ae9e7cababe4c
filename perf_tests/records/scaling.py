"""Scaling efficiency: tokens per second and rank, over those of a row with fewer ranks or of one device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perf_tests.records.record import Json, identity_of

OF_THE_WAY = ("parallel", "bucket_bytes", "reshard", "reduce_dtype", "backend")
OF_THE_NUMBER = ("world", "nodes", "mesh", "scaling", "global_batch_size", "per_rank_batch_size")


@dataclass(frozen=True)
class Scaling:
    """Of one row."""

    efficiency: float
    """1 where each rank does as much in a second as in the row it is relative to."""
    relative_to: str
    """Node id of that row."""


def scalings(rows: Sequence[Json]) -> Iterator[tuple[Json, Scaling]]:
    """Each row of several ranks that has a row to be relative to. All rows must be of one machine."""
    for row in rows:
        base = _base(row, rows)
        if base is not None:
            yield row, Scaling(_rate_of_a_rank(row) / _rate_of_a_rank(base), base["fullname"])


def _base(row: Json, rows: Sequence[Json]) -> Json | None:
    """The same way on one rank, else one device, else the same way and scaling on the fewest ranks."""
    identity = identity_of(row)
    if identity.get("parallel") is None:
        return None
    ways: list[tuple[int, int, Json]] = []
    for other in rows:
        there = identity_of(other)
        world = there["world"] or 1
        if not _agree(identity, there, (*OF_THE_WAY, *OF_THE_NUMBER)) or _rate_of_a_rank(other) == 0.0:
            continue
        if there["parallel"] is None:
            ways.append((1, world, other))
            continue
        is_like = world == 1 or there["scaling"] == identity["scaling"]
        if is_like and world < identity["world"] and _agree(identity, there, OF_THE_NUMBER):
            ways.append((0 if world == 1 else 2, world, other))
    return min(ways, key=lambda way: way[:2], default=(0, 0, None))[2]


def _agree(here: Json, there: Json, except_for: Sequence[str]) -> bool:
    return all(there.get(name) == value for name, value in here.items() if name not in except_for)


def _rate_of_a_rank(row: Json) -> float:
    info = row["extra_info"]
    rate = info.get("tokens_per_second")
    return float(rate) / (info.get("world") or 1) if isinstance(rate, int | float) else 0.0
