"""Every published figure in the write-up is in a table as printed, and none of the five is missing."""

import re

import pytest

from perf_tests.records.published import MOST_BYTES, PUBLISHED
from perf_tests.records.record import unpacked
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.page import Entry, entries
from perf_tests.report.cs336_parts.sources import ROOT, Sources
from tests.support.writeup_sources import PLAYED


@pytest.fixture(scope="module")
def committed() -> list[Entry]:
    """Of the committed records, without played steps."""
    return entries(Sources(ROOT, PLAYED))


DERIVED = ("/", "TFLOP/s", "one layer", "over context", "median", "sources")


def test_published_figures_are_in_the_tables_as_printed(committed: list[Entry]) -> None:
    """Those that are no ratio and no rate, nor rounded to their spread, stand in a file below published/."""
    tables = [unpacked(path, MOST_BYTES).decode() for path in PUBLISHED.glob("*.csv*")]
    printed = {text for table in tables for text in re.findall(r"[\d.]+", table)}
    checked = 0
    for found in committed:
        for figure in found.answer.published:
            is_derived = any(word in figure.column for word in DERIVED)
            if "±" not in figure.text and not is_derived and found.question.asked not in COMPUTED:
                checked += 1
                numbers = re.findall(r"\d+(?:\.\d+)?", figure.text)
                assert all(number in printed for number in numbers), (found.question.asked, figure)
    assert checked > 300


COMPUTED = (
    "With which power of the length does the time grow?",
    "How does the softmax compare with the products of attention?",
)


def test_every_table_of_the_five_write_ups_is_on_the_page(committed: list[Entry]) -> None:
    figures = [figure for found in committed for figure in found.answer.published]
    names = [(figure, name) for figure in figures for name in (figure.column, figure.row[0])]
    shown = {(name.partition(",")[0].partition(" (")[0], figure.text.rstrip("%")) for figure, name in names}
    written = (ROOT / "WRITEUP.md").read_text()
    missing = []
    for name, field in THEIRS:
        for row in filter(published.is_write_up, Sources(ROOT).published(name)):
            text = published.time_text(row) if name == "e2e_timing.csv" else row[field]
            is_played = name == "memory.csv" and row["size"] == "2.7B"
            is_shown = f"| {text} " in written if is_played else (published.name_of(row), text) in shown
            missing += [] if is_shown or not text else [(name, dict(row))]
    assert missing == []


THEIRS = (
    ("e2e_timing.csv", "mean_ms"), ("attention_timing.csv", "mean_ms"), ("memory.csv", "value"),
    ("gemm_share.csv", "gemm_pct"), ("kernels.csv", "pct_of_gpu_time"), ("kernels.csv", "calls"),
    ("kernels.csv", "avg_us"), ("softmax_vs_matmul.csv", "qk_time"), ("softmax_vs_matmul.csv", "softmax_time"),
    ("softmax_vs_matmul.csv", "av_time"), ("answers.csv", "value"),
)  # fmt: skip
