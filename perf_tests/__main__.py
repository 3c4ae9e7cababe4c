"""`python -m perf_tests VERB`: look at saved records. `--json` prints for machines what a table says to people."""

import argparse
import os
import sys
from collections.abc import Sequence

from perf_tests.verbs import audit, compare, gate, kernels, predict, replay, report, tables
from perf_tests.verbs.exit_codes import FINE

MODULES = (audit, compare, gate, kernels, predict, replay, report, tables)
VERBS = {module.__name__.rpartition(".")[2]: module for module in MODULES}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_tests", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, module in VERBS.items():
        verb = verbs.add_parser(name, help=module.__doc__)
        verb.add_argument("--json", action="store_true", help="print JSON")
        module.add_arguments(verb)
    arguments = parser.parse_args(words)
    try:
        exit_code = VERBS[arguments.verb].run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough, as in `| head`; what is still to be written goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
