"""The one table of figures: a row a case, numbers as numbers, and null for what is not known or not of its kind."""

import math

import pytest

from perf_tests_suite.perf_tests.gate.samples import compile_row
from perf_tests_suite.perf_tests.records import columns
from perf_tests_suite.perf_tests.records.columns import COLUMNS, SPEEDUP, case_rows, cells_of, pairs_along
from perf_tests_suite.perf_tests.records.record import Json
from tests.support import synthetic
from tests.support.synthetic import FORWARD, record, timed, timed_attention, untimed

PASSES = synthetic.traced(), synthetic.remembered(), synthetic.warmed()
HUNDRED = [place / 1000 for place in range(1, 102)]
LISTS: Json = {"device_seconds": [2.0, None, 1.0, 3.0], "cpu_seconds": [], "before": {"power_watts": 300.0},
               "part_seconds": {"forward": [1.0, 3.0, 2.0], "backward": "?"}}  # fmt: skip
ROWS: dict[str, tuple[Json, Json]] = {
    "a timing": (
        record([timed(seconds=(0.010, 0.012), kernel_launches=100, peak_allocated_bytes=None, mfu=math.nan)]),
        {"record": "machine/0001_run", "outcome": "measured", "torch": "2.13.0+cpu", "commit": "0123456789abcdef",
         "commit_has_changes": False, "device_name": "Some CPU, 8 cores", "batch_size": 4, "d_ff": 512, "rounds": 2,
         "kernel_launches": 100, "median_seconds": 0.011, "mean_seconds": 0.011, "stddev_seconds": 2**0.5 / 1000,
         "peak_allocated_bytes": None, "mfu": None, "head_dim": None, "reason": None, "flags": None},
    ),
    "ten rounds": (
        record([timed()]), {"median_low_seconds": 1.01, "median_high_seconds": 1.08, "min_seconds": 1.0,
                            "max_seconds": 1.09, "p95_seconds": None, "p99_seconds": None},
    ),
    "from a hundred rounds on, percentiles": (
        record([timed(seconds=HUNDRED)]),
        {"min_seconds": 0.001, "max_seconds": 0.101, "p95_seconds": 0.096, "p99_seconds": 0.1},
    ),
    "lists of rounds, by their medians": (
        record([timed(**LISTS)]),
        {"device_median_seconds": 2.0, "cpu_median_seconds": None, "forward_part_seconds": 2.0,
         "backward_part_seconds": None, "power_watts_before": 300.0, "power_watts_after": None},
    ),
    "a case without a timing": (
        record([], [untimed(synthetic.BACKWARD, "would_not_fit", "6 GiB asked", phase="backward")]),
        {"outcome": "would_not_fit", "reason": "6 GiB asked", "needed_bytes": 2**30, "median_seconds": None},
    ),
    "attention": (record([timed_attention(flags=["trend", "outlier"])]),
                  {"head_dim": 16, "size": None, "flags": "trend outlier"}),
    "a collective": (
        record([synthetic.timed_collective(40_000, (0.1, 0.1))]),
        {"collective": "all_gather", "message_bytes": 40_000, "exchanged_bytes": 40_000, "world": 2, "size": None,
         "backend": "gloo", "dtype": "float32", "algorithm_bytes_per_second": 4e5, "bus_bytes_per_second": 2e5},
    ),
    "several ranks": (
        record([timed(parallel="ddp", world=2, sent_bytes=8, exposed_communication_seconds=-0.5,
                      scaling_efficiency=0.9, relative_to="one")]),
        {"sent_bytes": 8, "exposed_communication_seconds": -0.5, "scaling_efficiency": 0.9, "relative_to": "one"},
    ),
    "what passes found": (
        synthetic.with_passes(record([timed()]), *PASSES),
        {"outcome": "measured", "traced_launches": 60, "traced_products_share": 0.75, "traced_busy_share": 0.8,
         "memory_pass_peak_bytes": 2**30, "recommended_warmup_rounds": 1},
    ),
    "what passes found of another case": (
        synthetic.with_passes(record([timed(size="small")]), *PASSES),
        {"outcome": "measured", "traced_launches": None, "memory_pass_peak_bytes": None},
    ),
    "a case that only passes looked at": (
        synthetic.with_passes(record(), *PASSES),
        {"outcome": "not_timed", "median_seconds": None, "traced_launches": 60},
    ),
}  # fmt: skip


def test_a_row_has_numbers_as_numbers_and_null_for_what_is_not_known() -> None:
    for what, (data, expected) in ROWS.items():
        row = case_rows(data, "machine/0001_run")[0]
        assert {name: row[name] for name in expected} == pytest.approx(expected), what


STRANGE = (10**400, "many", [1], {"a": 1}, True, math.inf, 0.5, -(2**63), 2**63, "\ud800")


def test_no_value_of_a_strange_kind_gets_into_a_column() -> None:
    for strange in STRANGE:
        data = record([timed()])
        data["benchmarks"][0]["extra_info"] |= dict.fromkeys(COLUMNS.keys() - {"head_dim", "collective"}, strange)
        row = case_rows(data, "run")[0]
        assert list(row) == [*COLUMNS, SPEEDUP.name]
        assert set(columns.AXES) <= set(row)
        for name, value in row.items():
            kind = {**COLUMNS, SPEEDUP.name: SPEEDUP}[name].kind
            assert value is None or type(value) is kind, name
            assert kind is not int or value is None or -(2**63) < int(value) < 2**63, name
            assert str(value).encode(), name


