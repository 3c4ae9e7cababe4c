"""`run [OPTIONS]`: benchmark a model, or compare it with a git revision (--against).

Lists take commas; `all` is every value. FILE is a test file of yours, a file of
the suite such as test_memory.py, a record's id, or numerics_tests.
`perf-tests run --help-all` says what each option does, pytest's (-k, -x) and
pytest-benchmark's (--benchmark-compare) too; so does docs/reference.md.

examples:
  perf-tests run --size small --context 128,512 --kernels --memory
  perf-tests run --model examples/averaging.py:build --against main
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from perf_tests_suite.perf_tests.interleaved.sides import BesideAnotherError, TreeError, alone, find_base, find_commit
from perf_tests_suite.perf_tests.phases import FINE, STOPPED
from perf_tests_suite.perf_tests.records.format import printable
from perf_tests_suite.perf_tests.user_code.named import (
    CONFIGURED,
    SUITE,
    UNDER_TEST,
    repository_around,
    repository_of,
)

NOT_RUN = 4
"""pytest's exit code for a usage error."""
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
        is_bisection = "--bisect" in arguments.of_pytest
        try:
            words = of_pytest(arguments.of_pytest)
            to_gate = their_tests(arguments.of_pytest)
            refuse_without_a_base(arguments.of_pytest, to_gate[0] if to_gate is not None else ())
        except (BesideAnotherError, TreeError, ValueError) as error:
            print(f"ERROR: {printable(str(error))}", file=sys.stderr)
            return STOPPED if is_bisection else NOT_RUN
        command = [sys.executable, "-m", "pytest", *words]
        if is_bisection:
            from perf_tests_suite.perf_tests.run.bisection import judged_by  # late: it loads pytest

            others = [word for word in arguments.of_pytest if word != "--bisect"]
            of_theirs = [sys.executable, "-m", "perf_tests_suite.perf_tests", "run", *others]
            return judged_by(command if to_gate is None else of_theirs)
        if to_gate is None:
            return os.execv(sys.executable, command)
        from perf_tests_suite.perf_tests.run.their_tests import gate_their_tests  # late: it loads torch

        return gate_their_tests(*to_gate)
    print(short_help())
    return FINE


MOST_USED = {
    "--model": "a model of yours: FILE.py:FACTORY or hf:CONFIG.json",
    "--size": "tiny, small, medium, large, xl, 2.7B or 10B",
    "--context": "context lengths in tokens, such as 128,512",
    "--precision": "fp32, tf32, bf16, fp16, fp16-unscaled, bf16-tensors",
    "--attention": "naive, softmax, compiled, sdpa, flex or FILE.py:FUNCTION",
    "--optimizer": "default, loop, foreach, fused or FILE.py:FACTORY",
    "--execution": "eager, compiled, reduce-overhead, max-autotune",
    "--phase": "forward, backward, optimizer, full_step and more",
    "--kernels": "trace each case after the timings",
    "--memory": "examine the memory of each case in a process of its own",
    "--resume": "go on with the interrupted run",
    "--against": "gate: compare with this git revision, a verdict per case",
    "--gate-minutes": "gate: stop after this many minutes (15)",
}
"""Options that the help explains, each in a line of 80 columns; it names the others."""


