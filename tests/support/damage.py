"""Damaged files for every reader: a valid file is damaged by chance and given to the verb that reads it.

The verb must end in one of its exit codes without a traceback or a warning and in bounded time; where it refuses the
file it names it, and has written nothing. A gate that reads its file, and says in its last line why there is no verdict
on the code, has not refused it.
"""

import contextlib
import copy
import csv
import io
import json
import sqlite3
import tarfile
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from perf_tests_suite.perf_tests.__main__ import main as run_verb
from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UNREADABLE, USAGE

ROOT = Path(__file__).parents[2]
SECONDS_PER_MEGABYTE = 10.0

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -1.5, 0.25, 1e-320, 1e-9, 1e308, -1e308, float("nan"), float("inf"), 10**30, 10**400,
    2**63 - 1, "", " ", "x", "nan", "-inf", "1e400", "-1", "0", "7", "999999999999999", "1_0", "up to 7", "tf32?", '"',
    "tf32(labelled fp32)", "</script><img src=x onerror=alert(1)>", "\u2028\u202e", "\x00\x1b[31m\n", "\ud800",
    "\uff11\uff12", "%s{0}{x}", "../../etc/passwd", "/etc/passwd", "é" * 300, "a, seq = " + "9" * 5000, [], {}, [[]],
    [None], {"a": None}, [1, "x"], [0.5, -0.5],
)  # fmt: skip
KEYS = ("", "x", "\u2028", "\x00", "id", "</script>", "accepted")
TAILS = (
    b"\x00", b"\xef\xbb\xbf", b"\r\n", b"\n", b"\xff", b"[" * 3000, b"{", b"}", b'"', b"\x1f\x8b\x08", b"-", b"NaN,",
)  # fmt: skip


def bytes_damaged(chance: Random, content: bytes) -> bytes:
    """Truncated, flipped, cut out of, doubled, or with something inserted."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(content))
        tail = chance.choice(TAILS)
        content = chance.choice((
            content[:at], content[:at] + tail + content[at:], tail + content, content + content,
            content[:at] + bytes([chance.randint(0, 255)]) + content[at + 1 :],
            content[:at] + content[at + chance.randint(1, 40) :], content.replace(b"\n", b"\r\n"),
        ))  # fmt: skip
    return content


def tree_damaged(chance: Random, tree: Any) -> Any:
    """The tree with a few of its values changed, removed, doubled, nested or renamed."""
    for _ in range(chance.randint(1, 3)):
        places = list(_places(tree))
        if not places:
            return chance.choice(VALUES)
        *above, key = chance.choice(places)
        holder = tree
        for step in above:
            holder = holder[step]
        _damage(chance, holder, key)
    return tree


def _damage(chance: Random, holder: Any, key: Any) -> None:
    match chance.choice(("value", "value", "value", "number", "drop", "deep", "twice", "empty", "rename", "swap")):
        case "value":
            holder[key] = copy.deepcopy(chance.choice(VALUES))
        case "number":
            holder[key] = chance.uniform(-9, 9) * 10.0 ** chance.randint(-320, 300)
        case "drop":
            del holder[key]
        case "deep":
            for _ in range(chance.choice((1, 2, 90, 400))):
                holder[key] = [holder[key]]
        case "twice" if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case "empty" if isinstance(holder[key], list | dict):
            holder[key].clear()
        case "rename" if isinstance(holder, dict):
            holder[chance.choice(KEYS)] = holder.pop(key)
        case "swap" if isinstance(holder, list):
            holder[0], holder[key] = holder[key], holder[0]


def _places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value below the top; in long lists to the first two and the last."""
    keys: Iterable[Any] = tree if isinstance(tree, dict) else ()
    if isinstance(tree, list):
        keys = sorted({0, 1, len(tree) - 1} & set(range(len(tree))))
    for key in keys:
        yield (*above, key)
        if len(above) < 12:
            yield from _places(tree[key], (*above, key))


