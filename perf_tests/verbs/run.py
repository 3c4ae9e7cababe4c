"""`run [OPTIONS]`: measure, or gate with --against, from any folder; pytest on the suite's benchmarks.

Lists take commas; `all` is every value. Words such as `test_memory.py` or a record's id select cases, `numerics_tests`
those tests instead. Every option of pytest and of pytest-benchmark follows: -k, -x, --benchmark-compare,
--benchmark-save and more. `perf-tests run --help-all` prints them too.

examples:
  perf-tests run --size small --context 128,512 --kernels --memory
  perf-tests run --model examples/averaging.py:build --against main
"""

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import pairwise, takewhile

from perf_tests.phases import FINE
from perf_tests.user_code.named import CONFIGURED, SUITE

OF_FILES = {"-k", "--deselect", "--ignore", "--ignore-glob"}
"""Options of pytest whose value may be a file of the suite."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: every word is pytest's."""


def run(arguments: argparse.Namespace) -> int:
    """Become pytest, whose exit code is the command's, or print the suite's own options by group.

    Words such as `test_counters.py`, or an id of a record, are files of the suite, and `numerics_tests`, or a file in
    it, those tests.
    """
    if not {"-h", "--help"} & set(arguments.of_pytest):
        return os.execv(sys.executable, [sys.executable, "-m", "pytest", *of_pytest(arguments.of_pytest)])
    from perf_tests.cases.options import GROUPS, argparse_keywords  # late: it loads torch

    sentence, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "perf-tests run", "perf-tests run [OPTION ...]", sentence.partition("`: ")[2].capitalize(), epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False,
    )  # fmt: skip
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            group.add_argument(option.name, **argparse_keywords(option))
    parser.print_help()
    return FINE


def of_pytest(words: Sequence[str]) -> list[str]:
    """Name the configuration: without it, files among the options' values would have a say in which one counts.

    `--help-all` is pytest's own help, with the options of its plugins.
    """
    words = ["--help" if word == "--help-all" else word for word in words]
    first = len(list(takewhile(lambda word: word.startswith(("test_", "numerics_tests")), words)))
    benchmarks = {path.name for path in (SUITE / "perf_tests").glob("test_*.py")}
    places, others = [], []
    for place, (before, word) in enumerate(pairwise(["", *words])):
        file = word.removeprefix("perf_tests/")  # as a record's ids begin
        is_numerics = word.partition("/")[0] == "numerics_tests"
        is_named = before not in OF_FILES and (is_numerics or file.partition("::")[0] in benchmarks)
        if place < first or is_named:
            places.append(str(SUITE / ("" if word.startswith("numerics_tests") else "perf_tests") / file))
        else:
            others.append(word)
    return [*CONFIGURED, *(places or [str(SUITE / "perf_tests")]), *others]
