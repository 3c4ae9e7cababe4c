"""Ways to damage a valid file by chance: as a document (JSON, lines, CSV, TOML, SQLite, tar) and as bytes."""

import copy
import csv
import io
import json
import re
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from random import Random
from typing import Any

Place = tuple[str | int, ...]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -1.5, 0.25, 1e-320, 1e-9, 1e308, -1e308, float("nan"), float("inf"), 10**30, 10**400,
    "", " ", "x", "nan", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u2028\u202e",
    "\x00\x1b[31m\n", "\ud800", "%s{0}{x}", "../../etc/passwd", "é" * 300, [], {}, [[]], [None], {"a": None}, [1, "x"],
    [0.5, -0.5],
)  # fmt: skip
CELLS = (
    "", " ", "x", "nan", "-inf", "1e-320", "1e308", "1e400", "-1", "0", "1e14", "999999999999999", "1.5", "up to 7",
    '"', "\x00", "\u2028", "\uff11\uff12", "1_0", "<img src=x onerror=alert(1)>", "é" * 300,
    "tf32(labelled fp32)", "bf16?",
)  # fmt: skip
TOML_VALUES = (
    "1", "-1", "1e-320", "1e308", "nan", "inf", "1" + "0" * 400, "true", '""', '"x"', '"\\u2028\\n"', "[]", "{}",
    "[[1]]", "{a = 1}", "2020-01-01", "'", '"""',
)  # fmt: skip
DATABASE_CELLS = (
    None, 0, -1, 59, 75, 2**63 - 1, -(2**63), 1.5, 1e308, 1e-320, "", "x", "7", "round", "a, seq = 5", "\x00",
    "a, seq = " + "9" * 5000, b"", b"\xff\x00", "<img src=x onerror=alert(1)>", "\u2028",
)  # fmt: skip
TAILS = (
    b"\x00",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n",
    b"\xff",
    b"[" * 3000,
    b"{",
    b"}",
    b'"',
    b"\x1f\x8b\x08",
    b"-",
    b"NaN,",
)


