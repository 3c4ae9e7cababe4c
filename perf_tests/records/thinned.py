"""Fewer moments of an amount that rises and falls, without losing where it was highest and lowest."""

from collections.abc import Sequence
from math import ceil


def thinned(amounts: Sequence[float], most: int) -> list[int]:
    """At most `most` places, 4 or more: the highest and the lowest of each stretch, the first and the last one.

    Every place where there are few.
    """
    if len(amounts) <= most:
        return list(range(len(amounts)))
    stretch = ceil(len(amounts) / ((most - 2) // 2))
    kept = {0, len(amounts) - 1}
    for start in range(0, len(amounts), stretch):
        places = range(start, min(start + stretch, len(amounts)))
        kept |= {max(places, key=amounts.__getitem__), min(places, key=amounts.__getitem__)}
    return sorted(kept)
