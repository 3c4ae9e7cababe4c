"""`perf-tests VERB`, also `python -m perf_tests VERB`: measure, or read saved records; `--json` is for machines."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from perf_tests.phases import RefusalError
from perf_tests.user_code.named import SUITE
from perf_tests.verbs.output import OutputError, end_without_output, watched_output

VERBS = {
    "audit": "perf_tests.verbs.audit", "bisect": "perf_tests.verbs.bisect", "compare": "perf_tests.report.comparison",
    "gate": "perf_tests.verbs.gate", "history": "perf_tests.report.history", "kernels": "perf_tests.verbs.kernels",
    "merge": "perf_tests.verbs.merge", "predict": "perf_tests.verbs.predict", "replay": "perf_tests.verbs.replay",
    "report": "perf_tests.report.page", "run": "perf_tests.verbs.run", "scaling": "perf_tests.report.ranks",
    "tables": "perf_tests.verbs.tables", "writeup": "perf_tests.verbs.writeup",
}  # fmt: skip
"""The module of each verb, with `add_arguments` and `run`: it lies where what the verb shows is made."""


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
    module = None
    for name, place in VERBS.items():
        verb = verbs.add_parser(name, help=_sentence(place))
        if name in words[:1]:
            # The others stay unloaded: some take seconds.
            module = import_module(place)
            verb.add_argument("--json", action="store_true", help="print JSON")
            module.add_arguments(verb)
    arguments = parser.parse_args(words, argparse.Namespace(of_pytest=of_pytest))
    assert module is not None, "parse_args has refused any other word"
    try:
        exit_code: int = module.run(arguments)
    except RefusalError as refusal:
        # Import late: these load the suite's model, which is on the path only by now.
        from perf_tests.records.format import printable
        from perf_tests.records.store import as_typed

        print(printable(as_typed(str(refusal), words)), file=sys.stderr)
        return refusal.exit_code
    return exit_code


def _sentence(module: str) -> str:
    """The first line of the module's docstring, read without loading it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return file.readline().strip().strip('"')


if __name__ == "__main__":
    sys.exit(main())
