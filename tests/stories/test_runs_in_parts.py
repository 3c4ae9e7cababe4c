"""A grid in slices of time or shared out between machines, in real launches: the record is that of one go."""

import json
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.journal import read_journal
from perf_tests.records.record import Json, identity_of
from tests.support.launch import MODELS, THREE_CASES, Launch, copied, finished, launch, launched_once, record_files

GRID = ("--phase=forward", "--context=8,16", "--attention=naive,flex", "-k=not attention", "--kernels")
"""Two cases, their passes, and as many of an attention that this device does not have."""

whole = launched_once(*GRID)
terminated = launched_once(f"--model={MODELS}:DiesAt16", *THREE_CASES, PLANTED_SIGNAL="SIGTERM")


def cases(record: Json) -> dict[str, list[tuple[str, Json]]]:
    """Ids and identities in the record's order, by what came of them."""
    names = {"benchmarks": "fullname", "outcomes": "id", "passes": "id"}
    return {
        kind: [(row[name], row.get("identity") or identity_of(row)) for row in record[kind]]
        for kind, name in names.items()
    }


def test_slices_on_fresh_machines_make_the_record_of_one_go(whole: Launch, tmp_path: Path) -> None:
    assert whole.exit_code == 0, whole.output + whole.errors
    slow = (*GRID, "-p", "tests.support.a_minute_a_case", "--resume")
    first = launch(tmp_path / "first", *slow, "--time-limit=2.5")
    assert first.exit_code == 0, first.output + first.errors
    assert "--time-limit 2.5 is reached, 4 cases are left" in first.output
    assert "resume with `pytest" in first.output
    assert len(finished(first)) == 4
    second = launch(copied(first, tmp_path), *slow, "--time-limit=2.6")
    assert second.exit_code == 0, second.output + second.errors
    assert second.journals == []
    assert cases(second.record) == cases(whole.record)
    assert second.record["suite"]["selection"] == whole.record["suite"]["selection"]
    assert len(cases(whole.record)["passes"]) == 2


def test_shards_are_merged_to_the_record_of_one_go(
    whole: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = copied(whole, tmp_path)
    for share in (1, 2):
        shard = launch(storage, *GRID, f"--shard={share}/2", "--benchmark-compare", "--resume")
        assert shard.exit_code == 0, shard.output + shard.errors
        assert "Not selected, so not counted as gone: 4 cases of these axes." in shard.output
        assert shard.records[-1]["suite"]["settings"]["shard"] == [share, 2]
    paths = record_files(storage)[1:]
    before = [path.read_bytes() for path in paths]
    assert main(["merge", *map(str, paths), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cases"] == 8
    merged = json.loads(Path(said["record"]).read_bytes())
    assert record_files(storage)[3:] == [Path(said["record"])]
    assert cases(merged) == cases(whole.record)
    assert merged["suite"]["selection"] == whole.record["suite"]["selection"]
    assert [path.read_bytes() for path in paths] == before


def test_sigterm_ends_the_case_in_flight_and_keeps_the_journal(terminated: Launch) -> None:
    assert terminated.exit_code == 143, terminated.output + terminated.errors
    assert terminated.records == []
    assert finished(terminated) == {"test_forward[tiny-ctx8-fp32-own]"}
    contents = read_journal(terminated.journals[0])
    assert contents is not None
    assert len(contents.starts) == 1, "the case in flight did not kill the process"
    assert "resume with `pytest" in terminated.output