def short_help() -> str:
    """Return the help of this verb, at most 40 lines of 80 columns: what most people type, and names of the rest."""
    from perf_tests_suite.perf_tests.cases.options import GROUPS  # late: it loads torch

    sentence, _, epilog = (__doc__ or "").partition("\n\n")
    lines = ["usage: perf-tests run [FILE ...] [OPTION ...]", "", sentence.partition("`: ")[2].capitalize(), ""]
    lines += ["most used:", *(f"  {name:15} {text}" for name, text in MOST_USED.items()), ""]
    for title, options in GROUPS.items():
        others = ", ".join(option.name for option in options if option.name not in MOST_USED)
        lines += textwrap.wrap(
            f"{title}: {others}", 80, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
    return "\n".join([*lines, "", epilog.rstrip()])


def of_pytest(words: Sequence[str]) -> list[str]:
    """Return what pytest is given: cases of the suite, with its configuration, or a test file of the user's, alone.

    A file where the user stands is theirs unless it lies in the suite; any other name is looked for in the suite. Their
    file is run as pytest runs it: by their configuration, without the suite. `--help-all` is pytest's own help, with
    the options of its plugins. Raises ValueError with one sentence where a name is both, or files are of both.
    """
    theirs, places, others = _sorted_words(words)
    if not theirs:
        # The configuration is named: without it, files among the options' values would have a say in which one counts.
        return [*CONFIGURED, *(places or [str(SUITE / "perf_tests")]), *others]
    if places:
        raise ValueError(
            f"{theirs[0]} is yours and {Path(places[0]).name} the suite's, which run apart; type one of them."
        )
    return [*theirs, *others]


def their_tests(words: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The test files of the user's that are to be gated, and the other words; None where there are none."""
    theirs, _, others = _sorted_words(words)
    is_gate = any(word.partition("=")[0] == "--against" for word in others)
    return (theirs, others) if theirs and is_gate else None


def _sorted_words(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Test files of the user's, those of the suite, as pytest finds them, and the other words. Raises ValueError."""
    words = ["--help" if word == "--help-all" else word for word in words]
    first = len(list(takewhile(lambda word: word.startswith(("test_", "numerics_tests")), words)))
    benchmarks = {path.name for path in (SUITE / "perf_tests").glob("test_*.py")}
    places, theirs, others = [], [], []
    for place, (before, word) in enumerate(pairwise(["", *words])):
        file = word.partition("::")[0]
        ours = file.removeprefix("perf_tests/")  # as a record's ids begin
        is_numerics = word.partition("/")[0] == "numerics_tests"
        is_of_suite = before not in OF_FILES and (is_numerics or ours in benchmarks)
        here = _file_here(before, file)
        if here is not None and not here.is_relative_to(SUITE):
            if is_of_suite:
                another = f"perf_tests/{ours}" if word.startswith("test_") else f"{SUITE / file}"
                raise ValueError(f"{file} is the suite's and yours too; type {another} or ./{file}.")
            theirs.append(word)
        elif is_of_suite or place < first:
            of_suite = SUITE / ("" if word.startswith("numerics_tests") else "perf_tests") / ours
            places.append(f"{of_suite}{word[len(file) :]}")
        elif here is not None:
            places.append(f"{here}{word[len(file) :]}")
        else:
            others.append(word)
    return theirs, places, others


def refuse_without_a_base(words: Sequence[str], tests: Sequence[str] = ()) -> None:
    """Ask git for the base of --against, of `tests` of the user's too, and for another gate, before torch is loaded.

    pytest asks again, and alone where a module is named, whose place its path decides. Raises TreeError, ValueError
    and BesideAnotherError.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--against", "--gate-minutes", *UNDER_TEST):
        parser.add_argument(name)
    for name in ("--bisect", "--collect-only", "--co"):
        parser.add_argument(name, action="store_true")
    try:
        typed = vars(parser.parse_known_args(words)[0])
    except argparse.ArgumentError:
        return
    named = {name: typed[name.lstrip("-")] for name in UNDER_TEST}
    places = (text.rpartition(":")[0] for texts in named.values() for text in (texts or "").split(","))
    if typed["against"] is None or typed["collect_only"] or typed["co"]:
        return
    if tests:
        root = repository_around([test.partition("::")[0] for test in tests], Path.cwd(), is_built=False).root
        find_commit(root, typed["against"])
    elif all(place in ("", "hf") or place.endswith(".py") for place in places):
        for before, word in pairwise(["", *_sorted_words(words)[2]]):
            file = word.partition("::")[0]
            if file.endswith(".py") and not word.startswith("-") and not before.startswith("-"):
                raise ValueError(f"There is no file {file}, seen from {Path.cwd()}.")
        find_base(repository_of(named, Path.cwd(), typed["bisect"]), typed["against"])
    if typed["gate_minutes"] is None or set(typed["gate_minutes"]) - {*"0."}:  # a gate of 0 minutes measures nothing
        with alone():
            pass


def _file_here(before: str, name: str) -> Path | None:
    """The test file, or folder, that `name` is where the user stands; None for an option, its value, or no file.

    Of an option that is written without `=` the next word may be the value, which a folder may have the name of.
    """
    if before in OF_FILES or name.startswith("-"):
        return None
    # These raise no error for what is no name of a file, such as one of 300 letters.
    is_file = name.endswith(".py") and os.path.isfile(name)
    is_folder = not before.startswith("-") and os.path.isdir(name)
    return Path(name).resolve() if is_file or is_folder else None
