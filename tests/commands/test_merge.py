"""`merge`: shards of one grid become one record, and nothing else does."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from perf_tests.history.commits import machines_of
from perf_tests.records.record import Json, why_not_a_record
from perf_tests.records.store import each_run_once, list_records, read_record
from tests.support.launch import Verb
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, passed, record, timed, untimed, write_record

KERNELS = "perf_tests/test_kernels.py::test_kernels_of_forward[tiny-ctx8-fp32-naive]"


def shard(share: int, place: dict[str, int], shares: int = 2, device: str = "cuda:0", **machine: Any) -> Json:
    """FORWARD is timed, BACKWARD has an outcome, KERNELS is a pass."""
    rows = [untimed(name) if name == BACKWARD else timed(name) for name in place if name != KERNELS]
    data = record([row for row in rows if "stats" in row], [row for row in rows if "id" in row], **machine)
    settings = {**data["suite"]["settings"], "shard": [share, shares], "device": device}
    suite = {**data["suite"], "settings": settings, "selection": list(place), "places": list(place.values())}
    return {**data, "suite": suite, "passes": [passed(name) for name in place if name == KERNELS]}


FIRST, SECOND = shard(1, {FORWARD: 1, KERNELS: 3}), shard(2, {FULL_STEP: 0, BACKWARD: 2}, device="cuda:1")


def written(folder: Path, *records: Json) -> list[str]:
    paths = [folder / f"machine/000{number}_abc.json" for number in range(1, len(records) + 1)]
    return [str(write_record(path, data)) for path, data in zip(paths, records, strict=True)]


def test_shards_are_joined_in_the_order_of_the_grid_under_the_next_number(tmp_path: Path, verb: Verb) -> None:
    later, earlier = (
        {**with_suite(data, started=f"2030-01-0{day}"), "datetime": f"2030-01-0{day}"}
        for data, day in ((SECOND, 2), (FIRST, 1))
    )
    paths = written(tmp_path, later, earlier)
    before = [Path(path).read_bytes() for path in paths]
    assert verb("merge", *paths)[0] == 0
    merged = json.loads((tmp_path / "machine/0003_abc.json").read_bytes())
    assert why_not_a_record(merged) is None
    assert merged["suite"]["selection"] == [FULL_STEP, FORWARD, BACKWARD, KERNELS]
    assert [row["fullname"] for row in merged["benchmarks"]] == [FULL_STEP, FORWARD]
    assert [row["id"] for row in (*merged["outcomes"], *merged["passes"])] == [BACKWARD, KERNELS]
    assert merged["suite"]["settings"]["shard"] is merged["suite"]["places"] is None
    assert merged["suite"]["started"] == "2030-01-01"
    assert merged["datetime"] == "2030-01-02", "as new as its newest shard, or a newer run would come before it"
    assert merged["suite"]["merged_from"] == ["machine/0002_abc", "machine/0001_abc"]
    assert [Path(path).read_bytes() for path in paths] == before


def test_what_rows_of_several_shards_say_together_is_a_notice_of_the_merged_record(tmp_path: Path, verb: Verb) -> None:
    """A full step that is shorter than its forward pass; what one shard alone said of its rows is said anew."""
    for data, seconds in ((FIRST, 2.0), (SECOND, 1.0)):
        data = {**data, "benchmarks": [timed(row["fullname"], [seconds] * 5) for row in data["benchmarks"]]}
        write_record(tmp_path / f"m/000{int(seconds)}_abc.json", {**data, "notices": [{"sentence": "of a shard"}]})
    assert verb("merge", tmp_path / "m/0001_abc.json", tmp_path / "m/0002_abc.json")[0] == 0
    (notice,) = json.loads((tmp_path / "m/0003_abc.json").read_bytes())["notices"]
    assert "full_step" in notice["sentence"]


def with_suite(data: Json, **facts: Any) -> Json:
    return {**data, "suite": {**data["suite"], **facts}}


def with_setting(data: Json, **facts: Any) -> Json:
    return with_suite(data, settings={**data["suite"]["settings"], **facts})


NOT_WHOLE = "was not recorded whole with --shard K/N"
REFUSED: dict[str, tuple[list[Json], str]] = {
    "a shard is missing": ([FIRST], "Beside machine/0001_abc, of 2 shards 2/2 is missing"),
    "the first shard is missing": ([SECOND], "Beside machine/0001_abc, of 2 shards 1/2 is missing"),
    "a shard is given twice": ([FIRST, SECOND, FIRST], "are both shard 1/2"),
    "of other machines": ([FIRST, shard(2, {FULL_STEP: 0, BACKWARD: 2}, threads=2)], "machine or build: threads: "),
    "of other commits": ([FIRST, {**SECOND, "commit_info": {"id": "fedcba"}}], "differ in commit: '0123456789abcdef'"),
    "of other code": ([FIRST, with_suite(SECOND, source="other")], "differ in code: 'digest' and 'other'"),
    "of other settings": ([FIRST, with_setting(SECOND, rounds=3)], "differ in the setting rounds: None and 3"),
    "of other shares": ([FIRST, with_setting(SECOND, shard=[2, 3])], "differ in number of shards: 2 and 3"),
    "of a case in two": ([FIRST, shard(2, {FORWARD: 0, BACKWARD: 2})], f"both hold {FORWARD}"),
    "of two grids": ([FIRST, shard(2, {FULL_STEP: 0, BACKWARD: 7})], "of different grids"),
    "no shard": ([record([timed()])], NOT_WHOLE),
    "a shard with a row too few": ([FIRST, {**SECOND, "outcomes": []}], NOT_WHOLE),
    "a damaged shard": ([FIRST, with_setting(SECOND, shard="2/2")], NOT_WHOLE),
    "a shard with damaged drivers": ([FIRST, with_suite(SECOND, other_drivers=1)], NOT_WHOLE),
    "of more shards than there can be": ([with_setting(FIRST, shard=[1, 10**15])], "2/1000000000000000, "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_set_of_shards_is_refused_in_one_sentence(name: str, tmp_path: Path, verb: Verb) -> None:
    records, words = REFUSED[name]
    paths = written(tmp_path, *records)
    code, _, said = verb("merge", *paths)
    assert (code, len(said.splitlines()), words in said) == (3, 1, True), said
    assert sorted(map(str, tmp_path.rglob("*.json"))) == paths


def test_a_merged_record_goes_to_a_new_file_on_request_and_over_none_that_exists(tmp_path: Path, verb: Verb) -> None:
    """A figure that is no number, as Python reads NaN in a foreign record, is merged as unknown."""
    paths = written(tmp_path, FIRST, with_suite(SECOND, other_drivers=["x"]))
    Path(paths[0]).write_text(Path(paths[0]).read_text().replace('"extra_info": {', '"extra_info": {"odd": NaN,', 1))
    out, shards = tmp_path / "grid.json", ["machine/0001_abc", "machine/0002_abc"]
    code, shown, _ = verb("merge", *paths, f"--output={out}", "--json")
    assert (code, json.loads(shown)) == (0, {"record": str(out), "cases": 4, "shards": shards})
    merged = json.loads(out.read_bytes())
    assert merged["benchmarks"][1]["extra_info"]["odd"] is None
    assert merged["suite"]["other_drivers"] == ["x"]
    before = Path(paths[0]).read_bytes()
    assert verb("merge", *paths, "-o", paths[0])[0] == 2
    assert Path(paths[0]).read_bytes() == before


def launches(paths: Iterable[Path]) -> list[str]:
    found = machines_of(map(read_record, paths))
    return sorted(launch.name for machine in found for launch in machine.launches)


@pytest.mark.parametrize("runs", [(None, None), ("journal-1", "journal-2")], ids=["older records", "with their runs"])
def test_of_merged_shards_and_of_a_run_saved_twice_one_record_alone_is_read(
    runs: tuple[str | None, ...], tmp_path: Path, verb: Verb
) -> None:
    """Otherwise the launches of a commit would count twice, and a page would compare a run with its own part.

    A kill between a record and the removal of its journal: resuming saved it again, in older versions too.
    """
    first, second = (with_suite(data, run=run) for data, run in zip((FIRST, SECOND), runs, strict=True))
    copies = 2 if runs[0] else 1
    paths = written(tmp_path, *copies * [first], second, record([timed(seconds=[2.0])]))
    if runs[0]:
        code, _, said = verb("compare", *paths[:2])
        assert (code, "are one run, saved twice" in said) == (3, True)
        assert len(launches(map(Path, paths[:2]))) == 1
    for _ in range(copies):  # shards that are merged twice are one run, too
        assert verb("merge", *paths[:-1])[0] == 0
    left = [f"machine/000{copies + number}_abc" for number in (2, 3)]
    for found in (list_records(tmp_path).records,):
        assert sorted(stored.name for stored in found) == left
    assert launches(sorted(tmp_path.glob("*/*.json"))) == left
    (alone,) = written(tmp_path / "alone", with_suite(shard(1, {FORWARD: 0}, shares=1), run="journal-3"))
    assert verb("merge", alone)[0] == 0
    assert launches(sorted(Path(alone).parent.iterdir())) == ["machine/0002_abc"], "no run is left out as its own part"


def test_a_record_that_is_named_like_a_merged_shard_of_another_run_is_read(tmp_path: Path, verb: Verb) -> None:
    """As the first records of one commit on two machines of a CI are."""
    first, second = (written(tmp_path / name, with_suite(FIRST, run=name)) for name in ("ours", "theirs"))
    others = written(tmp_path / "other", with_suite(SECOND, run="other"))
    assert verb("merge", *second, *others, "-o", tmp_path / "merged.json")[0] == 0
    found = each_run_once([read_record(path) for path in (tmp_path / "merged.json", *map(Path, (*first, *second)))])
    assert [stored.path for stored in found] == [tmp_path / "merged.json", Path(first[0])]
    whole = write_record(tmp_path / "whole.json", record([timed(), timed(FULL_STEP)]))
    part = write_record(tmp_path / "part.json", shard(1, {FORWARD: 1}))
    assert verb("compare", whole, part)[0] == 0, "cases of other shards are not gone"