def bytes_damaged(chance: Random, content: bytes) -> bytes:
    """Truncated, flipped, overwritten, or with something inserted."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(content))
        match chance.choice(("cut", "insert", "flip", "drop", "front", "crlf", "twice")):
            case "cut":
                content = content[:at]
            case "insert":
                content = content[:at] + chance.choice(TAILS) + content[at:]
            case "flip" if content:
                at = min(at, len(content) - 1)
                content = content[:at] + bytes([content[at] ^ chance.randint(1, 255)]) + content[at + 1 :]
            case "drop":
                content = content[:at] + content[at + chance.randint(1, 40) :]
            case "front":
                content = chance.choice(TAILS) + content
            case "crlf":
                content = content.replace(b"\n", b"\r\n")
            case "twice":
                content = content + content
    return content


def json_damaged(chance: Random, content: bytes) -> bytes:
    return json.dumps(_tree_damaged(chance, json.loads(content))).encode()


def lines_damaged(chance: Random, content: bytes) -> bytes:
    """Of JSON lines: some of them, and their order."""
    lines = content.splitlines()
    for _ in range(chance.randint(1, 2)):
        at = chance.randint(0, len(lines) - 1)
        match chance.choice(("tree", "tree", "tree", "drop", "twice", "swap")):
            case "tree":
                with suppress(ValueError):  # damaged before
                    lines[at] = json_damaged(chance, lines[at])
            case "drop" if len(lines) > 1:
                del lines[at]
            case "twice":
                lines.insert(at, lines[at])
            case "swap":
                lines[0], lines[at] = lines[at], lines[0]
    return b"\n".join(lines) + b"\n"


def _tree_damaged(chance: Random, tree: Any) -> Any:
    for _ in range(chance.randint(1, 3)):
        places = list(_places(tree))
        if not places:
            return chance.choice(VALUES)
        *above, last = chance.choice(places)
        holder = tree
        for step in above:
            holder = holder[step]
        _damage(chance, holder, last)
    return tree


def _damage(chance: Random, holder: Any, key: Any) -> None:
    match chance.choice(("value", "value", "value", "drop", "deep", "twice", "empty", "rename", "number")):
        case "value":
            holder[key] = chance.choice(VALUES)
        case "number":
            holder[key] = chance.uniform(-9, 9) * 10.0 ** chance.randint(-320, 300)
        case "drop":
            del holder[key]
        case "deep":
            for _ in range(chance.choice((1, 2, 90, 400))):
                holder[key] = [holder[key]]
        case "twice" if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case "empty" if isinstance(holder[key], list | dict):
            holder[key].clear()
        case "rename" if isinstance(holder, dict):
            holder[chance.choice(("", "x", "\u2028", "\x00", "id", "</script>"))] = holder.pop(key)


def _places(tree: Any, above: Place = ()) -> Iterator[Place]:
    """Of every value below the top; of long lists the first two and the last."""
    if isinstance(tree, dict):
        keys: list[Any] = list(tree)
    elif isinstance(tree, list):
        keys = sorted({0, 1, len(tree) - 1} & set(range(len(tree))))
    else:
        return
    for key in keys:
        yield (*above, key)
        if len(above) < 12:
            yield from _places(tree[key], (*above, key))


def csv_damaged(chance: Random, content: bytes) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    for _ in range(chance.randint(1, 4)):
        row = chance.choice([0, *range(len(rows))])
        at = chance.randint(0, max(len(rows[row]) - 1, 0))
        match chance.choice(("cell", "cell", "cell", "cell", "row", "twice", "column", "longer")):
            case "cell" if rows[row]:
                rows[row][at] = chance.choice([*CELLS, *rows[0]])
            case "row" if len(rows) > 1:
                del rows[row]
            case "twice":
                rows.append(list(rows[row]))
            case "column":
                rows = [cells[:at] + cells[at + 1 :] for cells in rows]
            case "longer":
                rows[row] = [*rows[row], "x"]
        if not rows:
            return b""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def toml_damaged(chance: Random, content: bytes) -> bytes:
    lines = content.decode().splitlines()
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(lines) - 1)
        match chance.choice(("value", "value", "key", "drop", "twice")):
            case "value":
                lines[at] = re.sub(r"=.*", lambda _: f"= {chance.choice(TOML_VALUES)}", lines[at])
            case "key":
                lines[at] = chance.choice(("accepted = 1", "[accepted]", "[x]", "id = 3", "a.b.c = 1", "x"))
            case "drop" if len(lines) > 1:
                del lines[at]
            case "twice":
                lines.append(lines[at])
    return "\n".join(lines).encode()


def sqlite_damaged(chance: Random, content: bytes) -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(content)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [(t, row[1]) for t in tables for row in database.execute(f'PRAGMA table_info("{t}")')]
        for _ in range(chance.randint(1, 3)):
            table, column = chance.choice(columns)
            changes = {
                "value": f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % ? = 0',
                "drop": f'DROP TABLE "{table}"',
                "rename": f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}2"',
                "delete": f'DELETE FROM "{table}" WHERE rowid > 1',
                "view": f'DROP TABLE "{table}"; CREATE VIEW "{table}" AS SELECT 1 AS "{column}"',
            }
            chosen = chance.choice(("value", "value", "value", *changes))
            with suppress(sqlite3.Error):
                if chosen == "value":
                    database.execute(changes[chosen], (chance.choice(DATABASE_CELLS), chance.randint(1, 3)))
                else:
                    database.executescript(changes[chosen])
            database.commit()
        return database.serialize()


def tar_damaged(chance: Random, content: bytes) -> bytes:
    """An uncompressed archive with a member that leads out of its folder, is a link or a device, or claims a size."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        kept = [(member, file.read() if file else b"") for member, file in members]
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(kept) - 1)
        member, data = copy.copy(kept[at][0]), kept[at][1]
        match chance.choice(("name", "kind", "link", "mode", "json", "bytes", "again")):
            case "name":
                member.name = chance.choice(("../out", "/tmp/fuzzed-out", "a/../../out", "", ".", "x" * 300, "a"))
            case "kind":
                kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE)
                member.type, member.size, data = chance.choice(kinds), 0, b""
            case "link":
                member.type, member.size, data = chance.choice((tarfile.SYMTYPE, tarfile.LNKTYPE)), 0, b""
                member.linkname = chance.choice(("/etc/passwd", "../..", "findings", "", "x" * 300, member.name))
            case "mode":
                member.mode = chance.choice((0, 0o4777, 0o777))
            case "json":
                with suppress(ValueError):
                    data = json_damaged(chance, data)
                member.size = len(data)
            case "bytes":
                data = bytes_damaged(chance, data)
                member.size = len(data)
        kept = [*kept[:at], (member, data), *kept[at + 1 :]]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in kept:
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
