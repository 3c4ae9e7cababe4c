"""The progress of a gate run: its launch pairs, and the time left."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from perf_tests.bench.progress import Line
from perf_tests.records.words import how_many
from perf_tests.views.screens.lines import case_name


class OutOfTimeError(Exception):
    """The next case would end after the run's time limit."""


@dataclass
class Watch:
    """Shows the progress of the run: on a rewritten `line`, or without one as a line per launch pair.

    Raises OutOfTimeError where the run must end before the pair or case that begins.
    """

    terminal: pytest.TerminalReporter | None
    line: Line | None
    screen_pairs: int
    seconds: float
    """The run's budget."""
    seconds_left: Callable[[], float] | None = None
    """Until the run's time limit; None without one."""
    _start: float = field(default_factory=time.monotonic)
    _prefix: str = ""
    _cases: int = 0
    _left_at_pair: float | None = None
    _left_at_case: float | None = None
    _longest_case_seconds: float = 0.0

    def pair_begins(self, stage: int, pair: int, cases: int) -> None:
        if self.seconds_left is not None:
            left = self.seconds_left()
            if self._left_at_pair is not None:
                self._end_unless_left((self._left_at_pair - left) * cases / self._cases)
            self._left_at_pair, self._left_at_case = left, None
        self._cases = cases
        self._prefix = f"launch pair {pair + 1} of {self.screen_pairs}"
        if stage == 2:
            self._prefix = f"launch pair {pair + 1 - self.screen_pairs} of the undecided cases"
        if self.line is None and self.terminal is not None:
            seconds = time.monotonic() - self._start
            self.terminal.ensure_newline()
            self.terminal.write_line(f"{self._prefix}: {how_many(cases, 'case')}, {seconds:.0f} s so far")

    def _end_unless_left(self, seconds: float) -> None:
        if self.seconds_left is not None and seconds > self.seconds_left():
            raise OutOfTimeError

    def case_begins(self, case: str, place: int) -> None:
        if self.seconds_left is not None:
            left = self.seconds_left()
            if self._left_at_case is not None:
                self._longest_case_seconds = max(self._longest_case_seconds, self._left_at_case - left)
            self._left_at_case = left
            self._end_unless_left(self._longest_case_seconds)
        if self.line is not None:
            left = max(0.0, self.seconds - (time.monotonic() - self._start))
            left_words = f"at most {left / 60:.0f} min left"
            text = f"{self._prefix}  case {place + 1} of {self._cases}  {left_words}  {case_name(case)}"
            self.line.rewrite(text, erase=True)

    def say(self, sentence: str) -> None:
        """Above the line that shows the progress."""
        self.ends()
        if self.terminal is not None:
            self.terminal.ensure_newline()
            self.terminal.write_line(sentence)

    def ends(self) -> None:
        if self.line is not None:
            self.line.rewrite("", erase=True)
