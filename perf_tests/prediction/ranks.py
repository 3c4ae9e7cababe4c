"""Whether a training step fits when ranks share it, what they send, and how much of that a step waits for."""

import re
from dataclasses import dataclass, replace

from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.counting.case_counters import counters_of
from perf_tests.counting.rank_messages import parameter_shapes
from perf_tests.instruments.counters import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests.limits.communication import Message, ParameterShapes, sent_bytes, step_messages
from perf_tests.limits.gpu_room import FITS
from perf_tests.limits.rank_memory import kept_bytes, working_bytes
from perf_tests.limits.ways import AFTERWARDS, SHARDED
from perf_tests.prediction.step import PredictedCase, TargetMachine, predict_case
from perf_tests.ranks.sharing import Sharing

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
    peak_part: str
    bytes_by_category: dict[str, int]
    """Adds up to the peak."""
    messages: tuple[Message, ...]
    exposed_seconds: tuple[float, float] | None
    """What a step waits for: with all overlap that the variant has, and with none. Without an interconnect, None."""
    smallest_world: int | None
    """The fewest ranks among whom the step fits; None where no number of them helps."""

    @property
    def peak_bytes(self) -> int:
        return sum(self.bytes_by_category.values())

    @property
    def verdict(self) -> str:
        return self.machine.room.verdict(self.peak_bytes)

    @property
    def sent_bytes(self) -> int:
        return round(sent_bytes(self.messages, self.sharing.world))

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Of a step: the range on one device and the exposed communication."""
        if self.exposed_seconds is None:
            return None
        return (self.alone.time.low_seconds + self.exposed_seconds[0],
                self.alone.time.high_seconds + self.exposed_seconds[1])  # fmt: skip


def rate(text: str) -> float:
    """`450GB/s` in bytes per second. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)GB/s", text.strip())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--interconnect {text!r} is no rate; write what one rank can send as 450GB/s.")
    return float(found[1]) * 1e9


def predict_ranks(
    case: LanguageModelCase, machine: TargetMachine, sharing: Sharing, bytes_per_second: float | None = None
) -> RankPrediction:
    """One rank's share of the full step of `case`, whose batch is each rank's own. Raises as `predict_case` does."""
    step = predict_case(replace(case, phase="full_step"), machine)
    shapes = parameter_shapes(case.config)
    part, held = _peak(step, machine, shapes, sharing)
    way, reshard = sharing.parallel, not sharing.keeps_gathered
    messages = tuple(step_messages(way, shapes, sharing.world, sharing.bucket_mb, reshard))
    return RankPrediction(
        machine, sharing, bytes_per_second, step, part, held, messages,
        _exposed_seconds(case, machine, sharing, messages, bytes_per_second),
        smallest_world(step, machine, shapes, sharing),
    )  # fmt: skip


def _peak(
    step: PredictedCase, machine: TargetMachine, shapes: ParameterShapes, sharing: Sharing
) -> tuple[str, dict[str, int]]:
    """The part with the largest peak on a rank, and its bytes by category; buffers of the model count as parameters."""
    way, reshard = sharing.parallel, not sharing.keeps_gathered
    kept = dict(zip((PARAMETERS, GRADIENTS, OPTIMIZER_STATE), kept_bytes(way, shapes, sharing.world), strict=True))
    share = kept[OPTIMIZER_STATE] / (2 * shapes.bytes)
    by_part = {}
    for part in counters_of(step.case, libraries=machine.libraries).parts:
        held = {name: min(kept.get(name, size), size) for name, size in part.bytes_by_category.items()}
        held[PARAMETERS] = kept[PARAMETERS] + part.bytes_by_category[PARAMETERS] - shapes.bytes
        if part.part == "optimizer":
            held["temporaries"] = round(held.get("temporaries", 0) * share)
        by_part[part.part] = held | working_bytes(way, shapes, part.part, reshard)
    highest = max(by_part, key=lambda name: sum(by_part[name].values()))
    return highest, by_part[highest]


def smallest_world(
    step: PredictedCase, machine: TargetMachine, shapes: ParameterShapes, sharing: Sharing
) -> int | None:
    """The fewest ranks that fit; what a rank keeps does not grow with their number."""

    def fits(world: int) -> bool:
        held = _peak(step, machine, shapes, replace(sharing, world=world))[1]
        return machine.room.verdict(sum(held.values())) == FITS

    too_few, enough = 0, 1
    while not fits(enough):
        too_few, enough = enough, 2 * enough
        if enough > MOST_RANKS:
            return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
    return enough


def _exposed_seconds(
    case: LanguageModelCase,
    machine: TargetMachine,
    sharing: Sharing,
    messages: tuple[Message, ...],
    bytes_per_second: float | None,
) -> tuple[float, float] | None:
    """Sums are added while the backward pass runs, weights gathered while either pass does; the last message waits.

    Li et al., arXiv:2006.15704, section 3.2.3: what remains is the larger of the last bucket and what does not overlap.
    """
    if bytes_per_second is None:
        return None
    by_kind = {
        kind: float(sent_bytes([one for one in messages if one.kind == kind], sharing.world)) / bytes_per_second
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    }
    everything = sum(by_kind.values())
    if sharing.parallel in AFTERWARDS:
        return everything, everything
    backward, forward = (
        predict_case(replace(case, phase=phase), machine).time.low_seconds for phase in ("backward", "forward")
    )
    if sharing.parallel in SHARDED:
        first = next(one for one in messages if one.kind == "all_gather")
        last = next(one for one in messages if one.kind == "reduce_scatter")  # of what is outside of blocks
        waits = float(sent_bytes([first, last], sharing.world)) / bytes_per_second + by_kind["all_reduce"]
        return max(waits, everything - forward - backward), everything
    last = [one for one in messages if one.kind == "all_reduce"][-1]
    waits = float(last.sent_bytes(sharing.world)) / bytes_per_second
    overlapped = max(waits, by_kind["all_reduce"] - backward)
    return overlapped + by_kind["broadcast"], everything
