"""Files that may be compressed and may come from strangers: what they unpack to must not fill the memory."""

import gzip
import lzma
import zlib
from pathlib import Path
from typing import Any

from perf_tests.records.words import without_path

_OPEN: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
SUFFIXES = tuple(_OPEN)


def unpacked(path: Path, most_bytes: int) -> bytes:
    """The bytes of `path`, decompressed where its name ends in .gz or .xz.

    Raises ValueError with one sentence for an unreadable file and for one that unpacks to more than `most_bytes`.
    """
    try:
        with _OPEN.get(path.suffix, open)(path, "rb") as file:
            content: bytes = file.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    if len(content) > most_bytes:
        raise ValueError(f"{path} cannot be used: it is larger than {most_bytes} bytes, the most that is read.")
    return content
