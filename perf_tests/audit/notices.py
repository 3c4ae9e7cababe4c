"""Findings between the cases of one run, as sentences below its table. None of them fails a run."""

from dataclasses import asdict

from perf_tests.audit.benchmark_figures import timings_of
from perf_tests.audit.consistency import findings_between
from perf_tests.records.record import Json


def with_notices(record: Json) -> Json:
    """The record with `notices`: one for each finding between cases."""
    findings = findings_between(timings_of(record))
    return {**record, "notices": [{**asdict(finding), "sentence": finding.sentence()} for finding in findings]}


def notice_lines(record: Json) -> list[str]:
    return [str(notice["sentence"]) for notice in record.get("notices", ())]
