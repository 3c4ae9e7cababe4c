"""Whether a training step fits when ranks share it, what they send, and how much of that a step waits for."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.sharing import Sharing
from perf_tests_suite.perf_tests.hardware import limits
from perf_tests_suite.perf_tests.hardware.datasheets import FITS
from perf_tests_suite.perf_tests.hardware.limits import Message, ParameterShapes
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.parts import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests_suite.perf_tests.predict.step import PredictedCase, TargetMachine, predict_case

MOST_RANKS = 65536
"""No larger world is looked for."""


@dataclass(frozen=True)
class RankPrediction:
    """One rank of many: that with the most memory, and the mean of what ranks send."""

    machine: TargetMachine
    sharing: Sharing
    bytes_per_second: float | None
    """What one rank can send, in one direction; None where it is not known."""
    alone: PredictedCase
    """The same step on one device."""
    shapes: ParameterShapes

    @cached_property
    def peak_part(self) -> str:
        """The part of the step with the largest peak."""
        by_part = self._held(self.sharing.world)
        return max(by_part, key=lambda name: sum(by_part[name].values()))

    @cached_property
    def bytes_by_category(self) -> dict[str, int]:
        """Bytes that add up to the peak."""
        return self._held(self.sharing.world)[self.peak_part]

    def _held(self, world: int) -> dict[str, dict[str, int]]:
        """Bytes that one of so many ranks holds at the peak of each part; the model's buffers count as parameters."""
        way, shapes, found = self.sharing.parallel, self.shapes, dict[str, dict[str, int]]()
        kept = dict(zip((PARAMETERS, GRADIENTS, OPTIMIZER_STATE), limits.kept_bytes(way, shapes, world), strict=True))
        share = kept[OPTIMIZER_STATE] / (2 * shapes.bytes)
        for part in counters_of(self.alone.case, libraries=self.machine.libraries).parts:
            held = {name: min(kept.get(name, size), size) for name, size in part.bytes_by_category.items()}
            held[PARAMETERS] = kept[PARAMETERS] + part.bytes_by_category[PARAMETERS] - shapes.bytes
            if part.part == "optimizer":
                held["temporaries"] = round(held.get("temporaries", 0) * share)
            found[part.part] = held | limits.working_bytes(way, shapes, part.part, not self.sharing.keeps_gathered)
        return found

    @property
    def peak_bytes(self) -> int:
        return sum(self.bytes_by_category.values())

    @property
    def verdict(self) -> str:
        return self.machine.room.verdict(self.peak_bytes)

    @cached_property
    def smallest_world(self) -> int | None:
        """The fewest ranks among whom the step fits; None where no number of them helps.

        What a rank keeps does not grow with their number.
        """

        def fits(world: int) -> bool:
            return all(self.machine.room.verdict(sum(held.values())) == FITS for held in self._held(world).values())

        place = bisect_left(range(1, MOST_RANKS + 1), True, key=fits)
        return place + 1 if place < MOST_RANKS else None

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        sharing = self.sharing
        reshard = not sharing.keeps_gathered
        return tuple(limits.step_messages(sharing.parallel, self.shapes, sharing.world, sharing.bucket_mb, reshard))

    @property
    def sent_bytes(self) -> int:
        return round(limits.sent_bytes(self.messages, self.sharing.world))

    @cached_property
    def exposed_seconds(self) -> tuple[float, float] | None:
        """What a step waits for: with all overlap that the variant has on a fast link, and with none on a slow one.

        None without an interconnect. Sums are added while the backward pass runs, weights gathered while either pass
        does; the last message waits. Li et al., arXiv:2006.15704, section 3.2.3: what remains is the larger of the last
        bucket and what does not overlap.
        """
        if self.bytes_per_second is None:
            return None
        slow, fast = (share * self.bytes_per_second for share in limits.LINK_EFFICIENCY)
        way, kinds = self.sharing.parallel, ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
        of_kind = {kind: [one for one in self.messages if one.kind == kind] for kind in kinds}

        def seconds(messages: Sequence[Message]) -> float:
            return float(limits.sent_bytes(messages, self.sharing.world)) / fast

        by_kind = {kind: seconds(messages) for kind, messages in of_kind.items()}
        everything = sum(by_kind.values())
        longest = everything * fast / slow
        if way in limits.AFTERWARDS:
            return everything, longest
        backward, forward = (
            predict_case(self.alone.case.in_phase(phase), self.machine).time.low_seconds
            for phase in ("backward", "forward")
        )
        if way in limits.SHARDED:  # the first gather, and the last reduction, of what is outside of blocks
            waits = seconds([of_kind["all_gather"][0], of_kind["reduce_scatter"][0]]) + by_kind["all_reduce"]
            return max(waits, everything - forward - backward), longest
        waits = max(seconds(of_kind["all_reduce"][-1:]), by_kind["all_reduce"] - backward)
        return waits + by_kind["broadcast"], longest

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Seconds of a step: the range on one device and the exposed communication."""
        if self.exposed_seconds is None:
            return None
        return (self.alone.time.low_seconds + self.exposed_seconds[0],
                self.alone.time.high_seconds + self.exposed_seconds[1])  # fmt: skip


def predict_ranks(
    case: LanguageModelCase, machine: TargetMachine, sharing: Sharing, bytes_per_second: float | None = None
) -> RankPrediction:
    """One rank's share of the full step of `case`, whose batch is each rank's own. Raises as `predict_case` does."""
    from perf_tests_suite.perf_tests.predict.shapes import parameter_shapes  # late: it builds a model, by torch

    step = predict_case(replace(case, phase="full_step"), machine)
    return RankPrediction(machine, sharing, bytes_per_second, step, parameter_shapes(case.config))
