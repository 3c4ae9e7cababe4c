"""Everything that the hooks, fixtures and passes of one pytest session share: one object on the config, one per item.

A hook gets the first by `session_of(config)`, and what is noted on the item of a benchmark by `benchmark_of(item)`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from perf_tests_suite.perf_tests.bench.judged import Judge
from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.options import Against, SavingOptions
from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.gate.samples import Rules
from perf_tests_suite.perf_tests.records.comparison import Baseline, Comparison
from perf_tests_suite.perf_tests.records.format import Screen
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.named import Repository

if TYPE_CHECKING:  # a run on one device loads nothing of ranks
    from perf_tests_suite.perf_tests.bench.ranks import Peers


@dataclass
class Run:
    """A run that measures: what its result screen shows, and what decides its exit code."""

    baseline: Baseline | None = None
    """What of an earlier record lies inside of this run's axes."""
    opening: list[str] = field(default_factory=list)
    """Said before the first case; `notes` below the results."""
    notes: list[str] = field(default_factory=list)
    record: Json | None = None
    screen: Screen | None = None
    """What is shown of the record; None without one."""
    comparison: Comparison | None = None
    """How the record differs from the baseline, or as much of it as a time limit left."""
    failures: list[str] = field(default_factory=list)
    """Why the record is not on disk."""


@dataclass(eq=False, repr=False)
class Session:
    """One pytest session, filled as it goes on; fields without a default are set by the hook that is named."""

    repository: Repository
    """The repository of what is under test."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of this process before it ran any code of the user's."""
    replaced: list[str] = field(default_factory=list)
    """What was found replaced of clocks, judges and the suite before there was a workbench."""
    judge: Judge | None = None
    """The process that judges attention of the user's, started before any code of theirs ran; None without such code.
    """
    saving: SavingOptions = field(init=False)
    """Set when pytest is configured."""
    settings: Settings = field(init=False)
    """Set when the session starts; in a worker replaced by the run's."""
    workbench: Workbench = field(init=False)
    """Set once there is a benchmark to run, after the collection."""
    against: Against | None = None
    most_minutes: float = math.inf
    """`--time-limit`, set when the session starts."""
    peers: "Peers | None" = None
    """The ranks of a run on several."""
    other_measure: Callable[[pytest.Item, Workbench], Measure] | None = None
    """A maker of what a benchmark calls with its rounds, in a run without timings."""
    gate_rules: Rules = field(default_factory=Rules)
    """A plugin may replace the gate's thresholds."""
    run: Run | None = None
    """Set once there is a benchmark to measure."""
    ledger_lines: list[str] = field(default_factory=list)
    """Filled when the ledger of exact counters is closed."""
    collected: dict[pytest.Item, int] = field(default_factory=dict)
    """The place of each item in the collection, which plugins that shuffle tests would hide."""
    is_deselected: bool = False
    """Whether any case was deselected, by an option such as --stepwise or by any plugin."""
    keeps_selection: bool = False
    """Whether the cases are those that an interrupted run chose by how they had ended before."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a workbench."""
        return hasattr(self, "workbench")


@dataclass
class BenchmarkItem:
    """What is known of the item of a benchmark."""

    case: Case
    extra_pass: str | None = None
    """The name of the extra pass; None on a timing."""
    outcome: Outcome | None = None
    """Why the case has no timing."""
    values: Json | None = None
    """What the extra pass found."""


SESSION = pytest.StashKey[Session]()
BENCHMARK = pytest.StashKey[BenchmarkItem]()


def session_of(config: pytest.Config) -> Session:
    """Return the session's object, which the plugin makes when pytest is configured."""
    return config.stash[SESSION]


def is_benchmark(item: pytest.Item) -> bool:
    return BENCHMARK in item.stash


def benchmark_of(item: pytest.Item) -> BenchmarkItem:
    """Return what is noted on the item of a benchmark; raises KeyError for any other test."""
    return item.stash[BENCHMARK]
