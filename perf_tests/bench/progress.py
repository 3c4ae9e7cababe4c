"""What a person at a terminal sees while a run goes on: the case, the round, the time left. Nobody else sees it."""

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from perf_tests.cases import Case
from perf_tests.phases import FORWARD_PASSES

_FORWARD_PASSES_OF_PART = {**FORWARD_PASSES, "optimizer": 0.5}


class Line(Protocol):
    """pytest's terminal reporter."""

    def rewrite(self, line: str, **markup: bool) -> None: ...

    def ensure_newline(self) -> None: ...

    def flush(self) -> None: ...


@dataclass(frozen=True)
class WatchedLine:
    """The terminal itself: while a test runs pytest keeps everything that is written, and would keep the line too."""

    line: Line
    uncaptured: Callable[[], AbstractContextManager[None]]

    def rewrite(self, line: str, **markup: bool) -> None:
        width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be written over
        with self.uncaptured():
            self.line.rewrite(line[:width], **markup)
            self.line.flush()

    def ensure_newline(self) -> None:
        with self.uncaptured():
            self.line.ensure_newline()
            self.line.flush()

    def flush(self) -> None:
        return


def expected_work(case: Case, rounds: int) -> float:
    """FLOPs of all rounds, their set-up included, near enough to share out the remaining time."""
    passes = sum(_FORWARD_PASSES_OF_PART.get(part, 0.0) for part in case.row.parts)
    return passes * case.forward_flops * rounds


class Progress:
    """One line that rewrites itself; silent without a `line` to write on."""

    def __init__(self, line: Line | None, works: dict[str, float]) -> None:
        self._line = line
        self._works = works
        self._done: dict[str, float] = {}
        self._measured_seconds = 0.0
        self._case_id = ""
        self._case_start = 0.0
        self._rounds = 0
        self._warmup_rounds = 0

    @property
    def is_watched(self) -> bool:
        return self._line is not None

    def begin(self, case_id: str, warmup_rounds: int, rounds: int) -> None:
        self._case_id, self._warmup_rounds, self._rounds = case_id, warmup_rounds, rounds
        self._case_start = time.monotonic()
        if self._line is not None:
            self._line.ensure_newline()

    def round(self, number: int) -> None:
        """Round `number` of all begins, counted from 0, warm-up first."""
        if self._line is None:
            return
        if number < self._warmup_rounds:
            kind, count, of = "warm-up", number + 1, self._warmup_rounds
        else:
            kind, count, of = "round", number - self._warmup_rounds + 1, self._rounds
        position = f"case {len(self._done) + 1} of {len(self._works)}"
        name = self._case_id.rpartition("::")[2]
        # The name last: it is what a narrow terminal cuts off.
        self._line.rewrite(f"{position}{self._time_left()}  {kind} {count} of {of}  {name}", erase=True)

    def end(self, case_id: str, result: str) -> None:
        """The case is done, with a timing or without; `result` takes the place of its rounds."""
        if case_id == self._case_id:
            self._measured_seconds += time.monotonic() - self._case_start
            self._done[case_id] = self._works.get(case_id, 0.0)
            self._case_id = ""
            if self._line is not None:
                self._line.rewrite("", erase=True)
                self._line.rewrite(f"{result} ")
        else:
            self._done[case_id] = 0.0
            self._works[case_id] = 0.0

    def _time_left(self) -> str:
        done = sum(self._done.values())
        if not done:
            return ""
        left = (sum(self._works.values()) - done) * self._measured_seconds / done
        left = max(0.0, left - (time.monotonic() - self._case_start))
        return f"  about {left / 60:.0f} min left" if left >= 90 else f"  about {left:.0f} s left"
