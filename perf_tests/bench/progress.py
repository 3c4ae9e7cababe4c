"""The progress line of a run at a terminal: the case, the round, the time left."""

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import pytest


@dataclass(frozen=True)
class Line:
    """A line of the terminal, written past pytest's capture."""

    terminal: pytest.TerminalReporter
    uncaptured: Callable[[], AbstractContextManager[None]]

    def rewrite(self, line: str, **markup: bool) -> None:
        width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be overwritten
        with self.uncaptured():
            self.terminal.rewrite(line[:width], **markup)
            self.terminal.flush()

    def ensure_newline(self) -> None:
        with self.uncaptured():
            self.terminal.ensure_newline()
            self.terminal.flush()


@dataclass
class Progress:
    """Rewrites one line; silent without a `line`. Only the ratios of the cases' `predicted_seconds` count."""

    line: Line | None
    predicted_seconds: dict[str, float] = field(default_factory=dict)
    _done: dict[str, float] = field(default_factory=dict)
    _measured_seconds: float = 0.0
    _case_id: str = ""
    _case_start: float = 0.0
    _rounds: int = 0
    _warmup_rounds: int = 0

    def begin(self, case_id: str, warmup_rounds: int, rounds: int) -> None:
        self._case_id, self._warmup_rounds, self._rounds = case_id, warmup_rounds, rounds
        self._case_start = time.monotonic()
        if self.line is not None:
            self.line.ensure_newline()

    def round(self, number: int) -> None:
        """Round `number` begins, counted from 0, warm-up rounds first."""
        if self.line is None:
            return
        if number < self._warmup_rounds:
            kind, count, of = "warm-up", number + 1, self._warmup_rounds
        else:
            kind, count, of = "round", number - self._warmup_rounds + 1, self._rounds
        position = f"case {len(self._done) + 1} of {len(self.predicted_seconds)}"
        name = self._case_id.rpartition("::")[2]
        # The name comes last, because a narrow terminal cuts the end off.
        self.line.rewrite(f"{position}{self._time_left()}  {kind} {count} of {of}  {name}", erase=True)

    def end(self, case_id: str, result: str) -> None:
        """The case is done, with a timing or without; `result` replaces its rounds on the line."""
        if case_id == self._case_id:
            self._measured_seconds += time.monotonic() - self._case_start
            self._done[case_id] = self.predicted_seconds.get(case_id, 0.0)
            self._case_id = ""
            if self.line is not None:
                self.line.rewrite("", erase=True)
                self.line.rewrite(f"{result} ")
        else:
            self._done[case_id] = self.predicted_seconds[case_id] = 0.0

    def _time_left(self) -> str:
        done = sum(self._done.values())
        if not done:
            return ""
        left = (sum(self.predicted_seconds.values()) - done) * self._measured_seconds / done
        left = max(0.0, left - (time.monotonic() - self._case_start))
        return f"  about {left / 60:.0f} min left" if left >= 90 else f"  about {left:.0f} s left"
