"""Records of one case over commits, and what a history reads from them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perf_tests.history.commits import Log, machines_of
from perf_tests.history.series import Era, eras_of
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord
from tests.support.synthetic import FORWARD, record, timed

NO_LOG = Log({}, {}, {})
COUNT, START = 24, 14
NOISE = 1 + 0.01 * np.random.default_rng(1).standard_normal(COUNT)


def name_of(number: int) -> str:
    return f"{number:02x}" * 20


def launch(
    number: int, seconds: float, commit: str | None = None, sentinel: float | None = 1e-3, **extra: object
) -> Json:
    """A record of one case, of a commit made in minute `number`."""
    day = f"2030-01-01T{number // 60:02}:{number % 60:02}:00+00:00"
    around: Json = {} if sentinel is None else {"sentinel_seconds": [sentinel, sentinel]}
    data = record([timed(FORWARD, [seconds] * 5, **around, **extra)], written=day)
    identifier = name_of(number) if commit is None else commit
    return {**data, "commit_info": {"id": identifier, "dirty": False, "time": day}}


def history(records: Sequence[Json], log: Log = NO_LOG) -> list[Era]:
    stored = [StoredRecord(Path(f"folder/{place:04}_a.json"), data) for place, data in enumerate(records)]
    return [era for machine in machines_of(stored) for era in eras_of(machine, log)]


def with_step(effect: float, count: int = COUNT) -> list[Json]:
    return [launch(place, NOISE[place] * (1 + effect * (place >= START))) for place in range(count)]
