"""Rows of one key together."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(rows: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """By key, in the order of their first rows."""
    groups: dict[K, list[V]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
