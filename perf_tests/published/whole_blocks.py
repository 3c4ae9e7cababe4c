"""What PyTorch's caching allocator hands out beyond what is asked for: blocks whose rest is too small to be split off.

Its rules, from c10/cuda/CUDACachingAllocator.cpp, for tensors that come one after the other and stay, as weights do.
"""

from collections.abc import Iterable

from model.sizes import ModelConfig
from perf_tests.limits.least_work import FLOAT32_BYTES

MIB = 2**20
SMALL_BYTES = 1 * MIB
"""Up to here a tensor shares a small segment, which is split to the last 512 bytes; larger rests are split off."""
LARGE_BYTES, SHARED_SEGMENT_BYTES = 10 * MIB, 20 * MIB
"""Below the first a tensor shares a segment of the second size, from there on it has one of its own."""
SEGMENT_STEP_BYTES = 2 * MIB


def unsplit_weight_bytes(config: ModelConfig) -> int:
    """Beyond the weights themselves, on a GPU, once they are there."""
    d_model, d_ff, tables = config.d_model, config.d_ff, [config.vocab_size * config.d_model]
    block = 4 * [d_model * d_model] + 3 * [d_model * d_ff]
    sizes = [FLOAT32_BYTES * numbers for numbers in (*tables, *(config.num_layers * block), *tables)]
    return whole_block_bytes(sizes) - sum(sizes)


def whole_block_bytes(sizes: Iterable[int]) -> int:
    """Of the blocks that hold tensors of these sizes, made in this order."""
    rests: list[int] = []
    total_bytes = 0
    for size in sizes:
        if size <= SMALL_BYTES:
            total_bytes += size
            continue
        block = min((rest for rest in rests if rest >= size), default=0)
        if block:
            rests.remove(block)
        else:
            block = SHARED_SEGMENT_BYTES if size < LARGE_BYTES else -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
        if block - size > SMALL_BYTES:
            rests.append(block - size)
            block = size
        total_bytes += block
    return total_bytes
