"""The page over records that nobody planned: odd numbers, names and dates, a repository that knows nothing of them."""

import json
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from tests.support.git_repository import git
from tests.support.launches_over_commits import COUNT, START, launch, name_of, with_step
from tests.support.report_pages import HOSTILE, Reader, figures, page_over, stored_in, written
from tests.support.synthetic import record, timed, write_record

pytestmark = pytest.mark.usefixtures("no_plotly")


def answer(text: str) -> str:
    return text.partition('id="answer"')[2].partition("</section>")[0]


@pytest.mark.parametrize("seconds", [1e-320, 1e-13, 1e300])
def test_a_round_that_no_clock_can_read_leaves_its_record_out(seconds: float, tmp_path: Path) -> None:
    text = page_over(tmp_path, record([timed()]), record([timed(seconds=(seconds,) * 10)]), code=1)
    assert f"has a round of {seconds!r} s" in text
    assert "1 of 1 case has a time" in answer(text)


def test_a_record_of_another_format_is_named(tmp_path: Path) -> None:
    strange = {**record([timed()]), "suite": {"format_version": 99}}
    assert "its format version is 99, this suite reads 1" in page_over(tmp_path, record([timed()]), strange, code=1)


def test_two_records_with_one_number_are_two_runs(tmp_path: Path) -> None:
    for name, data in (("0001_a", launch(1, 1.0)), ("0001_b", launch(2, 2.0))):
        write_record(tmp_path / f"records/machine/{name}.json", data)
    text = written(tmp_path / "records")
    assert "machine/0001_a" in text
    assert "machine/0001_b" in text
    assert len(stored_in(text)["eras"][0]["codes"]) == 2


def test_a_clock_that_went_backwards_moves_no_commit(tmp_path: Path) -> None:
    """Commits are in the order of git, or of their dates; here the later launches have the earlier dates."""
    records = with_step(0.2)
    for data, date in zip(records, reversed([data["datetime"] for data in records]), strict=True):
        data["datetime"] = date
    text = page_over(tmp_path, *records)
    assert f"since {name_of(START)[:12]} (2030-01-01), {COUNT - START} launches against {START}" in answer(text)


@pytest.mark.parametrize("has_git", [False, True])
def test_commits_that_git_does_not_know_are_shown_without_a_subject(has_git: bool, tmp_path: Path) -> None:
    if has_git:
        git(tmp_path, "init", "-q")
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", "of another history")
    text = page_over(tmp_path, *with_step(0.2))
    assert f"{name_of(COUNT - 1)[:12]} (2030-01-01) against {name_of(0)[:12]}" in answer(text)
    assert "of another history" not in text


def test_a_subject_and_a_commit_that_would_like_to_be_more_are_text(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", HOSTILE.partition("\u202e")[0])
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    text = page_over(tmp_path, launch(1, 1.0, HOSTILE), launch(2, 1.0, commit))
    seen = Reader(text)
    assert len(seen.scripts) == 3
    assert not [tag for tag, _ in seen.elements if tag == "img"]
    assert "<" not in seen.scripts[0]
    assert "&lt;script&gt;pwned()" in answer(text)


def test_machines_are_never_joined(tmp_path: Path) -> None:
    there = [{**launch(n, 5.0), "machine_info": record(threads=64)["machine_info"]} for n in (3, 4)]
    eras = stored_in(page_over(tmp_path, launch(1, 1.0), launch(2, 1.0), *there))["eras"]
    assert [[case["seconds"] for case in era["cases"]] for era in eras] == [[[5.0, 5.0]], [[1.0, 1.0]]]


def test_launches_without_the_product_beside_their_cases_are_a_history_of_their_own(tmp_path: Path) -> None:
    without = [launch(number, 1.0, sentinel=None) for number in (1, 2)]
    text = page_over(tmp_path, *without, launch(3, 1.0), launch(4, 1.0))
    assert "before a product was timed beside the cases" in text
    assert len(stored_in(text)["eras"]) == 2


def test_the_newest_ten_of_the_named_runs_are_in_full(tmp_path: Path) -> None:
    for number in range(1, 13):
        write_record(tmp_path / f"records/machine/{number:04}_a.json", launch(number, 1.0))
    text = written(tmp_path / "records", "00")
    assert [f'id="run{number}"' in text for number in (2, 3, 12)] == [False, True, True]


def test_a_figure_of_one_machine_beside_another_has_no_verdict(tmp_path: Path) -> None:
    first, second = record([timed()], written="2030-01-01"), record([timed()], written="2031-01-01", threads=64)
    assert figures(page_over(tmp_path, first, second))["run1-run2"]["data"][0]["y"] == [1.0]


def test_the_page_is_told_as_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_record(tmp_path / "a.json", record([timed()]))
    assert main(["report", str(path), "--json", f"--output={tmp_path / 'page.html'}"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
