"""`pictures RECORD`: the README's figure, and a picture of the page, with a note of what they were made from."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from perf_tests.records.store import read_record, write_whole
from perf_tests.verbs.exit_codes import FINE, UNREADABLE, USAGE
from perf_tests.views.report.pictures import FIGURE, NOTE, PICTURE, figure_of, note_of, shown_part
from perf_tests.views.report.screenshot import NoBrowserError, take

SIZE = 1100, 1290


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", type=Path, metavar="RECORD", help="a record with attention alone, as a path")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", default=Path("pictures"), help="pictures")


def run(arguments: argparse.Namespace) -> int:
    try:
        record = read_record(arguments.record)
        figure, page = figure_of(record), shown_part(record)
    except ValueError as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    folder: Path = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            shown, picture = Path(temporary) / "page.html", Path(temporary) / PICTURE
            shown.write_text(page)
            take(shown, picture, *SIZE)
            write_whole(folder / PICTURE, picture.read_bytes())
        write_whole(folder / FIGURE, figure.encode())
        write_whole(folder / NOTE, note_of(record, figure, page, folder).encode())
    except NoBrowserError as error:
        print(error, file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"The pictures cannot be written to {folder}: {error}; name another folder with -o.", file=sys.stderr)
        return USAGE
    written = [str(folder / name) for name in (FIGURE, PICTURE, NOTE)]
    print(json.dumps(written) if arguments.json else "\n".join(written))
    return FINE
