"""A worker as its starter sees it: `python -m MODULE SOCKET` in a folder, and the channel to it."""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import pytest

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES
from perf_tests.bench.loop import Measure
from perf_tests.bench.outcomes import Outcome, outcome_of_report
from perf_tests.bench.workbench import OTHER_MEASURE, OUTCOME, SETTINGS, Workbench
from perf_tests.cases.options import EXECUTIONS, SHAPE
from perf_tests.cases.settings import Settings
from perf_tests.gate.samples import Side
from perf_tests.records.record import Json
from perf_tests.user_code.attention import is_own
from perf_tests.user_code.model import is_configuration
from perf_tests.user_code.named import absolute, check_name, why_not_there

# A worker ends with its starter, whatever ends that: the kernel kills the worker's process group.
#
# The worker's standard input is a pipe that nobody writes to and that closes with the starter. Linux sends a chosen
# signal when a pipe closes, here SIGKILL to the group. Until then nothing happens, so no round can notice: a thread
# that
# waited instead would make the process multi-threaded, in which malloc is slower and a fork of the memory worker
# dangerous, and it would need the interpreter's lock to act.


def end_with_starter() -> None:
    """Where the system cannot send such a signal, a worker ends at its next message instead."""
    if not hasattr(fcntl, "F_SETSIG"):
        return
    pipe = os.dup(0)
    with open(os.devnull) as nothing:  # what a benchmark reads
        os.dup2(nothing.fileno(), 0)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it was closed before
        sys.exit(1)


# How a worker and the process that started it talk: one JSON object per line over a socket, never a pickle.


class ClosedError(Exception):
    """The other end has closed the channel."""


class SilentError(Exception):
    """No message came in time; the argument is the wait in seconds."""


class Channel:
    def __init__(self, end: socket.socket) -> None:
        self._end, self._received = end, end.makefile("rb")

    def send(self, message: Json) -> None:
        """Raises ClosedError."""
        try:
            self._end.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ClosedError from error

    def receive(self, patience_seconds: float | None = None) -> Json:
        """The next message, within `patience_seconds` where given; raises ClosedError or SilentError."""
        self._end.settimeout(patience_seconds)
        try:
            line = self._received.readline()
        except TimeoutError as error:
            raise SilentError(patience_seconds) from error
        except OSError as error:
            raise ClosedError from error
        if not line.endswith(b"\n"):
            raise ClosedError
        message: Json = json.loads(line)
        return message

    def close(self) -> None:
        self._received.close()
        self._end.close()


def channel_of_worker() -> Channel:
    """The end of a process that was started as `python -m MODULE SOCKET`, which ends with its starter."""
    end_with_starter()
    return Channel(socket.socket(fileno=int(sys.argv[1])))


class WorkerEndedError(Exception):
    """A worker died, hung or cannot serve; the message says how, without a full stop."""

    def __init__(self, reason: str, side: Side | None = None, cannot_start: bool = False) -> None:
        super().__init__(reason)
        self.side: Any = side
        """Of the gate's worker; None of another one."""
        self.cannot_start = cannot_start
        """Whether the side's own code failed before the first case."""


@dataclass
class WorkerProcess:
    """A running worker; `log` holds what it printed."""

    process: subprocess.Popen[bytes]
    channel: Channel
    log: IO[bytes]
    side: Side | None = None
    """Of a gate."""

    def send(self, message: Json) -> None:
        """Raises WorkerEndedError."""
        try:
            self.channel.send(message)
        except ClosedError as error:
            raise WorkerEndedError(self._how_it_ended(), self.side) from error

    def receive(self, patience_seconds: float | None = None) -> Json:
        """The next message, within `patience_seconds` where given.

        Raises WorkerEndedError if there is none, or if it says that the worker cannot start or continue.
        """
        try:
            message = self.channel.receive(patience_seconds)
        except SilentError as error:
            raise WorkerEndedError(f"it gave no answer for {patience_seconds:.0f} s", self.side) from error
        except (ClosedError, ValueError) as error:
            raise WorkerEndedError(self._how_it_ended(), self.side) from error
        for name in ("cannot", "ended"):
            if name in message:
                raise WorkerEndedError(str(message[name]).strip().rstrip("."), self.side, cannot_start=name == "cannot")
        return message

    def ask(self, message: Json, patience_seconds: float | None = None) -> Json:
        self.send(message)
        return self.receive(patience_seconds)

    def _how_it_ended(self) -> str:
        """Call it once the worker has closed its end of the channel."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its end of the channel"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process exited with {code}" + (f": {words}" if (words := self._last_words()) else "")

    def _last_words(self) -> str:
        self.log.seek(0)
        return last_words(self.log.read().decode(errors="replace"))

    def end(self) -> None:
        """Kill the worker and every process that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.channel.close()
        self.log.close()


