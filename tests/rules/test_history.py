"""A history over commits: steps and counters named at the commit that starts them, and nothing else."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from claims.histories import KINDS, false_steps, share_found
from perf_tests_suite.perf_tests.history.commits import machines_of, moment, read_log
from perf_tests_suite.perf_tests.history.series import Era, new_slowdowns, newest_first, scatter, steps_of
from perf_tests_suite.perf_tests.records.format import DASH
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.records.store import StoredRecord
from perf_tests_suite.perf_tests.report.history import history_lines, series_json
from tests.support.git_repository import git
from tests.support.launches_over_commits import COUNT, NO_LOG, NOISE, START, history, launch, name_of, with_step
from tests.support.synthetic import record, timed, timed_attention, untimed


def era_of(records: Sequence[Json]) -> Era:
    (era,) = history(records)
    return era


def test_seconds_to_compile_are_shown_by_part_and_cache_the_newest_commit_beside_those_before() -> None:
    records = [launch(place, 1.0) for place in range(4)]
    taken = [("cold", 5.0, 9.0), ("warm", 1.0, 2.0), ("cold", 7.0, 9.0), ("cold", 16.0, 9.0)]
    for record_, (cache, forward, backward) in zip(records, taken, strict=True):
        seconds = {"forward": forward, "backward": backward, "other": "damaged"}
        record_["benchmarks"][0]["extra_info"] |= {"compile_cache": cache, "compile_seconds": seconds}
    era = era_of(records)
    table = [found[0] for line in history_lines(era) if (found := re.search("(cold|warm) (for|back)ward .*", line))]
    assert [" ".join(line.split()) for line in table] == [
        f"cold forward 6 s 16 s {name_of(3)[:12]} 3",
        f"cold backward 9 s 9 s {name_of(3)[:12]} 3",
        f"warm forward {DASH} 1 s {name_of(1)[:12]} 1",
        f"warm backward {DASH} 2 s {name_of(1)[:12]} 1",
    ]
    shown = series_json(era)["cases"][0]["compile_seconds"]["cold forward"]  # type: ignore[index]
    assert [one["seconds"] for one in shown] == [5.0, 7.0, 16.0]
    assert not any("cold" in line for line in history_lines(era_of([launch(0, 1.0)])))


# Series.


def test_a_step_is_named_at_the_commit_that_starts_it_with_its_launches() -> None:
    era = era_of(with_step(0.2))
    (step,) = era.series[0].steps
    assert era.series[0].code_of(step).commit == name_of(START)
    assert (step.launches_before, step.launches_after) == (START, COUNT - START)
    assert step.interval[0] < 0.2 < step.interval[1]
    assert step.effect == pytest.approx(0.2, abs=0.02)


SLOW = [1.2 if place >= START else 1.0 for place in range(COUNT)]
STEADY = {
    "launches with noise": with_step(0.0),
    "one disturbed launch": [*with_step(0.0)[:5], launch(5, 1.5), *with_step(0.0)[6:]],
    "a disturbed newest launch": [*with_step(0.0)[:-1], launch(COUNT - 1, 1.5)],
    "drift that the sentinel shares": [launch(n, NOISE[n] * SLOW[n], sentinel=1e-3 * SLOW[n]) for n in range(COUNT)],
    "a sentinel that does not explain the figures": [
        launch(n, NOISE[n], sentinel=1e-3 * (1 + n % 2)) for n in range(COUNT)
    ],
    "a change below 2 %": [launch(n, 1.015 if n >= START else 1.0) for n in range(COUNT)],
}


@pytest.mark.parametrize("what", STEADY)
def test_no_step_is(what: str) -> None:
    era = era_of(STEADY[what])
    assert (era.series[0].steps, era.is_corrected) == ([], "shares" in what)
    spread = max(point.seconds for point in era.series[0].points) / min(NOISE)
    assert "sentinel" not in what or spread < (1.25 if era.is_corrected else 1.05)


def test_what_is_another_machine_build_identity_or_has_no_sentinel_is_never_joined() -> None:
    """Launches that timed nothing, of passes alone or of failures, belong to the newest; a run saved twice is one."""
    ours = [launch(place, 1.0) for place in range(3)]
    other = {**launch(9, 3.0), "machine_info": record(torch="2.12.0")["machine_info"]}
    saved_twice = launch(8, 9.0, batch_size=64)
    saved_twice["suite"]["run"] = "abc"
    first, second = history([*ours, other, saved_twice, saved_twice])
    assert [[len(one.points) for one in era.series] for era in (first, second)] == [[1, 3], [1]]
    assert first.series[0].points[0].launches == 1
    passes = {**launch(30, 1.0), "benchmarks": []}
    records = [launch(place, 1.0, sentinel=None if place < START else 1e-3) for place in range(COUNT)]
    old, new = history([*records, passes])
    assert [len(era.series[0].points) for era in (old, new)] == [START, COUNT - START]
    assert (len(new.codes), new.timed_places) == (COUNT - START + 1, list(range(COUNT - START)))
    assert "without a product" in "\n".join(history_lines(old))
    failures = {**launch(31, 1.0), "benchmarks": [], "outcomes": [untimed()]}
    (new,) = history([launch(0, 1.0), failures])
    assert [len(new.codes), len(new.series)] == [2, 1], "a commit that lost every case is no other machine's"
    assert "older records" not in "\n".join(history_lines(era_of([passes])))
    machines = machines_of(StoredRecord(Path(f"m/{place}.json"), data) for place, data in enumerate([*records, other]))
    assert [era.has_sentinel for era in newest_first(machines, NO_LOG)] == [True, False, True], "the newest run first"


def test_launches_of_one_code_are_one_point_with_an_interval_from_seven_on() -> None:
    data = [launch(place, 1 + place / 100, name_of(1)) for place in range(7)]
    (point,) = era_of(data).series[0].points
    assert (point.seconds, point.launches, point.interval) == (1.03, 7, (1.0, 1.06))
    attention = {**data[0], "benchmarks": [timed_attention(), timed()]}
    assert sorted(len(one.identity) for one in era_of([attention]).series) == [8, 30]


def changes_of(*counted: tuple[int, int]) -> list[tuple[int, int, str | None]]:
    records = [launch(n, 1.0, name_of(commit), kernel_launches=count) for n, (commit, count) in enumerate(counted)]
    return [(change.before, change.after, change.code.commit) for change in era_of(records).series[0].counter_changes]


def test_a_counter_has_the_commit_that_changed_it() -> None:
    """One on which two launches of a code differ is no property of it: the next is compared with the last that has."""
    assert changes_of((1, 560), (2, 562), (3, 562)) == [(560, 562, name_of(2))]
    assert changes_of((1, 560), (2, 562), (2, 560), (3, 560)) == []
    assert changes_of((1, 560), (2, 562), (2, 560), (3, 561)) == [(560, 561, name_of(3))]


def test_a_slowdown_is_new_only_with_the_launches_that_first_show_it() -> None:
    shown_by = [bool(new_slowdowns(era_of(with_step(0.2, count)), NO_LOG)) for count in range(START + 1, COUNT)]
    assert shown_by.count(True) == 1
    assert shown_by.index(True) == 2  # the third launch of the slower code
    assert not new_slowdowns(era_of(with_step(-0.2, START + 3)), NO_LOG)


# Commits.


CLONES = {
    # subjects of the commits in git, and how many the history calls missing
    "whole": (["", "of\t2032", "of\t2030", "of\t2031"], "1 commit not in this clone"),
    "shallow": (["", "", "", "of\t2031"], "3 commits not in this clone"),
    "none": ([""] * 4, ""),
}


def test_git_orders_commits_and_what_it_lacks_is_by_its_date(tmp_path: Path) -> None:
    """Even if a clock went backwards; without git, every commit does."""
    git(tmp_path, "init", "-q", "-b", "main", "whole")
    for year in (2032, 2030, 2031):
        date = f"{year}-01-01T00:00:00+00:00"
        git(tmp_path / "whole", "commit", "-q", "--allow-empty", "-m", f"of\t{year}", date=date)
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}/whole", "shallow")
    made = git(tmp_path / "whole", "log", "--topo-order", "--reverse", "--format=%H").split()
    records = [launch(place, 1.0, made[place]) for place in (2, 0, 1)] + [launch(5, 1.0, "f" * 40)]
    for folder, (subjects, missing) in CLONES.items():
        (era,) = history(records, read_log(tmp_path / folder))
        assert [code.subject for code in era.codes] == subjects
        assert re.findall(r"\d commits? not in this clone", "\n".join(history_lines(era))) == [missing] * bool(missing)
        assert [code.is_missing for code in era.codes] == [bool(missing) and not subject for subject in subjects]
        assert [code.commit for code in era.codes if code.commit in made] == made


def test_code_with_changes_is_not_its_commit_and_as_old_as_its_first_run() -> None:
    dirty = launch(3, 1.0, name_of(1))
    dirty["commit_info"] |= {"dirty": True, "time": "2030-01-01T00:01:00+00:00"}
    later = launch(2, 1.0)
    assert [code.name for code in era_of([dirty, later, launch(1, 1.0)]).codes] == [
        "010101010101", "020202020202", "010101010101 with changes",
    ]  # fmt: skip


DATES = {"1970-01-02": 86400.0, "1970-01-01T01:00:01+01:00": 1.0, "1970-01-01T00:00:01": 1.0,
         **dict.fromkeys(("", "5", "9999-99-99"), 0.0)}  # fmt: skip


def test_a_date_that_is_none_orders_by_what_is_left() -> None:
    assert {date: moment(date) for date in DATES} == pytest.approx(DATES)
    for date in (None, [1], "9999-99-99", "1" * 5000, "0001-01-01T00:00:00+14:00"):
        era = era_of([{**launch(number, 1.0), "datetime": date} for number in (2, 0, 1)])
        assert [code.commit for code in era.codes] == [name_of(number) for number in range(3)]


# Steps.


def starts(seconds: Sequence[float], launches: Sequence[int]) -> list[int]:
    (steps,), _ = steps_of(np.array([seconds]), np.array([launches]))
    return [step.start for step in steps]


def test_the_newest_commit_alone_is_enough_where_it_was_launched_three_times_and_no_other_is() -> None:
    base = [1 + 0.01 * (place % 3) for place in range(COUNT)]
    for seconds, launches, places in (
        ([1.3], [1], []), ([1.3], [2], []), ([1.3], [3], [COUNT]), ([1.3, 1.3], [1, 1], []),
        ([1.3, 1.3], [1, 2], [COUNT]), ([1.3, *base], [5] * (1 + COUNT), []),
    ):  # fmt: skip
        assert starts([*base, *seconds], [3] * COUNT + launches) == places, launches
    assert starts([1.3, *base], [5] * (COUNT + 1)) == []


def test_of_two_commits_a_step_is_what_neither_launches_nor_days_explain() -> None:
    for scatter_of_launches, effect, count in ((0.01, 0.3, 1), (0.01, 0.1, 0), (0.2, 0.3, 0)):
        seconds = [1.0 + scatter_of_launches * (place % 5) + effect * (place >= 5) for place in range(10)]
        era = era_of([launch(place, one, name_of(place // 5)) for place, one in enumerate(seconds)])
        assert len(era.series[0].steps) == count, (scatter_of_launches, effect)


def test_the_scatter_sees_no_step_and_both_modes() -> None:
    values = np.random.default_rng(1).normal(0, 0.02, 4000) + np.repeat([0.0, 1.0], 2000)
    assert scatter(values) == pytest.approx(0.02, rel=0.05)
    assert scatter([1.0]) == scatter([]) == 0.0
    assert scatter([0.0, 0.0, 0.0, 1.0] * 25) > 0.4


@pytest.mark.parametrize("others", [0, 11])
def test_launches_that_fall_into_two_modes_are_no_steps_also_beside_steady_cases(others: int) -> None:
    """Of tiny cases, 8 launches in 20 were seen to take 1.45 times as long as the others, in no order."""
    random = np.random.default_rng(1)
    modes, orders = np.repeat([1.45, 1.0], [8, 12]), 500 // (1 + others)
    steps = 0
    for _ in range(orders):
        seconds = np.exp(random.normal(0, 0.02, (1 + others, len(modes))))
        seconds[0] *= random.permutation(modes)
        steps += sum(map(len, steps_of(seconds, np.ones(seconds.shape, dtype=int))[0]))
    assert steps <= 1e-3 * orders * len(modes) * (1 + others)


def test_a_young_history_shows_a_slowdown_and_hardly_names_one_that_is_none() -> None:
    """The claim `history` in small, with a few cases of it in every way that they scatter."""
    assert min(share_found(5, 0.12, 20)) >= 0.9
    false = [false_steps(commits, kind, 150 // commits) for commits in (5, 12) for kind in KINDS]
    assert 1000 * sum(steps for steps, _ in false) / sum(tried for _, tried in false) <= 0.5


def test_a_day_that_all_cases_share_is_no_step_of_each_and_a_slowdown_of_all_is_one() -> None:
    random, steps, draws = np.random.default_rng(1), [], 40
    for slower in (0.0, 0.3):
        for _ in range(draws):
            logs = random.normal(0, 0.001, (12, 5)) + random.normal(0, 0.002 if slower else 0.03, 5)
            logs[:, 4] += slower
            steps.append(sum(map(len, steps_of(np.exp(logs), np.full(logs.shape, 5))[0])))
    assert sum(steps[:draws]) <= 12
    assert sum(steps[draws:]) >= 0.95 * 12 * draws


def test_a_history_says_what_it_could_show() -> None:
    said = []
    for commits, launches in ((1, 5), (2, 1), (12, 5)):
        codes = [place // launches for place in range(launches * commits)]
        era = era_of([launch(place, NOISE[place % COUNT], name_of(code)) for place, code in enumerate(codes)])
        said.append(history_lines(era)[2])
    assert said[0] == "nothing to compare yet; the next run of another commit will say"
    assert said[1] == "no step in any case: none can be shown yet, which takes 3 launches on either side"
    shown = era.least_shown
    assert shown is not None
    assert f"in 12 commits one of about {shown:.1%} would be shown" in said[2]
    scattered = era_of([launch(place, (1.0, 3.0, 1.0, 9.0)[place // 3], name_of(place // 3)) for place in range(12)])
    assert "in 4 commits only one of over 1000% would be shown" in "\n".join(history_lines(scattered))
    # Twice as much is shown, and half of it is not.
    for factor, places in ((2, [11]), (0.5, [])):
        seconds = [NOISE[place % COUNT] * (1 + factor * shown * (place >= 55)) for place in range(60)]
        slower = era_of([launch(place // 5, one, name_of(place // 5)) for place, one in enumerate(seconds)])
        assert [step.start for step in slower.series[0].steps] == places
