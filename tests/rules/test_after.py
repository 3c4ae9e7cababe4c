"""After the last case: how a run ends whose time is up, and what a failure does to the process."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests.bench.options import SavingOptions
from perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests.bench.session import Run
from perf_tests.bench.workbench import Workbench
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import Device
from perf_tests.records.journal import Journal, JournalContents
from perf_tests.records.store import StoredRecord, own_folder
from perf_tests.run.after import finish, note_report
from perf_tests.run.ends import TimeLimit
from tests.support.example_cases import SETTINGS, attention_case
from tests.support.items import benchmark, stash_of
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, TEN_ROUNDS, header, record, timed

GPU = torch.device("cuda", 0)


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[MeasuringSession]:
    facts = header([FORWARD, BACKWARD, FULL_STEP])
    journal = Journal.create(own_folder(tmp_path), facts)
    yield MeasuringSession(journal, JournalContents(facts), Progress(None))
    journal.close()


def ended(measuring: MeasuringSession, exit_code: int = 0, **saving: Any) -> tuple[int, Run]:
    """A run whose time is up after FORWARD, whose rounds took `TEN_ROUNDS` in the baseline."""
    run = Run(gone_counts=True, baseline=StoredRecord(Path("machine/0001_x.json"), record([timed(), timed(BACKWARD)])))
    saved, workbench = SavingOptions(Path("nowhere"), **saving), Mock(session=measuring)
    stash = stash_of(run=run, settings=SETTINGS, saving=saved, workbench=workbench)
    plugins = {"time limit": TimeLimit(3, Mock(), Mock(), Mock(), is_reached=True)}
    config = SimpleNamespace(stash=stash, pluginmanager=SimpleNamespace(getplugin=plugins.get))
    session: Any = SimpleNamespace(config=config, exitstatus=exit_code)
    finish(session)
    return int(session.exitstatus), run


CHECK = SimpleNamespace(fails=lambda now, before: "slower" if now["median"] > 1.5 * before["median"] else None)


@pytest.mark.parametrize(
    "slower, saving, before, exit_code",
    [
        pytest.param(1, {}, 0, 0, id="no check"),
        pytest.param(1, {"compare_fail": (CHECK,)}, 0, 4, id="nothing shown yet"),
        pytest.param(2, {"compare_fail": (CHECK,)}, 0, 1, id="a regression shown"),
        pytest.param(1, {"compare_fail": (CHECK,)}, 1, 1, id="a failed case keeps pytest's code"),
    ],
)
def test_cases_left_are_no_success_where_the_comparison_may_fail(
    slower: int, saving: Any, before: int, exit_code: int, measuring: MeasuringSession
) -> None:
    measuring.measured(timed(FORWARD, [slower * seconds for seconds in TEN_ROUNDS]))
    code, run = ended(measuring, before, **saving)
    assert code == exit_code
    assert "--time-limit 3 is reached, 2 cases are left." in run.notes
    assert "resume with `pytest perf_tests --size tiny --resume`" in run.notes[-1]
    assert [row.id for row in run.rows] == [FORWARD], "what is left is not gone"
    assert measuring.journal.path.exists()


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
@pytest.mark.parametrize("passed, is_alive, stops", [(False, True, False), (False, False, True), (True, False, False)])
def test_a_failure_stops_a_process_whose_device_is_lost(when: str, passed: bool, is_alive: bool, stops: bool) -> None:
    device = Mock(spec=Device, torch_device=GPU, is_alive=lambda: is_alive)
    workbench = Workbench(SETTINGS, device, Mock(spec=Clock), 2**40)
    item: Any = Mock(
        config=Mock(stash=stash_of(workbench=workbench)), stash=benchmark(attention_case()).stash,
        session=Mock(shouldstop=False), nodeid="a",
    )  # fmt: skip
    note_report(item, Mock(when=when, passed=passed))
    assert bool(item.session.shouldstop) is stops
