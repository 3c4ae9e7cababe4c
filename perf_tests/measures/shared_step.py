"""What the communication of a model that ranks share costs, beside its timed rounds."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median

from model.training import Training
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.counting.needed_bytes import needed_bytes
from perf_tests.limits.communication import Message, messages_by_part, sent_bytes
from perf_tests.limits.least_work import FLOAT32_BYTES
from perf_tests.limits.ways import SHARDED
from perf_tests.measures.ranked import RankedMeasure
from perf_tests.measures.rounds import Rounds
from perf_tests.ranks.clock import RankClock
from perf_tests.ranks.sent import SentByPart, plain, values_by_part
from perf_tests.ranks.sharing import Sharing
from perf_tests.records.record import Json
from perf_tests.records.times import Times

CONFIDENCE = 0.95


@dataclass(kw_only=True)
class SharedStepMeasure(RankedMeasure):
    """Then as many pairs of rounds with and without the exchange, and one in which its messages are counted."""

    case: LanguageModelCase
    sharing: Sharing
    training: Training
    spending: Callable[[], AbstractContextManager[None]]
    """Takes the time of what is looked at beside the timed rounds."""

    def look(self, rounds: Rounds) -> None:
        if not self.case.row.has_backward:
            # Imported late: earlier revisions of `model`, which the gate measures, lack it.
            from model.parallel import free_gathered

            rounds.forget_more = partial(free_gathered, self.training.model)
        super().look(rounds)
        if self.row is not None:
            with self.spending():
                self.benchmark.extra_info.update(self._exposed(rounds) | self._sent(rounds))

    def _exposed(self, rounds: Rounds) -> Json:
        """What the exchange of gradients adds to a round: the median difference to the round without it.

        Rounds with and without it take turns, and which is first alternates.
        """
        if "backward" not in self.case.row.timed:
            return {}
        if reason := self._why_not_without():
            return {"exposed_communication_seconds": None, "exposed_communication_reason": reason}
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(self.rounds):
            for exchanges in (True, False) if number % 2 else (False, True):
                seconds[exchanges].append(self._seconds(rounds, exchanges))
        differences = [with_it - without for with_it, without in zip(seconds[True], seconds[False], strict=True)]
        return {
            "exposed_communication_seconds": median(differences),
            "exposed_communication_interval": Times(differences).median_interval(CONFIDENCE),
            "seconds_with_communication": seconds[True],
            "seconds_without_communication": seconds[False],
        }

    def _why_not_without(self) -> str | None:
        """Why no round runs without the exchange, the same on all ranks; None where it does."""
        if self.sharing.parallel not in SHARDED:
            return None
        whole_bytes = 2 * FLOAT32_BYTES * (self.case.parameters or 0)
        held_bytes = self.device.peak_allocated_bytes() or needed_bytes(self.case)
        assert isinstance(self.clock, RankClock)
        assert self.row is not None
        room = min(left for (left,) in self.clock.from_all([float((self.row.available_bytes or 0) - held_bytes)]))
        if room < whole_bytes:
            return f"without exchange a rank holds all weights and gradients, {whole_bytes:,} bytes more than fit."
        return None

    def _sent(self, rounds: Rounds) -> Json:
        """What one rank sends in one more round, counted and by the closed form."""
        sent = SentByPart()
        with sent.counting():
            rounds.play()
        return {
            "sent_bytes": self._sent_while_timed(sent.messages),
            "sent_by_part": values_by_part(sent.messages, self.sharing.world),
            **self._predicted(),
        }

    def _predicted(self) -> Json:
        """By the closed form of a step, of the parts that this phase runs."""
        row, way = self.case.row, self.sharing
        if self.case.own is not None:
            return {"predicted_sent_bytes": None, "predicted_sent_by_part": None}
        # Imported late: earlier revisions of `model`, which the gate measures, lack what it imports.
        from perf_tests.counting.rank_messages import NORM_OF_EACH, parameter_shapes

        shapes, reshard = parameter_shapes(self.case.config), not way.keeps_gathered
        step = messages_by_part(way.parallel, shapes, way.world, way.bucket_mb, reshard, NORM_OF_EACH)
        by_part = {part: sent for part, sent in step.items() if part in map(_region, row.parts)}
        return {
            "predicted_sent_bytes": self._sent_while_timed(by_part),
            "predicted_sent_by_part": values_by_part(by_part, way.world),
        }

    def _sent_while_timed(self, messages: Mapping[str, Sequence[Message]]) -> int | float:
        timed = chain.from_iterable(messages.get(_region(part), ()) for part in self.case.row.timed)
        return plain(sent_bytes(timed, self.sharing.world))

    def _seconds(self, rounds: Rounds, exchanges: bool) -> float:
        from model.parallel import without_synchronization

        with nullcontext() if exchanges else without_synchronization(self.training, not self.sharing.keeps_gathered):
            rounds.prepare()
            with self.clock.round():
                rounds.run()
        return self.clock.wall_seconds[-1]


def _region(part: str) -> str:
    """The region in which a part of a round sends its messages."""
    return "forward" if part == "inference" else part
