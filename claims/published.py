"""Published figures: collections of them as CSV files in one folder."""

import csv
import io
from pathlib import Path

from perf_tests_suite.perf_tests.records.record import unpacked

PUBLISHED = Path(__file__).parents[1] / "published"
MOST_BYTES = 10_000_000


def published_rows(name: str, folder: Path = PUBLISHED) -> list[dict[str, str]]:
    """Each row by column of `memory_outliers.csv` or, the largest packed with xz, `flash_attention.csv.xz`.

    Raises ValueError with one sentence for a table that is missing or cannot be read.
    """
    text = unpacked(folder / name, MOST_BYTES).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))
