"""The links between the ranks of a run: one for each collective and number of ranks, of its rows."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from perf_tests.identity import is_collective
from perf_tests.limits.communication import bus_share
from perf_tests.limits.link import Link, fit_link
from perf_tests.records.record import Json


@dataclass(frozen=True)
class CollectiveLink:
    """Between the ranks of one machine, for one collective."""

    collective: str
    world: int
    backend: str
    sizes: int
    link: Link

    @property
    def bus_bytes_per_second(self) -> float:
        """Of long messages."""
        return self.link.bytes_per_second * float(bus_share(self.collective, self.world))

    @property
    def row(self) -> Json:
        """As the record holds it, flat."""
        own = {"collective": self.collective, "world": self.world, "backend": self.backend, "sizes": self.sizes}
        return {**own, **asdict(self.link), "bus_bytes_per_second": self.bus_bytes_per_second}


def links_of(rows: Sequence[Json]) -> list[CollectiveLink]:
    """Of the medians of all sizes, in the rows' order; none for one rank, which sends nothing."""
    fitted = ((of, points, fit_link(points)) for of, points in _messages(rows).items())
    return [CollectiveLink(*of, len(points), link) for of, points, link in fitted if link is not None]


def without_link(rows: Sequence[Json]) -> list[str]:
    """`all_reduce world2` of each collective among ranks whose sizes show no rate: only one, or times that shrink."""
    return [f"{name} world{world}" for (name, world, _), points in _messages(rows).items() if fit_link(points) is None]


def _messages(rows: Sequence[Json]) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """(bytes, median seconds) by collective, world and backend."""
    messages: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        info = row["extra_info"]
        if is_collective(info) and info["world"] > 1:
            of = info["collective"], info["world"], info["backend"]
            messages[of].append((info["exchanged_bytes"], median(row["stats"]["data"])))
    return messages
