"""What a fresh process is told to do, and what it answers: data alone, as JSON."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from perf_tests.options import Settings
from perf_tests.records.record import Json


@dataclass(frozen=True)
class Task:
    """One process of a study: a benchmark by node id, and how many of its rounds of which kind."""

    settings: Settings
    benchmark: str
    warmup_rounds: int
    rounds: int
    leaves_out_timed_phase: bool = False
    """Whether a warm-up round is its set-up alone."""
    traces_first_round: bool = False
    """Whether the first round is traced and held against a later one; then nothing is timed."""

    def as_json(self) -> Json:
        # A fresh process runs one benchmark; passes and ranges of its own would be others.
        return {**vars(self), "settings": asdict(replace(self.settings, passes=(), nvtx=False))}


def task_of(values: dict[str, Any]) -> Task:
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values["settings"].items()
    }
    return Task(**{**values, "settings": Settings(**settings)})
