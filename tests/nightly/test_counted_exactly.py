"""Exact counters are exact: the same whatever the process's hash seed, and of ranks the same counted and formed."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.limits import BUCKETED, step_messages
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.ledger import counted_grid
from perf_tests_suite.perf_tests.predict.rounds import attention_passes, passes, updates
from perf_tests_suite.perf_tests.predict.shapes import NORM_OF_EACH, parameter_shapes
from tests.support.imagined_ranks import counted_messages
from tests.support.launches import ROOT

CASES = ("small-ctx128-fp32-naive", "small-ctx128-bf16-naive", "small-ctx128-bf16-sdpa", "d64-seq1024-fp32-naive")
LAYERS, PROCESSES, REPETITIONS = 4, 10, 10


def digest() -> str:
    """All counters of the cases, without earlier caches."""
    for remembered in (passes, updates, attention_passes):
        remembered.cache_clear()
    chosen = [case for name, cases in counted_grid().items() if name in CASES for case in cases]
    shallow = [
        replace(case, config=replace(case.config, num_layers=LAYERS)) if isinstance(case, LanguageModelCase) else case
        for case in chosen
    ]
    return hashlib.sha256(repr([counters_of(case) for case in shallow]).encode()).hexdigest()


def test_counters_are_the_same_in_a_hundred_repetitions_with_ten_hash_seeds() -> None:
    found = set()
    program = f"from {__name__} import digest\nfor _ in range({REPETITIONS}): print(digest())"
    for seed in range(1, PROCESSES + 1):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        found.update(ended.stdout.split())
    assert len(found) == 1


@pytest.mark.parametrize("world", [2, 1024])
@pytest.mark.parametrize("variant", [*BUCKETED, "fsdp2", "fsdp2-bf16"])
def test_messages_in_several_buckets_are_formed_as_they_are_counted(variant: str, world: int) -> None:
    counted = counted_messages(variant, SIZES["small"], world)
    formed = step_messages(variant, parameter_shapes(SIZES["small"]), world, norm_of_each=NORM_OF_EACH)
    assert sorted(counted) == sorted(formed)
