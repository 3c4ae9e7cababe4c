"""Times of many like things, summed up: what a median hides, p95 and the greatest show."""

from collections.abc import Sequence
from statistics import fmean, median, pstdev

from perf_tests.records.record import Json


def spread_of(times_us: Sequence[float]) -> Json | None:
    """Count, total, median, 95th percentile (the smallest that 95 % do not exceed) and greatest; None without any."""
    if not times_us:
        return None
    ordered = sorted(times_us)
    place_of_p95 = -(-95 * len(ordered) // 100) - 1
    return {
        "count": len(ordered),
        "total_seconds": sum(ordered) / 1e6,
        "median_seconds": median(ordered) / 1e6,
        "p95_seconds": ordered[place_of_p95] / 1e6,
        "max_seconds": ordered[-1] / 1e6,
    }


def calls_of(times_us: Sequence[float], rounds: int) -> Json:
    """Calls and total of one round, mean and standard deviation of one call; counts that differ give a fraction."""
    calls = len(times_us) / rounds
    return {
        "calls": int(calls) if calls.is_integer() else calls,
        "total_seconds": sum(times_us) / rounds / 1e6,
        "mean_seconds": fmean(times_us) / 1e6,
        "stddev_seconds": pstdev(times_us) / 1e6,
    }
