"""The terminal that is printed to: how wide it is, and whether colours may be used."""

import os
import shutil
import sys

from perf_tests.views.screens.comparison import ScreenLine, Tone

WIDTH_OF_A_FILE = 120
"""Without a terminal; COLUMNS in the environment overrides it."""
CODES = {Tone.BAD: "31", Tone.GOOD: "32"}


def width() -> int:
    return shutil.get_terminal_size((WIDTH_OF_A_FILE, 24)).columns


def has_colours() -> bool:
    """Of a terminal, unless its user has asked for none (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(line: ScreenLine) -> str:
    code = CODES.get(line.tone)
    return f"\x1b[{code}m{line.text}\x1b[0m" if code and has_colours() else line.text
