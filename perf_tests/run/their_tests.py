"""`perf-tests run FILE.py --against REV` on tests of the user's: what was typed, the gate, and what it says."""

import argparse
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from perf_tests_suite.perf_tests.bench.options import (
    DEFAULT_MINUTES,
    Against,
    refuse_no_minutes,
    summary_path,
)
from perf_tests_suite.perf_tests.cases.gate_options import OF_THEIR_TESTS, argparse_keywords
from perf_tests_suite.perf_tests.gate.accepted import FILE_NAME, read_accepted
from perf_tests_suite.perf_tests.gate.samples import Rules
from perf_tests_suite.perf_tests.gate.verdicts import SKIPPED_COMMIT
from perf_tests_suite.perf_tests.hardware.device import proc_values
from perf_tests_suite.perf_tests.hardware.machine import seconds_since_process_start
from perf_tests_suite.perf_tests.interleaved.measuring import GateProgress, Printed, UnmeasurableError
from perf_tests_suite.perf_tests.interleaved.run import GatePlan, GateRun, OtherPythonError, other_python, run_gate
from perf_tests_suite.perf_tests.interleaved.sides import BesideAnotherError, TreeError, alone, find_commit
from perf_tests_suite.perf_tests.interleaved.their_tests import compare_tests
from perf_tests_suite.perf_tests.records.format import has_colours, painted, printable
from perf_tests_suite.perf_tests.run.bisection import tell
from perf_tests_suite.perf_tests.run.gate import SECONDS_BETWEEN_LINES, ending_lines, finish
from perf_tests_suite.perf_tests.run.termination import TerminatedError, Termination
from perf_tests_suite.perf_tests.user_code.named import Repository, repository_around

NOT_RUN = 4
"""pytest's exit code for a usage error."""


def gate_their_tests(tests: Sequence[str], words: Sequence[str], rules: Rules | None = None) -> int:
    """Gate these files, folders and node ids under these options; the exit code.

    `words` are the gate's options, and what else is for their pytest.
    """
    termination, run = Termination(), None
    try:
        typed, others = _sorted(words)
        run = GateRun(_plan(tests, typed, others, shlex.join(words), rules or Rules()))
        watch = GateProgress(
            Printed(),
            None,
            run.plan.rules.screen_pairs,
            run.plan.rules.confirm_looks[-1],
            run.plan.seconds,
            lambda: 60 * typed.time_limit - seconds_since_process_start(),
            0.0 if typed.verbose else SECONDS_BETWEEN_LINES,
        )
        with termination.heeded(), alone() if run.plan.seconds else nullcontext():
            run_gate(run, watch, compare_tests)
    except (BesideAnotherError, OtherPythonError, TreeError, UnmeasurableError, ValueError) as error:
        if isinstance(error, UnmeasurableError):
            tell(SKIPPED_COMMIT)
        print(f"ERROR: {printable(str(error))}", file=sys.stderr)
        return NOT_RUN
    except TerminatedError:
        assert run is not None
        assert termination.came is not None
        print("\n".join(ending_lines(run, typed.verbose)), flush=True)
        return 128 + termination.came  # as a shell shows it
    code = finish(run)
    print("\n".join(painted(line, has_colours()) for line in ending_lines(run, typed.verbose)))
    return code


_DEFAULTS = {"gate_minutes": DEFAULT_MINUTES, "gate_undecided": "pass", "time_limit": math.inf}


def _sorted(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Values of the gate's options, and of those of pytest that mean the gate; the words that are left for pytest.

    Raises ValueError with one sentence for what is wrong.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in OF_THEIR_TESTS:
        parser.add_argument(option.name, **{**argparse_keywords(option), "help": argparse.SUPPRESS})
    parser.add_argument("--maxfail", type=int)
    try:
        typed, others = parser.parse_known_args([*words])
    except argparse.ArgumentError as error:
        raise ValueError(f"{error.argument_name} {error.message}.") from error
    switches = {letter for word in others if re.fullmatch("-[lqsvx]+", word) for letter in word}
    typed.verbose = "v" in switches or "--verbose" in others
    typed.maxfail = typed.maxfail or int("x" in switches or "--exitfirst" in others)
    for option in OF_THEIR_TESTS:
        name = option.name.strip("-").replace("-", "_")
        text = getattr(typed, name)
        if option.parse is not None:
            setattr(typed, name, _DEFAULTS.get(name) if text is None else option.parse(option.name, text))
    if typed.against_option:
        raise ValueError("--against-option compares values of the suite's own axes, which tests of yours have none of.")
    if typed.gate_compile:
        raise ValueError("--gate-compile judges cases of the suite; what tests of yours compile is counted, not timed.")
    if typed.gate_measure_same:
        refuse_no_minutes(typed.gate_minutes, "--gate-measure-same")
    return typed, others


def _plan(
    tests: Sequence[str], typed: argparse.Namespace, others: Sequence[str], options: str, rules: Rules
) -> GatePlan:
    """Return what is to be gated by these options, with `others` for pytest.

    Raises OtherPythonError, TreeError, and ValueError with one sentence.
    """
    here = Path.cwd()
    repository = repository_around([place.partition("::")[0] for place in tests], here, bool(typed.against_python))
    base = find_commit(repository.root, typed.against)
    if not repository.folder.is_relative_to(repository.root):
        raise ValueError(f"{tests[0]} lies in the repository {repository.root}; go there, and type it as seen from it.")
    read_accepted(repository.root / ".benchmarks" / FILE_NAME)
    return GatePlan(
        repository=repository,
        storage=repository.root / ".benchmarks",
        against=Against(
            typed.against, None, typed.gate_minutes, typed.gate_undecided, summary_path(typed.gate_summary, here),
            typed.against_python, typed.gate_measure_same,
        ),
        base=base,
        settings=None,
        cases={},
        ids_at_base={},
        machine_info={
            "node": platform.node(), "machine": platform.machine(), "system": platform.system(),
            "release": platform.release(), "python_version": platform.python_version(),
            "cpu": {"brand_raw": next(iter(proc_values("cpuinfo", "model name")), None), "count": os.cpu_count()},
        },
        rules=replace(rules, undecided=typed.gate_undecided),
        options=options,
        most_failures=typed.maxfail,
        python_of_base=other_python(typed.against_python, "cpu") if typed.against_python else None,
        tests=[_from(place, here) for place in tests],
        words=[_word_from(word, repository) for word in others],
    )  # fmt: skip


def _word_from(word: str, repository: Repository) -> str:
    """A word for pytest; where it is a path in the repository, as `--rootdir=/there` is, as it is named from within."""
    option, equals, value = word.rpartition("=")
    is_inside = os.path.isabs(value) and Path(value).resolve().is_relative_to(repository.root)
    return f"{option}{equals}{_from(value, repository.folder)}" if is_inside else word


def _from(place: str, folder: Path) -> str:
    """A file, folder or node id as it is named from the folder, which a side has a copy of."""
    file, colons, name = place.partition("::")
    return f"{os.path.relpath(Path(file).resolve(), folder.resolve())}{colons}{name}"
