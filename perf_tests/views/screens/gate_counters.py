"""Exact counters of a gate run: what rose, in sentences, and a table with a row for each case that changed."""

from collections.abc import Sequence

from perf_tests.gate.verdicts import ExactResult, Verdict
from perf_tests.records.words import how_many
from perf_tests.views.screens.lines import DASH, case_name, table

MOST_CASES = 3
"""That have a sentence each."""
WHY = "; counters are exact, so any increase fails"


def changed(rows: Sequence[ExactResult]) -> list[ExactResult]:
    return [row for row in rows if row.verdict != Verdict.SAME]


def counter_lines(rows: Sequence[ExactResult]) -> list[str]:
    """The table of what changed, as a share of base's value, and how many counters did not."""
    moved = changed(rows)
    cells = {(row.id, row.counter): _moved_by(row) for row in moved}
    names = [*dict.fromkeys(row.counter for row in moved)]
    found = [
        (case_name(case), *(cells.get((case, name), DASH) for name in names))
        for case in dict.fromkeys(row.id for row in moved)
    ]
    lines = table(("exact counters, head against base", *names), found) if found else []
    same = len(rows) - len(moved)
    return lines + ([f"{same} exact counters are the same on both sides."] if same else [])


def rise_sentences(rows: Sequence[ExactResult]) -> list[str]:
    """One for each case whose counters rose; of many cases one for all."""
    risen: dict[str, list[ExactResult]] = {}
    for row in rows:
        if row.verdict == Verdict.MORE:
            risen.setdefault(row.id, []).append(row)
    if len(risen) > MOST_CASES:
        return [_together(risen)]
    return [
        f"{Verdict.MORE}: {case_name(case)}: {', '.join(map(_rise, of_case))}"
        f"{WHY if any(row.is_failure for row in of_case) else ''}."
        for case, of_case in risen.items()
    ]


def _together(risen: dict[str, list[ExactResult]]) -> str:
    rows = [row for of_case in risen.values() for row in of_case]
    most = {
        name: max((row for row in rows if row.counter == name), key=lambda row: row.new / row.old if row.old else 0)
        for name in dict.fromkeys(row.counter for row in rows)
    }
    counters = ", ".join(f"{name} (by up to {_moved_by(row).lstrip('+')})" for name, row in most.items())
    accepted = sum(row.accepted is not None for row in rows)
    said = f", {accepted} of {how_many(len(rows), 'counter')} accepted" if accepted else ""
    why = WHY if accepted < len(rows) else ""
    return f"{Verdict.MORE}: exact counters of {how_many(len(risen), 'case')} rose: {counters}{said}{why}."


def _moved_by(row: ExactResult) -> str:
    """As a share of base's value; of nothing as it is."""
    moved = f"{row.new / row.old - 1:+.2%}" if row.old else f"{row.new - row.old:+,}"
    return f"{moved}{' (accepted)' if row.accepted else ''}"


def _rise(row: ExactResult) -> str:
    share = f" ({row.new / row.old - 1:+.2%})" if row.old else ""
    accepted = "" if row.accepted is None else f" (accepted: {row.accepted})"
    return f"{row.counter} rose from {row.old:,} to {row.new:,}{share}{accepted}"