@dataclass(frozen=True)
class Format:
    """How a valid file is read into a tree of objects, lists and values, and how a damaged tree is written."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


def _cells(row: Any) -> list[Any]:
    return [cell if isinstance(cell, str) else json.dumps(cell) for cell in (row if isinstance(row, list) else [row])]


def _table_written(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(map(_cells, rows if isinstance(rows, list) else [rows]))
    return text.getvalue().encode("utf-8", "surrogatepass")


def _lines_written(rows: Any, between: str) -> bytes:
    lines = (between.join(_cells(row)) for row in (rows if isinstance(rows, list) else [rows]))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _database_read(content: bytes) -> Any:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(content)
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = {name: database.execute(f'SELECT * FROM "{name}"') for name in names}
        return {name: [[head[0] for head in rows.description], *map(list, rows)] for name, rows in tables.items()}


def _database_written(tables: Any) -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        for name, rows in tables.items() if isinstance(tables, dict) else ():
            for place, row in enumerate(rows if isinstance(rows, list) else ()):
                cells = row if isinstance(row, list) else [row]
                kept = [one if isinstance(one, str | float | int | None) else json.dumps(one) for one in cells]
                with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError, ValueError):
                    if place == 0:
                        columns = ", ".join(f'"{head}"' for head in kept)
                        database.execute(f'CREATE TABLE "{name}" ({columns})')
                    else:
                        database.execute(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(kept))})', kept)
        database.commit()
        return database.serialize()


def _archive_read(content: bytes) -> Any:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return [[name, "0", "", (file.read() if file else b"").decode()] for name, file in files]


def _archive_written(members: Any) -> bytes:
    """Each member as its name, its kind, what it links to and its content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for row in members if isinstance(members, list) else ():
            name, kind, link, content = (*_cells(row), "", "", "", "")[:4]
            member, data = tarfile.TarInfo(name), content.encode("utf-8", "surrogatepass")
            member.type, member.linkname, member.size = kind[:1].encode("latin-1", "replace"), link, len(data)
            with contextlib.suppress(ValueError):
                archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


JSON = Format(json.loads, lambda tree: json.dumps(tree).encode())
LINES = Format(lambda content: list(map(json.loads, content.splitlines())),
               lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows))  # fmt: skip
CSV = Format(lambda content: list(csv.reader(io.StringIO(content.decode(), newline=""))), _table_written)
TOML = Format(lambda content: [line.split(" = ", 1) for line in content.decode().splitlines()],
              lambda rows: _lines_written(rows, " = "))  # fmt: skip
PIPED = Format(lambda content: [line.split(" | ") for line in content.decode().splitlines()],
               lambda rows: _lines_written(rows, " | "))  # fmt: skip
SQLITE, TAR = Format(_database_read, _database_written), Format(_archive_read, _archive_written)


@dataclass(frozen=True)
class Reader:
    """A verb and a valid file that it reads, `file`, in a folder with the files `beside`."""

    words: str
    """What is typed; `{file}` and `{folder}` are filled in."""
    file: str
    content: Callable[[], bytes]
    format: Format
    pack: Callable[[bytes], bytes] = bytes
    beside: Callable[[], Mapping[str, bytes]] = field(default=dict)
    verb: Callable[[list[str]], int] = run_verb
    writes: str = "out"
    """How the name of what the verb may write begins, where it succeeds; empty: any file below, however it ends."""


@dataclass
class Tally:
    """How the verb ended, by exit code; the files that it took wrongly, by what was wrong."""

    codes: Counter[int] = field(default_factory=Counter)
    wrong: dict[str, list[bytes]] = field(default_factory=dict)


@cache
def _made(make: Callable[[], Any]) -> Any:
    return make()


def fuzz(reader: Reader, examples: int, seed: int = 0) -> Tally:
    """Give the verb so many damaged files, the same ones for the same seed: documents, bytes, and packed bytes."""
    tally = Tally()
    for number in range(examples):
        chance = Random(f"{seed}: {number}")
        how, content = chance.choice(("document", "document", "document", "bytes", "packed")), _made(reader.content)
        if how == "document":
            content = reader.format.write(tree_damaged(chance, reader.format.read(content)))
        content = reader.pack(bytes_damaged(chance, content) if how == "bytes" else content)
        take(reader, bytes_damaged(chance, content) if how == "packed" else content, tally)
    return tally


def take(reader: Reader, content: bytes, tally: Tally) -> None:
    """Give the file to the verb, and note how that ended."""
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as name:
        folder, top = Path(name) / "in", Path(name)
        for path, data in {**_made(reader.beside), reader.file: content}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        before, said, start = _listing(top), io.StringIO(), time.monotonic()
        code, wrong = _ended(reader, folder, said)
        seconds = time.monotonic() - start
        after = _listing(top)
        allowed = f"in/{reader.writes}" if code in (FINE, FINDINGS) or not reader.writes else "nothing"
        changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        named = (name, f"{(folder / reader.file).parent.name}/")
        is_refused = code in (USAGE, UNREADABLE) and "\ngate: " not in said.getvalue()
        if any(not path.startswith(allowed) for path in changed):
            wrong = wrong or f"wrote and exited with {code}"
        if seconds > SECONDS_PER_MEGABYTE * max(1.0, len(content) / 1e6):
            wrong = wrong or f"took more than {SECONDS_PER_MEGABYTE:.0f} s for a megabyte"
        if is_refused and not any(word in said.getvalue() for word in named):
            wrong = wrong or f"does not name the file: {said.getvalue().strip()[:200]}"
    tally.codes[code] += 1
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
