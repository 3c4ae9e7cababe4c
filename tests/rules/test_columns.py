"""The one table of figures: a row a case, numbers as numbers, and null for what is not known or not of its kind."""

import math

import pytest

from perf_tests.records.columns import (
    AXES,
    COLUMNS,
    GROUPS,
    SPEEDUP,
    case_rows,
    cells_of,
    commit_of,
    last_phases,
    machine_line,
    machine_name,
    pairs_along,
    pass_cells,
    rounds_line,
)
from perf_tests.records.record import Json
from tests.support.synthetic import (
    BACKWARD,
    machine,
    record,
    remembered,
    timed,
    timed_attention,
    timed_collective,
    traced,
    untimed,
    warmed,
    with_passes,
)


def test_each_column_is_in_one_group_and_each_axis_is_a_column() -> None:
    assert len(COLUMNS) == sum(map(len, GROUPS.values()))
    assert set(AXES) <= set(COLUMNS)
    assert list(case_rows(record([timed()]), "run")[0]) == [*COLUMNS, SPEEDUP.name]


def test_numbers_are_numbers_and_what_is_not_known_is_null() -> None:
    data = record([timed(seconds=(0.010, 0.012), kernel_launches=100, peak_allocated_bytes=None, mfu=math.nan)])
    (row,) = case_rows(data, "machine/0001_run")
    assert (row["record"], row["outcome"], row["torch"]) == ("machine/0001_run", "measured", "2.13.0+cpu")
    assert (row["commit"], row["commit_has_changes"], row["device_name"]) == (
        "0123456789abcdef",
        False,
        "Some CPU, 8 cores",
    )
    assert (row["batch_size"], row["d_ff"], row["kernel_launches"], row["rounds"]) == (4, 512, 100, 2)
    assert row["median_seconds"] == pytest.approx(0.011)
    assert (row["peak_allocated_bytes"], row["mfu"], row["head_dim"], row["reason"], row["flags"]) == (None,) * 5


def test_the_rounds_have_their_interval_their_ends_and_from_a_hundred_on_percentiles() -> None:
    few, many = case_rows(record([timed("a"), timed("b", [place / 1000 for place in range(1, 102)])]), "run")
    names = ("median_low_seconds", "median_high_seconds", "min_seconds", "max_seconds", "p95_seconds", "p99_seconds")
    assert [few[name] for name in names] == [1.01, 1.08, 1.0, 1.09, None, None]
    assert [many[name] for name in names[2:]] == pytest.approx([0.001, 0.101, 0.096, 0.1])


def test_lists_of_rounds_are_shown_by_their_median() -> None:
    parts: Json = {"part_seconds": {"forward": [1.0, 3.0, 2.0], "backward": "?"}, "before": {"power_watts": 300.0}}
    (row,) = case_rows(record([timed(device_seconds=[2.0, None, 1.0, 3.0], cpu_seconds=[], **parts)]), "run")
    assert (row["device_median_seconds"], row["cpu_median_seconds"]) == (2.0, None)
    assert (row["forward_part_seconds"], row["backward_part_seconds"]) == (2.0, None)
    assert (row["power_watts_before"], row["power_watts_after"]) == (300.0, None)


def test_both_families_cases_without_a_timing_and_collectives_are_rows() -> None:
    lost = untimed(BACKWARD, "would_not_fit", "6 GiB asked", phase="backward")
    data = record([timed_collective(40_000, (0.1, 0.1)), timed(flags=["trend", "outlier"]), timed_attention()], [lost])
    model, backward, attention, collective = case_rows(data, "run")
    outcomes = [row["outcome"] for row in (model, backward, attention, collective)]
    assert outcomes == ["measured", "would_not_fit", "measured", "measured"]
    assert (backward["reason"], backward["needed_bytes"], backward["median_seconds"]) == ("6 GiB asked", 2**30, None)
    assert (attention["head_dim"], attention["size"], model["flags"]) == (16, None, "trend outlier")
    names = ("collective", "message_bytes", "exchanged_bytes", "world", "backend", "dtype", "size")
    assert [collective[name] for name in names] == ["all_gather", 40_000, 40_000, 2, "gloo", "float32", None]
    assert collective["algorithm_bytes_per_second"] == pytest.approx(400_000)
    assert collective["bus_bytes_per_second"] == pytest.approx(200_000)


def test_what_passes_found_stands_in_the_row_of_their_case_or_in_one_of_its_own() -> None:
    passes = traced(), remembered(), warmed()
    first, other = case_rows(with_passes(record([timed(), timed("other", size="small")]), *passes), "run")[::1]
    if first["size"] == "small":
        first, other = other, first
    assert (first["traced_launches"], first["traced_products_share"]) == (60, 0.75)
    assert (first["memory_pass_peak_bytes"], first["recommended_warmup_rounds"]) == (2**30, 1)
    assert (other["traced_launches"], other["memory_pass_peak_bytes"]) == (None, None)
    (alone,) = case_rows(with_passes(record(), *passes), "run")
    assert (alone["outcome"], alone["median_seconds"], alone["traced_launches"]) == ("not_timed", None, 60)


