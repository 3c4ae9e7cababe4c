"""`perf-tests run FILE.py --against REV` on tests of the user's: what was typed, the gate, and what it says."""

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from perf_tests_suite.perf_tests.bench.options import DEFAULT_MINUTES, Against
from perf_tests_suite.perf_tests.cases.options import GROUPS, argparse_keywords
from perf_tests_suite.perf_tests.gate.samples import Rules
from perf_tests_suite.perf_tests.gate.verdicts import FILE_NAME, SKIPPED_COMMIT, read_accepted
from perf_tests_suite.perf_tests.hardware.device import proc_values
from perf_tests_suite.perf_tests.interleaved.measuring import GateProgress, Printed, UnmeasurableError
from perf_tests_suite.perf_tests.interleaved.run import GatePlan, GateRun, OtherPythonError, other_python, run_gate
from perf_tests_suite.perf_tests.interleaved.sides import BesideAnotherError, TreeError, alone, find_commit
from perf_tests_suite.perf_tests.interleaved.their_tests import compare_tests
from perf_tests_suite.perf_tests.records.format import has_colours, painted, printable
from perf_tests_suite.perf_tests.run.bisection import tell
from perf_tests_suite.perf_tests.run.gate import ending_lines, finish
from perf_tests_suite.perf_tests.user_code.named import repository_around

NOT_RUN = 4
"""pytest's exit code for a usage error."""


def gate_their_tests(tests: Sequence[str], words: Sequence[str], rules: Rules | None = None) -> int:
    """Gate these files, folders and node ids under these options; the exit code.

    `words` are the gate's options, and what else is for their pytest.
    """
    try:
        run = GateRun(_plan(tests, words, rules or Rules()))
        watch = GateProgress(Printed(), None, run.plan.rules.screen_pairs, run.plan.seconds)
        with alone() if run.plan.seconds else nullcontext():
            run_gate(run, watch, compare_tests)
    except (BesideAnotherError, OtherPythonError, TreeError, UnmeasurableError, ValueError) as error:
        if isinstance(error, UnmeasurableError):
            tell(SKIPPED_COMMIT)
        print(f"ERROR: {printable(str(error))}", file=sys.stderr)
        return NOT_RUN
    code = finish(run)
    print("\n".join(painted(line, has_colours()) for line in ending_lines(run, is_whole=True)))
    return code


def _plan(tests: Sequence[str], words: Sequence[str], rules: Rules) -> GatePlan:
    """Read what was typed; raises OtherPythonError, TreeError, and ValueError with one sentence for what is wrong."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in GROUPS["gate"]:
        parser.add_argument(option.name, **{**argparse_keywords(option), "help": argparse.SUPPRESS})
    try:
        typed, others = parser.parse_known_args([*words])
    except argparse.ArgumentError as error:
        raise ValueError(f"{error.argument_name} {error.message}.") from error

    def read(name: str, default: Any) -> Any:
        text = getattr(typed, name.strip("-").replace("-", "_"))
        parse = next(option.parse for option in GROUPS["gate"] if option.name == name)
        return default if text is None or parse is None else parse(name, text)

    if typed.against_option:
        raise ValueError("--against-option compares values of the suite's own axes, which tests of yours have none of.")
    here = Path.cwd()
    repository = repository_around([place.partition("::")[0] for place in tests], here, bool(typed.against_python))
    base = find_commit(repository.root, typed.against)
    summary = None if typed.gate_summary is None else here / typed.gate_summary
    if summary is not None and (summary.is_dir() or not summary.parent.is_dir()):
        raise ValueError(f"--gate-summary {typed.gate_summary} cannot be written: {summary.parent} is no folder.")
    read_accepted(repository.root / ".benchmarks" / FILE_NAME)
    undecided = read("--gate-undecided", "pass")
    return GatePlan(
        repository=repository,
        storage=repository.root / ".benchmarks",
        against=Against(
            typed.against, None, read("--gate-minutes", DEFAULT_MINUTES), undecided, summary, typed.against_python,
            bool(typed.gate_measure_same),
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
        rules=rules,
        options=shlex.join(words),
        most_failures=int("-x" in others),
        python_of_base=other_python(typed.against_python, "cpu") if typed.against_python else None,
        tests=[_from(place, here) for place in tests],
        words=others,
    )  # fmt: skip


def _from(place: str, folder: Path) -> str:
    """A file, folder or node id as it is named from the folder, which a side has a copy of."""
    file, colons, name = place.partition("::")
    return f"{os.path.relpath(Path(file).resolve(), folder.resolve())}{colons}{name}"
