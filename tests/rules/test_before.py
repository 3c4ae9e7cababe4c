"""Before the first case: the cases that a run leaves out or shares out, what it refuses, what its record says of it."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests import plugin
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests.bench.session import noted
from perf_tests.records.journal import Journal, JournalContents, read_journal
from perf_tests.run.before import (
    balanced,
    cases_left,
    check_cold_cache,
    commit_info_of,
    is_restricted,
    places_of_share,
    read_run_options,
)
from perf_tests.run.ends import predicted_seconds
from perf_tests.user_code.named import Repository
from tests.support.example_cases import SETTINGS, TOY, attention_case, language_model_case
from tests.support.items import benchmark, stash_of
from tests.support.launch import ROOT
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, header

MODELS = [TOY, *(replace(TOY, num_layers=layers) for layers in (4, 40, 400))]
GRID = [
    *(
        benchmark(language_model_case(config, phase=phase), extra_pass)
        for extra_pass, config, phase in product((None, "kernels"), MODELS, ("forward", "backward"))
    ),
    *(benchmark(attention_case(sequence_length=length)) for length in (256, 512)),
]


@pytest.mark.parametrize("shares", [1, 2, 3, 6])
def test_the_shares_are_disjoint_and_together_the_grid_with_each_model_in_one_of_them(shares: int) -> None:
    parts = [places_of_share(GRID, replace(SETTINGS, shard=(share, shares))) for share in range(1, shares + 1)]
    assert sorted(place for part in parts for place in part) == list(range(len(GRID)))
    assert all(part == sorted(part) for part in parts)
    models = [{noted(GRID[place]).case.built_from for place in part} for part in parts]
    assert sum(map(len, models)) == len(set().union(*models)) == 6


def test_shares_are_balanced_by_predicted_time() -> None:
    settings = replace(SETTINGS, shard=(1, 2))
    first = sum(predicted_seconds(GRID[place], settings) for place in places_of_share(GRID, settings))
    both = sum(predicted_seconds(item, settings) for item in GRID)
    assert first == pytest.approx(both / 2, rel=0.2)


def test_the_longest_goes_first_and_to_the_share_with_the_least() -> None:
    assert balanced({"a": 2, "b": 3, "c": 4, "d": 5}, 2) == [["d", "a"], ["c", "b"]]
    assert balanced({"a": 1, "b": 1, "c": 1}, 2) == [["a", "c"], ["b"]], "of two alike the first in the grid"


def test_more_shares_than_models_are_refused() -> None:
    with pytest.raises(pytest.UsageError, match="--shard 1/7: N is at most 6"):
        places_of_share(GRID, replace(SETTINGS, shard=(1, 7)))


def config(*arguments: str, **options: object) -> Any:
    known = {
        "keyword": "", "markexpr": "", "deselect": None, "ignore": None, "ignore_glob": None,
        "retry": False, "resume": False, "resume_any_driver": False, **options,
    }  # fmt: skip
    return Mock(
        option=SimpleNamespace(**known), args=list(arguments), invocation_params=Mock(dir=ROOT), stash=stash_of(),
        getoption=lambda name: None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{"keyword": "x"}, {"markexpr": "x"}, {"deselect": ["x"]}, {"lf": True}, {"ignore": ["x"]}, {"ignore_glob": ["*"]}],
    ids=lambda options: next(iter(options)),
)
def test_what_chooses_among_the_cases_of_the_axes_restricts_a_run(options: dict[str, object]) -> None:
    assert not is_restricted(config("perf_tests"))
    assert is_restricted(config("perf_tests", **options))


def test_a_plugin_that_deselects_restricts_a_run() -> None:
    chosen = config("perf_tests")
    plugin.pytest_deselected([])
    assert not is_restricted(chosen)
    plugin.pytest_deselected([Mock(config=chosen)])
    assert is_restricted(chosen)


@pytest.mark.parametrize("argument", ["perf_tests/test_forward.py", "perf_tests::test_forward", "numerics_tests"])
def test_a_file_or_a_test_restricts_a_run_and_a_folder_above_does_not(argument: str) -> None:
    assert is_restricted(config(argument))
    assert not is_restricted(config("."))


@pytest.mark.parametrize(
    "options, words",
    [({"dist": "load"}, "drop -n"), ({"codspeed": True}, "pytest-codspeed replaces pytest-benchmark")],
    ids=["pytest-xdist", "pytest-codspeed"],
)
@pytest.mark.parametrize("argument", [".", "perf_tests", "perf_tests/test_forward.py::test_forward"])
def test_a_plugin_that_runs_benchmarks_in_another_way_is_refused(
    argument: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(pytest.UsageError, match=words):
        read_run_options(config(argument, **options))


@pytest.mark.parametrize("argument", ["numerics_tests", "perf_tests/bench", "tests/rules/test_gate.py"])
def test_tests_that_time_nothing_may_run_side_by_side(argument: str) -> None:
    read_run_options(config(argument, dist="load", codspeed=False))


def test_an_installed_plugin_that_is_not_asked_for_changes_nothing() -> None:
    read_run_options(config("perf_tests", dist="no", codspeed=False))


@pytest.mark.parametrize("option", ["--retry", "--resume-any-driver"])
def test_an_option_of_an_interrupted_run_asks_for_one(option: str) -> None:
    name = option.removeprefix("--").replace("-", "_")
    read_run_options(config("numerics_tests", **{name: True, "resume": True}))
    with pytest.raises(pytest.UsageError, match=f"{option} .* add --resume"):
        read_run_options(config("numerics_tests", **{name: True}))


def test_a_run_without_attention_alone_has_nothing_to_flush_for() -> None:
    check_cold_cache([language_model_case(), attention_case(cache="cold")])
    with pytest.raises(pytest.UsageError, match="--cold-cache is for timings of attention alone, and none is selected"):
        check_cold_cache([language_model_case(), attention_case()])


def test_retry_measures_again_what_ended_in_an_error(tmp_path: Path) -> None:
    facts = header([FORWARD, BACKWARD, FULL_STEP])
    measuring = MeasuringSession(Journal.create(tmp_path, facts), JournalContents(facts), Progress(None))
    for case_id, outcome in ((FORWARD, "error"), (BACKWARD, "out_of_memory")):
        measuring.not_measured(case_id, language_model_case(), Outcome(outcome, "why"))
    items = [benchmark(language_model_case(), nodeid=case_id) for case_id in (FORWARD, BACKWARD, FULL_STEP)]
    assert cases_left(items, measuring, retries=False) == items[2:]
    assert cases_left(items, measuring, retries=True) == [items[0], items[2]]
    measuring.journal.close()
    contents = read_journal(measuring.journal.path)
    assert contents is not None
    assert contents.finished_ids == {BACKWARD}, "the journal says it too"


def test_the_commit_is_that_of_what_is_under_test_wherever_pytest_was_started(tmp_path: Path) -> None:
    hook = Mock(pytest_benchmark_generate_commit_info=lambda config: {"id": f"the commit of {Path.cwd()}"})
    assert commit_info_of(Mock(stash=stash_of(tmp_path), hook=hook))["id"] == f"the commit of {tmp_path}"
    assert Path.cwd() != tmp_path


@pytest.mark.parametrize("files", [(), (Path("new.py"),)])
def test_a_run_of_a_file_that_git_does_not_track_has_changes(tmp_path: Path, files: tuple[Path, ...]) -> None:
    hook = Mock(pytest_benchmark_generate_commit_info=lambda config: {"id": "abc", "dirty": False})
    stash = stash_of(repository=Repository(tmp_path, files=files))
    assert commit_info_of(Mock(stash=stash, hook=hook))["dirty"] is bool(files)
