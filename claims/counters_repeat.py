"""The exact counters of some cases, again and again, in processes with different hash seeds."""

import argparse
import hashlib
import os
import subprocess
import sys
from dataclasses import replace

from claims.verdict import conclude, conditions
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.predict.counters import counters_of
from perf_tests.predict.fake_run import attention_passes, passes, updates
from perf_tests.predict.ledger import counted_grid
from tests.support.launches import ROOT

CASES = ("small-ctx128-fp32-naive", "small-ctx128-bf16-naive", "small-ctx128-bf16-sdpa", "d64-seq1024-fp32-naive")
LAYERS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--processes", type=int, default=10, help="which share the repetitions")
    parser.add_argument("--digests", type=int, help="print that many digests of the counters, and nothing else")
    arguments = parser.parse_args()
    if arguments.digests:
        print("\n".join(digest() for _ in range(arguments.digests)))
        return 0
    print(conditions())
    share = -(-arguments.repetitions // arguments.processes)
    found = [line for seed in range(1, arguments.processes + 1) for line in digests_of_a_process(seed, share)]
    print(f"{len(found)} repetitions in {arguments.processes} processes: {len(set(found))} different results")
    print(f"counters of every phase of {', '.join(CASES)}, the model with {LAYERS} layers")
    return conclude(f"exact counters are the same in {len(found)} repetitions", len(set(found)) == 1)


def digests_of_a_process(hash_seed: int, count: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-m", "claims.counters_repeat", "--digests", str(count)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout.split()[-count:]


def digest() -> str:
    """Of all counters, without earlier caches."""
    for remembered in (passes, updates, attention_passes):
        remembered.cache_clear()
    counted = [
        counters_of(shallow(case)) for case_id, cases in counted_grid().items() for case in cases if case_id in CASES
    ]
    return hashlib.sha256(repr(counted).encode()).hexdigest()


def shallow(case: Case) -> Case:
    if isinstance(case, LanguageModelCase):
        return replace(case, config=replace(case.config, num_layers=LAYERS))
    return case


if __name__ == "__main__":
    sys.exit(main())
