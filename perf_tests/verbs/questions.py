"""`questions`: what people ask of such measurements, answered from committed records and exact counters."""

import argparse
import json
import sys
from pathlib import Path

from perf_tests.records.store import write_whole
from perf_tests.records.words import without_path
from perf_tests.verbs.exit_codes import FINDINGS, FINE, UNREADABLE, USAGE
from perf_tests.views.writeup.page import answers, questions_page
from perf_tests.views.writeup.sources import ROOT, Sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write this file instead of printing")
    parser.add_argument("--root", type=Path, default=ROOT, help="where .benchmarks, published and perf_tests lie")


def run(arguments: argparse.Namespace) -> int:
    sources = Sources(arguments.root)
    try:
        text = _as_json(sources) if arguments.json else questions_page(sources)
    except (OSError, ValueError, IndexError, KeyError) as error:
        print(f"The files below {arguments.root} do not hold what the answers need: {error}.", file=sys.stderr)
        return UNREADABLE
    for sentence in sources.left_out:
        print(f"Left out: {sentence}", file=sys.stderr)
    try:
        if arguments.output is None:
            print(text, end="")
        else:
            write_whole(arguments.output, text.encode())
    except OSError as error:
        why = without_path(error)
        print(f"{arguments.output} cannot be written: {why}; name another file with -o.", file=sys.stderr)
        return USAGE
    return FINDINGS if sources.left_out else FINE


def _as_json(sources: Sources) -> str:
    rows = [
        {"question": question.asked, "command": question.command, "answer": answer and answer.text,
         "source": answer and answer.source}
        for question, answer in answers(sources)
    ]  # fmt: skip
    return json.dumps(rows, indent=1) + "\n"
