"""What one rank keeps of a model in training, and what it needs besides while it gathers and reduces."""

import heapq
from collections.abc import Sequence
from math import prod

from perf_tests.limits.communication import ParameterShapes, Shape, float32_bytes, slice_bytes
from perf_tests.limits.least_work import FLOAT32_BYTES
from perf_tests.limits.ways import BUCKETED, SHARDED

BUCKETS, GATHERED, WHOLE_GRADIENTS = "DDP's buckets", "gathered weights", "whole gradients"


def kept_bytes(variant: str, shapes: ParameterShapes, world: int) -> tuple[int, int, int]:
    """Parameters, gradients and AdamW's two moments of the rank that keeps most, in float32."""
    if variant in SHARDED:
        kept = slice_bytes(shapes.all, world)
        return kept, kept, 2 * kept
    stepped = largest_part_bytes(shapes.all, world) if variant == "zero1" else shapes.bytes
    return shapes.bytes, shapes.bytes, 2 * stepped


def largest_part_bytes(shapes: Sequence[Shape], world: int) -> int:
    """Of the parameters that one rank steps: each, largest first, goes to the rank with the fewest elements so far.

    torch.distributed.optim.ZeroRedundancyOptimizer, `_partition_parameters`.
    """
    elements = [0] * world  # a heap: the least stands first
    for size in sorted(map(prod, shapes), reverse=True):
        heapq.heapreplace(elements, elements[0] + size)
    return FLOAT32_BYTES * max(elements)


def working_bytes(variant: str, shapes: ParameterShapes, part: str, reshard: bool = True) -> dict[str, int]:
    """Beside what is kept, by what it is for, in one part of the step: no less than is held at once, in any world.

    FSDP2 gathers what is outside of blocks for both passes, and a block while the next one arrives in a buffer, or,
    without `reshard`, keeps every block; the gradients of either are whole until they are scattered, out of a buffer as
    large. DDP copies gradients into buckets, which stay; ddp-flat into one tensor after its backward pass.
    """
    if variant in BUCKETED or (variant == "ddp-flat" and part == "backward"):
        return {BUCKETS: shapes.bytes}
    if variant not in SHARDED or part == "optimizer":
        return {}
    rest, *blocks = (sum(map(float32_bytes, group)) for group in (shapes.rest, *shapes.blocks))
    block = max(blocks, default=0)
    gathered = {GATHERED: rest + (3 * block if reshard else sum(blocks) + block)}
    return gathered | {WHOLE_GRADIENTS: rest + max(rest, 2 * block)} if part == "backward" else gathered