def test_a_speedup_is_over_the_case_that_differs_only_along_the_axis() -> None:
    slow, fast = timed("a", (0.2, 0.2)), timed("b", (0.1, 0.1), attention="sdpa")
    data = record([slow, fast, timed("c", (0.3, 0.3), size="small", attention="sdpa")])
    assert {row["id"]: row["speedup"] for row in case_rows(data, "run", ("attention", "naive"))} == {
        "a": 1.0, "b": pytest.approx(2.0), "c": None,
    }  # fmt: skip
    (pair,) = pairs_along(cells_of(data), "attention", "naive")
    assert [cell.id for cell in pair] == ["a", "b"]
    steps = cells_of(record([timed("a"), timed("b", phase="full_step", optimizer="fused")]))
    assert [(one.id, other.id) for one, other in pairs_along(steps, "phase", "forward", "full_step")] == [("a", "b")]
    assert pairs_along(steps, "phase", "forward", "backward") == []


def test_cases_stand_by_family_size_length_implementation_precision_and_phase() -> None:
    rows = [
        synthetic.timed_collective(), timed_attention(sequence_length=512),
        timed_attention(head_dim=8, sequence_length=1024),
        timed_attention(), timed("unknown", d_model=None, size="theirs"), timed("deep", num_layers=9, size="deep"),
        timed("large", d_model=1280, size="large"), timed("bf16", precision="bf16"), timed("sdpa", attention="sdpa"),
        timed("backward", phase="backward"), timed("longer", context_length=128), timed("first"),
    ]  # fmt: skip
    cells = cells_of(record(rows))
    assert " ".join(cell.id for cell in cells[:8]) == "first backward bf16 sdpa longer deep large unknown"
    places = [(cell.number("head_dim"), cell.number("sequence_length")) for cell in cells[8:]]
    assert places == [(8, 1024), (16, 256), (16, 512)]
    assert "first" not in [cell.id for cell in columns.last_phases(cells)], "its backward pass holds what it holds"
    assert [cell.label("collective") for cell in columns.collectives_of(record(rows))] == ["all_gather"]


IMPLEMENTATIONS: dict[str, Json] = {
    "naive": {}, "sdpa, compiled model": {"attention": "sdpa", "execution": "compiled"},
    "naive, checkpoint block, theirs:build": {"checkpoint": "block", "model": "theirs:build"},
    "naive, ddp on 2 ranks, a batch each, buckets of 1 MiB": {
        "parallel": "ddp", "world": 2, "scaling": "weak", "bucket_bytes": 2**20
    },
    "naive, fsdp2 on 4 ranks, not resharded": {"parallel": "fsdp2", "world": 4, "scaling": "strong", "reshard": False},
}  # fmt: skip


def test_names_say_each_axis_that_is_not_the_default() -> None:
    for words, changes in IMPLEMENTATIONS.items():
        (cell,) = cells_of(record([timed("a", (1.0,), **changes)]))
        assert (cell.implementation, cell.name) == (words, f"tiny 8 forward fp32 {words}")
    (cell,) = cells_of(record([timed_attention((1.0,), cache="cold")]))
    assert cell.name == "d 16 256 forward fp32 naive, cold cache"
    assert columns.case_name(FORWARD) == "forward tiny-ctx8-fp32-naive"
    row = compile_row(FORWARD, "forward", "cold")
    assert columns.case_name(row) == "forward tiny-ctx8-fp32-naive compile_forward_seconds (cold)"
    assert columns.case_name("tests/bench_x.py::test_forward[1]") == "tests/bench_x.py::test_forward[1]"
    assert columns.lost_lines(cells_of(record([timed("a")], [untimed(reason="why")]))) == (
        "forward tiny-ctx8-fp32-naive: out of memory: why",
    )


def test_conditions_are_said_in_words() -> None:
    data = record([timed()], written="2030-01-02T03:04:05", threads=1, environment={"OMP_NUM_THREADS": "1"})
    assert columns.machine_line(data) == "Some CPU, 8 cores, torch 2.13.0+cpu, 1 threads, OMP_NUM_THREADS=1"
    assert columns.machine_name({"machine_info": synthetic.machine(gpu={"name": "H100", "driver": "1"})}) == "H100"
    dirty = {**data, "commit_info": {"id": "0123456789abcdef", "dirty": True}}
    assert columns.commit_of(dirty) == "0123456789ab with changes"
    assert (columns.commit_of({**data, "commit_info": None}), columns.date_of(data)) == ("", "2030-01-02 03:04")
    cells = cells_of(record([timed("a", warmup_rounds=5, warmup_rounds_run=312), timed("b", (1.0, 2.0), batch_size=8)]))
    assert columns.rounds_line(cells) == "batch 4 and 8, 10 and 2 measured rounds, at least 5 warm-up rounds"


def test_rows_of_a_pass_that_are_damaged_are_left_out_and_those_it_lost_follow() -> None:
    damaged = [None, {"pass": "kernels"}, {**synthetic.traced(), "values": 3}, {**synthetic.traced(), "id": 1}]
    data = record([], [{**untimed(synthetic.BACKWARD), "pass": "kernels"}])
    data["passes"] = [*damaged, synthetic.traced(), synthetic.remembered()]
    cells = [(cell.id, cell.outcome) for cell in columns.pass_cells(data, "kernels")]
    assert cells == [(synthetic.traced()["id"], ""), (synthetic.BACKWARD, "out_of_memory")]
    assert cells_of(data) == [], "a case that a pass lost was not to be timed"
    assert columns.seconds_of({"seconds": [1.0, 0, -1.0, None, math.nan, 2]}, "seconds") == [1.0, 2.0]
    assert columns.seconds_of({"seconds": 3}, "seconds") == []
