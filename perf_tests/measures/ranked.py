"""The rounds of a case on several ranks, timed alike on all of them."""

from dataclasses import dataclass

from perf_tests.measures.rounds import Rounds
from perf_tests.measures.row import Timing
from perf_tests.measures.timed import TimedMeasure
from perf_tests.ranks.clock import RankClock
from perf_tests.records.record import Json


@dataclass(kw_only=True)
class RankedMeasure(TimedMeasure):
    """As on one device; the clock makes every rank see the slowest one's time."""

    def look(self, rounds: Rounds) -> None:
        super().look(rounds)
        if self.row is not None:
            self.benchmark.extra_info.update(self._of_each_rank())

    def _busy_seconds(self, rounds: Rounds, timing: Timing) -> float | None:
        """None: how often the round would be issued again is each rank's own, and its collectives need all of them."""
        return None

    def _of_each_rank(self) -> Json:
        clock = self.clock
        assert isinstance(clock, RankClock)
        seconds = clock.from_all(clock.own_seconds[-self.rounds :])
        slowest = [max(range(len(seconds)), key=lambda rank: seconds[rank][number]) for number in range(self.rounds)]
        peak_bytes = self.device.peak_allocated_bytes()
        peaks = None if peak_bytes is None else [int(peak) for (peak,) in clock.from_all([float(peak_bytes)])]
        return {"rank_seconds": seconds, "slowest_ranks": slowest, "rank_peak_allocated_bytes": peaks}
