"""What the suite keeps on pytest's config and items."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from perf_tests.bench.against import Against
from perf_tests.bench.benchmark_options import SavingOptions
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.workbench import Workbench
from perf_tests.cases.case import Case
from perf_tests.gate.accepted import Acceptance
from perf_tests.gate.rules import Rules
from perf_tests.options.settings import Settings
from perf_tests.own.repository import Repository
from perf_tests.records.compare import ComparedCase
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord

if TYPE_CHECKING:  # only several ranks need it
    from perf_tests.ranks.peers import Peers


@dataclass
class Run:
    """What the result screen of a measuring run shows."""

    gone_counts: bool
    """Whether a case of the baseline that this run lacks fails it; not where the user left cases out."""
    baseline: StoredRecord | None = None
    notes: list[str] = field(default_factory=list)
    record: Json | None = None
    rows: list[ComparedCase] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    accepted: Sequence[Acceptance] = ()
    """Intended slowdowns, read before measuring."""
    verdict_lines: list[str] = field(default_factory=list)
    """Verdicts on times, where enough launches are recorded."""
    is_contaminated: bool = False
    """Whether the machine changed between the baseline's launches and this one, so that times do not compare."""


# On the config.
REPOSITORY = pytest.StashKey[Repository]()
SAVING = pytest.StashKey[SavingOptions]()
SETTINGS = pytest.StashKey[Settings]()
AGAINST = pytest.StashKey[Against | None]()
PEERS: "pytest.StashKey[Peers]" = pytest.StashKey()  # set in a run on several ranks
PLACES = pytest.StashKey[list[int]]()
"""Of a shard: where its cases stand in the grid."""
WORKBENCH = pytest.StashKey[Workbench]()  # set once there is a benchmark to run
RUN = pytest.StashKey[Run]()  # set once there is a benchmark to measure
OTHER_MEASURE = pytest.StashKey[Callable[[pytest.Item, Workbench], Any]]()
"""In a run without timings: makes what a benchmark calls with its rounds."""
GATE_RULES = pytest.StashKey[Rules]()  # set by a plugin that replaces the gate's thresholds
LEDGER_LINES = pytest.StashKey[list[str]]()  # set once the ledger of exact counters is closed

# On the item of a benchmark.
CASE = pytest.StashKey[Case]()
PASS = pytest.StashKey[str | None]()  # the name of the extra pass; None on a timing
PASS_VALUES = pytest.StashKey[Json]()
OUTCOME = pytest.StashKey[Outcome]()  # why the case has no timing
