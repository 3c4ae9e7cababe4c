"""Runs code of the user's own: within a time, without a lasting effect on torch, its failures as one sentence."""

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from types import FrameType

import torch

from perf_tests.instruments.device_errors import is_out_of_memory

LONGEST_SECONDS = 10
"""For one call before measuring, without content or of a small model; more is taken for one that never returns."""


LONGEST_TEXT = 300
"""Characters of an error's text that are shown; transformers lists every architecture that it knows."""


class OwnModelError(ValueError):
    """What the user gave, a model, a function or an optimizer, cannot be measured; the message is one sentence."""


class NeverReturnsError(OwnModelError):
    """It was interrupted after its time."""


class _TooLongError(BaseException):
    """Not an Exception, which the user's code might catch."""


@contextmanager
def guarded(what: str, seconds: float | None = None) -> Iterator[None]:
    """Raises OwnModelError for what goes wrong inside; running out of memory stays what it is, an outcome of a case.

    `what` begins the sentence: "--model m:build builds no model". Code in C is not interrupted after `seconds`.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    try:
        with warnings.catch_warnings(), _at_most(seconds):
            warnings.simplefilter("ignore")
            yield
        changed = _changes(dtype, device)
    except _TooLongError:
        raise NeverReturnsError(f"{what}: it did not return within {seconds:g} s.") from None
    except SystemExit as error:
        raise OwnModelError(f"{what}: it called exit({error.code!r}).") from error
    except OwnModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        text = shorten(str(error), LONGEST_TEXT, placeholder=" ...")
        raise OwnModelError(f"{what}: {type(error).__name__}: {text}") from error
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            # A device once set stays a mode around every call, also that of the CPU.
            torch.set_default_device(None if device.type == "cpu" else device)
    if changed:
        raise OwnModelError(f"{what}: it changed {changed}; pass dtype or device to what needs it.")


def _changes(dtype: torch.dtype, device: torch.device) -> str:
    if torch.get_default_dtype() != dtype:
        return f"torch's default dtype from {dtype} to {torch.get_default_dtype()}"
    if torch.get_default_device() != device:
        return f"torch's default device from {device} to {torch.get_default_device()}"
    return ""


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs inside, where signals can: in the main thread."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TooLongError

    handler = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
