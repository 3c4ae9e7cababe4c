"""The figures of a timed case: each is written under its name, and read back from rows of any age or damage."""

import math
from dataclasses import replace

from perf_tests_suite.perf_tests.records.columns import COLUMNS, case_rows
from perf_tests_suite.perf_tests.records.measured import Measured
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.synthetic import record, timed

KNOWN = Measured(seed=0, mfu=0.5, recompiles=0, before={"power_watts": 3.0}, flags=["trend"], bound="memory")


def test_a_row_has_every_figure_but_those_that_most_cases_lack_and_reads_back_the_same() -> None:
    row = KNOWN.as_row()
    assert Measured.of(row) == KNOWN
    assert (row["mfu"], row["recompiles"], row["model_flops"], "exchanged_bytes" in row) == (0.5, 0, None, False)
    names = list(replace(KNOWN, exchanged_bytes=1).as_row())
    assert [name for name in names if name != "exchanged_bytes"] == list(row)
    assert names.index("exchanged_bytes") < names.index("executed_flops"), "in its place"


STRANGE: Json = {
    "seed": (10**400, 0.5, "7", True), "mfu": (math.nan, math.inf, 10**400, "x", True, [1.0]), "bound": (1, ["x"]),
    "records_graph": (1, "true"), "flags": ("trend", {"trend": 1}), "before": ([1], "x"), "device_seconds": ({}, 1.0),
}  # fmt: skip


def test_a_figure_that_is_missing_or_of_another_kind_is_not_known() -> None:
    assert Measured.of({}) == Measured()
    for name, values in STRANGE.items():
        for value in values:
            assert Measured.of({name: value}) == Measured(), (name, value)


def test_the_time_of_compiling_is_over_the_parts_that_compiled() -> None:
    for known, seconds in (({"forward": 1.0, "backward": 2.0}, 3.0), ({"forward": None}, None), ({}, None)):
        (row,) = case_rows(record([timed(compile_seconds=known)]), "run")
        assert row["compile_seconds"] == seconds
        assert row["compile_backward_seconds"] == known.get("backward")
    assert COLUMNS["compile_seconds"].kind is float
