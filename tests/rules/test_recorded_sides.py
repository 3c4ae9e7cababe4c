"""Which launches a run is judged by when it is compared with recorded ones, and what it says of too few."""

from pathlib import Path

import pytest

from perf_tests.bench.workbench import Run
from perf_tests.gate.recorded import RecordedSides, sides_of
from perf_tests.gate.verdicts import Acceptance, read_accepted
from perf_tests.records.record import Json, code_of
from perf_tests.records.store import StoredRecord, save_record
from perf_tests.run.after import judge
from tests.commands.test_gate_recorded import launches, stored
from tests.support.synthetic import FORWARD, machine, record, timed

BASE, HEAD = "b" * 40, "a" * 40


def dated(data: list[Json], commit: str, first: int, dirty: bool = False, source: str = "digest") -> list[Json]:
    """The launches as recorded one after another, from moment `first`."""
    return [
        {
            **launch,
            "commit_info": {"id": commit, "dirty": dirty},
            "datetime": f"2030-01-01T00:{first + place:02}:00+00:00",
            "suite": {**launch["suite"], "source": source},
        }
        for place, launch in enumerate(data)
    ]


def sides(data: list[Json], asked: int | None = None) -> RecordedSides:
    """The sides of the last launch; baseline is the one asked for, or the one before it."""
    *earlier, now = stored(data)
    return sides_of(now, earlier, earlier[-1 if asked is None else asked], asked is not None)


def counts(found: RecordedSides) -> tuple[str, int, int]:
    return found.base_name, len(found.base), len(found.head)


def test_launches_of_the_baselines_commit_stand_against_those_of_this_one() -> None:
    data = [*dated(launches(1, 6), BASE, 0), *dated(launches(2, 3), HEAD, 10)]
    assert counts(sides(data)) == (BASE[:12], 6, 3)
    assert sides(data).why_no_verdict == ""


def test_the_commit_asked_for_is_the_base_and_unasked_the_newest_with_launches_enough() -> None:
    old, few = dated(launches(1, 5), "0" * 40, 0), dated(launches(2, 2), BASE, 10)
    data = [*old, *few, *dated(launches(3, 1), HEAD, 20)]
    assert counts(sides(data)) == ("0" * 12, 5, 1)
    found = sides(data, asked=5)
    assert counts(found) == (BASE[:12], 2, 1)
    assert f"{BASE[:12]} has 2 comparable launches and this code 1" in found.why_no_verdict
    assert "has 1 comparable launch and" in sides([data[0], data[-1]]).why_no_verdict


def test_a_store_of_this_code_alone_is_no_baseline() -> None:
    found = sides(dated(launches(1, 6), HEAD, 0))
    assert "every comparable record is of this run's own code" in found.why_no_verdict


def test_launches_of_another_machine_or_another_case_of_the_same_name_do_not_count() -> None:
    elsewhere = [launch | {"machine_info": machine(threads=2)} for launch in launches(1, 3)]
    other = launches(2, 3)
    for launch in other:
        for row in launch["benchmarks"]:
            row["extra_info"]["batch_size"] = 64
    data = [*dated(elsewhere, BASE, 0), *dated(other, BASE, 10), *dated(launches(3, 4), BASE, 20)]
    assert counts(sides([*data, *dated(launches(4, 1), HEAD, 30)])) == (BASE[:12], 4, 1)


def test_cases_that_this_run_did_not_measure_are_left_out() -> None:
    now = dated(launches(2, 1), HEAD, 10)
    del now[0]["benchmarks"][3:]
    found = sides([*dated(launches(1, 5), BASE, 0), *now])
    assert {len(launch.data["benchmarks"]) for launch in (*found.base, *found.head)} == {3}


def test_uncommitted_changes_are_told_apart_by_what_ran() -> None:
    dirty = [*dated(launches(1, 2), BASE, 0, True, "one"), *dated(launches(2, 2), BASE, 10, True, "two")]
    assert counts(sides(dirty)) == ("one", 2, 2)
    clean = dated(launches(1, 1), BASE, 0)[0]
    assert code_of(clean) == BASE
    assert code_of(clean | {"commit_info": {}}) == "digest"
    assert code_of(clean | {"commit_info": {}, "suite": {}}) == "the run of 2030-01-01T00:00:00+00:00"


def test_a_launch_without_a_date_counts_too() -> None:
    data = [*dated(launches(1, 5), BASE, 0), *dated(launches(2, 1), HEAD, 10)]
    del data[2]["datetime"]
    assert counts(sides(data)) == (BASE[:12], 5, 1)


def judged(storage: Path, base: list[Json], head: list[Json]) -> Run:
    """A finished run whose record is the last of `head`, after the others were saved."""
    *earlier, now = [*dated(base, BASE, 0), *dated(head, HEAD, 10)]
    for launch in earlier:
        save_record(launch, storage / "machine", "x")
    baseline = StoredRecord(storage / "machine/0001_x.json", earlier[0])
    run = Run(gone_counts=True, baseline=baseline, record=now)
    judge(run, storage, is_asked=False)
    return run


def test_what_is_accepted_against_the_base_fails_nothing(tmp_path: Path) -> None:
    run = judged(tmp_path, launches(1, 8), launches(2, 5, slowdown=0.2))
    assert run.verdict_lines[0].startswith("SLOWER: forward tiny-ctx0-fp32-naive: head is 20.5% slower by wall time (+")
    assert run.failures == ["gate: FAILED (1 SLOWER, 9 OK)"]
    (offered,) = (tmp_path / "gate").glob("*_accept.toml")
    assert str(offered) in run.notes[-1]
    entries = read_accepted(offered)
    again = Run(gone_counts=True, baseline=run.baseline, record=run.record, accepted=entries)
    judge(again, tmp_path, is_asked=False)
    assert again.failures == []
    assert "SLOWER" in again.verdict_lines[-1]
    assert any("accepted: WHY IT IS WORTH IT" in line for line in again.verdict_lines)


def test_too_few_launches_are_said_and_decide_nothing(tmp_path: Path) -> None:
    run = judged(tmp_path, launches(1, 3), launches(2, 1, slowdown=0.5))
    assert (run.failures, run.verdict_lines) == ([], [])
    assert "at least 5 and 3 are needed" in run.notes[0]


def test_a_machine_that_changed_contaminates_the_run_and_fails_no_case(tmp_path: Path) -> None:
    slow = launches(2, 5, slowdown=0.5, drift=0.005, machine_slower=0.3)
    run = judged(tmp_path, launches(1, 8, drift=0.005), slow)
    assert run.is_contaminated
    assert run.failures == []
    assert run.verdict_lines[-1].startswith("gate: CONTAMINATED")


def test_a_run_without_a_baseline_is_not_judged(tmp_path: Path) -> None:
    judge(run := Run(gone_counts=True, record=record([timed(FORWARD)])), tmp_path, is_asked=False)
    assert (run.notes, run.failures) == ([], [])


@pytest.mark.parametrize(("revision", "counts_here"), [(BASE, True), ("bbbbbbb", True), ("bbb", False), (HEAD, False)])
def test_an_entry_counts_for_the_base_it_was_measured_against(revision: str, counts_here: bool) -> None:
    assert Acceptance("case", 1.1, "why", revision).is_of(BASE[:12]) is counts_here
