"""Records of launches whose truth is known, for the gate between recorded runs."""

from pathlib import Path

import numpy as np

from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord
from tests.support.synthetic import record, timed

CASES = [f"perf_tests/test_forward.py::test_forward[tiny-ctx{place}-fp32-naive]" for place in range(10)]
BASE, HEAD = "b" * 40, "a" * 40


def launches(
    seed: int, count: int, slowdown: float = 0.0, spread: float = 0.01, drift: float = 0.0, machine_slower: float = 0.0
) -> list[Json]:
    """Records of launches; the first case is slower, and `drift` moves all cases and the matrix product together."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        moved = draw.normal() * drift + np.log1p(machine_slower)
        rows = []
        for place, case in enumerate(CASES):
            middle = np.exp(draw.normal() * spread + moved + (np.log1p(slowdown) if place == 0 else 0))
            seconds = (middle * np.exp(draw.normal(size=12) * 0.01)).tolist()
            rows.append(timed(case, seconds, matmul_ceiling_tflops_per_second=float(0.2 / np.exp(moved))))
        found.append(record(rows))
    return found


def dated(data: list[Json], commit: str, first: int, dirty: bool = False, source: str = "digest") -> list[Json]:
    """The launches as recorded one after another, from moment `first`."""
    return [
        {
            **launch,
            "commit_info": {"id": commit, "dirty": dirty},
            "datetime": f"2030-01-01T00:{first + place:02}:00+00:00",
            "suite": {**launch["suite"], "source": source},
        }
        for place, launch in enumerate(data)
    ]


def stored(data: list[Json], side: str = "base") -> list[StoredRecord]:
    return [StoredRecord(Path(f"{side}/{number}.json"), launch) for number, launch in enumerate(data)]
