"""The record's format: strict JSON, hostile files refused in words, machines told apart by what matters."""

import gzip
import json
import lzma
import math
from collections.abc import Callable
from math import comb
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.records import record as records
from perf_tests_suite.perf_tests.records.store import encoded
from tests.support.synthetic import BACKWARD, FORWARD, header, identity, machine, passed, record, timed, untimed


def test_a_number_that_json_does_not_know_becomes_null() -> None:
    odd = (math.nan, math.inf, -math.inf)
    data = records.build_record(header(), [timed(peak_allocated_bytes=math.nan, device_seconds=(0.1, *odd))], [])
    info = json.loads(encoded(data), parse_constant=pytest.fail)["benchmarks"][0]["extra_info"]
    assert (info["peak_allocated_bytes"], info["device_seconds"]) == (None, [0.1, None, None, None])


GOOD = record([timed()], [untimed(BACKWARD)])


def with_stats(**changes: object) -> records.Json:
    row = timed()
    return record([{**row, "stats": {**row["stats"], **changes}}])


PASSED = passed(FORWARD)
NO_RECORDS: list[tuple[records.Json, str | None]] = [
    ({"machine_info": {}, "benchmarks": [], "version": "5.3.1"}, "it is not a record of this suite"),
    ({**GOOD, "suite": {"format_version": 99}}, "its format version is 99, this suite reads 1"),
    (with_stats(data=[]), "it.benchmarks[0].stats.data is empty"),
    # A rate of 1e-320 s is infinite, which no table and no figure can show.
    *(
        (with_stats(data=[0.01, bad]), f"data[1] is {bad!r}, not seconds between 1e-12 and 1e+09")
        for bad in (1e-320, 1e9, None, 1)
    ),
    *((with_stats(**{name: 0}), f"stats.{name} is 0, not seconds") for name in ("min", "max", "mean", "median")),
    *(
        (with_stats(**{name: bad}), f"stats.{name} is {bad!r}, not 0 or seconds")
        for name in ("iqr", "stddev")
        for bad in (-1, 1e9, None)
    ),
    (with_stats(iqr=0, stddev=0.0, data=[1.1e-12]), None),
    ({**GOOD, "passes": [PASSED], "commit_info": None}, None),
    ({name: value for name, value in GOOD.items() if name != "passes"}, None),  # from before there were any
    *(
        ({**GOOD, "benchmarks": [timed(flags=bad)]}, f"extra_info.flags is {bad!r}, not a list")
        for bad in (1.5, "slow")
    ),
    ({**GOOD, "outcomes": [untimed(outcome="tired")]}, "it.outcomes[0].outcome is 'tired', not a known outcome"),
    *(({**GOOD, "passes": [{**PASSED, name: 1}]}, f"it.passes[0].{name} is 1, not") for name in PASSED),
    ({**GOOD, "machine_info": {"cpu": [1]}}, "it.machine_info.cpu is [1], not an object"),
    ({**GOOD, "commit_info": []}, "it.commit_info is [], not an object"),
]


def test_what_is_no_record_is_refused_with_its_reason() -> None:
    for data, said in NO_RECORDS:
        found = records.why_not_a_record(data)
        assert found is said is None or (found and said and said in found), (found, said)


