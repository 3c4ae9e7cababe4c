"""The memory that a case needs, so that one that cannot fit is not tried."""

from perf_tests.cases.case import Case
from perf_tests.counting.case_counters import counters_or_reason


def needed_bytes(case: Case) -> int:
    """Peak of one round, everything resident included; of a case without exact counters what certainly exists."""
    counters, _ = counters_or_reason(case)
    return case.least_bytes if counters is None else counters.peak_bytes
