"""Whether a training step fits when ranks share it, what they send, and how much of that a step waits for."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.sharing import Sharing
from perf_tests.hardware.datasheets import FITS
from perf_tests.hardware.limits import (
    AFTERWARDS,
    LINK_EFFICIENCY,
    SHARDED,
    Message,
    ParameterShapes,
    Shape,
    kept_bytes,
    sent_bytes,
    step_messages,
    working_bytes,
)
from perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests.predict.counters import counters_of
from perf_tests.predict.counting import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests.predict.screens import case_json, gb, room_line, step_name
from perf_tests.predict.step import (
    PredictedCase,
    TargetMachine,
    predict_case,
)
from perf_tests.records.format import DASH, duration_range, table
from perf_tests.records.record import Json

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
    """Bytes that add up to the peak."""
    messages: tuple[Message, ...]
    exposed_seconds: tuple[float, float] | None
    """What a step waits for: with all overlap that the variant has on a fast link, and with none on a slow one; None
    without an interconnect."""
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
        """Seconds of a step: the range on one device and the exposed communication."""
        if self.exposed_seconds is None:
            return None
        return (self.alone.time.low_seconds + self.exposed_seconds[0],
                self.alone.time.high_seconds + self.exposed_seconds[1])  # fmt: skip


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
    slow, fast = (share * bytes_per_second for share in LINK_EFFICIENCY)
    by_kind = {
        kind: float(sent_bytes([one for one in messages if one.kind == kind], sharing.world)) / fast
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    }
    everything = sum(by_kind.values())
    longest = everything * fast / slow
    if sharing.parallel in AFTERWARDS:
        return everything, longest
    backward, forward = (
        predict_case(replace(case, phase=phase), machine).time.low_seconds for phase in ("backward", "forward")
    )
    if sharing.parallel in SHARDED:
        first = next(one for one in messages if one.kind == "all_gather")
        last = next(one for one in messages if one.kind == "reduce_scatter")  # of what is outside of blocks
        waits = float(sent_bytes([first, last], sharing.world)) / fast + by_kind["all_reduce"]
        return max(waits, everything - forward - backward), longest
    last = [one for one in messages if one.kind == "all_reduce"][-1]
    waits = float(last.sent_bytes(sharing.world)) / fast
    overlapped = max(waits, by_kind["all_reduce"] - backward)
    return overlapped + by_kind["broadcast"], longest


def rank_lines(prediction: RankPrediction) -> list[str]:
    """Verdict, memory, messages and times of one rank."""
    sharing, machine = prediction.sharing, prediction.machine
    held = sorted(prediction.bytes_by_category.items(), key=lambda item: -item[1])
    fewest = prediction.smallest_world
    counts = Counter(message.kind for message in prediction.messages)
    messages = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    return [
        f"{step_name(prediction.alone)} on each of {sharing.world} ranks, {sharing.parallel}",
        f"{prediction.verdict} on {machine.name}: a rank's peak is {gb(prediction.peak_bytes)}",
        room_line(machine), "",
        *table(("a rank's peak", "GB"), [(name, f"{size / 1e9:.2f}") for name, size in held if size >= 1e6]), "",
        f"a rank sends {gb(prediction.sent_bytes)} a step: {messages}",
        *_times(prediction), "",
        f"fewest ranks that fit: {fewest}" if fewest else "no number of ranks makes it fit",
        f"assumes {gb(prediction.alone.peak_bytes)} for the step on one device; not confirmed on several GPUs",
    ]  # fmt: skip


def _times(prediction: RankPrediction) -> list[str]:
    if prediction.exposed_seconds is None or prediction.seconds is None:
        return ["no time: give what a rank can send with --interconnect 450GB/s"]
    ranges = {
        "step on one device": (prediction.alone.time.low_seconds, prediction.alone.time.high_seconds),
        "exposed communication": prediction.exposed_seconds,
        "step": prediction.seconds,
    }
    rows = [(name, duration_range(low, high) if high else DASH) for name, (low, high) in ranges.items()]
    slow, fast = LINK_EFFICIENCY
    of_link = f"{fast:g} of the interconnect's rate, to none of it at {slow:g}"
    return ["", *table(("time", "range"), rows), f"exposed: with all overlap that the variant has at {of_link}"]


def rank_json(prediction: RankPrediction) -> Json:
    sharing, exposed, seconds = prediction.sharing, prediction.exposed_seconds, prediction.seconds
    return {
        "parallel": sharing.parallel,
        "world": sharing.world,
        "bucket_mb": sharing.bucket_mb,
        "reshard": not sharing.keeps_gathered,
        "interconnect_bytes_per_second": prediction.bytes_per_second,
        "verdict": prediction.verdict,
        "peak_bytes": prediction.peak_bytes,
        "peak_part": prediction.peak_part,
        "bytes_by_category": prediction.bytes_by_category,
        "sent_bytes": prediction.sent_bytes,
        "messages": [vars(message) for message in prediction.messages],
        "exposed_seconds": None if exposed is None else list(exposed),
        "range_seconds": None if seconds is None else list(seconds),
        "smallest_world_that_fits": prediction.smallest_world,
        "alone": case_json(prediction.alone),
    }


NORM_OF_EACH = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
"""Whether FSDP2 adds up a norm of each parameter for clipping, or one of all."""


@cache
def parameter_shapes(config: ModelConfig) -> ParameterShapes:
    """Return our model's shapes, gradients in the order of one backward pass: that of one block, for every block."""
    from model.parallel import blocks

    with FakeTensorMode(), torch.enable_grad():  # also where a benchmark of inference asks
        model = TransformerLM(replace(config, num_layers=1, context_length=2), ATTENTION["naive"].build())
        training = Training(model, PRECISIONS["fp32"], torch.device("cpu"))
        (block,) = blocks(training.model)
        by_gradient: list[nn.Parameter] = []
        for parameter in training.model.parameters():
            parameter.register_post_accumulate_grad_hook(by_gradient.append)
        tokens_BT = torch.zeros(1, 2, dtype=torch.int64)
        training.backward(training.loss(training.forward(tokens_BT), tokens_BT))
    inside = {id(parameter) for parameter in block.parameters()}
    rest = [parameter for parameter in training.model.parameters() if id(parameter) not in inside]
    at = [number for number, parameter in enumerate(by_gradient) if id(parameter) in inside]
    before, of_block, after = (
        _shapes(by_gradient[part]) for part in (slice(at[0]), slice(at[0], at[-1] + 1), slice(at[-1] + 1, None))
    )
    order = (*before, *(of_block * config.num_layers), *after)
    return ParameterShapes(_shapes(rest), (_shapes(block.parameters()),) * config.num_layers, order)


def _shapes(parameters: Iterable[nn.Parameter]) -> tuple[Shape, ...]:
    return tuple(tuple(parameter.shape) for parameter in parameters)
