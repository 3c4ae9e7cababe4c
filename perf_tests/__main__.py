"""Measure PyTorch training steps, gate changes of them, read records; also `python -m perf_tests` in a checkout."""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any, TextIO

from perf_tests_suite.perf_tests.phases import FINE, INTERRUPTED, STOPPED, UNREADABLE, USAGE, RefusalError

GROUPS = {
    "measure": {"run": "verbs.run"},
    "judge": {
        "compare": "report.comparison", "replay": "report.gate_screens", "diff": "verbs.diff", "audit": "audit.tables",
    },
    "look up": {"predict": "verbs.predict"},
    "look at": {
        "show": "report.show", "report": "report.page", "history": "report.history", "tables": "verbs.tables",
        "kernels": "report.screens",
    },
}  # fmt: skip
VERBS = {name: f"perf_tests_suite.perf_tests.{place}" for verbs in GROUPS.values() for name, place in verbs.items()}
"""The module of each verb, with `add_arguments` and `run`: it lies where what the verb shows is made."""

REPLACED = {
    "gate": "`perf-tests run --against REV` judges a change, and `perf-tests history` judges recorded runs",
    "bisect": "`git bisect run` with `perf-tests run --against GOOD --bisect`, as docs/gate.md shows",
    "scaling": "`perf-tests show` prints it, and `perf-tests tables` has the columns scaling_efficiency and "
    "relative_to",
    "writeup": "`perf-tests tables` prints each table as Markdown, and docs/cs336.md names those of each problem",
    "merge": "tables, report and history read several records together",
}
"""Verbs that earlier versions had, and what does their work."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the verb of these words, by default of the command line; its exit code."""
    typed = sys.argv[1:] if words is None else words
    if "--bisect" not in typed:
        return _main(words)
    try:
        code = _main(words)
    except Exception:
        traceback.print_exc()
        return STOPPED
    return STOPPED if code in (USAGE, UNREADABLE) else code


def _main(words: Sequence[str] | None) -> int:
    try:
        os.getcwd()
    except FileNotFoundError:
        print("The folder that you are in is gone; go to one that is there.", file=sys.stderr)
        return UNREADABLE
    try:
        with watched_output():
            return _run(words)
    except OutputError as lost:
        # What is left is discarded, or Python would try to write it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(lost.error, BrokenPipeError):
            return FINE  # a reader closed the pipe, as `| head` does
        with suppress(OSError):
            print(f"The output cannot be written: {lost}; free space or print elsewhere.", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _run(words: Sequence[str] | None) -> int:
    words = sys.argv[1:] if words is None else words
    if words and words[0] in REPLACED:
        print(f"perf-tests {words[0]} is gone: {REPLACED[words[0]]}.", file=sys.stderr)
        return USAGE
    words, of_pytest = (words[:1], words[1:]) if words[:1] == ["run"] else (words, [])
    raw, lines = argparse.RawDescriptionHelpFormatter, ["each verb has a --help of its own"]
    for group, verbs_of_group in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:8} {sentence_of(VERBS[name])}" for name in verbs_of_group)]
    epilog = "\n".join(lines)
    parser = argparse.ArgumentParser("perf-tests", "perf-tests VERB ...", __doc__, epilog, formatter_class=raw)
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
    arguments, of_run = parser.parse_known_args(words, argparse.Namespace(of_pytest=of_pytest))
    assert module is not None, "the parser has refused any other word"
    if hasattr(module, "OF_RUN"):
        arguments.of_run = of_run
    elif of_run:
        parser.error(f"unrecognized arguments: {' '.join(of_run)}")
    try:
        exit_code: int = module.run(arguments)
    except RefusalError as refusal:
        # Import late: `--help` answers without them.
        from perf_tests_suite.perf_tests.records.format import printable
        from perf_tests_suite.perf_tests.records.store import as_typed

        print(printable(as_typed(str(refusal), words)), file=sys.stderr)
        return refusal.exit_code
    return exit_code


def sentence_of(module: str) -> str:
    """Read what a verb does from the first line of its module's docstring, behind the words to type, without a load."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return file.readline().strip().strip('"').partition("`: ")[2]


# Standard output that says when it cannot be written, so that no verb takes this for a fault of its own files.


class OutputError(Exception):
    """No OSError, which verbs catch around their files."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.error = error


class _Output:
    """A stream whose writing and flushing raise OutputError; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _raising_output_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _raising_output_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _raising_output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(error) from error


@contextmanager
def watched_output() -> Iterator[None]:
    """Watch a block in which printing raises OutputError where standard output cannot be written; where it is closed,
    it is lost.
    """
    stream = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # Python has None for a closed one
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # a terminal of few characters shows the others by their numbers
    sys.stdout = output = _Output(stream)
    try:
        yield
    finally:
        sys.stdout = stream
        output.flush()


if __name__ == "__main__":
    sys.exit(main())
