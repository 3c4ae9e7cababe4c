"""`python -m perf_tests VERB`: look at saved records. `--json` prints for machines what a table says to people."""

import argparse
import sys
from collections.abc import Sequence

from perf_tests.verbs import audit, compare, predict

VERBS = {"audit": audit, "compare": compare, "predict": predict}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_tests", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, module in VERBS.items():
        verb = verbs.add_parser(name, help=module.__doc__)
        verb.add_argument("--json", action="store_true", help="print JSON")
        module.add_arguments(verb)
    arguments = parser.parse_args(words)
    return VERBS[arguments.verb].run(arguments)


if __name__ == "__main__":
    sys.exit(main())
