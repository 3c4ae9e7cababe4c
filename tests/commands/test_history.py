"""`history`: exit codes, what it prints and exports, dates that are none."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.report.history import EXPORTS, github_action_benchmark, otava
from tests.support.launch import Verb
from tests.support.launches_over_commits import COUNT, START, history, launch, with_step
from tests.support.synthetic import BACKWARD, timed, write_record


@pytest.fixture
def said(tmp_path: Path, verb: Verb) -> Verb:
    """Return the verb's exit code and what it prints, given records and words."""

    def say(records: Sequence[Json], *words: str) -> tuple[int, str, str]:
        for place, data in enumerate(records):
            write_record(tmp_path / "machine" / f"{place:04}_a.json", data)
        return verb("history", "--storage", tmp_path, *words)

    return say


def test_a_slowdown_that_the_newest_commit_shows_is_a_finding(said: Verb) -> None:
    code, printed, _ = said(with_step(0.2, START + 3))
    assert (code, "forward tiny-ctx8-fp32-naive" in printed, "3 against 14" in printed) == (1, True, True)
    code, printed, _ = said(with_step(0.2), "--json")
    assert code == 0
    assert json.loads(printed)["eras"][0]["cases"][0]["steps"][0]["launches_after"] == COUNT - START


def test_otavas_file_has_no_empty_cell_which_otava_refuses() -> None:
    """It has the time before, else the first one, as Otava itself fills what is missing."""
    records = [launch(place, 1.0) for place in range(5)]
    for place in (1, 3):
        records[place]["benchmarks"].append(timed(BACKWARD, [2.0 + place] * 5, sentinel_seconds=[1e-3, 1e-3]))
    records[4]["benchmarks"] = []
    (era,) = history(records)
    rows = list(csv.DictReader(io.StringIO(otava(era))))
    assert [row["backward tiny-ctx8-fp32-naive"] for row in rows] == ["3.0", "3.0", "3.0", "5.0"]
    (era,) = history([launch(1, 1.0), launch(2, 9.0, batch_size=64), launch(3, 8.0, batch_size=64)])
    times = [row["forward tiny-ctx8-fp32-naive"] for row in csv.DictReader(io.StringIO(otava(era)))]
    assert times == ["9.0", "8.0"], "two identities are never joined"


def test_a_name_stands_once_among_what_github_is_given() -> None:
    (era,) = history([launch(1, 1.0), launch(2, 9.0), launch(3, 8.0, "02" * 20, batch_size=64)])
    (row,) = json.loads(github_action_benchmark(era))
    assert row["name"] == "forward tiny-ctx8-fp32-naive"


@pytest.mark.parametrize("export", EXPORTS)
def test_an_export_dates_what_has_no_date_to_1970_and_holds_no_formula(export: str, said: Verb, tmp_path: Path) -> None:
    data = {**launch(1, 1.0, "@SUM"), "datetime": "=cmd"}
    data["commit_info"]["time"] = data["benchmarks"][0]["fullname"] = "=cmd"
    assert said([data], "--export", export, "-o", str(tmp_path / "exported"))[0] == 0
    text = (tmp_path / "exported").read_text()
    if export == "otava":
        header, row = csv.reader(text.splitlines())
        assert (header[3], row[:2]) == ("'=cmd ", ["1970-01-01T00:00:00+00:00", "'@SUM"])
    else:
        assert json.loads(text)
