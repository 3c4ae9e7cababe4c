"""`bisect GOOD BAD --case ID`: name the first commit that made a case slower, by `git bisect` and the gate.

perf-tests bisect v1 main --case ID
perf-tests bisect v1 main --case ID --options "--head-dim 32" --gate-minutes 5
"""

import argparse
import json
import math
import shlex
import sys

from perf_tests.bisect import (
    Asked,
    Found,
    Judged,
    RevisionsError,
    SearchError,
    found_json,
    found_lines,
    progress_line,
    search,
)
from perf_tests.interleaved.sides import BesideAnotherError, TreeError
from perf_tests.phases import (  # fmt: skip
    FINDINGS,
    FINE,
    UNREADABLE,
    USAGE,
    InterruptedByUserError,
    RefusalError,
    UsageError,
)
from perf_tests.user_code.named import SUITE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("good", help="a revision before the slowdown")
    parser.add_argument("bad", help="a later one, which contains it")
    parser.add_argument("--case", required=True, metavar="ID", help="the case, as pytest names it")
    parser.add_argument("--gate-minutes", type=float, default=15.0, metavar="MINUTES",
                        help="measure a commit for at most this many minutes; undecided ones get twice that once more "
                        "(15)")  # fmt: skip
    parser.add_argument("--options", default="", metavar="'OPTION ...'",
                        help="what else to give to pytest, so that it collects the case")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    asked = _asked(arguments)
    try:
        found = search(SUITE, asked, _tell)
    except (RevisionsError, TreeError) as error:
        raise UsageError(error) from error
    except (BesideAnotherError, SearchError, OSError) as error:
        raise RefusalError(error) from error
    except KeyboardInterrupt as error:
        raise InterruptedByUserError("Interrupted; the repository is as it was.") from error
    print(json.dumps(found_json(found, asked)) if arguments.json else "\n".join(found_lines(found, asked)))
    return exit_code(found)


def _asked(arguments: argparse.Namespace) -> Asked:
    case = arguments.case
    if not (case.startswith("perf_tests/test_") and "::" in case and case.endswith("]")):
        raise UsageError(
            f"--case {shlex.quote(case)} names no case; write perf_tests/FILE.py::TEST[AXES], as the gate does."
        )
    if not 0 < arguments.gate_minutes < math.inf:
        raise UsageError(f"--gate-minutes {arguments.gate_minutes} is not a positive number of minutes.")
    try:
        options = tuple(shlex.split(arguments.options))
    except ValueError as error:
        raise UsageError(f"--options {arguments.options!r} cannot be split into words: {error}.") from error
    return Asked(arguments.good, arguments.bad, case, options, arguments.gate_minutes)


def exit_code(found: Found) -> int:
    if found.suspects:
        return FINDINGS
    return {"not slower": FINE, "absent": USAGE}.get(found.steps[0].state, UNREADABLE)


def _tell(news: str | Judged) -> None:
    print(news if isinstance(news, str) else progress_line(news), file=sys.stderr, flush=True)
