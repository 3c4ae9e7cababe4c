"""Runs code of the user's own: within a time, without a lasting effect on torch, its failures as one sentence."""

import io
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from textwrap import shorten
from traceback import extract_tb
from types import FrameType
from typing import Any, ClassVar, NoReturn

import torch

from perf_tests_suite.perf_tests.hardware.device import is_out_of_memory
from perf_tests_suite.perf_tests.user_code.named import SUITE, is_installed

LONGEST_SECONDS = 10
"""CPU time that one call may take before measuring, without content or of a small model; more is for ever."""

PATIENCE = 6
"""Times the limit that a call may take in wall time: on a busy machine good code computes slowly, and what waits for
something computes nothing."""


OWN = ("model", "perf_tests", "numerics_tests")
"""Folders of the suite, whose lines are not the user's."""

LONGEST_TEXT = 300
"""Characters of an error's text that are shown; transformers lists every architecture that it knows."""


class UserCodeError(ValueError):
    """What the user gave, a model, a function or an optimizer, cannot be measured; the message is one sentence."""


class ChangedDefaultsError(UserCodeError):
    """It measured under other conditions than those that the row would name."""


class NeverReturnsError(UserCodeError):
    """It was interrupted after its time."""


class _TooLongError(BaseException):
    """An error, yet no Exception, which the user's code might catch; the message is a clause."""


@contextmanager
def guarded(what: str, seconds: float | None = None) -> Iterator[None]:
    """Guard a block; raises UserCodeError for what goes wrong inside; running out of memory stays what it is, an
    outcome of a case.

    `what` begins the sentence: "--model m:build builds no model". Code in C is not interrupted after `seconds`.
    """
    try:
        with (
            warnings.catch_warnings(),
            _folder_kept(),
            _defaults_kept(f"{what}: it changed", UserCodeError),
            _forks_watched(f"{what}: a process that it forked"),
            _at_most(seconds),
            _printed_once(),
        ):
            warnings.simplefilter("ignore")
            yield
    except _TooLongError as error:
        raise NeverReturnsError(f"{what}: it did not return within {error}.") from None
    except SystemExit as error:
        raise UserCodeError(f"{what}: it called exit({error.code!r}).") from error
    except UserCodeError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        text = _told(error) or "no message"
        raise UserCodeError(f"{what}: {type(error).__name__}: {text.rstrip('.')}{_place_of(error)}") from error


def _told(error: Exception) -> str:
    """Return its text; of a long one the beginning, and the end, where a remedy stands."""
    text = " ".join(str(error).split())
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{shorten(text, half, placeholder='')} ... {text[-half:].partition(' ')[2]}"


@contextmanager
def _printed_once() -> Iterator[None]:
    stream = _Printed()
    try:
        with redirect_stdout(stream):
            yield
    finally:
        stream.show(stream.begun)


class _Printed(io.TextIOBase):
    """Standard error, for the first that user's code prints: standard output is the verb's own, JSON for example."""

    left = 2000
    """Characters, of all blocks together: a check calls the code often."""
    lines: ClassVar[set[str]] = set()
    """Those that were shown: a model is built often too, and says the same of itself."""
    begun = ""
    """The line that has no end yet."""

    def write(self, text: str) -> int:
        *whole, self.begun = (self.begun + text).split("\n")
        for line in whole:
            if line not in _Printed.lines:
                _Printed.lines.add(line)
                self.show(f"{line}\n")
        return len(text)

    def show(self, text: str) -> None:
        if shown := text[: _Printed.left]:
            _Printed.left -= len(shown)
            sys.stderr.write(shown if _Printed.left else f"{shown} ...\n(more that your code prints is not shown)\n")

    def flush(self) -> None:
        sys.stderr.flush()


