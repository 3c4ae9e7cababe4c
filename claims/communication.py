"""Bytes that a rank sends in a training step: the closed form against a count, for every size.

    python -m claims.communication

The count plays FSDP2 on tensors without content, up to 64 ranks; at 1024 it plays the two smallest sizes. DDP computes
with content, and is played where that takes seconds. Its bytes depend on nothing but the parameters.
"""

import sys
from collections.abc import Iterator

from model.sizes import SIZES
from perf_tests.hardware.limits import sent_bytes, step_messages
from perf_tests.predict.ranks import NEED_CONTENT, NORM_OF_EACH, counted_messages, parameter_shapes

WORLDS = (2, 8, 64)
MANY = 1024
SMALLEST = ("tiny", "small-2layers")


def cases() -> Iterator[tuple[str, str, int]]:
    """(size, variant, world)."""
    for size in SIZES:
        variants = ("fsdp2", "fsdp2-bf16", *(NEED_CONTENT if size in (*SMALLEST, "small") else ()))
        for variant in variants:
            yield from ((size, variant, world) for world in WORLDS)
            if size in SMALLEST or (size == "small" and variant in NEED_CONTENT):
                yield size, variant, MANY


def main() -> int:
    wrong = 0
    for size, variant, world in cases():
        counted = counted_messages(variant, SIZES[size], world)
        formed = step_messages(variant, parameter_shapes(SIZES[size]), world, norm_of_each=NORM_OF_EACH)
        is_equal = sorted(counted) == sorted(formed)
        wrong += not is_equal
        off = sent_bytes(counted, world) - sent_bytes(formed, world)
        words = "equal" if is_equal else f"{float(off):,.0f} bytes off"
        sent = f"{float(sent_bytes(formed, world)):,.0f} bytes in {len(formed)} messages"
        print(f"{size:14} {variant:11} {world:5} ranks: {sent}, {words}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
