"""`run [OPTIONS]`: measure, or gate with --against, from any folder: pytest on the suite's benchmarks."""

import argparse
import os
import sys
from collections.abc import Sequence

from perf_tests.phases import UsageError
from perf_tests.user_code.named import SUITE

CONFIGURATION = SUITE / "pyproject.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: every word is pytest's."""


def run(arguments: argparse.Namespace) -> int:
    """Becomes pytest, whose exit code is the command's; a first word `test_counters.py` is that file of the suite."""
    if CONFIGURATION.is_file():
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *of_pytest(arguments.of_pytest)])
    raise UsageError(
        f"There is no {CONFIGURATION}: install the suite from its checkout, `pip install --editable FOLDER`."
    )


def of_pytest(words: Sequence[str]) -> list[str]:
    """The configuration by name: without it, files among the options' values would have a say in which one counts."""
    file, left = (words[0], words[1:]) if words and words[0].startswith("test_") else ("", words)
    return ["--config-file", str(CONFIGURATION), str(SUITE / "perf_tests" / file), *left]