H200 = {"name": "H200", "driver": "570.86", "power_limit_watts": 700.0, "mig": None, "compute_mode": "default"}
MACHINES: list[tuple[records.Json, records.Json, str]] = [
    # What drifts on one machine is no difference; nor is a fact that only newer records have.
    ({}, {"node": "host-2", "release": "6.2.0", "hz_actual": [3_000_000_000, 0], "memory_gib": 15}, ""),
    ({}, {"python_version": "3.11.99"}, ""),
    ({}, {"python_version": "3.13.0"}, "python: here: '3.11', there: '3.13'"),
    ({}, {"brand_raw": "Other CPU"}, "cpu.brand_raw: here: 'Some CPU', there: 'Other CPU'"),
    ({}, {"count": 64}, "cpu.count: here: 8, there: 64"),
    ({}, {"torch": "2.12.0"}, "torch: here: '2.13.0+cpu', there: '2.12.0'"),
    ({}, {"threads": 1}, "threads: here: 4, there: 1"),
    ({}, {"environment": {"OMP_NUM_THREADS": "1"}}, "environment.OMP_NUM_THREADS: here: not set, there: '1'"),
    ({}, {"system": "Darwin"}, "system: here: 'Linux', there: 'Darwin'"),
    ({"gpu": H200}, {"gpu": {**H200, "power_limit_watts": 500.0}}, "gpu.power_limit_watts: here: 700.0, there: 500.0"),
    ({"gpu": H200}, {"gpu": {**H200, "power_limit_watts": None}}, ""),
    ({"gpu": H200}, {"gpu": {**H200, "mig": True, "cudnn": 91_002}}, ""),
    ({"gpu": H200}, {"gpu": {**H200, "driver": None}}, "gpu.driver: here: '570.86', there: not set"),
    ({"gpu": H200}, {"gpu": {**H200, "compute_mode": "exclusive process"}}, ""),
]


def test_machines_differ_in_what_changes_a_figure() -> None:
    for here, there, named in MACHINES:
        assert "; ".join(records.machine_differences(machine(**here), machine(**there))) == named


def test_identity_is_the_same_from_a_benchmark_and_from_an_outcome() -> None:
    assert [records.identity_of(make(batch_size=7)) for make in (timed, untimed)] == [identity(batch_size=7)] * 2


# Times.


def coverage(count: int, skipped: int) -> float:
    """Chance that the median of a continuous distribution lies between `skipped + 1` from below and from above."""
    return 1 - 2 * sum(comb(count, below) for below in range(skipped + 1)) / 2**count


