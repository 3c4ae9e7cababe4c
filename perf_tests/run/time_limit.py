"""`--time-limit`: the run ends between cases, before the one that would end too late."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest

from perf_tests.bench.stash import CASE, OUTCOME, PASS, WORKBENCH
from perf_tests.instruments.machine import seconds_since_process_start
from perf_tests.options.table import typed_or
from perf_tests.run.case_time import predicted_seconds
from perf_tests.views.screens.lines import case_name


@dataclass(eq=False)  # pytest keeps its plugins in sets
class TimeLimit:
    """A plugin that leaves the cases that would end after the limit, if there is one.

    A case is predicted in closed form, times how much longer than predicted the last like case took.
    """

    minutes: float
    """Infinite without a limit."""
    predict: Callable[[pytest.Item], float]
    """Seconds on this machine before any like case is measured."""
    is_tried: Callable[[pytest.Item], bool]
    """Whether the case fits and is supported, which takes long to ask for a whole grid."""
    now: Callable[[], float]
    """Seconds since this process started."""
    is_reached: bool = False
    _begun: tuple[pytest.Item, float, float] | None = None
    """The case in flight, its predicted seconds and when it began."""
    _slowness: dict[Hashable, float] = field(default_factory=dict)
    """By kind, of the last case: measured over predicted seconds."""

    @property
    def seconds_left(self) -> float:
        return 60 * self.minutes - self.now()

    def seconds(self, item: pytest.Item) -> float:
        """How long the case will take, its set-up, compiling and clean-up included."""
        of_last = [1.0, *self._slowness.values()][-1]
        return self.predict(item) * max(1.0, self._slowness.get(_kind(item), of_last))

    def refuse_if_too_short(self, items: list[pytest.Item]) -> None:
        """Raises pytest.UsageError with one sentence where a case does not fit even right after the start."""
        if self.minutes == math.inf:
            return
        too_long = sorted((item for item in items if self.seconds(item) > self.seconds_left), key=self.seconds)
        longest = next(filter(self.is_tried, reversed(too_long)), None)
        if longest is not None:
            raise pytest.UsageError(
                f"{case_name(longest.nodeid)} takes about {self.seconds(longest):.0f} s here, and --time-limit "
                f"{self.minutes:g} leaves {max(0.0, self.seconds_left):.0f} s after the start; nothing was measured, "
                "give it more minutes."
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True, without a report, for whatever comes after the limit."""
        if self._begun is not None:
            self._learn(*self._begun)
        if self.is_reached or CASE not in item.stash:
            self._begun = None
            return True if self.is_reached else None
        is_tried = self.is_tried(item)
        # The first was judged before the run, and the time since then must not leave a run without any case.
        self.is_reached = is_tried and bool(self._slowness) and self.seconds(item) > self.seconds_left
        self._begun = (item, self.predict(item), self.now()) if is_tried and not self.is_reached else None
        return True if self.is_reached else None

    def _learn(self, item: pytest.Item, predicted: float, start: float) -> None:
        outcome = item.stash.get(OUTCOME, None)
        if outcome is None or outcome.outcome != "timed_out":  # which says nothing of the next case
            self._slowness.pop(_kind(item), None)  # the last one stands last
            self._slowness[_kind(item)] = (self.now() - start) / predicted


def _kind(item: pytest.Item) -> Hashable:
    case = item.stash[CASE]
    return item.stash[PASS], case.phase, case.precision, case.attention, case.is_compiled


TIME_LIMIT = pytest.StashKey[TimeLimit]()


def read_time_limit(config: pytest.Config) -> TimeLimit:
    """Raises pytest.UsageError naming the option."""
    minutes = typed_or(config, "--time-limit", math.inf)

    def predict(item: pytest.Item) -> float:
        workbench = config.stash[WORKBENCH]
        # Ceilings may have to be measured first.
        ceilings = None if minutes == math.inf else workbench.ceilings_for(item.stash[CASE].precision)
        return predicted_seconds(item, workbench.settings, ceilings)

    def is_tried(item: pytest.Item) -> bool:
        return config.stash[WORKBENCH].why_not(item.stash[CASE]) is None

    return TimeLimit(minutes, predict, is_tried, seconds_since_process_start)
