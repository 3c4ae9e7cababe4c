"""The rounds of a case on several ranks: timed alike on all of them, then what their communication costs."""

from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

from model.training import Training
from perf_tests.cases import LanguageModelCase
from perf_tests.limits.communication import sent_bytes, step_messages
from perf_tests.measures.rounds import Rounds
from perf_tests.measures.row import Timing
from perf_tests.measures.timed import TimedMeasure
from perf_tests.ranks.clock import RankClock
from perf_tests.ranks.sent import SentByPart, plain
from perf_tests.ranks.sharing import RESHARDED, Sharing
from perf_tests.records.compare import median_interval
from perf_tests.records.record import Json

CONFIDENCE = 0.95


@dataclass(kw_only=True)
class RankedMeasure(TimedMeasure):
    """As on one device; the clock makes every rank see the slowest one's time."""

    case: LanguageModelCase
    sharing: Sharing
    training: Training

    def look(self, rounds: Rounds) -> None:
        super().look(rounds)
        if self.row is not None:
            more = (self._of_each_rank(), self._exposed(rounds), self._sent(rounds))
            self.benchmark.extra_info.update({name: value for values in more for name, value in values.items()})

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

    def _exposed(self, rounds: Rounds) -> Json:
        """What the exchange of gradients adds to a round: the median difference to the round without it.

        Rounds with and without it take turns, and which is first alternates.
        """
        if "backward" not in self.case.row.timed:
            return {}
        if self.sharing.parallel in RESHARDED:
            reason = f"{self.sharing.parallel} cannot compute without gathering weights."
            return {"exposed_communication_seconds": None, "exposed_communication_reason": reason}
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(self.rounds):
            for exchanges in (True, False) if number % 2 else (False, True):
                seconds[exchanges].append(self._seconds(rounds, exchanges))
        differences = [with_it - without for with_it, without in zip(seconds[True], seconds[False], strict=True)]
        return {
            "exposed_communication_seconds": median(differences),
            "exposed_communication_interval": median_interval(differences, CONFIDENCE),
            "seconds_with_communication": seconds[True],
            "seconds_without_communication": seconds[False],
        }

    def _sent(self, rounds: Rounds) -> Json:
        """What one rank sends in one more round, counted, and by the closed form where a whole step is timed."""
        sent = SentByPart()
        with sent.counting():
            rounds.play()
        timed = [message for part in self.case.row.timed for message in sent.messages.get(part, ())]
        return {
            "sent_bytes": plain(sent_bytes(timed, self.sharing.world)),
            "predicted_sent_bytes": self._predicted_bytes(),
            "sent_by_part": sent.values(self.sharing.world),
        }

    def _predicted_bytes(self) -> int | float | None:
        if self.case.own is not None or "forward" not in self.case.row.timed or not self.case.row.trains:
            return None
        # Imported late: earlier revisions of `model`, which the gate measures, lack what it imports.
        from perf_tests.counting.rank_messages import parameter_shapes

        way, shapes = self.sharing, parameter_shapes(self.case.config)
        messages = step_messages(way.parallel, shapes, way.world, way.bucket_mb, not way.keeps_gathered)
        return plain(sent_bytes(messages, way.world))

    def _seconds(self, rounds: Rounds, exchanges: bool) -> float:
        from model.parallel import without_synchronization

        with nullcontext() if exchanges else without_synchronization(self.training):
            rounds.prepare()
            with self.clock.round():
                rounds.run()
        return self.clock.wall_seconds[-1]