def last_words(printed: str) -> str:
    """pytest's last error line, or else the last line printed, without a full stop."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1].rstrip(".")


def start_worker(
    module: str,
    folder: Path,
    environment: Mapping[str, str],
    side: Side | None = None,
    python: str | None = None,
) -> WorkerProcess:
    """Under `python`, or this process's interpreter."""
    log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the worker lives
    # A scheduler sends SIGTERM to every process. The worker inherits the mask, so that its starter ends it, in order.
    unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ours, its = socket.socketpair()
    try:
        process = subprocess.Popen(
            [python or sys.executable, "-m", module, str(its.fileno())],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,  # until it closes, with this process
            stdout=log,
            stderr=log,
            pass_fds=(its.fileno(),),
            process_group=0,  # Ctrl-C is for the suite, which ends its workers itself
        )
    finally:
        its.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
    return WorkerProcess(process, Channel(ours), log, side)


def inherited_environment() -> dict[str, str]:
    """Without pytest's variables, whose options are meant for the run and not for its workers.

    The one that keeps a machine's plugins out counts for workers too. Python's path is absolute, because a worker
    starts in another folder, and holds this folder where `python -m pytest` imports from it.
    """
    kept = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = [os.getcwd()] if {"", os.getcwd()}.intersection(sys.path) else []
    path = os.pathsep.join(os.path.abspath(entry) for entry in (*given, *here))
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST") or name == kept}
    return {**others, **({"PYTHONPATH": path} if path else {})}


# A run's settings as plain JSON, sent to a worker and received there.


def sent(settings: Settings) -> Json:
    """Without extra passes, ranges and shares: a worker runs each benchmark that it is given, under one measure."""
    return asdict(replace(settings, passes=(), memory_snapshot=False, nvtx=False, shard=None))


def sent_elsewhere(settings: Settings) -> Json:
    """The same for a worker that runs elsewhere than the user typed."""
    return sent(
        replace(
            settings,
            model=None if settings.model is None else absolute(settings.model),
            optimizer=absolute(settings.optimizer),
            attentions=tuple(map(absolute, settings.attentions)),
            attention_alone_implementations=tuple(map(absolute, settings.attention_alone_implementations)),
        )
    )


def received(values: Json) -> Settings:
    """Without the values that this tree does not know or hold, so that their cases are not collected."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    for name, known in (
        ("precisions", PRECISIONS),
        ("attention_alone_precisions", PRECISIONS),
        ("executions", EXECUTIONS),
    ):
        fields[name] = tuple(value for value in fields[name] if value in known)
    for name in ("attentions", "attention_alone_implementations"):
        fields[name] = tuple(value for value in fields[name] if value == "own" or _is_here(value))
    if not is_configuration(fields["model"] or ""):
        fields["sizes"] = tuple(size for size in fields["sizes"] if size in SIZES or SHAPE.fullmatch(size))
    return Settings(**fields)


def _is_here(attention: str) -> bool:
    """Whether this tree has it: an older base lacks a file that head added."""
    if not is_own(attention):
        return attention in ATTENTION
    if why_not_there(attention) is not None:
        return False
    with suppress(ValueError):
        check_name("--attention", attention)
        return True
    return False


# pytest inside a worker: a plugin that sets the run's settings and another measure, and notes what ended a case.


_ARGUMENTS = (
    "--quiet",
    "--benchmark-disable",
    *("-p", "no:cacheprovider"),
    # Hypothesis's plugin imports all of Hypothesis at the end of every run.
    *("-p", "no:hypothesispytest"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


@dataclass(eq=False)  # pytest keeps its plugins in sets
class WorkerPlugin(ABC):
    """Runs benchmarks as pytest runs them, under another measure."""

    settings: Settings
    outcome: Json | None = None
    """Why the current case has no rounds; None while it has."""
    trouble: str = ""
    """Why pytest could not collect, in its own words."""

    @abstractmethod
    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        """What the benchmark of `item` calls with its rounds."""

    def run(self, files_or_ids: Sequence[str]) -> None:
        pytest.main([*_ARGUMENTS, *files_or_ids], plugins=[self])

    def stopped(self, reason: str) -> None:
        """`pytest.exit` was called, for example because --model names no language model."""
        self.outcome = asdict(Outcome("error", reason))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        session.config.stash[SETTINGS] = self.settings
        session.config.stash[OTHER_MEASURE] = self.measure

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Keep why nothing is measured, for example because the device cannot be used."""
        try:
            return (yield)
        except pytest.UsageError as error:
            self.trouble = str(error).partition("\n")[0]
            raise

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble = report.longreprtext.strip().splitlines()[-1]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Called for `pytest.exit` too."""
        self.stopped(str(excinfo.value))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self.outcome is None:
            self.outcome = asdict(item.stash.get(OUTCOME, None) or outcome_of_report(report))
        return report


@dataclass(eq=False, kw_only=True)
class _OneBenchmark(WorkerPlugin):
    make: Callable[[pytest.Item, Workbench], Measure]
    made: Measure | None = None

    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        self.made = self.make(item, workbench)
        return self.made


def examined(task: Json, make: Callable[[pytest.Item, Workbench], Measure]) -> Json | None:
    """The `values` of the measure of the task's benchmark, or an `outcome`; None where pytest did not run it."""
    plugin = _OneBenchmark(settings=received(task["settings"]), make=make)
    plugin.run([task["benchmark"]])
    if plugin.outcome is None and plugin.trouble:
        plugin.stopped(plugin.trouble)
    if plugin.outcome is not None:
        return {"outcome": plugin.outcome}
    return {"values": plugin.made.values} if plugin.made is not None and plugin.made.values else None
