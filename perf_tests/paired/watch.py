"""The progress of a gate run: its launch pairs, and the time left."""

import time
from dataclasses import dataclass, field

import pytest

from perf_tests.bench.progress import Line
from perf_tests.records.words import how_many
from perf_tests.views.screens.lines import case_name


@dataclass
class Watch:
    """Shows the progress of the run: on a rewritten `line`, or without one as a line per launch pair."""

    terminal: pytest.TerminalReporter | None
    line: Line | None
    screen_pairs: int
    seconds: float
    """The run's budget."""
    _start: float = field(default_factory=time.monotonic)
    _prefix: str = ""
    _cases: int = 0

    def pair_begins(self, stage: int, pair: int, cases: int) -> None:
        self._cases = cases
        self._prefix = f"launch pair {pair + 1} of {self.screen_pairs}"
        if stage == 2:
            self._prefix = f"launch pair {pair + 1 - self.screen_pairs} of the undecided cases"
        if self.line is None and self.terminal is not None:
            seconds = time.monotonic() - self._start
            self.terminal.ensure_newline()
            self.terminal.write_line(f"{self._prefix}: {how_many(cases, 'case')}, {seconds:.0f} s so far")

    def case_begins(self, case: str, place: int) -> None:
        if self.line is not None:
            left = max(0.0, self.seconds - (time.monotonic() - self._start))
            left_words = f"at most {left / 60:.0f} min left"
            text = f"{self._prefix}  case {place + 1} of {self._cases}  {left_words}  {case_name(case)}"
            self.line.rewrite(text, erase=True)

    def ends(self) -> None:
        if self.line is not None:
            self.line.rewrite("", erase=True)
