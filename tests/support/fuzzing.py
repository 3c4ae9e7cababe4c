"""Damaged files for every reader.

Each example damages a valid file and gives it to the verb that reads it. The verb must end in one of its exit codes
without a traceback or a warning and in bounded time; where it refuses the file it names it, and has written nothing.
A gate that reads its file, and says in its last line why there is no verdict on the code, has not refused it.
"""

import contextlib
import io
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from perf_tests.phases import FINDINGS, FINE, UNREADABLE, USAGE
from tests.support import damage
from tests.support.file_readers import ROOT, Files, Reader

SECONDS_PER_MEGABYTE = 10.0
HOW = ("document", "document", "document", "bytes", "packed")
"""What is damaged: what the file says, its bytes, or its bytes once compressed."""


@dataclass
class Tally:
    """How the verb ended, by exit code; the files that it took wrongly, by what was wrong."""

    codes: Counter[int] = field(default_factory=Counter)
    wrong: dict[str, list[bytes]] = field(default_factory=dict)
    slowest_seconds: float = 0.0

    @property
    def files(self) -> int:
        return self.codes.total()


def damaged_file(reader: Reader, chance: Random) -> bytes:
    content, how = _content(reader), chance.choice(HOW)
    if how == "document":
        content = reader.damaged(chance, content)
    if how == "bytes":
        content = damage.bytes_damaged(chance, content)
    content = reader.pack(content)
    return damage.bytes_damaged(chance, content) if how == "packed" else content


@cache
def _content(reader: Reader) -> bytes:
    return reader.content()


@cache
def _beside(reader: Reader) -> Files:
    return reader.beside()


def take(reader: Reader, content: bytes, tally: Tally) -> None:
    """Give the file to the verb, and note how that ended."""
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as name:
        folder, top = Path(name) / "in", Path(name)
        for path, data in {**_beside(reader), reader.file: content}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        before, said, start = _listing(top), io.StringIO(), time.monotonic()
        code, wrong = _ended(reader, folder, said)
        seconds = time.monotonic() - start
        after = _listing(top)
        allowed = f"in/{reader.writes}" if code in (FINE, FINDINGS) or not reader.writes else "nothing"
        changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        if any(not path.startswith(allowed) for path in changed):
            wrong = wrong or f"wrote and exited with {code}"
        if seconds > SECONDS_PER_MEGABYTE * max(1.0, len(content) / 1e6):
            wrong = wrong or f"took more than {SECONDS_PER_MEGABYTE:.0f} s for a megabyte"
        named = (name, f"{(folder / reader.file).parent.name}/")
        is_refused = code in (USAGE, UNREADABLE) and "\ngate: " not in said.getvalue()
        if is_refused and not any(word in said.getvalue() for word in named):
            wrong = wrong or f"does not name the file: {said.getvalue().strip()[:200]}"
    tally.codes[code] += 1
    tally.slowest_seconds = max(tally.slowest_seconds, seconds)
    if wrong:
        tally.wrong.setdefault(wrong, []).append(content)


def _ended(reader: Reader, folder: Path, said: io.StringIO) -> tuple[int, str]:
    """The verb's exit code, -1 for an exception, and what is wrong with that, if anything."""
    words = reader.words.format(file=folder / reader.file, folder=folder).split()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("error")
            code = reader.verb(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(f"{ROOT}/perf_tests")]
        places = (f"{frame.filename.removeprefix(f'{ROOT}/')}:{frame.lineno}" for frame in frames[:-4:-1])
        return -1, f"{type(error).__name__} at {' < '.join(places)}: {str(error)[:80]!r}"
    return code, "" if code in (FINE, FINDINGS, USAGE, UNREADABLE) else f"exit code {code}"


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file below."""
    found = ((path, path.lstat()) for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): (facts.st_size, facts.st_mtime_ns) for path, facts in found}


def fuzz(reader: Reader, examples: int, number: int = 0, most_seconds: float = float("inf")) -> Tally:
    """Give the verb at most so many damaged files, the same ones for the same number of the seed."""
    tally, end = Tally(), time.monotonic() + most_seconds

    @seed(number)
    @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.randoms(use_true_random=True))
    def run(chance: Random) -> None:
        if time.monotonic() < end:
            take(reader, damaged_file(reader, chance), tally)

    run()
    return tally