STRANGE = (10**400, "many", [1], {"a": 1}, True, math.inf, 0.5, -(2**63), "\ud800")


@pytest.mark.parametrize("strange", STRANGE, ids=range(len(STRANGE)))
def test_no_value_of_a_strange_kind_gets_into_a_column(strange: object) -> None:
    for name, column in COLUMNS.items():
        data = record([timed()])
        data["benchmarks"][0]["extra_info"][name] = strange
        value = case_rows(data, "run")[0][name]
        assert value is None or type(value) is column.kind, name
        assert column.kind is not int or value is None or -(2**63) < int(value) < 2**63, name
        assert str(value).encode(), name


def test_a_speedup_is_over_the_case_that_differs_only_along_the_axis() -> None:
    slow, fast = timed("a", (0.2, 0.2)), timed("b", (0.1, 0.1), attention="sdpa")
    data = record([slow, fast, timed("c", (0.3, 0.3), size="small", attention="sdpa")])
    assert {row["id"]: row["speedup"] for row in case_rows(data, "run", ("attention", "naive"))} == {
        "a": 1.0, "b": pytest.approx(2.0), "c": None,
    }  # fmt: skip
    (pair,) = pairs_along(cells_of(data), "attention", "naive")
    assert [cell.id for cell in pair] == ["a", "b"]


def test_cases_stand_by_family_size_length_implementation_precision_and_phase() -> None:
    rows = [
        timed_attention(sequence_length=512), timed_attention(),
        timed("large", d_model=1280, size="large"), timed("bf16", precision="bf16"), timed("sdpa", attention="sdpa"),
        timed("backward", phase="backward"), timed("longer", context_length=128), timed("first"),
    ]  # fmt: skip
    names = [cell.id for cell in cells_of(record(rows))]
    assert names[:6] == ["first", "backward", "bf16", "sdpa", "longer", "large"]
    assert [name.partition("[")[0] for name in names[6:]] == ["test_attention_forward"] * 2
    last = last_phases(cells_of(record(rows)))
    assert "first" not in [cell.id for cell in last], "its backward pass holds what it holds"


IMPLEMENTATIONS: dict[str, Json] = {
    "naive": {}, "sdpa, compiled model": {"attention": "sdpa", "execution": "compiled"},
    "naive, checkpoint block, theirs:build": {"checkpoint": "block", "model": "theirs:build"},
    "naive, ddp on 2 ranks, a batch each, buckets of 1 MiB": {
        "parallel": "ddp", "world": 2, "scaling": "weak", "bucket_bytes": 2**20
    },
    "naive, fsdp2 on 4 ranks, not resharded": {"parallel": "fsdp2", "world": 4, "scaling": "strong", "reshard": False},
}  # fmt: skip


@pytest.mark.parametrize("words", IMPLEMENTATIONS)
def test_an_implementation_is_named_by_each_axis_that_is_not_the_default(words: str) -> None:
    (cell,) = cells_of(record([timed("a", (1.0,), **IMPLEMENTATIONS[words])]))
    assert cell.implementation == words
    (cell,) = cells_of(record([timed_attention((1.0,), cache="cold")]))
    assert cell.implementation == "naive, cold cache"


def test_conditions_are_said_in_words() -> None:
    data = record([timed()], threads=1, environment={"OMP_NUM_THREADS": "1"})
    assert machine_line(data) == "Some CPU, 8 cores, torch 2.13.0+cpu, 1 threads, OMP_NUM_THREADS=1"
    assert machine_name({"machine_info": machine(gpu={"name": "H100", "driver": "1"})}) == "H100"
    assert commit_of({**data, "commit_info": {"id": "0123456789abcdef", "dirty": True}}) == "0123456789ab with changes"
    assert commit_of({**data, "commit_info": None}) == ""
    cells = cells_of(record([timed("a", warmup_rounds=5, warmup_rounds_run=312), timed("b", (1.0, 2.0), batch_size=8)]))
    assert rounds_line(cells) == "batch 4 and 8, 10 and 2 measured rounds, at least 5 warm-up rounds"


def test_rows_of_a_pass_that_are_damaged_are_left_out_and_those_it_lost_follow() -> None:
    lost = {**untimed(BACKWARD), "pass": "kernels"}
    data = {
        **record([], [lost]),
        "passes": [None, {"pass": "kernels"}, {**traced(), "values": 3}, traced(), remembered()],
    }
    assert [(cell.id, cell.outcome) for cell in pass_cells(data, "kernels")] == [
        (traced()["id"], ""),
        (BACKWARD, "out_of_memory"),
    ]
