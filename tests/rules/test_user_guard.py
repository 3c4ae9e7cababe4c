"""Code of the user's ends in time, leaves torch and the process as they were, and fails in one sentence."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from perf_tests.user_code.guard import (
    ChangedDefaultsError,
    ForkedError,
    NeverReturnsError,
    UserCodeError,
    end_if_forked,
    guarded,
    process_kept,
    torch_defaults_kept,
)


def raise_this(error: BaseException) -> NoReturn:
    raise error


def swallow() -> None:
    """Catches whatever an Exception is, as many loops do."""
    while True:
        with suppress(Exception):
            time.sleep(60)


def spin() -> None:
    while True:
        pass


def change_everything() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)


CHANGES = (
    "it changed torch's default dtype from torch.float32 to torch.float64 and torch's default device from cpu to meta "
    "and torch's number of threads from "
)


@pytest.mark.parametrize(
    "inside, kind, words",
    [
        (lambda: raise_this(KeyError("width")), UserCodeError, "builds no model: KeyError: 'width'"),
        (lambda: raise_this(ValueError("many " * 100)), UserCodeError, "ValueError: many many many"),
        (lambda: sys.exit(3), UserCodeError, "builds no model: it called exit(3)."),
        (lambda: raise_this(UserCodeError("as it is")), UserCodeError, "as it is"),
        (lambda: raise_this(MemoryError("planted")), MemoryError, "planted"),
        (lambda: raise_this(KeyboardInterrupt("Ctrl-C")), KeyboardInterrupt, "Ctrl-C"),
        (swallow, NeverReturnsError, " s, in which it computed for 0"),
        (spin, NeverReturnsError, "builds no model: it did not return within 0.2 s of CPU time."),
        (change_everything, UserCodeError, f"builds no model: {CHANGES}"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_sentence(inside: Callable[[], None], kind: type[BaseException], words: str) -> None:
    """Running out of memory and Ctrl-C stay what they are."""
    threads = torch.get_num_threads()
    with (
        pytest.raises(kind) as refusal,
        guarded("--model m:build builds no model", 0.2 if inside in (swallow, spin) else 60),
    ):
        inside()
    assert type(refusal.value) is kind
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 400
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
    assert torch.ones(1).device.type == "cpu"


def change_and_fail() -> None:
    change_everything()
    torch.ones(1).item()


@pytest.mark.parametrize(
    "inside, kind, words",
    [
        (change_everything, ChangedDefaultsError, "The case changed torch's default .* and .* and .* threads from"),
        (change_and_fail, RuntimeError, "meta"),
    ],
)
def test_what_a_case_changed_is_put_back_also_where_it_failed(
    inside: Callable[[], None], kind: type[Exception], words: str
) -> None:
    threads = torch.get_num_threads()
    with pytest.raises(kind, match=words), torch_defaults_kept():
        inside()
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
    assert torch.ones(1).device.type == "cpu"


def test_a_process_forked_by_a_case_ends_as_it_says_and_handlers_of_signals_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    end = os._exit
    with process_kept():
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
    assert os.waitstatus_to_exitcode(status) == 7
    assert [signal.getsignal(number) for number in numbers] == before
    assert os._exit is end


@pytest.mark.parametrize("is_next_round", [False, True])
def test_a_forked_process_that_comes_back_is_ended_and_costs_the_case(is_next_round: bool) -> None:
    """It would run on as a second run, with the same journal: it ends before its next round."""

    def case() -> int:
        pid = os.fork()
        if is_next_round:
            end_if_forked()
            if pid == 0:
                os.kill(os.getpid(), signal.SIGKILL)  # not ended
        return pid

    pid = 0
    with pytest.raises(ForkedError, match="forked came back and worked on beside it"), process_kept():
        pid = case()
    # Only the parent comes here.
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 4
    with process_kept():
        end_if_forked()


def test_a_process_that_a_case_started_and_left_alone_costs_nothing() -> None:
    with process_kept():
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_working_folder_is_put_back_also_one_that_is_gone(tmp_path: Path) -> None:
    here, gone = Path.cwd(), tmp_path / "gone"
    gone.mkdir()
    try:
        with guarded("a model"):
            os.chdir(tmp_path)
        assert Path.cwd() == here
        os.chdir(gone)
        gone.rmdir()
        inode = os.stat(".").st_ino
        with process_kept():
            os.chdir(tmp_path)
        assert os.stat(".").st_ino == inode
    finally:
        os.chdir(here)


@pytest.mark.parametrize("seconds_before", [0.05, 30.0])
def test_an_alarm_that_was_set_before_still_comes(seconds_before: float) -> None:
    """pytest-timeout's, or that of the whole case: one that was due meanwhile comes at once."""
    came: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds_before)
        with guarded("a model", 10):
            deadline = time.monotonic() + 0.1
            while time.monotonic() < deadline:
                pass
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        if seconds_before == 30.0:
            assert 0 < left < 30 - 0.1
        else:
            deadline = time.monotonic() + 60
            while not came and time.monotonic() < deadline:
                pass
            assert came == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
