"""The record's format: strict JSON, hostile files refused in words, machines told apart by what matters."""

import copy
import gzip
import json
import lzma
import math
from collections.abc import Callable, Iterator
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_tests.bench.options import show_beside_baseline
from perf_tests.records.record import (
    AMOUNT,
    FEWEST_FOR_PERCENTILES,
    NUMBER,
    PERCENTILES,
    TEXT,
    Json,
    OrNull,
    Times,
    build_record,
    code_of,
    how_many,
    identity_of,
    ids_of,
    machine_differences,
    misshapen,
    thinned,
    unpacked,
    why_not_a_record,
)
from perf_tests.records.store import compare, encoded
from perf_tests.report.comparison import comparison_lines
from tests.support.synthetic import BACKWARD, TEN_ROUNDS, header, identity, machine, record, timed, untimed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_know_becomes_null(value: float) -> None:
    row = timed(peak_allocated_bytes=value, device_seconds=[0.1, value])
    data = json.loads(encoded(build_record(header(), [row], [])), parse_constant=pytest.fail)
    info = data["benchmarks"][0]["extra_info"]
    assert info["peak_allocated_bytes"] is None
    assert info["device_seconds"] == [0.1, None]


def test_a_record_of_another_format_and_pytest_benchmarks_own_are_refused() -> None:
    newer = {**record([timed()]), "suite": {"format_version": 99}}
    own = {"machine_info": {}, "commit_info": {}, "benchmarks": [], "datetime": "2030-01-01", "version": "5.3.1"}
    assert why_not_a_record(newer) == "its format version is 99, this suite reads 1"
    assert why_not_a_record(own) == "it is no record of this suite"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside `value`."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


GOOD = record([timed()], [untimed(BACKWARD)])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
REMOVED = object()


def damaged(path: tuple[Any, ...], value: object) -> Json:
    """The good record with one place overwritten or removed."""
    data = copy.deepcopy(GOOD)
    inside: Any = data
    for key in path[:-1]:
        inside = inside[key]
    if value is REMOVED:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return data


@pytest.mark.parametrize(
    "seconds, said",
    [([], "has no rounds"), ([0.01, 1e-320], "has a round of 1e-320 s"), ([None], "has a round of None s")],
)
def test_a_row_without_possible_rounds_is_refused_for_them(seconds: list[Any], said: str) -> None:
    """A rate of 1e-320 s is infinite, which no table and no figure can show."""
    row = timed()
    row["stats"]["data"] = seconds
    assert said in str(why_not_a_record(record([row])))


@given(st.none() | JSON_VALUES)
def test_any_json_at_all_is_judged_and_never_raises(data: object) -> None:
    assert why_not_a_record(data)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(list(places(GOOD))), JSON_VALUES | st.just(REMOVED))
def test_a_record_damaged_anywhere_is_refused_or_can_be_compared_with(path: tuple[Any, ...], value: object) -> None:
    data = damaged(path, value)
    if why_not_a_record(data) is None:
        machine_differences(machine(), data["machine_info"])
        ids_of(data)
        comparison_lines(compare(data, GOOD), 120)
        show_beside_baseline([timed()], data, "Linux/0001_name")


def test_what_drifts_on_one_machine_is_no_difference() -> None:
    drifted = {"node": "host-2", "release": "6.2.0", "hz_actual": [3_000_000_000, 0], "memory_gib": 15}
    assert machine_differences(machine(), machine(**drifted, python_version="3.11.99")) == []


@pytest.mark.parametrize(
    "name, value, named",
    [
        ("brand_raw", "Other CPU", "cpu.brand_raw: 'Some CPU' here, 'Other CPU' there"),
        ("count", 64, "cpu.count: 8 here, 64 there"),
        ("torch", "2.12.0", "torch: '2.13.0+cpu' here, '2.12.0' there"),
        ("threads", 1, "threads: 4 here, 1 there"),
        ("gpu", {"name": "H200"}, "gpu.name: None here, 'H200' there"),
        ("environment", {"OMP_NUM_THREADS": "1"}, "environment.OMP_NUM_THREADS: None here, '1' there"),
        ("python_version", "3.13.0", "python: '3.11' here, '3.13' there"),
        ("system", "Darwin", "system: 'Linux' here, 'Darwin' there"),
    ],
)
def test_what_changes_a_figure_is_named_with_both_values(name: str, value: object, named: str) -> None:
    there = machine()
    if name == "torch":
        there["torch"]["torch"] = value
    else:
        there = machine(**{name: value})
    assert named in machine_differences(machine(), there)


H200 = {"name": "H200", "driver": "570.86", "power_limit_watts": 700.0, "mig": None, "compute_mode": "default"}


@pytest.mark.parametrize(
    "change, named",
    [
        ({"power_limit_watts": 500.0}, ["gpu.power_limit_watts: 700.0 here, 500.0 there"]),
        ({"power_limit_watts": None}, []),
        ({"mig": True, "cudnn": 91_002}, []),
        ({"driver": None}, ["gpu.driver: '570.86' here, None there"]),
        ({"compute_mode": "exclusive process"}, []),
    ],
)
def test_a_fact_that_only_newer_records_have_makes_no_machine_unlike(change: Json, named: list[str]) -> None:
    assert machine_differences(machine(gpu=H200), machine(gpu={**H200, **change})) == named


