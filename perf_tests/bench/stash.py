"""What the suite keeps on pytest's own objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from perf_tests.bench.against import Against
from perf_tests.bench.benchmark_options import SavingOptions
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.workbench import Workbench
from perf_tests.cases import Case
from perf_tests.gate.accepted import Acceptance
from perf_tests.gate.rules import Rules
from perf_tests.options import Settings
from perf_tests.records.compare import Row
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord


@dataclass
class Run:
    """What is to be said when a measuring run is over."""

    gone_counts: bool
    """Whether a case of the baseline that this run lacks is missed, or was left out on purpose."""
    baseline: StoredRecord | None = None
    notes: list[str] = field(default_factory=list)
    record: Json | None = None
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    accepted: Sequence[Acceptance] = ()
    """Slowdowns that are so on purpose, as they stood before measuring."""
    verdict_lines: list[str] = field(default_factory=list)
    """What recorded launches say of times, where there are enough of them."""
    is_contaminated: bool = False
    """Whether the machine was another one than in the baseline's launches, so that they say nothing."""


SAVING = pytest.StashKey[SavingOptions]()
"""On the config: what pytest-benchmark was asked to keep and to compare with."""

SETTINGS = pytest.StashKey[Settings]()
"""On the config: what the user asked for."""

WORKBENCH = pytest.StashKey[Workbench]()
"""On the config, once there is something to run."""

RUN = pytest.StashKey[Run]()
"""On the config, once there is something to measure."""

CASE = pytest.StashKey[Case]()
"""On an item that is a benchmark."""

PASS = pytest.StashKey[str]()
"""On an item that is an extra pass over its case: the name of the pass."""

PASS_VALUES = pytest.StashKey[Json]()
"""On an item that is an extra pass, once it has found something."""

OUTCOME = pytest.StashKey[Outcome]()
"""On an item whose case got no timing."""

OTHER_MEASURE = pytest.StashKey[Callable[[pytest.Item, Workbench], Any]]()
"""On the config of a run that times nothing: makes what a benchmark calls with its rounds instead."""

AGAINST = pytest.StashKey[Against | None]()
"""On the config: what the user asked the gate, if anything."""

GATE_RULES = pytest.StashKey[Rules]()
"""On the config, where a plugin wants the gate to decide by other thresholds."""

LEDGER_LINES = pytest.StashKey[list[str]]()
"""On the config, once the ledger of exact counters is closed: what to tell of it."""
