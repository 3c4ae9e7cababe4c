"""Code of the user's ends in time, leaves torch and the process as they were, and fails in one sentence."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import pytest
import torch

from perf_tests.user_code.guard import (
    ChangedDefaultsError,
    NeverReturnsError,
    UserCodeError,
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
        (swallow, NeverReturnsError, "builds no model: it did not return within 0.2 s."),
        (change_everything, UserCodeError, f"builds no model: {CHANGES}"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_sentence(inside: Callable[[], None], kind: type[BaseException], words: str) -> None:
    """Running out of memory and Ctrl-C stay what they are."""
    threads = torch.get_num_threads()
    with pytest.raises(kind) as refusal, guarded("--model m:build builds no model", 0.2 if inside is swallow else 60):
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
