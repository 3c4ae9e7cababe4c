"""Exact counters of a call of the user's that runs torch operations, on its real tensors."""

import sys
from collections.abc import Callable

from perf_tests_suite.model.compilation import forget_compiled
from perf_tests_suite.perf_tests.hardware.torch_private import compiler_stops, forget_compiler_records
from perf_tests_suite.perf_tests.predict.counting import Counting
from perf_tests_suite.perf_tests.records.record import Json

CALL = "call"


def forget_what_is_compiled() -> None:
    """Let a test compile anew what tests before it have."""
    forget_compiled()
    forget_compiler_records()


def counted(call: Callable[[], object]) -> Json:
    """Return the `counters` of a warm call; null without operations, with a `reason` where two calls differ.

    One that has compiled anything is counted without the marks of a rehearsal, which the compiler would see.
    """
    if "torch._dynamo" in sys.modules and compiler_stops()[1]:
        return {"compiles": True}
    try:
        first, second = _counters_of(call), _counters_of(call)
    except Exception as error:  # of what a dispatch mode does not go through, as compiled code
        return {"counters": None, "reason": f"it does not run under a counting mode: {type(error).__name__}: {error}"}
    if first != second:
        return {"counters": None, "reason": "two of its calls run other operations"}
    return {"counters": first if any(first.values()) else None, "reason": ""}


def _counters_of(call: Callable[[], object]) -> dict[str, int]:
    counting = Counting("cpu")
    with counting, counting.part(CALL):
        call()
    part = counting.finished()[CALL]
    return {
        "executed_flops": sum(kernel.flops * calls for kernel, calls in part.kernels.items()),
        "kernel_launches": part.kernels.total(),
        "bytes_touched": sum(kernel.bytes * calls for kernel, calls in part.kernels.items()),
        "saved_bytes": part.saved_bytes,
    }
