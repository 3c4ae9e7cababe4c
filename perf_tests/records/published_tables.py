"""Tables of figures that others published: CSV files in one folder, the largest packed with xz."""

import csv
import io
from pathlib import Path

from perf_tests.records.unpacked import unpacked

PUBLISHED = Path(__file__).parents[2] / "published"
MOST_BYTES = 10_000_000


def published_rows(name: str, folder: Path = PUBLISHED) -> list[dict[str, str]]:
    """Of `memory_outliers.csv` or `flash_attention.csv.xz`, each row by column.

    Raises ValueError with one sentence for a table that is missing or cannot be read.
    """
    text = unpacked(folder / name, MOST_BYTES).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))
