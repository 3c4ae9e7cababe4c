"""Measure PyTorch training steps, gate changes of them, read records; also `python -m perf_tests` in a checkout."""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from perf_tests.phases import RefusalError
from perf_tests.user_code.named import SUITE
from perf_tests.verbs.output import OutputError, end_without_output, watched_output

GROUPS = {
    "measure": {"run": "perf_tests.verbs.run", "merge": "perf_tests.verbs.merge"},
    "judge": {
        "compare": "perf_tests.report.comparison", "gate": "perf_tests.verbs.gate", "replay": "perf_tests.verbs.replay",
        "diff": "perf_tests.verbs.diff", "bisect": "perf_tests.verbs.bisect", "audit": "perf_tests.verbs.audit",
    },
    "look up": {"predict": "perf_tests.verbs.predict", "writeup": "perf_tests.report.cs336"},
    "look at": {
        "report": "perf_tests.report.page", "history": "perf_tests.report.history", "tables": "perf_tests.verbs.tables",
        "kernels": "perf_tests.verbs.kernels", "scaling": "perf_tests.report.ranks",
    },
}  # fmt: skip
VERBS = {name: module for verbs in GROUPS.values() for name, module in verbs.items()}
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
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("perf-tests", "perf-tests VERB ...", __doc__, _verbs(), formatter_class=raw)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", prog="perf-tests", help=argparse.SUPPRESS)
    module = None
    for name, place in VERBS.items():
        sentence = sentence_of(place)
        verb = verbs.add_parser(name, description=f"{sentence[:1].upper()}{sentence[1:]}", formatter_class=raw)
        if name in words[:1]:
            # The others stay unloaded: some take seconds.
            module = import_module(place)
            verb.epilog = "\n  ".join(["examples:", *re.findall(r"^ *(perf-tests .+)$", module.__doc__ or "", re.M)])
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


def _verbs() -> str:
    """List the verbs by group, each with its sentence."""
    lines = ["each verb has a --help of its own"]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:8} {sentence_of(place)}" for name, place in verbs.items())]
    return "\n".join(lines)


def sentence_of(module: str) -> str:
    """Read what a verb does from the first line of its module's docstring, behind the words to type, without a load."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return file.readline().strip().strip('"').partition("`: ")[2]


if __name__ == "__main__":
    sys.exit(main())
