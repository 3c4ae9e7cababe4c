"""Rows of one case join across records: what a fresh case says of itself is what a committed record holds."""

from dataclasses import make_dataclass
from functools import cache
from typing import Any

import pytest

from perf_tests import phases as identity
from perf_tests.cases.case import Case
from perf_tests.cases.selected import family_of
from perf_tests.cases.settings import Settings
from perf_tests.phases import AttentionIdentity, LanguageModelIdentity, has_identity, identity_from
from perf_tests.records.record import Json, identity_of
from perf_tests.records.store import Status, compare, read_record
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


def test_a_new_field_joins_older_rows_where_it_is_null_and_old_ones_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in (LanguageModelIdentity, AttentionIdentity):
        wider = make_dataclass(family.__name__, [("cold_cache", str | None, None)], bases=(family,), frozen=True)
        monkeypatch.setattr(identity, family.__name__, wider)
    for value, expected in (
        (None, (Status.MEASURED, "")), ("flushed", (Status.INCOMPARABLE, "cold_cache was None, is 'flushed'")),
    ):  # fmt: skip
        rows = [{**row, "extra_info": {**row["extra_info"], "cold_cache": value}} for row in record()["benchmarks"]]
        compared = compare(record(), {**record(), "benchmarks": rows})
        assert {(row.status, row.explanation) for row in compared} == {expected}
    first, *_ = infos = [row["extra_info"] for row in record()["benchmarks"]]
    assert all(map(has_identity, infos))
    assert identity_from(identity.LanguageModelIdentity, fresh_case(rows[0]))["cold_cache"] is None
    assert not has_identity({name: held for name, held in first.items() if name != "d_ff"})
