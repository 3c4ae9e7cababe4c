"""A history for dashboards: Apache Otava's CSV, github-action-benchmark's custom JSON, JSON lines like asv's."""

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from perf_tests.history.commits import Code, moment
from perf_tests.history.launches import Figure, Launch
from perf_tests.history.series import Era
from perf_tests.records.words import how_many
from perf_tests.views.screens.lines import case_name, printable
from perf_tests.views.tables.flat_figures import no_formula


def otava(era: Era) -> str:
    """A row for each launch that timed a case, a column for each case: the median in seconds.

    Otava refuses an empty cell, so a case that a launch did not time has its time of the launch before, or of the first
    one that timed it: what Otava itself does with values that are missing.
    Otava reads it with `time_column: time`, `attributes: [commit, record]`, and each case as a metric with
    `direction: -1`.
    """
    cases = list(dict.fromkeys(one.case for one in era.series))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["time", "commit", "record", *(no_formula(_name(case)) for case in cases)])
    found = [(code, launch) for code in era.codes for launch in code.launches if launch.figures]
    columns = [_filled([launch.figures.get(case) for _, launch in found]) for case in cases]
    for (code, launch), *seconds in zip(found, *columns, strict=True):
        labels = (_date(launch, code), no_formula(printable(code.name)), no_formula(printable(launch.name)))
        rows.writerow([*labels, *seconds])
    return text.getvalue()


def _filled(figures: Sequence[Figure | None]) -> list[float]:
    """Seconds; at least one figure is there."""
    seconds = next(one.seconds for one in figures if one is not None)
    filled = []
    for one in figures:
        seconds = seconds if one is None else one.seconds
        filled.append(seconds)
    return filled


def _name(case: str) -> str:
    """Without what a file or a dashboard could not show."""
    return printable(case_name(case))


def _date(launch: Launch, code: Code) -> str:
    """In ISO 8601; where a record names no date that is one, its commit's, else that of 1970."""
    known = (moment(launch.written), moment(code.date))
    return datetime.fromtimestamp(next(filter(None, known), 0.0), UTC).isoformat()


def github_action_benchmark(era: Era) -> str:
    """The newest commit's cases for its tool `customSmallerIsBetter`: the median, and half the interval as range."""
    newest = [(one, one.points[-1]) for one in era.series if one.points[-1].code is era.codes[-1]]
    rows = []
    for one, point in newest:
        row: dict[str, object] = {"name": _name(one.case), "unit": "ms", "value": point.seconds * 1e3}
        if point.interval is not None:
            row["range"] = f"± {(point.interval[1] - point.interval[0]) / 2 * 1e3:.4g}"
        rows.append({**row, "extra": f"{how_many(point.launches, 'launch')} of {printable(point.code.name)}"})
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def asv(era: Era) -> str:
    """One line for each commit and case, with the names that asv's results use; `date` is in milliseconds."""
    lines = []
    for one in era.series:
        for point in one.points:
            low, high = point.interval or (None, None)
            line = {"commit_hash": point.code.commit, "date": round(moment(point.code.date) * 1e3),
                    "benchmark": _name(one.case), "result": point.seconds, "ci_95_a": low, "ci_95_b": high,
                    "number": point.launches, "params": dict(one.identity)}  # fmt: skip
            lines.append(json.dumps(line))
    return "\n".join(lines) + "\n"


EXPORTS = {"otava": otava, "github-action-benchmark": github_action_benchmark, "asv": asv}
