"""The README's pictures are of the record that they name: one byte for byte, one by what it was made from."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.meta_tests.browser import chromium
from perf_tests.proofs.synthetic import record, timed
from perf_tests.records.store import StoredRecord, read_record
from perf_tests.views.report import page, pictures
from perf_tests.views.report.figure import Figure, Point, Series
from perf_tests.views.report.pictures import FIGURE, NOTE, PICTURE, digests, figure_of, shown_part
from perf_tests.views.report.svg import svg_of, ticks

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "pictures"
RECORD = re.search(r"^RECORD := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def shown() -> StoredRecord:
    assert RECORD is not None
    return read_record(ROOT / RECORD[1])


@pytest.fixture(autouse=True)
def no_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no part of the digest."""
    monkeypatch.setattr(page, "_plotly", lambda: "/* what draws */")


def test_the_figure_is_drawn_from_its_record_byte_for_byte(shown: StoredRecord) -> None:
    assert (FOLDER / FIGURE).read_text() == figure_of(shown), "make pictures"


def test_the_picture_was_made_from_this_record_and_this_page(shown: StoredRecord) -> None:
    noted = json.loads((FOLDER / NOTE).read_text())
    assert noted == digests(shown, figure_of(shown), shown_part(shown), FOLDER), "make pictures"


@pytest.mark.parametrize("part", ["record_sha256", "page_sha256", "figure_sha256", "picture_sha256"])
def test_a_change_of_any_part_changes_its_digest(part: str, shown: StoredRecord, tmp_path: Path) -> None:
    path = tmp_path / shown.path.name
    path.write_bytes(shown.path.read_bytes())
    (tmp_path / PICTURE).write_bytes(b"picture")
    before = digests(StoredRecord(path, {}), "figure", "page", tmp_path)
    path.write_bytes(path.read_bytes() + b" " * (part == "record_sha256"))
    (tmp_path / PICTURE).write_bytes(b"picture" + b"!" * (part == "picture_sha256"))
    figure = "figure!" if part == "figure_sha256" else "figure"
    text = "page!" if part == "page_sha256" else "page"
    after = digests(StoredRecord(path, {}), figure, text, tmp_path)
    assert {name for name in before if before[name] != after[name]} == {part}


def test_another_version_of_what_draws_is_no_new_page(
    shown: StoredRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / PICTURE).write_bytes(b"")
    found = []
    for version in ("/* 1 */ a()", "/* 2 */ b()"):
        monkeypatch.setattr(page, "_plotly", lambda version=version: version)
        found.append(digests(shown, "", shown_part(shown), tmp_path)["page_sha256"])
    assert found[0] == found[1]


def test_the_pictures_are_small_and_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in (FIGURE, PICTURE):
        assert f"(pictures/{name})" in readme
        assert (FOLDER / name).stat().st_size < MOST_BYTES


@pytest.mark.skipif(chromium() is None, reason="no chromium on this machine")
def test_the_verb_writes_all_three(shown: StoredRecord, tmp_path: Path) -> None:
    assert main(["pictures", str(shown.path), f"--output={tmp_path}"]) == 0
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / FIGURE).read_text() == figure_of(shown)
    assert (
        json.loads((tmp_path / NOTE).read_text())["page_sha256"]
        == json.loads((FOLDER / NOTE).read_text())["page_sha256"]
    )


def test_without_a_browser_there_is_one_sentence(
    shown: StoredRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["pictures", str(shown.path), f"--output={tmp_path}"]) == 2
    assert "install one of chromium" in capsys.readouterr().err


def test_a_record_without_attention_alone_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "0001_run.json"
    path.write_text(json.dumps(record([timed()])))
    assert main(["pictures", str(path), f"--output={tmp_path}"]) == 3
    assert "no attention alone" in capsys.readouterr().err


def line(*points: Point, name: str = "a") -> Figure:
    series = [Series(name, points), Series("floor", points, is_background=True)]
    return Figure("f", "title", "x", "y (ms)", series, ["below"], x_values=[1, 100])


def point(x: float | str, y: float) -> Point:
    return Point(x, y, "case", ("", "", "", ""), y / 2, y * 2)


def test_equal_ratios_are_equal_distances() -> None:
    text = svg_of(line(point(1, 1), point(10, 10), point(100, 100)))
    places = [tuple(map(float, pair)) for pair in re.findall(r"translate\(([\d.]+) ([\d.]+)\)", text)[:3]]
    steps = [(round(b[0] - a[0]), round(b[1] - a[1])) for a, b in pairwise(places)]
    assert steps[0] == pytest.approx(steps[1], abs=1)
    assert steps[0][0] > 0 > steps[0][1]


def test_a_hostile_name_is_text_in_a_figure() -> None:
    text = svg_of(line(point(1, 1), point(2, 2), name='</svg><script>x()</script>"\x00'))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_names_on_an_axis_are_refused() -> None:
    with pytest.raises(ValueError, match="no points between numbers"):
        svg_of(line(point("small", 1)))


def test_ticks_are_at_one_two_and_five_of_each_decade() -> None:
    assert ticks(-0.4, 1.01) == [0.5, 1.0, 2.0, 5.0, 10.0]


def test_the_shown_part_is_the_page_with_sections_left_out(shown: StoredRecord) -> None:
    text = shown_part(shown)
    assert f"section:not({pictures.SHOWN})" in text
    assert all(f'id="{name.strip().removeprefix("#")}"' in text for name in pictures.SHOWN.split(","))
