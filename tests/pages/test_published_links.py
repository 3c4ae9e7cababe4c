"""Published exchanges are predicted without the figure that they are held to, and the page shows these errors."""

from pathlib import Path
from statistics import median

import pytest

from perf_tests.records.published import PUBLISHED
from tests.support.documents import page
from tests.support.published_links import LEFT_OUT, errors, sizes_left_out, steps_left_out, tables, worst_source

HEADS = ("the time of an all-reduce", "an all-reduce of 100 MB", "the exchange of a DDP step", "1 GB between two GPUs")


@pytest.mark.parametrize("claim, head", list(zip(LEFT_OUT, HEADS, strict=True)))
def test_the_page_shows_the_errors_of_each_prediction(claim: str, head: str) -> None:
    left_out, limit = LEFT_OUT[claim]
    found = left_out()
    held = errors(found)
    (row,) = (line for line in page("ranks").splitlines() if line.startswith(f"| {head}"))
    figures = f"| {len(held)} | {median(held):.1%} | {worst_source(found):.1%} | {max(held):.1%} |"
    assert row.endswith(figures.replace("%", " %"))
    assert median(held) <= limit


def test_on_nvlink_one_message_takes_longer_than_predicted_and_one_a_gradient_less() -> None:
    of_h100 = {held.name.split(", ")[1]: held.error for held in steps_left_out() if held.source == "ShibukiZero"}
    assert of_h100["flat"] < 0 < of_h100["naive"]


def test_tables_that_do_not_grow_are_left_out_and_counted_on_the_page() -> None:
    known, left_out = tables()
    assert {series[0] for series in left_out} == {"kbjiang"}
    assert len(left_out) == 2
    assert "Two tables are left out" in page("ranks")
    assert not known.keys() & set(left_out)


def replaced(folder: Path, name: str, old: str, new: str) -> None:
    """A copy of the published tables with one figure changed."""
    for path in PUBLISHED.glob("*.csv"):
        text = path.read_text()
        assert path.name != name or text.count(old) == 1
        (folder / path.name).write_text(text.replace(old, new) if path.name == name else text)


@pytest.mark.parametrize(
    "left_out, table, old, new",
    [
        (sizes_left_out, "all_reduce.csv", "nccl,2,100,5.2744,", "nccl,2,100,10.5488,"),
        (steps_left_out, "ddp.csv", "2,128,flat,825.1,427.3,", "2,128,flat,825.1,854.6,"),
    ],
)
def test_a_figure_has_no_part_in_its_own_prediction(
    left_out: object, table: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(left_out)
    before = left_out()
    replaced(tmp_path, table, old, new)
    monkeypatch.setattr("tests.support.published_links.PUBLISHED", tmp_path)
    (changed,) = [(one, other) for one, other in zip(before, left_out(), strict=True) if one.seconds != other.seconds]
    assert changed[1].seconds == pytest.approx(2 * changed[0].seconds)
    assert changed[1].predicted_seconds == changed[0].predicted_seconds
