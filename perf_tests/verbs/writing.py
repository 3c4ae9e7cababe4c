"""The file that a verb was asked to write."""

import os
from pathlib import Path

from perf_tests.phases import UsageError
from perf_tests.records.record import without_path
from perf_tests.records.store import write_whole


def write_named(named: str, content: bytes, option: str = "-o") -> None:
    """Whole or not at all, to the path as it was typed; raises UsageError."""
    try:
        write_whole(Path(named), content)
    except OSError as error:
        raise _refusal(named, error, option) from error


def check_folder(named: str, option: str = "-o") -> None:
    """Raises UsageError before long work where the folder to write into is none."""
    try:
        os.listdir(Path(named).parent)
    except OSError as error:
        raise _refusal(named, error, option) from error


def _refusal(named: str, error: OSError, option: str) -> UsageError:
    return UsageError(f"{named} cannot be written: {without_path(error)}; name another file with {option}.")
