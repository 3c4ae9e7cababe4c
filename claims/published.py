"""Published figures: collections of them as CSV files in one folder."""

import csv
import io
from pathlib import Path

from perf_tests_suite.perf_tests.records.record import unpacked

PUBLISHED = Path(__file__).parents[1] / "published"
MOST_BYTES = 10_000_000


def path_of(name: str, folder: Path = PUBLISHED) -> Path:
    """The file of a table, packed or not."""
    plain = folder / name
    return plain if plain.exists() else folder / f"{name}.xz"


def published_rows(name: str, folder: Path = PUBLISHED) -> list[dict[str, str]]:
    """Each row of a table, `memory.csv`, by column; the largest are packed with xz.

    Raises ValueError with one sentence for a table that is missing or cannot be read.
    """
    text = unpacked(path_of(name, folder), MOST_BYTES).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))
