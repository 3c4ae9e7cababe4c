"""An expedition that is killed at any moment and resumed on a fresh copy finds what one in one go finds."""

import shutil
from collections import Counter
from itertools import accumulate
from pathlib import Path
from unittest.mock import Mock

import pytest

from claims.expedition import __main__ as expedition
from claims.expedition.__main__ import load_state
from claims.expedition.slices import SLICES, Step
from perf_tests_suite.perf_tests.records.record import Json, identity_of
from perf_tests_suite.perf_tests.records.store import read_record
from tests.support.synthetic import record, timed, write_record

CALLS = Counter(step.name for steps in SLICES.values() for step in steps)
"""A step that stands in the table several times needs as many calls: its run is cut, or dies with its device."""


class PlayedSteps:
    """Takes the place of `run_step`; copies of `watched` before each call are what a kill in it leaves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.watched: Path | None = None
        monkeypatch.setattr(expedition, "run_step", self.run)
        monkeypatch.setattr("os.fsync", lambda _: None)  # hundreds of times, on a disk that others share

    def run(self, step: Step, state: Path, device: str, seconds: float) -> Json:
        """A case for each call; what one call leaves to the next is a hidden file, as a journal is."""
        if self.watched is not None:
            shutil.copytree(self.watched, left_by_a_kill_in(len(self.ran), self.watched))
        self.ran.append(step.name)
        folder = state / "storage" / step.name / "machine"
        if step.records:
            folder.mkdir(parents=True, exist_ok=True)
            journal = folder / ".unfinished.jsonl"
            done = [*(journal.read_text().split() if journal.exists() else []), step.name]
            if len(done) < CALLS[step.name]:
                journal.write_text("\n".join(done))
            else:
                journal.unlink(missing_ok=True)
                cases = [timed(f"{step.name}[{number}]", context_length=number + 1) for number in range(len(done))]
                write_record(folder / "0001_x.json", record(cases))
        return {"device": device, "exit_code": 0, "seconds": 1.0, "last_line": f"{step.name} is done"}


def left_by_a_kill_in(call: int, out: Path) -> Path:
    return out.parent / f"killed in call {call}"


def all_slices(out: Path) -> None:
    for name in SLICES:
        expedition.main([name, f"--out={out}", "--device=cpu"])


def found_in(out: Path, folder: Path) -> tuple[dict[str, dict[str, Json]], list[str]]:
    """Findings by step: its cases with their identities; and the steps that ended."""
    load_state(folder, out)
    records = {path.parts[-3]: read_record(path).data for path in folder.glob("storage/*/*/*.json")}
    cases = {step: {row["fullname"]: identity_of(row) for row in data["benchmarks"]} for step, data in records.items()}
    assert not list(folder.glob("storage/*/*/.unfinished*"))
    return cases, sorted(path.stem for path in folder.glob("findings/*.json"))


def test_killed_anywhere_or_carried_to_a_fresh_machine_after_each_slice_it_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played = PlayedSteps(monkeypatch)
    out = played.watched = tmp_path / "at once"
    all_slices(out)
    at_once, ran = found_in(out, tmp_path / "state"), played.ran
    assert Counter(ran) == CALLS
    between_slices = list(accumulate(map(len, SLICES.values()), initial=0))[:-1]
    for call in sorted({*between_slices, ran.index("device-assert") + 1, len(ran) - 1}):
        played.ran, played.watched = [], None
        carried = left_by_a_kill_in(call, out)
        all_slices(carried)
        assert played.ran == ran[call:], "what was saved is not run again, and the rest is"
        assert found_in(carried, tmp_path / f"state {call}") == at_once
    carried = tmp_path / "nothing yet"
    for name in SLICES:
        expedition.main([name, f"--out={tmp_path / name}", f"--state={carried}", "--device=cpu"])
        carried = tmp_path / name
    assert found_in(carried, tmp_path / "a") == at_once


@pytest.mark.parametrize("seconds, begun", [(290, 3), (289, 2)])
def test_a_step_begins_only_with_90_seconds_left(
    seconds: int, begun: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the three takes 100."""
    played = PlayedSteps(monkeypatch)
    monkeypatch.setattr(expedition, "time", Mock(monotonic=lambda: 100.0 * len(played.ran)))
    code = expedition.main(["1", f"--out={tmp_path}", "--device=cpu", f"--minutes={seconds / 60}"])
    assert (code, len(played.ran)) == (int(begun < 3), begun)
    assert ("smoke: not begun with 89 s left; run slice 1 again" in capsys.readouterr().out) == (begun < 3)
