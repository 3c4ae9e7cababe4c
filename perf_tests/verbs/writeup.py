"""`writeup`: answer the course's problems from records, counters and published figures: one page.

perf-tests writeup -o writeup.md
perf-tests writeup --all -o everything.md
"""

import argparse
import json
from pathlib import Path

from perf_tests.phases import FINDINGS, FINE, RefusalError, UsageError
from perf_tests.records.record import without_path
from perf_tests.records.store import check_folder, tell_left_out, write_named
from perf_tests.report.cs336 import as_data, markdown_page, short_page
from perf_tests.report.cs336_counted import counted_figures
from perf_tests.report.cs336_sources import ROOT, Sources

TRACKED = "docs/cs336.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="write this file, Markdown, instead of printing")
    parser.add_argument("--all", action="store_true", help="every table of every question, with the published columns")
    parser.add_argument("--root", type=Path, default=ROOT, help="where .benchmarks, published and perf_tests lie")


def run(arguments: argparse.Namespace) -> int:
    output, root = arguments.output, arguments.root
    if output is not None:
        check_folder(output)
        if Path(output).resolve() == (root / TRACKED).resolve():
            raise UsageError(f"{output} is the page of the committed records; name another file for yours.")
    if not (root / "published").is_dir():
        raise RefusalError(f"--root {root} holds no folder `published`; name a checkout of this suite.")
    try:
        sources = Sources(root, counted_figures())
        if arguments.json:
            text = json.dumps(as_data(sources), indent=1) + "\n"
        else:
            text = (markdown_page if arguments.all else short_page)(sources)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise RefusalError(f"The files below {root} do not hold what the answers need: {_said(error)}.") from error
    tell_left_out(sources.left_out, ())
    if output is None:
        print(text, end="")
    else:
        write_named(output, text.encode())
    return FINDINGS if sources.left_out else FINE


def _said(error: Exception) -> str:
    named = getattr(error, "filename", None)
    return f"{named}: {without_path(error)}" if named else str(error).removesuffix(".")
