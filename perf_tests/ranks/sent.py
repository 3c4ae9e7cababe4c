"""What a rank sends in each part of a round: its messages as they are issued, by the region that issues them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction

from model.regions import regions_opened_by
from perf_tests.instruments.collectives import CollectiveCounter
from perf_tests.limits.communication import Message, sent_bytes

PARTS = ("forward", "loss", "backward", "optimizer")


class SentByPart:
    """Inside `counting`, `messages` grows by part. Messages of whole numbers, with which torch agrees, are left out."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Message]] = {}
        self._counter = CollectiveCounter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        with self._counter, regions_opened_by(self._opened):
            yield

    def _opened(self, region: str) -> AbstractContextManager[object]:
        return self._part(region) if region in PARTS else nullcontext()

    @contextmanager
    def _part(self, part: str) -> Iterator[None]:
        before = len(self._counter.seen)
        yield
        issued = [message for message, dtype in self._counter.seen[before:] if dtype.is_floating_point]
        self.messages.setdefault(part, []).extend(issued)


def values_by_part(messages: Mapping[str, Sequence[Message]], world: int) -> dict[str, dict[str, object]]:
    """By part: how many messages of each kind, and the bytes that one of `world` ranks sends for them."""
    return {
        part: {"collectives": dict(Counter(one.kind for one in sent)), "sent_bytes": plain(sent_bytes(sent, world))}
        for part, sent in messages.items()
    }


def plain(count: Fraction) -> int | float:
    """A mean over ranks need not be whole."""
    return int(count) if count.denominator == 1 else float(count)
