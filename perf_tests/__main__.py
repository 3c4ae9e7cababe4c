"""`perf-tests VERB`, also `python -m perf_tests VERB`: measure, or read saved records; `--json` is for machines."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from perf_tests.phases import RefusalError
from perf_tests.user_code.named import SUITE
from perf_tests.verbs.output import OutputError, end_without_output, watched_output

VERBS = (
    "audit", "bisect", "compare", "gate", "history", "kernels", "merge", "predict", "replay", "report", "run",
    "scaling", "tables", "writeup",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    try:
        with watched_output():
            return _run(words)
    except OutputError as lost:
        return end_without_output(lost)


def _run(words: Sequence[str] | None) -> int:
    if sys.path[0] != str(SUITE):
        sys.path.insert(0, str(SUITE))  # where this was started, `model` may be another package
    words = sys.argv[1:] if words is None else words
    words, of_pytest = (words[:1], words[1:]) if words[:1] == ["run"] else (words, [])
    parser = argparse.ArgumentParser(prog="python -m perf_tests", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    # Import the verb asked for alone, because some load libraries for most of a second; help lists all.
    asked = [name for name in VERBS if name in words[:1]] or VERBS
    modules = {name: import_module(f"perf_tests.verbs.{name}") for name in asked}
    for name, module in modules.items():
        verb = verbs.add_parser(name, help=module.__doc__)
        verb.add_argument("--json", action="store_true", help="print JSON")
        module.add_arguments(verb)
    arguments = parser.parse_args(words, argparse.Namespace(of_pytest=of_pytest))
    try:
        exit_code: int = modules[arguments.verb].run(arguments)
    except RefusalError as refusal:
        # These load the suite's model, which is on the path by now.
        from perf_tests.records.columns import printable
        from perf_tests.verbs.reading import as_typed

        print(printable(as_typed(str(refusal), words)), file=sys.stderr)
        return refusal.exit_code
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