@given(st.integers(1, 120), st.floats(0.5, 0.999))
def test_the_interval_of_a_median_is_the_narrowest_that_covers_it(count: int, confidence: float) -> None:
    enclosed = records.Times(range(count)).median_interval(confidence)
    wide_enough = [skipped for skipped in range(count // 2) if coverage(count, skipped) >= confidence]
    assert enclosed == ((wide_enough[-1], count - 1 - wide_enough[-1]) if wide_enough else None)


def test_the_interval_of_very_many_times_is_the_binomials_normal_limit() -> None:
    """Exactly, 10,001 times skip 4902 on each side at 95 %: 5000.5 - 1.96 * 50.0025, less one."""
    assert records.Times(range(10_001)).median_interval(0.95) == (4901, 5099)


def test_statistics_are_those_of_the_definitions_whatever_the_order() -> None:
    times = records.Times([3.0, 1.0, 2.0, 6.0])
    assert (times.median, times.mean, times.ordered) == (2.5, 3.0, [1.0, 2.0, 3.0, 6.0])
    assert times.deviation == pytest.approx((14 / 3) ** 0.5)
    assert records.Times([1.0]).deviation is None


def test_percentiles_need_a_hundred_times() -> None:
    assert records.Times(range(records.FEWEST_FOR_PERCENTILES - 1)).percentiles == {}
    assert records.Times(range(101)).percentiles == {percent: float(percent) for percent in records.PERCENTILES}


# Small things.


@given(st.lists(st.floats(0, 9), min_size=1, max_size=400), st.integers(4, 60))
def test_the_highest_the_lowest_and_both_ends_stay(amounts: list[float], most: int) -> None:
    kept = records.thinned(amounts, most)
    assert {0, len(amounts) - 1} <= set(kept)
    assert {max(amounts), min(amounts)} <= {amounts[place] for place in kept}
    assert kept == (list(range(len(amounts))) if len(amounts) <= most else sorted(set(kept)))
    assert len(kept) <= most


def test_each_local_peak_stays() -> None:
    """A step of 48 blocks, each of which rises and falls: the outline that people look for."""
    amounts = [float(min(place % 100, 100 - place % 100) + place // 100) for place in range(4800)]
    assert {50 + 100 * number for number in range(48)} <= set(records.thinned(amounts, 300))


SHAPE = {"name": records.TEXT, "sizes": [records.NUMBER], "share?": records.OrNull(records.AMOUNT)}
MISSHAPEN = {
    "it is 5, not an object": 5,
    "it has no 'sizes'": {"name": "a"},
    "it.name is 1, not a string": {"name": 1, "sizes": []},
    "it.sizes is {}, not a list": {"name": "a", "sizes": {}},
    "it.sizes[1] is True, not a number": {"name": "a", "sizes": [1, True]},
    "it.sizes[0] is 1e+300, not a number": {"name": "a", "sizes": [1e300]},
    "it.sizes[0] is nan, not a number": {"name": "a", "sizes": [math.nan]},
    "it.share is -1, not a number, 0 or more": {"name": "a", "sizes": [], "share": -1},
}


def test_data_of_another_shape_is_named_by_place_value_and_what_it_must_be() -> None:
    """Squares of sums of numbers stay finite, which 1e300 would not."""
    assert {records.misshapen(value, SHAPE, "it"): value for value in MISSHAPEN.values()}.keys() == MISSHAPEN.keys()
    others: list[records.Json] = [{}, {"share": None}, {"share": 0}, {"other": []}]
    for more in others:
        assert records.misshapen({"name": "a", "sizes": [1, -2.5, 1e99], **more}, SHAPE, "it") is None


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("txt", bytes)])
def test_a_file_that_unpacks_to_too_much_is_told(suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(pack(bytes(1000)))
    assert records.unpacked(path, 1000) == bytes(1000)
    with pytest.raises(ValueError, match=f"x.{suffix} cannot be used: it is larger than 999 bytes"):
        records.unpacked(path, 999)


def test_bytes_behind_the_end_of_a_packed_file_are_no_part_that_is_left_out_in_silence(tmp_path: Path) -> None:
    """Two streams in one file are what `cat` makes of two, and are both read."""
    path, packed = tmp_path / "x.xz", lzma.compress(b"one")
    path.write_bytes(packed + lzma.compress(b"two"))
    assert records.unpacked(path, 1000) == b"onetwo"
    for damaged in (packed + b"garbage", packed[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.xz cannot be read: "):
            records.unpacked(path, 1000)


def test_a_code_is_the_commit_of_a_clean_tree_else_what_ran() -> None:
    changed, unknown = ({**GOOD, "commit_info": {"id": id_, "dirty": id_ == "abc"}} for id_ in ("abc", "unversioned"))
    assert [records.code_of(data) for data in (GOOD, changed, unknown)] == ["0123456789abcdef", "digest", "digest"]
    assert records.code_of({**unknown, "suite": {}, "datetime": "2030"}) == "the run of 2030"


def test_a_merged_record_names_its_parts_by_run_and_by_name_where_that_is_unknown() -> None:
    """The first records of one commit on two machines of a CI are named alike."""
    suite = {"merged_from": ["m/0001", "m/0002", "m/0003"], "merged_runs": ["journal-1", None]}
    assert records.parts_of({"suite": suite}) == {"journal-1", "m/0002", "m/0003"}
    assert records.parts_of({"suite": {"merged_from": 5, "merged_runs": [7]}}) == set()
    shards: tuple[object, ...] = ({"shard": [1, 2]}, {"shard": None}, {}, [])
    assert [records.is_shard({"suite": {"settings": settings}}) for settings in shards] == [True, False, False, False]


def test_the_cache_lies_in_an_absolute_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/a")
    found = {}
    for folder in ("/x", "relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        found[folder] = str(records.cache_folder().parent)
    assert found == {"/x": "/x", "relative": "/home/a/.cache", "": "/home/a/.cache"}


def test_counts_are_said_in_the_plural() -> None:
    assert [records.how_many(count, "launch") for count in (0, 1, 2)] == ["0 launches", "1 launch", "2 launches"]
