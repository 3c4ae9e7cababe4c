"""`bisect GOOD BAD --case ID`: name the first commit that made a case slower, by `git bisect` and the gate.

perf-tests bisect v1 main --case ID
perf-tests bisect v1 main --case ID --options "--head-dim 32" --gate-minutes 5
"""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from perf_tests import bisect
from perf_tests.bisect import Asked, Found, Judged, RevisionsError, SearchError, found_json, found_lines, search
from perf_tests.interleaved.sides import BesideAnotherError, TreeError
from perf_tests.phases import FINDINGS, FINE, UNREADABLE, USAGE, InterruptedByUserError, RefusalError, UsageError
from perf_tests.user_code.named import SUITE, UNDER_TEST, Repository, repository_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("good", help="a revision before the slowdown")
    parser.add_argument("bad", help="a later one, which contains it")
    parser.add_argument("--case", required=True, metavar="ID", help="the case, as pytest or a screen names it")
    parser.add_argument("--gate-minutes", type=float, default=15.0, metavar="MINUTES",
                        help="measure a commit for at most this many minutes; undecided ones get twice that once more "
                        "(15)")  # fmt: skip
    parser.add_argument("--options", default="", metavar="'OPTION ...'",
                        help="what else to give to pytest, so that it collects the case")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    asked = _asked(arguments)
    try:
        repository = _repository(asked.options)
        found = search(repository.root, asked, _print_news, theirs=None if repository.holds_suite else repository)
    except (RevisionsError, TreeError) as error:
        raise UsageError(error) from error
    except (BesideAnotherError, SearchError, OSError) as error:
        raise RefusalError(error) from error
    except KeyboardInterrupt as error:
        raise InterruptedByUserError("Interrupted; the repository is as it was.") from error
    print(json.dumps(found_json(found, asked)) if arguments.json else "\n".join(found_lines(found, asked)))
    return exit_code(found)


def _asked(arguments: argparse.Namespace) -> Asked:
    case = _case_id(arguments.case)
    if case is None:
        raise UsageError(
            f"--case {shlex.quote(arguments.case)} names no case; write perf_tests/FILE.py::TEST[AXES], as the gate "
            "does, or its name on the page or a screen, such as 'forward small-ctx128-fp32-naive'."
        )
    if not 0 < arguments.gate_minutes < math.inf:
        raise UsageError(f"--gate-minutes {arguments.gate_minutes} is not a positive number of minutes.")
    try:
        options = tuple(shlex.split(arguments.options))
    except ValueError as error:
        raise UsageError(f"--options {arguments.options!r} cannot be split into words: {error}.") from error
    return Asked(arguments.good, arguments.bad, case, options, arguments.gate_minutes)


def _case_id(typed: str) -> str | None:
    """The node id of a case as pytest, the page or a screen names it; None for what names none."""
    name = typed.rpartition("::")[2]
    if "[" not in name:
        test, _, axes = name.partition(" ")
        name = f"test_{test}[{axes}]"
    test = name.partition("[")[0]
    files = [f"perf_tests/{file.name}" for file in sorted((SUITE / "perf_tests").glob("test_*.py"))
             if f"def {test}(" in file.read_text(encoding="utf-8")]  # fmt: skip
    file = typed.rpartition("::")[0] or next(iter(files), "")
    return f"{file}::{name}" if file.startswith("perf_tests/test_") and name.endswith("]") else None


def _repository(options: Sequence[str]) -> Repository:
    """The repository of what the options name, as the gate finds it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in UNDER_TEST:
        parser.add_argument(option)
    typed = {f"--{name}": text for name, text in vars(parser.parse_known_args(options)[0]).items()}
    with UsageError.instead_of(ValueError):
        repository = repository_of(typed, Path.cwd())
    if repository.outside:
        raise UsageError(f"{repository.outside[0]} lies in no git repository, so it has no commits to search.")
    return repository


def exit_code(found: Found) -> int:
    if found.suspects:
        return FINDINGS
    return {"not slower": FINE, "absent": USAGE}.get(found.steps[0].state, UNREADABLE)


def _print_news(news: str | Judged) -> None:
    print(news if isinstance(news, str) else bisect.progress_line(news), file=sys.stderr, flush=True)