def test_identity_is_the_same_from_a_benchmark_and_from_an_outcome() -> None:
    assert identity_of(timed(batch_size=7)) == identity_of(untimed(batch_size=7)) == identity(batch_size=7)


def test_attention_alone_has_an_identity_of_its_own() -> None:
    row = {"extra_info": {"phase": "attention_forward", "head_dim": 64, "sequence_length": 256, "median": 1.0}}
    assert list(identity_of(row)) == [
        "phase", "head_dim", "sequence_length", "batch_size", "precision", "attention", "device", "cache",
    ]  # fmt: skip


# Times.


def coverage(count: int, skipped: int) -> float:
    """Chance that the median of a continuous distribution lies between `skipped + 1` from below and from above."""
    return 1 - 2 * sum(comb(count, below) for below in range(skipped + 1)) / 2**count


@pytest.mark.parametrize("count", [7, 10, 20, 100])
@pytest.mark.parametrize("confidence", [0.9, 0.975, 0.99])
def test_the_interval_of_a_median_is_the_narrowest_that_covers_it(count: int, confidence: float) -> None:
    enclosed = Times(range(count)).median_interval(confidence)
    wide_enough = [skipped for skipped in range(count // 2) if coverage(count, skipped) >= confidence]
    assert enclosed == ((wide_enough[-1], count - 1 - wide_enough[-1]) if wide_enough else None)


def test_ten_rounds_leave_out_one_at_each_end_and_cover_the_median_as_the_binomial_says() -> None:
    """Each of ten rounds falls below or above the median with the same chance: all 1024 ways are counted."""
    assert Times(TEN_ROUNDS).median_interval(0.975) == (TEN_ROUNDS[1], TEN_ROUNDS[8])
    covering = sum(2 <= sum(below) <= 8 for below in product((0, 1), repeat=10))
    assert covering / 1024 == coverage(10, 1) == 0.978515625


def test_statistics_are_those_of_the_definitions_whatever_the_order() -> None:
    times = Times([3.0, 1.0, 2.0, 6.0])
    assert (times.median, times.mean, times.ordered) == (2.5, 3.0, [1.0, 2.0, 3.0, 6.0])
    assert times.deviation == pytest.approx((14 / 3) ** 0.5)
    assert Times([1.0]).deviation is None


def test_percentiles_need_a_hundred_times() -> None:
    assert Times(range(FEWEST_FOR_PERCENTILES - 1)).percentiles == {}
    assert Times(range(101)).percentiles == {percent: float(percent) for percent in PERCENTILES}


def test_what_is_known_of_times_stays_known() -> None:
    times = Times([1.0])
    assert Times.of(times) is times
    assert Times.of([1.0]) == times


# Small things.


@pytest.mark.parametrize("most", [4, 30, 300])
def test_the_highest_the_lowest_and_both_ends_stay(most: int) -> None:
    amounts = [float(place % 7) for place in range(10_000)]
    amounts[1234], amounts[8765] = 99.0, -1.0
    kept = thinned(amounts, most)
    assert {0, 1234, 8765, 9999} <= set(kept)
    assert len(kept) <= most


def test_each_local_peak_stays() -> None:
    """A step of 48 blocks, each of which rises and falls: the outline that people look for."""
    amounts = [float(min(place % 100, 100 - place % 100) + place // 100) for place in range(4800)]
    kept = thinned(amounts, 300)
    assert {50 + 100 * number for number in range(48)} <= set(kept)


def test_few_moments_are_all_kept() -> None:
    assert thinned([3.0, 1.0, 2.0], 4) == [0, 1, 2]


SHAPE = {"name": TEXT, "sizes": [NUMBER], "share?": OrNull(AMOUNT)}
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


@pytest.mark.parametrize("said", MISSHAPEN)
def test_data_of_another_shape_is_named_by_place_value_and_what_it_must_be(said: str) -> None:
    assert misshapen(MISSHAPEN[said], SHAPE, "it") == said


@pytest.mark.parametrize("more", [{}, {"share": None}, {"share": 0}, {"other": []}])
def test_data_of_the_right_shape_may_lack_what_is_optional_and_hold_more(more: Json) -> None:
    """Squares of sums of numbers stay finite, which 1e300 would not."""
    assert misshapen({"name": "a", "sizes": [1, -2.5, 1e99], **more}, SHAPE, "it") is None


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("txt", bytes)])
def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(
    suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(pack(bytes(1000)))
    assert unpacked(path, 1000) == bytes(1000)
    with pytest.raises(ValueError, match=f"x.{suffix} cannot be used: it is larger than 999 bytes"):
        unpacked(path, 999)


def test_a_code_is_the_commit_of_a_clean_tree_else_what_ran() -> None:
    data = record([timed()])
    changed, unknown = ({**data, "commit_info": {"id": name, "dirty": True}} for name in ("abc", "unversioned"))
    assert (code_of(data), code_of(changed), code_of(unknown)) == ("0123456789abcdef", "digest", "digest")
    assert code_of({**unknown, "suite": {}, "datetime": "2030"}) == "the run of 2030"


def test_counts_are_said_in_the_plural() -> None:
    assert [how_many(1, "case"), how_many(0, "case"), how_many(2, "launch")] == ["1 case", "0 cases", "2 launches"]