def _place_of(error: Exception) -> str:
    """Return the innermost line of the user's own code that an error passed: ` (train/muon.py:41, in step)`."""
    for frame in reversed(extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file.is_file() and not is_installed(file) and not any(file.is_relative_to(SUITE / own) for own in OWN):
            name = os.path.relpath(file)
            return f" ({file if name.startswith('..') else name}:{frame.lineno}, in {frame.name})"
    return ""


@contextmanager
def running_out_of_memory_allowed() -> Iterator[None]:
    """Leave what runs inside where memory runs out: before measuring that is no reason to refuse."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


def check_kind(what: str, found: object, kind: type, name: str) -> None:
    """Raise UserCodeError unless a factory returned a `kind`, which the sentence calls `name`."""
    if not isinstance(found, kind):
        got = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise UserCodeError(f"{what} returned {got}; it must return {name}.")


def _set_default_device(device: torch.device) -> None:
    # A device once set stays a mode around every call, also that of the CPU.
    torch.set_default_device(None if device.type == "cpu" else device)


_DEFAULTS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, _set_default_device),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
}
"""The defaults of torch in this process, which later cases share: how each is read and set."""


@contextmanager
def _defaults_kept(sentence: str, kind: type[UserCodeError]) -> Iterator[None]:
    """Put the defaults back, and raise `kind` where what runs inside succeeded and has changed one."""
    before = {name: read() for name, (read, _) in _DEFAULTS.items()}
    changed: dict[str, Any] = {}
    try:
        yield
    finally:
        for name, (read, put) in _DEFAULTS.items():
            if (now := read()) != before[name]:
                changed[name] = now
                put(before[name])
    if changed:
        words = " and ".join(f"torch's {name} from {before[name]} to {now}" for name, now in changed.items())
        raise kind(f"{sentence} {words}; pass dtype or device to what needs it, and choose --threads.")


def torch_defaults_kept() -> AbstractContextManager[None]:
    """Put the defaults of before back, whatever happens inside.

    Raises ChangedDefaultsError where what runs inside succeeded and has changed one.
    """
    return _defaults_kept("The case changed", ChangedDefaultsError)


EXIT_CODE_OF_A_MODEL_THAT_ENDS_THE_PROCESS = 4
"""The code of bad input; a model's own code, 0 for example, would tell a CI that the run is done."""


@contextmanager
def _folder_kept() -> Iterator[None]:
    """Put the working folder back, also one whose path is gone."""
    try:
        folder = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            os.fchdir(folder)
        os.close(folder)


_came_back: tuple[int, int] | None = None
"""The block at hand: its process, and the pipe by which a process that it forked says that it came back."""


def end_if_forked() -> None:
    """End this process where user's code forked it and it came back: it would run on as a second run.

    Called before each round too, so that it disturbs no later one.
    """
    if _came_back is not None and os.getpid() != _came_back[0]:
        os.write(_came_back[1], b"1")
        os._exit(EXIT_CODE_OF_A_MODEL_THAT_ENDS_THE_PROCESS)


FORKED_SECONDS = 0.5
"""How long one that is still there may take to come back, and then to show whether it computes."""
IDLE_SECONDS = 0.005
"""CPU time meanwhile of one that waits, for the tasks of a pool for example."""


class ForkedError(UserCodeError):
    """A process that user's code forked works on beside it."""


class _Forks:
    """The processes forked from now on, each of which holds a pipe open."""

    def __init__(self) -> None:
        self.parent, (self.end, self.pipe) = os.getpid(), os.pipe()

    def left(self) -> list[int]:
        """Return the process IDs of those that are still there, as far as /proc tells; none to one of them."""
        held, found = f"pipe:[{os.fstat(self.end).st_ino}]", []
        for name in os.listdir("/proc") if os.getpid() == self.parent and os.path.isdir("/proc") else ():
            with suppress(OSError):  # another user's, or gone meanwhile
                files = f"/proc/{name}/fd"
                if name.isdecimal() and any(os.readlink(f"{files}/{number}") == held for number in os.listdir(files)):
                    found.append(int(name))
        return [process_id for process_id in found if process_id != self.parent]


@contextmanager
def forked_processes_ended() -> Iterator[None]:
    """End whatever is forked inside and still there afterwards: it would outlive the run."""
    forks = _Forks()
    try:
        yield
    finally:
        _end(forks.left())
        os.close(forks.end)
        os.close(forks.pipe)


def _end(process_ids: Iterable[int]) -> None:
    for process_id in process_ids:
        with suppress(OSError):
            os.kill(process_id, signal.SIGKILL)


@contextmanager
def _forks_watched(what: str) -> Iterator[None]:
    """End the processes forked inside that come back or compute on afterwards; raises ForkedError of `what` then."""
    global _came_back
    outer, forks, did = _came_back, _Forks(), ""
    _came_back = (forks.parent, forks.pipe)
    try:
        yield
    finally:
        end_if_forked()
        _came_back = outer
        os.close(forks.pipe)
        # Nothing waits where no forked process is left: the pipe is closed then. One that is left may be about to say.
        if select.select([forks.end], [], [], FORKED_SECONDS)[0]:
            did = "came back and worked on" if os.read(forks.end, 1) else ""
        elif before := _cpu_seconds(forks.left()):
            time.sleep(FORKED_SECONDS)
            now = _cpu_seconds(before)
            at_work = [one for one, seconds in now.items() if seconds - before[one] > IDLE_SECONDS]
            _end(at_work)
            did = "worked on" if at_work else ""
        os.close(forks.end)
    if did:
        raise ForkedError(
            f"{what} {did} beside it, so its times are not its own; let what it forks end by os._exit, or start it by "
            "subprocess."
        )


def _cpu_seconds(process_ids: Iterable[int]) -> dict[int, float]:
    found = {}
    for process_id in process_ids:
        with suppress(OSError):
            found[process_id] = time.clock_gettime(~process_id << 3 | 2)  # clock_getcpuclockid(3) of a process
    return found


@contextmanager
def process_kept(uncaptured: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """End this process as a failure, with a sentence printed `uncaptured`, where what runs inside calls `os._exit`.

    A process forked inside ends as ever, and where it comes back or works on instead, is ended: ForkedError.
    Handlers of the signals that end a run, and the working folder, are put back afterwards.
    """
    pid, end = os.getpid(), os._exit
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ended(status: int) -> NoReturn:
        if os.getpid() != pid:
            end(status)
        sentence = f"\nThe case called os._exit({status}), which ends the run; raise an error instead, or sys.exit.\n"
        with suppress(OSError, ValueError), uncaptured():
            print(sentence, file=sys.__stderr__, flush=True)
        end(EXIT_CODE_OF_A_MODEL_THAT_ENDS_THE_PROCESS)

    os._exit = ended
    try:
        with _folder_kept(), _forks_watched("A process that the case forked"):
            yield
    finally:
        os._exit = end
        for number, handler in handlers.items():
            if main and handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs inside after `seconds` of CPU time or PATIENCE times as much wall time.

    Where signals can, in the main thread.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    cpu_start, wall_start = time.process_time(), time.monotonic()

    def interrupt(number: int, frame: FrameType | None) -> None:
        used, waited = time.process_time() - cpu_start, time.monotonic() - wall_start
        if used >= seconds:
            raise _TooLongError(f"{seconds:g} s of CPU time")
        if waited >= PATIENCE * seconds:
            raise _TooLongError(f"{waited:.2g} s, in which it computed for {used:.2g} s; on a busy machine try again")
        signal.setitimer(signal.ITIMER_REAL, max(seconds - used, seconds / 10))

    with alarm_after(seconds, interrupt):
        yield


@contextmanager
def alarm_after(seconds: float, interrupt: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call `interrupt` by SIGALRM once `seconds` have passed inside.

    A process has one such timer: one that was set before, by pytest-timeout or for the whole case, goes on afterwards
    with what is left of its time.
    """
    handler, began = signal.signal(signal.SIGALRM, interrupt), time.monotonic()
    earlier, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if earlier:
            left = earlier - (time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), interval)  # 0 would turn it off
