"""A history over commits: steps and counters named at the commit that starts them, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.history.commits import read_log
from perf_tests.history.series import new_slowdowns
from perf_tests.records.record import Json
from perf_tests.report.history import history_lines
from tests.support.git_repository import git
from tests.support.launches_over_commits import COUNT, NO_LOG, NOISE, START, history, launch, name_of, with_step
from tests.support.synthetic import record, write_record


def test_a_step_is_named_at_the_commit_that_starts_it_with_its_launches() -> None:
    (era,) = history(with_step(0.2))
    (step,) = era.series[0].steps
    assert era.series[0].code_of(step).commit == name_of(START)
    assert (step.launches_before, step.launches_after) == (START, COUNT - START)
    assert step.interval[0] < 0.2 < step.interval[1]


@pytest.mark.parametrize("place", [5, COUNT - 1])
def test_one_disturbed_launch_is_no_step(place: int) -> None:
    records = with_step(0.0)
    records[place] = launch(place, 1.5)
    (era,) = history(records)
    assert era.series[0].steps == []


def test_drift_that_the_sentinel_shares_is_no_step() -> None:
    slow = [1.2 if place >= START else 1.0 for place in range(COUNT)]
    drifting = [launch(place, NOISE[place] * slow[place], sentinel=1e-3 * slow[place]) for place in range(COUNT)]
    (era,) = history(drifting)
    assert era.is_corrected
    assert era.series[0].steps == []


def test_a_sentinel_that_does_not_explain_the_figures_corrects_nothing() -> None:
    wild = [launch(place, NOISE[place], sentinel=1e-3 * (1 + place % 2)) for place in range(COUNT)]
    (era,) = history(wild)
    assert not era.is_corrected
    assert max(point.seconds for point in era.series[0].points) < 1.05


def test_older_launches_without_a_sentinel_form_a_series_of_their_own() -> None:
    records = [launch(place, 1.0, sentinel=None if place < START else 1e-3) for place in range(COUNT)]
    old, new = history(records)
    assert [len(era.series[0].points) for era in (old, new)] == [START, COUNT - START]
    assert "recorded no product" in "\n".join(history_lines(old))


def test_machines_builds_and_identities_are_never_joined() -> None:
    ours = [launch(place, 1.0) for place in range(3)]
    other = [{**launch(9, 3.0), "machine_info": record(torch="2.12.0")["machine_info"]}]
    larger = [launch(8, 9.0, batch_size=64)]
    first, second = history([*ours, *other, *larger])
    assert [len(one.points) for one in first.series] == [1, 3]
    assert [len(one.points) for one in second.series] == [1]


def test_a_run_that_was_saved_twice_is_one_launch() -> None:
    one = launch(1, 1.0)
    one["suite"]["run"] = "abc"
    (era,) = history([one, one])
    assert era.series[0].points[0].launches == 1


def changes_of(records: Sequence[Json]) -> list[tuple[int, int, str | None]]:
    (era,) = history(records)
    return [(change.before, change.after, change.code.commit) for change in era.series[0].counter_changes]


def test_a_counter_has_the_commit_that_changed_it() -> None:
    records = [launch(place, 1.0, kernel_launches=560 if place < START else 562) for place in range(COUNT)]
    assert changes_of(records) == [(560, 562, name_of(START))]


def test_a_counter_on_which_two_launches_of_one_code_differ_is_no_change() -> None:
    """It is no property of the code; the next code is compared with the last one that agreed with itself."""
    one, two = name_of(1), name_of(2)
    counted = [(one, 560), (two, 562), (two, 560), (name_of(3), 560)]
    records = [launch(place, 1.0, commit, kernel_launches=count) for place, (commit, count) in enumerate(counted)]
    assert changes_of(records) == []
    assert changes_of([*records, launch(9, 1.0, name_of(4), kernel_launches=561)]) == [(560, 561, name_of(4))]


def test_a_slowdown_is_new_only_with_the_launches_that_first_show_it() -> None:
    shown_by = [bool(new_slowdowns(history(with_step(0.2, count))[0], NO_LOG)) for count in range(START + 1, COUNT)]
    assert shown_by.count(True) == 1
    assert shown_by.index(True) == 2  # the third launch of the slower code
    assert not new_slowdowns(history(with_step(-0.2, START + 3))[0], NO_LOG)


def test_git_orders_commits_even_if_a_clock_went_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for year in (2031, 2029, 2030):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{year}-01-01T00:00:00+00:00")
        git(tmp_path, "init", "-q", "-b", "main")
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", f"of {year}")
        made.append(git(tmp_path, "rev-parse", "HEAD"))
    gone = launch(5, 1.0, "f" * 40)
    (era,) = history([launch(place, 1.0, made[place]) for place in (2, 0, 1)] + [gone], read_log(tmp_path))
    assert [code.subject for code in era.codes] == ["", "of 2031", "of 2029", "of 2030"]


def test_a_shallow_clone_says_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of three commits, of which the clone has the last; they are in order all the same, by their dates."""
    git(tmp_path, "init", "-q", "-b", "main", "whole")
    for place in range(3):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2030-01-01T00:0{place}:00+00:00")
        git(tmp_path / "whole", "commit", "-q", "--allow-empty", "-m", f"number {place}")
    made = git(tmp_path / "whole", "log", "--reverse", "--format=%H").split()
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}/whole", "shallow")
    for place, commit in enumerate(made):
        write_record(tmp_path / f"shallow/.benchmarks/machine/000{place}_a.json", launch(place, 1.0, commit))
    monkeypatch.chdir(tmp_path / "shallow")
    assert main(["history", "--case", "forward"]) == 0
    said = capsys.readouterr().out
    assert said.count("git does not know 2 of these commits") == 1
    assert "number 2" in said
    assert said.index(made[0][:12]) < said.index(made[1][:12]) < said.index(made[2][:12])
    assert main(["report", "-o", "page.html"]) == 0
    assert Path("page.html").read_text().count("git does not know 2 of these commits") == 1


def test_without_git_commits_are_ordered_by_the_dates_in_their_records(tmp_path: Path) -> None:
    (era,) = history([launch(place, 1.0) for place in (2, 0, 1)], read_log(tmp_path / "none"))
    assert [code.commit for code in era.codes] == [name_of(place) for place in range(3)]


def test_code_with_changes_is_not_its_commit() -> None:
    dirty = launch(1, 1.0)
    dirty["commit_info"]["dirty"] = True
    (era,) = history([launch(1, 1.0), dirty])
    assert [code.name for code in era.codes] == ["010101010101", "010101010101 with changes"]


def test_a_shallow_clone_orders_the_commits_that_it_lacks_by_their_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2031-01-01T00:00:00+00:00")
    made = []
    git(tmp_path, "init", "-q", "-b", "main", "whole")
    for number in range(3):
        git(tmp_path / "whole", "commit", "-q", "--allow-empty", "-m", f"commit {number}")
        made.append(git(tmp_path / "whole", "rev-parse", "HEAD"))
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}/whole", "shallow")
    (era,) = history([launch(place, 1.0, made[place]) for place in (2, 0, 1)], read_log(tmp_path / "shallow"))
    assert [(code.commit, code.subject) for code in era.codes] == list(zip(made, ("", "", "commit 2"), strict=True))
