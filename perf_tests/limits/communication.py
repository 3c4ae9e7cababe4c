"""How many bytes ranks must send: of one collective, and of a training step in each way to share it."""

from fractions import Fraction

_TIMES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""How often each part of a message crosses between ranks: an all-reduce is a reduce-scatter and an all-gather."""


def sent_bytes(kind: str, message_bytes: int, ranks: int) -> Fraction:
    """What one rank sends for a message of that size, the mean over ranks: the least that any algorithm can send.

    NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth": every byte has to reach the N - 1 other ranks,
    so a rank sends (N - 1) / N of it, and twice that where it is reduced first. Raises KeyError for another kind.
    """
    return Fraction(_TIMES[kind] * (ranks - 1) * message_bytes, ranks)
