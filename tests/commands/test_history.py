"""`history`: exit codes, what it prints and exports, dates that are none."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.record import Json
from perf_tests.report.history import EXPORTS, asv, github_action_benchmark, otava
from tests.support.launches_over_commits import COUNT, START, history, launch, with_step
from tests.support.synthetic import BACKWARD, record, timed, timed_collective, write_record


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[Sequence[Json]], list[str]]:
    def store(records: Sequence[Json]) -> list[str]:
        for place, data in enumerate(records):
            write_record(tmp_path / "machine" / f"{place:04}_a.json", data)
        return ["history", "--storage", str(tmp_path)]

    return store


def test_the_verb_ends_with_1_when_the_newest_commit_shows_a_slowdown(
    stored: Callable[[Sequence[Json]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(stored(with_step(0.2, START + 3))) == 1
    printed = capsys.readouterr().out
    assert "forward tiny-ctx8-fp32-naive" in printed
    assert "3 against 14" in printed
    assert main(stored(with_step(0.2))) == 0


def test_the_verb_prints_for_machines_and_names_what_it_left_out(
    stored: Callable[[Sequence[Json]], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = stored(with_step(0.2))
    future = launch(1, 1.0)
    future["suite"]["format_version"] = 99
    write_record(tmp_path / "machine" / "0099_a.json", future)
    assert main([*words, "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["eras"][0]["cases"][0]["steps"][0]["launches_after"] == COUNT - START
    assert "format version is 99" in printed.err


def test_a_case_that_no_record_has_and_an_output_that_cannot_be_written_are_usage_errors(
    stored: Callable[[Sequence[Json]], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = stored(with_step(0.0))
    assert main([*words, "--case", "backwards"]) == 2
    assert main([*words, "--export", "otava", "-o", str(tmp_path / "none" / "file.csv")]) == 2
    assert str(tmp_path / "none" / "file.csv") in capsys.readouterr().err


def test_an_output_without_an_export_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", f"--storage={tmp_path}", "-o", "page.html"]) == 2
    assert capsys.readouterr().err == "-o page.html is for an export; name one with --export.\n"


def test_exports_hold_every_commit_and_case() -> None:
    records = with_step(0.2)
    records[-1]["benchmarks"].append(timed(BACKWARD, [2.0] * 5, sentinel_seconds=[1e-3, 1e-3]))
    (era,) = history(records)
    rows = list(csv.DictReader(io.StringIO(otava(era))))
    assert len(rows) == COUNT
    newest = json.loads(github_action_benchmark(era))
    assert {row["name"]: row["value"] for row in newest}["backward tiny-ctx8-fp32-naive"] == 2000.0
    lines = [json.loads(line) for line in asv(era).splitlines()]
    assert len(lines) == COUNT + 1
    assert {"commit_hash", "date", "benchmark", "result"} <= lines[0].keys()


def test_otavas_file_has_no_empty_cell_which_otava_refuses() -> None:
    """It has the time before, else the first one, as Otava itself fills what is missing."""
    records = [launch(place, 1.0) for place in range(5)]
    for place in (1, 3):
        records[place]["benchmarks"].append(timed(BACKWARD, [2.0 + place] * 5, sentinel_seconds=[1e-3, 1e-3]))
    records[4]["benchmarks"] = []
    (era,) = history(records)
    rows = list(csv.DictReader(io.StringIO(otava(era))))
    assert [row["backward tiny-ctx8-fp32-naive"] for row in rows] == ["3.0", "3.0", "3.0", "5.0"]


@pytest.mark.parametrize("export", EXPORTS)
def test_an_export_follows_a_collective_alone(export: str) -> None:
    (era,) = history([record([timed(), timed_collective(40_000)])])
    assert "collective all_gather-40000B-world2" in EXPORTS[export](era)


def test_two_runs_with_one_number_are_two_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, name in enumerate(("0001_a", "0001_b")):
        write_record(tmp_path / f"machine/{name}.json", launch(place, 1.0))
    assert main(["history", "--storage", str(tmp_path)]) == 0
    assert "2 launches of 2 commits" in capsys.readouterr().out


def test_a_damaged_record_is_one_sentence_and_the_others_are_read(
    stored: Callable[[Sequence[Json]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = {**launch(1, 1.0), "commit_info": [1]}
    assert main(stored([damaged])) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(stored([damaged, launch(2, 1.0)])) == 1
    assert "1 launch of 1 commit" in capsys.readouterr().out


@pytest.mark.parametrize("export", EXPORTS)
def test_an_export_dates_what_has_no_date_to_1970_and_holds_no_formula(
    export: str, stored: Callable[[Sequence[Json]], list[str]], tmp_path: Path
) -> None:
    data = {**launch(1, 1.0, "@SUM"), "datetime": "=cmd"}
    data["commit_info"]["time"] = data["benchmarks"][0]["fullname"] = "=cmd"
    assert main([*stored([data]), "--export", export, "-o", str(tmp_path / "exported")]) == 0
    text = (tmp_path / "exported").read_text()
    if export == "otava":
        header, row = csv.reader(text.splitlines())
        assert (header[3], row[:2]) == ("'=cmd ", ["1970-01-01T00:00:00+00:00", "'@SUM"])
    else:
        assert json.loads(text)


@pytest.mark.parametrize("date", [None, 5, [1], "9999-99-99", "0001-01-01T00:00:00+14:00", "1" * 5000, "2030"])
def test_a_date_that_is_none_orders_by_what_is_left(
    date: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        data = launch(number, 1.0)
        write_record(tmp_path / f"machine/000{number}_a.json", {**data, "datetime": date})
    assert main(["history", "--storage", str(tmp_path)]) == 0
    assert "3 launches of 3 commits" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["history", "tables --format=csv"])
def test_a_case_of_very_many_rounds_is_read(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = launch(1, 1.0)
    data["benchmarks"][0]["stats"]["data"] = [1.0, 1.5, 2.0] * 100_000
    write_record(tmp_path / "machine/0001_a.json", data)
    assert main([*verb.split(), "--storage", str(tmp_path)]) == 0
    assert "Some CPU" in capsys.readouterr().out
