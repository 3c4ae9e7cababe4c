"""How far a run is: a line that is rewritten at a terminal, a line a minute in a log."""

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import pytest

SECONDS_BETWEEN_LINES = 60.0
"""Of a log. Lines come between rounds, never inside one, so that they disturb no figure."""


@dataclass(frozen=True)
class Output:
    """Of pytest, written past its capture."""

    terminal: pytest.TerminalReporter
    uncaptured: Callable[[], AbstractContextManager[None]]

    def ensure_newline(self) -> None:
        with self.uncaptured():
            self.terminal.ensure_newline()
            self.terminal.flush()


@dataclass(frozen=True)
class Line(Output):
    """A line of a terminal."""

    def rewrite(self, line: str, **markup: bool) -> None:
        width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be overwritten
        with self.uncaptured():
            self.terminal.rewrite(line[:width], **markup)
            self.terminal.flush()


@dataclass(frozen=True)
class Log(Output):
    """Where nobody watches, but some end a job that is silent for long."""

    def write(self, line: str) -> None:
        with self.uncaptured():
            self.terminal.write_line(line)
            self.terminal.flush()


@dataclass
class Progress:
    """Silent without `output`. Only the ratios of the cases' `predicted_seconds` count."""

    output: Line | Log | None
    predicted_seconds: dict[str, float] = field(default_factory=dict)
    measured_seconds: float = 0.0
    """Of the cases that are done."""
    _done: dict[str, float] = field(default_factory=dict)
    _case_id: str = ""
    _case_start: float = 0.0
    _rounds: int = 0
    _warmup_rounds: int = 0
    _last: str = ""
    _last_line: float = field(default_factory=lambda: time.monotonic())

    @property
    def line(self) -> Line | None:
        return self.output if isinstance(self.output, Line) else None

    @property
    def done_predicted_seconds(self) -> float:
        return sum(self._done.values())

    def begin(self, case_id: str, warmup_rounds: int, rounds: int) -> None:
        self._case_id, self._warmup_rounds, self._rounds = case_id, warmup_rounds, rounds
        self._case_start = time.monotonic()
        if self.line is not None:
            self.line.ensure_newline()

    def round(self, number: int) -> None:
        """Round `number` begins, counted from 0, warm-up rounds first."""
        if self.output is None:
            return
        if number < self._warmup_rounds:
            kind, count, of = "warm-up", number + 1, self._warmup_rounds
        else:
            kind, count, of = "round", number - self._warmup_rounds + 1, self._rounds
        position = f"case {len(self._done) + 1} of {len(self.predicted_seconds)}"
        name = self._case_id.rpartition("::")[2]
        # The name comes last, because a narrow terminal cuts the end off.
        line = f"{position}{self._time_left()}  {kind} {count} of {of}  {name}"
        if self.line is not None:
            self.line.rewrite(line, erase=True)
        else:
            self._log(line)

    def end(self, case_id: str, result: str) -> None:
        """The case is done, with a timing or without; `result` replaces its rounds on the line."""
        if case_id == self._case_id:
            self.measured_seconds += time.monotonic() - self._case_start
            self._done[case_id] = self.predicted_seconds.get(case_id, 0.0)
            self._case_id, self._last = "", result
            if self.line is not None:
                self.line.rewrite("", erase=True)
                self.line.rewrite(f"{result} ")
            else:
                self._log(f"{len(self._done)} of {len(self.predicted_seconds)} cases done{self._time_left()}")
        else:
            self._done[case_id] = self.predicted_seconds[case_id] = 0.0

    def _log(self, line: str) -> None:
        """Once a minute, with the last figure."""
        now = time.monotonic()
        if isinstance(self.output, Log) and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self.output.write(f"{line}{f'; last: {self._last}' if self._last else ''}")
            self._last_line = now

    def _time_left(self) -> str:
        done = self.done_predicted_seconds
        if not done:
            return ""
        left = (sum(self.predicted_seconds.values()) - done) * self.measured_seconds / done
        left = max(0.0, left - (time.monotonic() - self._case_start if self._case_id else 0.0))
        return f"  about {left / 60:.0f} min left" if left >= 90 else f"  about {left:.0f} s left"
