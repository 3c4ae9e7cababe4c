"""How many bytes ranks must send: of one message, and of a training step in each way to share it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import prod

from perf_tests.limits.least_work import FLOAT32_BYTES
from perf_tests.limits.ways import IN_BFLOAT16, SHARDED

Shape = tuple[int, ...]

_TIMES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""How often each part of a message crosses between ranks: an all-reduce is a reduce-scatter and an all-gather."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
"""Those that are timed alone."""

MIB = 2**20
FIRST_BUCKET_MB, BUCKET_MB = 1, 25
"""PyTorch's defaults: torch.nn.parallel.DistributedDataParallel, `bucket_cap_mb`."""


@dataclass(frozen=True, order=True)
class Message:
    """What all ranks exchange at once: held before an all-reduce or reduce-scatter, or after an all-gather."""

    kind: str
    message_bytes: int

    def sent_bytes(self, world: int) -> Fraction:
        """What one rank sends, the mean over ranks: the least that any algorithm can send.

        NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth": every byte has to reach the N - 1 other ranks, so a
        rank sends (N - 1) / N of it, and twice that where it is reduced first. Raises KeyError for another kind.
        """
        return bus_share(self.kind, world) * self.message_bytes


def bus_share(kind: str, world: int) -> Fraction:
    """Bus bandwidth over algorithm bandwidth, which is a message's bytes over its time: nccl-tests, as above."""
    return Fraction(_TIMES[kind] * (world - 1), world)


def sent_bytes(messages: Iterable[Message], world: int) -> Fraction:
    """What one of `world` ranks sends for all of them, the mean over ranks."""
    return sum((message.sent_bytes(world) for message in messages), Fraction(0))


@dataclass(frozen=True)
class ParameterShapes:
    """Of a model in float32, in its own order; FSDP2 gathers each block at once, and the rest at once."""

    rest: tuple[Shape, ...]
    blocks: tuple[tuple[Shape, ...], ...]
    by_gradient: tuple[Shape, ...]
    """All of them as a backward pass finishes their gradients, which is how DDP fills its buckets."""

    @property
    def all(self) -> tuple[Shape, ...]:
        return (*self.rest, *(shape for block in self.blocks for shape in block))

    @property
    def bytes(self) -> int:
        return sum(map(float32_bytes, self.all))


def float32_bytes(shape: Shape) -> int:
    return FLOAT32_BYTES * prod(shape)


def slice_bytes(shapes: Iterable[Shape], world: int) -> int:
    """What a rank keeps of parameters that FSDP2 slices: dimension 0, padded to a multiple of `world`."""
    return sum(-(-rows // world) * float32_bytes(tuple(columns)) for rows, *columns in shapes)


def step_messages(
    variant: str,
    shapes: ParameterShapes,
    world: int,
    bucket_mb: float | None = None,
    reshard: bool = True,
    norm_of_each: bool = True,
) -> list[Message]:
    """Every message of a training step with clipping and without loss scaling. Raises KeyError for another variant.

    For clipping FSDP2 adds up one norm of each parameter, before torch 2.10 one of all: `norm_of_each` says which.
    """
    return [*chain.from_iterable(messages_by_part(variant, shapes, world, bucket_mb, reshard, norm_of_each).values())]


def messages_by_part(
    variant: str,
    shapes: ParameterShapes,
    world: int,
    bucket_mb: float | None = None,
    reshard: bool = True,
    norm_of_each: bool = True,
) -> dict[str, list[Message]]:
    """The same, by the part of the step that sends them."""
    if variant in SHARDED:
        norms = len(shapes.all) if norm_of_each else 1
        return _sharded(shapes, world, reshard, 2 if variant in IN_BFLOAT16 else 1, norms)
    buckets = bucket_bytes(shapes.by_gradient, bucket_mb)
    reduced = {
        "ddp-naive": [float32_bytes(shape) for shape in shapes.all],
        "ddp-flat": [shapes.bytes],
        "ddp": buckets,
        "zero1": buckets,
    }[variant]
    sent_back = shapes.all if variant == "zero1" else ()
    return {
        "backward": [Message("all_reduce", size) for size in reduced],
        "optimizer": [Message("broadcast", float32_bytes(shape)) for shape in sent_back],
    }


def _sharded(shapes: ParameterShapes, world: int, reshard: bool, narrower: int, norms: int) -> dict[str, list[Message]]:
    """Weights gathered before each pass of a block, gradients scattered after it, and norms."""
    rest, *blocks = (world * slice_bytes(group, world) for group in (shapes.rest, *shapes.blocks))
    return {
        "forward": [Message("all_gather", size) for size in (rest, *blocks)],
        "backward": [
            *(Message("all_gather", size) for size in (blocks if reshard else ())),
            *(Message("reduce_scatter", size // narrower) for size in (rest, *blocks)),
        ],
        "optimizer": [Message("all_reduce", FLOAT32_BYTES * norms)],
    }


def bucket_bytes(by_gradient: Sequence[Shape], bucket_mb: float | None = None) -> list[int]:
    """DDP's buckets from the second step on: one is sent as soon as it holds its size, the first earlier by default.

    Li et al., "PyTorch Distributed", 2020 (arXiv:2006.15704), section 3.2.3; the rule is that of
    `compute_bucket_assignment_by_size`, torch/csrc/distributed/c10d/reducer.cpp.
    """
    first, others = (FIRST_BUCKET_MB, BUCKET_MB) if bucket_mb is None else (bucket_mb, bucket_mb)
    buckets: list[int] = []
    filled = 0
    for shape in by_gradient:
        filled += float32_bytes(shape)
        if filled >= int(MIB * (others if buckets else first)):
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets
