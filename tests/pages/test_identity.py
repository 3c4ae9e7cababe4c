"""Rows of one case join across records: what a fresh case says of itself is what a committed record holds."""

from functools import cache
from typing import Any

from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.selected import family_of
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.records.record import Json, identity_of
from perf_tests_suite.perf_tests.records.store import Status, compare, read_record
from tests.support.documents import ROOT


@cache
def record() -> Json:
    (committed,) = (ROOT / ".benchmarks" / "epyc-2core").glob("0001_*.json.xz")
    return read_record(committed).data


def fresh_case(row: Json) -> Case:
    """The case of a row, from the settings and axes of its test, without measuring."""
    saved = record()["suite"]["settings"]
    typed = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    batch_sizes = (typed.pop("batch_size"),)
    settings: dict[str, Any] = {"model_arguments": (), "vocab_size": None, "batch_sizes": batch_sizes} | typed
    phase = row["extra_info"]["phase"]
    return family_of(phase).of(phase, row["params"], Settings(**settings))


def test_a_fresh_row_has_the_identity_that_the_committed_record_holds() -> None:
    """In the same order; what is newer than the record comes after it and is null. Both families are there."""
    for row in record()["benchmarks"]:
        fresh, committed = fresh_case(row).identity(), row["extra_info"]
        newer = [name for name in fresh if name not in committed]
        known = list(committed.items())[: len(fresh) - len(newer)]
        assert list(fresh.items()) == [*known, *dict.fromkeys(newer).items()], row["fullname"]
    assert {len(identity_of(row)) for row in record()["benchmarks"]} == {30, 8}


def test_a_row_joins_older_ones_that_lack_a_field_where_it_is_null() -> None:
    older = next(row for row in record()["benchmarks"] if row["extra_info"]["phase"] == "forward")
    fresh = fresh_case(older).identity()
    newer = [name for name in fresh if name not in older["extra_info"]]
    assert newer
    for name in newer:
        of_another = Status.INCOMPARABLE, f"{name} was None, is 'new'"
        for value, expected in ((None, (Status.MEASURED, "")), ("new", of_another)):
            row = {**older, "extra_info": {**older["extra_info"], **fresh, name: value}}
            (found,) = compare({**record(), "benchmarks": [older]}, {**record(), "benchmarks": [row]})
            assert (found.status, found.explanation) == expected
