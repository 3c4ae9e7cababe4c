"""What a verb says of the files that it reads: which take seconds, which are left out, and their names as typed."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from perf_tests.records.columns import printable

LARGE_BYTES = 50_000_000
"""Of a record, about a million rounds."""


def announced(paths: Iterable[Path]) -> Iterator[Path]:
    """The same paths, with a line on standard error before each large file."""
    for path in paths:
        size_bytes = path.stat().st_size if path.is_file() else 0
        if size_bytes >= LARGE_BYTES:
            print(f"Reading {printable(path)}, {size_bytes / 1e6:.0f} MB ...", file=sys.stderr, flush=True)
        yield path


def tell_left_out(sentences: Iterable[str], words: Sequence[str]) -> None:
    """`words` are the files as they were typed."""
    for sentence in sentences:
        print(f"Left out: {printable(as_typed(sentence, words))}", file=sys.stderr)


def as_typed(sentence: str, words: Iterable[str]) -> str:
    """The sentence with the paths that it names as the words have them: `Path` drops a leading `./`."""
    for word in words:
        typed = word.partition("=")[2] if word.startswith("-") else word
        if typed.startswith("./") and typed not in sentence:
            whole = rf"(?<![\w./-]){re.escape(str(Path(typed)))}(?![\w/-]|\.\w)"
            sentence = re.sub(whole, typed.replace("\\", r"\\"), sentence, count=1)
    return sentence
