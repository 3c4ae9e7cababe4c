"""After the last case: how a run ends that is complete, interrupted or out of time, and what a failure does to it."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch

from perf_tests.bench.options import SavingOptions
from perf_tests.bench.outcomes import KILLED, Outcome
from perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests.bench.session import Run, noted
from perf_tests.bench.workbench import Workbench
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import Device
from perf_tests.records.journal import Journal, JournalContents, read_journal
from perf_tests.records.store import StoredRecord, machine_folder
from perf_tests.run.after import finish, note_report, note_start, shortened
from perf_tests.run.ends import TimeLimit
from perf_tests.run.termination import NAME, Termination
from tests.support.example_cases import SETTINGS, attention_case, language_model_case
from tests.support.items import benchmark, stash_of
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, TEN_ROUNDS, header, record, timed

BOTH = StoredRecord(Path("machine/0001_x.json"), record([timed(), timed(BACKWARD)]))
CHECK = SimpleNamespace(fails=lambda now, before: "slower" if now["median"] > 1.5 * before["median"] else None)
FAILS = {"compare_fail": (CHECK,)}
SLOW = timed(FORWARD, [2 * seconds for seconds in TEN_ROUNDS])


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[MeasuringSession]:
    facts = header([FORWARD, BACKWARD, FULL_STEP])
    journal = Journal.create(machine_folder(tmp_path), facts)
    yield MeasuringSession(journal, JournalContents(facts), Progress(None))
    journal.close()


def ended(
    measuring: MeasuringSession,
    exit_code: int = 0,
    *,
    is_reached: bool = False,
    came: signal.Signals | None = None,
    storage: Path = Path("nowhere"),
    is_compared: bool = True,
    peers: Any = None,
    **saving: Any,
) -> tuple[int, Run]:
    """Say how a run ends that was compared with FORWARD, whose rounds took `TEN_ROUNDS`, and BACKWARD."""
    run = Run(gone_counts=True, baseline=BOTH if is_compared else None)
    known = {"saving": SavingOptions(storage, **saving), "workbench": Mock(session=measuring), "peers": peers}
    limit = TimeLimit(3, Mock(), Mock(), Mock(), is_reached=is_reached)
    plugins = SimpleNamespace(getplugin={"time limit": limit, NAME: Termination(came)}.get)
    config = SimpleNamespace(stash=stash_of(run=run, settings=SETTINGS, **known), pluginmanager=plugins)
    session: Any = SimpleNamespace(config=config, exitstatus=exit_code)
    finish(session)
    return int(session.exitstatus), run


LEFT: dict[str, tuple[Any, Any, int, int]] = {
    # a row, how it is saved and compared, pytest's exit code and ours
    "no check": (timed(), {}, 0, 0),
    "nothing shown yet": (timed(), FAILS, 0, 4),
    "a regression shown": (SLOW, FAILS, 0, 1),
    "a failed case keeps pytest's code": (timed(), FAILS, 1, 1),
    "no baseline": (timed(), {**FAILS, "is_compared": False}, 0, 4),
}


@pytest.mark.parametrize("name", LEFT)
def test_cases_left_are_no_success_where_the_comparison_may_fail(name: str, measuring: MeasuringSession) -> None:
    row, saving, before, exit_code = LEFT[name]
    measuring.measured(row)
    code, run = ended(measuring, before, is_reached=True, **saving)
    assert code == exit_code
    assert "--time-limit 3 is reached, 2 cases are left." in run.notes
    assert "resume with `pytest perf_tests --size tiny --resume`" in run.notes[-1]
    assert [row.id for row in run.rows] == ([FORWARD] if run.baseline else []), "what is left is not gone"
    assert measuring.journal.path.exists()


@pytest.mark.parametrize("finished, came, on_ranks, began", [
    pytest.param([FORWARD], None, False, 0, id="interrupted"),
    pytest.param([], signal.SIGTERM, False, None, id="nothing to keep"),
    pytest.param([], signal.SIGTERM, True, 1, id="a rank may have died of the case in flight"),
])  # fmt: skip
def test_an_interrupted_run_keeps_what_is_finished_and_does_not_blame_the_case_in_flight(
    finished: list[str], came: Any, on_ranks: bool, began: int | None, measuring: MeasuringSession
) -> None:
    for case_id in finished:
        measuring.measured(timed(case_id))
    measuring.begin(BACKWARD, 1, 1)
    code, run = ended(measuring, 2, came=came, peers=Mock() if on_ranks else None)
    is_kept = began is not None
    assert (code, measuring.journal.path.exists()) == (2, is_kept)
    assert (f"Incomplete: {len(finished)} of 3 cases are kept" if is_kept else "so nothing is kept") in run.notes[-1]
    contents = read_journal(measuring.journal.path) if is_kept else None
    assert (contents and contents.starts.get(BACKWARD, 0)) == began


@pytest.mark.parametrize("before, exit_code", [(0, 1), (5, 1), (2, 2)])
def test_a_run_in_which_the_process_was_killed_twice_is_not_saved_before_its_user_has_seen_it(
    before: int, exit_code: int, measuring: MeasuringSession
) -> None:
    for case_id in (FORWARD, FULL_STEP):
        measuring.measured(timed(case_id))
    measuring.not_measured(BACKWARD, language_model_case(), KILLED)
    code, run = ended(measuring, before)
    assert (code, run.record) == (exit_code, None)
    assert "--resume --retry` measures again, `pytest perf_tests --size tiny --resume` saves" in run.notes[-1]


COMPLETE: dict[str, tuple[Any, str, int, Any, int]] = {
    # a row, how the two other cases ended, pytest's exit code, what is compared, and the exit code
    "well": (timed(), "unsupported", 0, {}, 0),
    "a resumed run whose cases were all done": (timed(), "unsupported", 5, {}, 0),
    "a case failed in the part before": (timed(), "error", 0, {}, 1),
    "pytest's own code stays": (timed(), "error", 2, {}, 2),
    "slower": (SLOW, "unsupported", 0, FAILS, 1),
}


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("is_written", [True, False])
def test_a_complete_run_is_saved_and_its_findings_decide_the_exit_code(
    name: str, is_written: bool, measuring: MeasuringSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, outcome, before, saving, exit_code = COMPLETE[name]
    measuring.measured(row)
    for case_id in (BACKWARD, FULL_STEP):
        measuring.not_measured(case_id, language_model_case(), Outcome(outcome, "why"))
    record, whole = machine_folder(tmp_path) / "0001_name.json", tmp_path / "whole.json"
    if not is_written:
        record.mkdir()
        monkeypatch.setattr("perf_tests.bench.recording.save_record", Mock(side_effect=OSError("no space")))
    peers, saving = Mock(), {"save_name": "name", "json_path": whole, "is_compared": bool(saving), **saving}
    code, run = ended(measuring, before, storage=tmp_path, peers=peers, **saving)
    assert code == (exit_code if is_written else exit_code or 1)
    assert (peers.end_for_good.called, record.is_file(), measuring.journal.path.exists(), whole.is_file()) == (
        is_written, is_written, not is_written, True,
    )  # fmt: skip
    assert is_written or "cannot be written: no space. The journal" in run.failures[0]


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
@pytest.mark.parametrize("passed, is_alive, stops", [(False, True, False), (False, False, True), (True, False, False)])
def test_a_failure_stops_a_process_whose_device_is_lost(when: str, passed: bool, is_alive: bool, stops: bool) -> None:
    device = Mock(spec=Device, torch_device=torch.device("cuda", 0), is_alive=lambda: is_alive)
    config = Mock(stash=stash_of(workbench=Workbench(SETTINGS, device, Mock(spec=Clock), 2**40)))
    item: Any = Mock(config=config, stash=benchmark(attention_case()).stash, session=Mock(shouldstop=False), nodeid="a")
    note_report(item, Mock(when=when, passed=passed, sections=[]))
    assert bool(item.session.shouldstop) is stops


ENTRIES: list[tuple[str, str, str | None, int, Any, Any]] = [
    # the step, how it ended, the pass, and timings, values of passes and rounds of outcomes in the journal
    ("setup", "", None, 0, [], []), ("call", "", None, 1, [], []),
    ("call", "", "kernels", 0, [{"launches": 60}], []), ("setup", "error", None, 0, [], [[]]),
    ("call", "error", "kernels", 0, [], [[1.0, 2.0]]),
    ("call", "incorrect", None, 0, [], [[]]),  # what computed something else took no time of its own
    ("teardown", "error", None, 0, [], []),
]  # fmt: skip


@pytest.mark.parametrize("when, ended, extra_pass, timings, passes, outcomes", ENTRIES)
def test_each_case_is_a_timing_a_pass_or_an_outcome_with_its_rounds_in_the_journal(
    when: str, ended: str, extra_pass: str | None, timings: int, passes: Any, outcomes: Any,
    measuring: MeasuringSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    item, workbench = benchmark(language_model_case(), extra_pass, FORWARD), Mock(session=measuring)
    stats = MagicMock(**{"__getitem__.return_value": [1.0, 2.0], "as_dict.return_value": timed()})
    item.config = Mock(stash=stash_of(workbench=workbench))
    item.funcargs = {} if when == "setup" else {"benchmark": Mock(stats=stats)}
    noted(item).values, noted(item).outcome = {"launches": 60}, Outcome(ended or "error", "why")
    note_report(item, Mock(when=when, passed=not ended, sections=[]))
    contents = read_journal(measuring.journal.path)
    assert contents is not None
    assert len(contents.benchmarks) == timings
    assert [row["values"] for row in contents.passes] == passes
    assert [row["rounds"] for row in contents.outcomes] == outcomes
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError("no space")))
    with pytest.raises(pytest.exit.Exception, match=r"cannot be written: no space.* resume with"):
        note_start(item, workbench)


def test_of_what_a_failed_case_printed_the_end_is_shown() -> None:
    printed = "".join(f"line {number}\n" for number in range(100_000))
    assert shortened("short") == "short"
    assert len(shortened(printed)) < 5000
    assert shortened(printed).startswith("[1,084,890 characters are left out]\n")
    assert shortened(printed).endswith("line 99999\n")
