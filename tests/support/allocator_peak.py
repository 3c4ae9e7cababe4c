"""Peak of one call as the allocator sees it, which predictions are held to."""

from collections.abc import Callable

from perf_tests.passes.memory_watch import traced_allocator


def allocator_peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes handed out at any moment of `function()`, beyond those handed out before it.

    An earlier block that is freed inside is not subtracted: the allocator does not know its size. Memory that a library
    allocates for itself, as a matrix product's packing buffers, does not pass through the allocator.
    """
    return traced_allocator(function)[0].peak()
