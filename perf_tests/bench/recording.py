"""One measuring run from its first case to its record: its progress line, its journal, and the row of each case."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.bench.outcomes import KILLED, Outcome
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.format import duration
from perf_tests_suite.perf_tests.records.journal import Journal, JournalContents
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json, build_record
from perf_tests_suite.perf_tests.records.store import machine_folder, save_record, saved_as


@dataclass
class MeasuringSession:
    """Keeps the journal of one run and builds its record."""

    journal: Journal
    contents: JournalContents
    """What the journal holds, with the cases of an interrupted run."""
    progress: "Progress"
    in_flight: str | None = None
    """The case that has begun and has no row yet."""
    was_complete: bool = field(default=False, init=False)
    """Whether an earlier process finished the last case."""
    saved: Path | None = field(default=None, init=False)
    """The record of a run that was killed before it removed its journal."""

    def __post_init__(self) -> None:
        self.was_complete = self.is_complete
        if self.was_complete:
            self.saved = saved_as(self.journal.path.parent, self.journal.path.stem)

    def begin(self, case_id: str, warmup_rounds: int, rounds: int) -> None:
        self.journal.write("started", case_id)
        self.in_flight = case_id
        self.progress.begin(case_id, warmup_rounds, rounds)

    def measured(self, row: Json) -> None:
        """Keep a timing, a row as pytest-benchmark makes it."""
        self._keep("benchmark", row, row["fullname"], duration(row["stats"]["median"]))

    def not_measured(
        self, case_id: str, case: Case, outcome: Outcome, rounds: Sequence[float] = (), extra_pass: str | None = None
    ) -> None:
        """Keep why a case has no timing, with the seconds of rounds that were measured before it ended."""
        row = outcome.as_row(case_id, case, rounds) | ({} if extra_pass is None else {"pass": extra_pass})
        self._keep("outcome", row, case_id, OUTCOMES[outcome.outcome])

    def passed(self, case_id: str, case: Case, extra_pass: str, values: Json) -> None:
        """Keep what an extra pass found."""
        row = {"id": case_id, "identity": case.identity(), "pass": extra_pass, "values": values}
        self._keep("pass", row, case_id, "done")

    def _keep(self, kind: str, row: Json, case_id: str, result: str) -> None:
        self.journal.write(kind, row)
        self.contents.add(kind, row)
        self.in_flight = None
        self.progress.end(case_id, f"{case_name(case_id)}  {result}")

    def measure_again(self, case_id: str) -> None:
        """Let nothing count that the journal holds of the case. Raises OSError."""
        self.journal.write("again", case_id)
        self.contents.add("again", case_id)

    def side_file(self, case_id: str, suffix: str) -> Path:
        """Return the path of a file too large for the record, in the run's folder beside it."""
        folder = self.journal.path.with_name(self.journal.path.stem.replace("journal", "files", 1))
        return folder / f"{case_name(case_id).replace(' ', '-')}.{suffix}"

    @property
    def is_complete(self) -> bool:
        return set(self.contents.header["selection"]) <= self.contents.finished_ids

    @property
    def killed_in(self) -> list[str]:
        """Cases given up, perhaps by no fault of theirs, that the user has not seen in an earlier process."""
        rows = [] if self.was_complete else self.contents.outcomes
        return [row["id"] for row in rows if row["reason"] == KILLED.reason]

    def record(self) -> Json:
        """Build the record in the order of the selection, also where several calls finished the run."""
        place = {case_id: number for number, case_id in enumerate(self.contents.header["selection"])}

        def in_order(rows: list[Json], name: str) -> list[Json]:
            return sorted(rows, key=lambda row: place.get(row[name], len(place)))

        return build_record(
            {**self.contents.header, "run": self.journal.path.stem},
            in_order(self.contents.benchmarks, "fullname"),
            in_order(self.contents.outcomes, "id"),
            in_order(self.contents.passes, "id"),
        )

    def save(self, record: Json, storage: Path, name: str) -> Path:
        """Write the run's record, then delete the journal; raises OSError, and then the journal stays."""
        path = self.saved or save_record(record, machine_folder(storage), name)
        self.journal.discard()
        return path


# How far a run is: a line that is rewritten at a terminal, a line a minute in a log.


SECONDS_BETWEEN_LINES = 60.0
"""Wait between lines of a log. They come between rounds, never inside one, so that they disturb no figure."""


@dataclass(frozen=True)
class Log:
    """Lines past pytest's capture, for where nobody watches, but some end a job that is silent for long."""

    terminal: pytest.TerminalReporter
    uncaptured: Callable[[], AbstractContextManager[None]]

    def write(self, line: str) -> None:
        with self.uncaptured():
            self.terminal.write_line(line)
            self.terminal.flush()


@dataclass(frozen=True)
class Line(Log):
    """A line of a terminal, which is rewritten."""

    def ensure_newline(self) -> None:
        with self.uncaptured():
            self.terminal.ensure_newline()
            self.terminal.flush()

    def rewrite(self, line: str, **markup: bool) -> None:
        width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be overwritten
        with self.uncaptured():
            self.terminal.rewrite(line[:width], **markup)
            self.terminal.flush()


def line_or_log(config: pytest.Config) -> Log | None:
    """Return a line of the terminal that a person watches, else a log; None where pytest prints nothing."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:
        return None
    is_watched = sys.__stdout__ is not None and sys.__stdout__.isatty() and not os.environ.get("CI")
    return (Line if is_watched else Log)(reporter, uncaptured(config))


def uncaptured(config: pytest.Config) -> Callable[[], AbstractContextManager[None]]:
    """Return what makes a context in which pytest captures no output."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return nullcontext if capture is None else capture.global_and_fixture_disabled


@dataclass
class Progress:
    """Shows how far a run is; silent without `output`. Only the ratios of `predicted_seconds` count."""

    output: Log | None
    predicted_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by the id of each case of the run."""
    measured_seconds: float = 0.0
    """What the cases took that are done."""
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
        """End a case, with a timing or without; `result` replaces its rounds on the line."""
        if case_id != self._case_id:  # it never began, so it took no time
            self._done[case_id] = self.predicted_seconds[case_id] = 0.0
            return
        self.measured_seconds += time.monotonic() - self._case_start
        self._done[case_id] = self.predicted_seconds.get(case_id, 0.0)
        self._case_id, self._last = "", result
        if self.line is not None:
            self.line.rewrite("", erase=True)
            self.line.rewrite(f"{result} ")
        else:
            self._log(f"{len(self._done)} of {len(self.predicted_seconds)} cases done{self._time_left()}")

    def _log(self, line: str) -> None:
        """Write once a minute, with the last figure."""
        now = time.monotonic()
        if self.output is not None and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self.output.write(f"{line}{f'; last: {self._last}' if self._last else ''}")
            self._last_line = now

    def _time_left(self) -> str:
        """Say it at the pace so far; a case that already takes longer than that slows the pace of those to come."""
        done = self.done_predicted_seconds
        if not done or len(self._done) == len(self.predicted_seconds):
            return ""
        factor, to_come = self.measured_seconds / done, sum(self.predicted_seconds.values()) - done
        now = self.predicted_seconds.get(self._case_id, 0.0) if self._case_id else 0.0
        spent = time.monotonic() - self._case_start if self._case_id else 0.0
        if now and spent > now * factor:
            factor = (self.measured_seconds + spent) / (done + now)
        left = max(1.0, (to_come - now) * factor + max(0.0, now * factor - spent))
        return f"  about {left / 60:.0f} min left" if left >= 90 else f"  about {left:.0f} s left"
