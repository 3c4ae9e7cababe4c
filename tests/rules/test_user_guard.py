"""Code of the user's ends in time, leaves torch and the process as they were, and fails in one sentence."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from perf_tests_suite.perf_tests.user_code import guard


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
        (lambda: raise_this(KeyError("width")), guard.UserCodeError, "builds no model: KeyError: 'width'"),
        (lambda: raise_this(ValueError("many " * 100)), guard.UserCodeError, "ValueError: many many many"),
        (lambda: sys.exit(3), guard.UserCodeError, "builds no model: it called exit(3)."),
        (lambda: raise_this(guard.UserCodeError("as it is")), guard.UserCodeError, "as it is"),
        (lambda: raise_this(MemoryError("planted")), MemoryError, "planted"),
        (lambda: raise_this(KeyboardInterrupt("Ctrl-C")), KeyboardInterrupt, "Ctrl-C"),
        (swallow, guard.NeverReturnsError, " s, in which it computed for 0"),
        (spin, guard.NeverReturnsError, "builds no model: it did not return within 0.2 s of CPU time."),
        (change_everything, guard.UserCodeError, f"builds no model: {CHANGES}"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_sentence(inside: Callable[[], None], kind: type[BaseException], words: str) -> None:
    """Running out of memory and Ctrl-C stay what they are."""
    threads = torch.get_num_threads()
    seconds = 0.2 if inside in (swallow, spin) else 60
    with pytest.raises(kind) as refusal, guard.guarded("--model m:build builds no model", seconds):
        inside()
    assert type(refusal.value) is kind
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 400
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
    assert torch.ones(1).device.type == "cpu"


def test_what_a_case_changed_is_put_back_also_where_it_failed() -> None:
    threads = torch.get_num_threads()
    for inside, kind, words in (
        (
            change_everything,
            guard.ChangedDefaultsError,
            "The case changed torch's default .* and .* and .* threads from",
        ),
        (lambda: (change_everything(), torch.ones(1).item()), RuntimeError, "meta"),  # type: ignore[func-returns-value]
    ):
        with pytest.raises(kind, match=words), guard.torch_defaults_kept():
            inside()
        assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
        assert torch.ones(1).device.type == "cpu"


def test_a_process_forked_by_a_case_ends_as_it_says_and_handlers_of_signals_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    end = os._exit
    with guard.process_kept():
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
    forked: list[int] = []

    def case() -> None:
        forked.append(os.fork())
        if is_next_round:
            guard.end_if_forked()
            if forked == [0]:
                os.kill(os.getpid(), signal.SIGKILL)  # not ended

    with pytest.raises(guard.ForkedError, match="forked came back and worked on beside it"), guard.process_kept():
        case()
    # Only the parent comes here.
    _, status = os.waitpid(forked[0], 0)
    assert os.waitstatus_to_exitcode(status) == 4
    with guard.process_kept():
        guard.end_if_forked()


@pytest.mark.parametrize("block", [guard.process_kept, lambda: guard.guarded("a model")])
def test_a_forked_process_that_computes_on_is_ended_and_costs_the_case(
    block: Callable[[], AbstractContextManager[None]],
) -> None:
    forked: list[int] = []

    def case() -> None:
        forked.append(os.fork())
        while forked == [0]:
            pass

    with pytest.raises(guard.ForkedError, match="forked worked on beside it"), block():
        case()
    assert os.waitpid(forked[0], 0)[1] == signal.SIGKILL


def test_a_process_that_a_case_started_and_left_alone_costs_nothing_and_ends_with_the_run() -> None:
    with guard.forked_processes_ended():
        with guard.process_kept():
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_what_a_user_prints_is_shown_once_and_as_far_as_a_screen_goes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard._Printed, "left", 2000)
    monkeypatch.setattr(guard._Printed, "lines", set())
    for number in (1, 1, 2):
        with guard.guarded("a model"):
            print(number, "Y" * 1_500)
    for _ in range(3):
        with guard.guarded("a model"):
            print("Z" * 1_000_000)
    out, err = capsys.readouterr()
    assert (out, err.count("1 Y"), err.count("Y"), err.count("Z")) == ("", 1, 2000 - len("1 \n2 "), 0)
    assert err.count("more that your code prints is not shown") == 1


def test_the_working_folder_is_put_back_also_one_that_is_gone(tmp_path: Path) -> None:
    here, gone = Path.cwd(), tmp_path / "gone"
    gone.mkdir()
    try:
        with guard.guarded("a model"):
            os.chdir(tmp_path)
        assert Path.cwd() == here
        os.chdir(gone)
        gone.rmdir()
        inode = os.stat(".").st_ino
        with guard.process_kept():
            os.chdir(tmp_path)
        assert os.stat(".").st_ino == inode
    finally:
        os.chdir(here)


@pytest.mark.parametrize("seconds_before, due, is_left", [(0.05, [signal.SIGALRM], False), (30.0, [], True)])
def test_an_alarm_that_was_set_before_still_comes(seconds_before: float, due: list[int], is_left: bool) -> None:
    """pytest-timeout's, or that of the whole case: one that was due meanwhile comes at once."""

    def spin_until(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while came != [signal.SIGALRM] and time.monotonic() < deadline:
            pass

    came: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds_before)
        with guard.guarded("a model", 10):
            spin_until(0.1)
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        spin_until(60 * len(due))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert (came, 1 < left < 30 - 0.1) == (due, is_left)


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    """A library lists what it knows first and says at the end what to install."""
    known = " ".join(f"architecture{number}" for number in range(500))
    with pytest.raises(guard.UserCodeError) as raised, guard.guarded("it"):
        raise ValueError(f"unknown; known are {known}: install it with pip install architectures")
    text = str(raised.value)
    assert text.startswith("it: ValueError: unknown; known are architecture0 ")
    assert ": install it with pip install architectures" in text
    assert "architecture250" not in text
