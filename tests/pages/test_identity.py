"""Rows of one case join across records: what a fresh case says of itself is what a committed record holds."""

import json
from dataclasses import make_dataclass
from typing import Any

import pytest

from perf_tests import phases as identity
from perf_tests.cases.case import Case
from perf_tests.cases.selected import family_of
from perf_tests.cases.settings import Settings
from perf_tests.phases import AttentionIdentity, LanguageModelIdentity, has_identity, identity_from
from perf_tests.records.record import Json, identity_of
from perf_tests.records.store import Status, compare
from tests.support.documents import ROOT

(COMMITTED,) = (ROOT / ".benchmarks" / "epyc-2core").glob("0001_*.json")
RECORD: Json = json.loads(COMMITTED.read_bytes())
ROWS = {row["fullname"]: row for row in RECORD["benchmarks"]}

SETTINGS: dict[str, Any] = {"model_arguments": (), "vocab_size": None, "batch_sizes": (4,)} | {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in RECORD["suite"]["settings"].items()
    if name != "batch_size"
}


def fresh_case(row: Json) -> Case:
    """The case of a row, from the settings and axes of its test, without measuring."""
    phase = row["extra_info"]["phase"]
    return family_of(phase).of(phase, row["params"], Settings(**SETTINGS))


@pytest.mark.parametrize("case_id", ROWS)
def test_a_fresh_row_has_the_identity_that_the_committed_record_holds(case_id: str) -> None:
    """In the same order; what is newer than the record comes after it and is null."""
    fresh, committed = fresh_case(ROWS[case_id]).identity(), ROWS[case_id]["extra_info"]
    newer = [name for name in fresh if name not in committed]
    assert list(fresh.items()) == [*list(committed.items())[: len(fresh) - len(newer)], *dict.fromkeys(newer).items()]


def test_the_committed_record_holds_both_families() -> None:
    assert {len(identity_of(row)) for row in ROWS.values()} == {30, 8}


@pytest.fixture
def with_a_new_field(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in (LanguageModelIdentity, AttentionIdentity):
        wider = make_dataclass(family.__name__, [("cold_cache", str | None, None)], bases=(family,), frozen=True)
        monkeypatch.setattr(identity, family.__name__, wider)


@pytest.mark.usefixtures("with_a_new_field")
@pytest.mark.parametrize(
    "value, status, explanation",
    [
        pytest.param(None, Status.MEASURED, "", id="null joins rows without it"),
        pytest.param("flushed", Status.INCOMPARABLE, "cold_cache was None, is 'flushed'", id="off its default"),
    ],
)
def test_rows_without_a_field_join_those_where_it_is_null(value: str | None, status: Status, explanation: str) -> None:
    rows = [{**row, "extra_info": {**row["extra_info"], "cold_cache": value}} for row in RECORD["benchmarks"]]
    compared = compare(RECORD, {**RECORD, "benchmarks": rows})
    assert {(row.status, row.explanation) for row in compared} == {(status, explanation)}
    assert all(has_identity(row["extra_info"]) for row in RECORD["benchmarks"])


@pytest.mark.usefixtures("with_a_new_field")
def test_a_case_that_does_not_know_a_new_field_writes_null() -> None:
    case = fresh_case(next(iter(ROWS.values())))
    assert identity_from(identity.LanguageModelIdentity, case)["cold_cache"] is None


def test_a_row_that_lacks_an_old_field_has_no_identity() -> None:
    values = dict(next(iter(ROWS.values()))["extra_info"])
    assert has_identity(values)
    del values["d_ff"]
    assert not has_identity(values)
