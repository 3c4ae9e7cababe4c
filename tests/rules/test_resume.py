"""Which interrupted run is resumed, what of it counts, and how a run ends with cases left."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests.bench.options import SavingOptions
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.recording import MeasuringSession, Progress, ResumeError, open_journal
from perf_tests.bench.session import Run
from perf_tests.records.journal import Journal, JournalContents, read_journal
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord, own_folder, rows_by_id, save_record
from perf_tests.run.after import finish
from perf_tests.run.before import cases_left, choose_baseline, commit_info_of
from perf_tests.run.ends import TimeLimit
from perf_tests.user_code.named import Repository
from tests.support.example_cases import SETTINGS as TOY_SETTINGS
from tests.support.example_cases import language_model_case
from tests.support.items import benchmark, stash_of
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, TEN_ROUNDS, header, machine, record, timed


def on_gpu(driver: str, shard: list[int] | None = None) -> Json:
    facts = header([FORWARD, BACKWARD], gpu={"name": "H100", "driver": driver})
    return {**facts, "settings": {**facts["settings"], "shard": shard}}


def interrupted(storage: Path, facts: Json) -> Path:
    journal = Journal.create(own_folder(storage), facts)
    journal.write("started", FORWARD)
    journal.write("benchmark", timed(FORWARD))
    journal.close()
    return journal.path


def test_another_driver_is_named_and_resumed_only_on_request(tmp_path: Path) -> None:
    path = interrupted(tmp_path, on_gpu("550.54"))
    with pytest.raises(ResumeError, match=r"gpu.driver: '560.28' here, '550.54' there.*--resume-any-driver"):
        open_journal(tmp_path, on_gpu("560.28"), resume=True)
    journal, contents, _ = open_journal(tmp_path, on_gpu("560.28"), resume=True, any_driver=True)
    journal.close()
    assert journal.path == path
    assert contents.finished_ids == {FORWARD}
    again = read_journal(path)
    assert again is not None
    record_now = MeasuringSession(journal, again, Progress(None)).record()
    assert record_now["suite"]["other_drivers"] == ["560.28"], "which rows of two drivers stand in one record is told"


def test_a_run_of_other_hardware_is_passed_over_and_named(tmp_path: Path) -> None:
    path = interrupted(tmp_path, on_gpu("550"))
    here = {**on_gpu("550"), "machine_info": {**on_gpu("550")["machine_info"], "cpu": {"count": 64}}}
    journal, contents, passed_over = open_journal(tmp_path, here, resume=True)
    journal.close()
    assert contents.finished_ids == set()
    assert len(passed_over) == 1
    assert f"{path.name} is of another machine or build: " in passed_over[0]
    assert "cpu.count: 64 here, 8 there" in passed_over[0]


def test_the_interrupted_run_of_another_shard_is_left_to_it(tmp_path: Path) -> None:
    first, second = (interrupted(tmp_path, on_gpu("550", [share, 2])) for share in (1, 2))
    for share, path in ((1, first), (2, second)):
        journal, _, _ = open_journal(tmp_path, on_gpu("550", [share, 2]), resume=True)
        journal.close()
        assert journal.path == path
    with pytest.raises(ResumeError, match="shard"):
        open_journal(tmp_path, on_gpu("550"), resume=True)


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[MeasuringSession]:
    facts = header([FORWARD, BACKWARD, FULL_STEP])
    journal = Journal.create(own_folder(tmp_path), facts)
    yield MeasuringSession(journal, JournalContents(facts), Progress(None))
    journal.close()


def test_a_run_that_is_saved_already_only_loses_its_journal(measuring: MeasuringSession, tmp_path: Path) -> None:
    """It was killed between the two."""
    for case_id in (FORWARD, BACKWARD, FULL_STEP):
        measuring.measured(timed(case_id))
    path = save_record(measuring.record(), own_folder(tmp_path), "name")
    found = choose_baseline(
        Run(gone_counts=True), SavingOptions(tmp_path, compare=True), machine(), rows_by_id(record([timed()]))
    )
    assert found is None, "it is no baseline of itself"
    resumed = MeasuringSession(measuring.journal, measuring.contents, Progress(None))
    assert resumed.save(resumed.record(), tmp_path, "name") == resumed.saved == path
    assert [found.name for found in path.parent.iterdir()] == ["0001_name.json"]


def test_retry_measures_again_what_ended_in_an_error(measuring: MeasuringSession) -> None:
    for case_id, outcome in ((FORWARD, "error"), (BACKWARD, "out_of_memory")):
        measuring.not_measured(case_id, language_model_case(), Outcome(outcome, "why"))
    items = [benchmark(language_model_case(), nodeid=case_id) for case_id in (FORWARD, BACKWARD, FULL_STEP)]
    assert cases_left(items, measuring, retries=False) == items[2:]
    assert cases_left(items, measuring, retries=True) == [items[0], items[2]]
    contents = read_journal(measuring.journal.path)
    assert contents is not None
    assert contents.finished_ids == {BACKWARD}, "the journal says it too"


def ended(measuring: MeasuringSession, exit_code: int = 0, **saving: Any) -> tuple[int, Run]:
    """A run whose time is up after FORWARD, whose rounds took `TEN_ROUNDS` in the baseline."""
    run = Run(gone_counts=True, baseline=StoredRecord(Path("machine/0001_x.json"), record([timed(), timed(BACKWARD)])))
    saved, workbench = SavingOptions(Path("nowhere"), **saving), Mock(session=measuring)
    stash = stash_of(run=run, settings=TOY_SETTINGS, saving=saved, workbench=workbench)
    plugins = {"time limit": TimeLimit(3, Mock(), Mock(), Mock(), is_reached=True)}
    config = SimpleNamespace(stash=stash, pluginmanager=SimpleNamespace(getplugin=plugins.get))
    session: Any = SimpleNamespace(config=config, exitstatus=exit_code)
    finish(session)
    return int(session.exitstatus), run


CHECK = SimpleNamespace(fails=lambda now, before: "slower" if now["median"] > 1.5 * before["median"] else None)


@pytest.mark.parametrize(
    "slower, saving, exit_code",
    [
        (1, {}, 0),
        (1, {"compare_fail": (CHECK,)}, 4),
        (2, {"compare_fail": (CHECK,)}, 1),
    ],
    ids=["no check", "nothing shown yet", "a regression shown"],
)
def test_cases_left_are_no_success_where_the_comparison_may_fail(
    slower: int, saving: Any, exit_code: int, measuring: MeasuringSession
) -> None:
    measuring.measured(timed(FORWARD, [slower * seconds for seconds in TEN_ROUNDS]))
    code, run = ended(measuring, **saving)
    assert code == exit_code
    assert "--time-limit 3 is reached, 2 cases are left." in run.notes
    assert "resume with `pytest perf_tests --size tiny --resume`" in run.notes[-1]
    assert [row.id for row in run.rows] == [FORWARD], "what is left is not gone"
    assert measuring.journal.path.exists()


def test_a_failed_case_keeps_pytests_exit_code(measuring: MeasuringSession) -> None:
    measuring.measured(timed(FORWARD))
    assert ended(measuring, exit_code=1, compare_fail=(CHECK,))[0] == 1


def test_the_commit_is_that_of_what_is_under_test_wherever_pytest_was_started(tmp_path: Path) -> None:
    hook = Mock(pytest_benchmark_generate_commit_info=lambda config: {"id": f"the commit of {Path.cwd()}"})
    stash = stash_of(tmp_path)
    assert commit_info_of(Mock(stash=stash, hook=hook))["id"] == f"the commit of {tmp_path}"
    assert Path.cwd() != tmp_path


@pytest.mark.parametrize("files", [(), (Path("new.py"),)])
def test_a_run_of_a_file_that_git_does_not_track_has_changes(tmp_path: Path, files: tuple[Path, ...]) -> None:
    stash = stash_of(repository=Repository(tmp_path, files=files))
    hook = Mock(pytest_benchmark_generate_commit_info=lambda config: {"id": "abc", "dirty": False})
    assert commit_info_of(Mock(stash=stash, hook=hook))["dirty"] is bool(files)
