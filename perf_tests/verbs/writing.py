"""The file that a verb was asked to write."""

from pathlib import Path

from perf_tests.records.store import write_whole
from perf_tests.records.words import without_path
from perf_tests.verbs.exit_codes import UsageError


def write_named(named: str, content: bytes, option: str = "-o") -> None:
    """Whole or not at all, to the path as it was typed; raises UsageError."""
    try:
        write_whole(Path(named), content)
    except OSError as error:
        why = without_path(error)
        raise UsageError(f"{named} cannot be written: {why}; name another file with {option}.") from error
