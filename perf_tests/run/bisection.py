"""`--bisect`: what `git bisect run` is told of a commit, whatever pytest's own exit code is.

pytest ends with 2, 3 and 4 for what is no fault of the commit, and git takes each of these for a bad one. So
`perf-tests run --bisect` starts pytest, which writes the verdict into a file, and ends with a code of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.phases import STOPPED

VARIABLE = "PERF_TESTS_BISECT"
"""Names the file for the verdict."""


def tell(code: int) -> None:
    """Write what git is told of this commit; the last word counts."""
    if path := os.environ.get(VARIABLE):
        Path(path).write_text(str(code))


def check_starter(config: pytest.Config) -> None:
    """End, by a code that stops git, where pytest was started without `perf-tests run`."""
    if config.getoption("--bisect") and VARIABLE not in os.environ:
        pytest.exit("--bisect is for `perf-tests run`, which git can read; type that instead of pytest.", STOPPED)


def judged_by(command: Sequence[str]) -> int:
    """Run pytest by this command; the code for git, also where a signal ends it: 130 for Ctrl-C, 143 for SIGTERM."""
    came: list[int] = []
    with tempfile.TemporaryDirectory(prefix="perf-tests-bisect-", ignore_cleanup_errors=True) as folder:
        told = Path(folder, "verdict")
        process = subprocess.Popen(command, env={**os.environ, VARIABLE: str(told)})

        def note(number: int, _: object) -> None:
            came.append(number)
            if number == signal.SIGTERM:  # Ctrl-C reaches the whole group by itself
                process.send_signal(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            ended = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if came or ended == pytest.ExitCode.INTERRUPTED:
            return 128 + (came[0] if came else signal.SIGINT)
        try:
            return int(told.read_text())
        except (OSError, ValueError):
            print(f"No verdict on this commit: pytest ended with {ended}, so git stops.", file=sys.stderr)
            return STOPPED
