"""A plugin for launches that look at the study's rows and not at its figures: fresh processes that answer at once.

PLANTED_OUTCOME makes every one of them end with that outcome.
"""

import os
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.passes import warmup as worker
from perf_tests_suite.perf_tests.passes.warmup import Study
from perf_tests_suite.perf_tests.records.record import Json


def answer(settings: Settings, benchmark: str, study: Study, root: Path) -> Json:
    """The first two rounds of a process are slow; a warm-up that leaves the timed phase out does not help."""
    planted = os.environ.get("PLANTED_OUTCOME")
    if planted:
        return {"outcome": {"outcome": planted, "reason": "planted"}}
    if study.traces_first_round:
        facts = {"modules_loaded": 3, "page_faults": 9000, "steady_page_faults": 0, "seconds_per_page_fault": 1e-6}
        parts = {"steady_round_seconds": 1.0, "allocator_growth_seconds": 3.0, "unexplained_seconds": 1.0}
        return {"values": {"first_round_parts": parts, "first_round": {**facts, "largest_growth": []}}}
    seconds = [5.0, 2.0, *(1.0 + 0.001 * (place % 3) for place in range(study.warmup_rounds + study.rounds))]
    if study.leaves_out_timed_phase:
        return {"values": {"warmup_seconds": [0.5] * study.warmup_rounds, "seconds": seconds[: study.rounds]}}
    whole = seconds[: study.warmup_rounds + study.rounds]
    return {"values": {"warmup_seconds": whole[: study.warmup_rounds], "seconds": whole[study.warmup_rounds :]}}


def pytest_configure(config: pytest.Config) -> None:
    worker.in_fresh_process = answer
