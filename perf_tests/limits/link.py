"""The time of a message as a latency and a rate, fitted to measured messages of several sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95

LEAST_GROWTH = 1e-6
"""Of the shortest time, from no bytes to the largest size; less is no rate."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Link:
    """Seconds of a message: `latency_seconds` plus its bytes over `bytes_per_second`.

    Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994), equation 1. Intervals hold at 95 %
    where the messages scatter independently around the line; None for two sizes, through which any line passes.
    """

    latency_seconds: float
    bytes_per_second: float
    latency_interval: Interval | None
    rate_interval: tuple[float, float | None] | None
    """Its upper end is None where the sizes do not bound the rate."""
    largest_error: float
    """Of the fitted sizes, relative to the measured time."""

    def seconds(self, message_bytes: float) -> float:
        return self.latency_seconds + message_bytes / self.bytes_per_second


def fit_link(messages: Sequence[tuple[float, float]]) -> Link | None:
    """Of (bytes, seconds), each weighted by its relative error; None for fewer than two sizes, or times that shrink."""
    if len({size for size, _ in messages}) < 2:
        return None
    # Imported late: only runs that measure collectives need them.
    import numpy as np
    from scipy.optimize import lsq_linear
    from scipy.stats import t

    sizes, seconds = (np.array(values, dtype=float) for values in zip(*messages, strict=True))
    scale = sizes.max()
    of_a_second = np.column_stack([1 / seconds, sizes / scale / seconds])
    # Neither latency nor time of a byte can be negative.
    latency, of_scale = lsq_linear(of_a_second, np.ones(len(sizes)), bounds=(0, np.inf), method="bvls").x
    if of_scale < LEAST_GROWTH * seconds.min():
        return None
    errors = of_a_second @ (latency, of_scale) - 1
    latency_interval, rate_interval = None, None
    if len(messages) > 2:
        freedom = len(messages) - 2
        spread = np.sqrt(errors @ errors / freedom * np.linalg.inv(of_a_second.T @ of_a_second).diagonal())
        around = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * spread
        latency_interval = (max(0.0, float(latency - around[0])), float(latency + around[0]))
        slowest, fastest = of_scale + around[1], of_scale - around[1]
        rate_interval = (float(scale / slowest), float(scale / fastest) if fastest > 0 else None)
    return Link(
        float(latency), float(scale / of_scale), latency_interval, rate_interval, float(np.abs(errors).max())
    )  # fmt: skip
