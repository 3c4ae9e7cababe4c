"""The record's format: strict JSON, hostile files refused in words, machines told apart by what matters."""

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_tests.bench.options import show_beside_baseline
from perf_tests.records.record import Json, build_record, identity_of, ids_of, machine_differences, why_not_a_record
from perf_tests.records.store import compare, encoded
from perf_tests.report.comparison import comparison_lines
from tests.support.synthetic import BACKWARD, header, identity, machine, record, timed, untimed


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


@settings(max_examples=1000, deadline=None, derandomize=True)
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
