"""Two commits of one machine: verdicts out of their recorded launches, where there are enough of them."""

from collections.abc import Sequence

from perf_tests.gate.recorded_sides import FEWEST_BASE_LAUNCHES, FEWEST_HEAD_LAUNCHES
from perf_tests.records.store import StoredRecord
from perf_tests.views.report.run import MachineRuns, RecordedRun
from perf_tests.views.tables.table import Table


def verdict_table(machine: MachineRuns) -> Table | None:
    """The newest commit with launches enough against the one before it; None where there are no two such commits."""
    found = two_commits(machine)
    if found is None:
        return None
    # The gate's statistics take scipy, which costs a second that a page without verdicts need not spend.
    from perf_tests.gate.recorded import RULES, conclude_recorded
    from perf_tests.gate.recorded_launches import why_incomparable
    from perf_tests.gate.verdicts import Verdict
    from perf_tests.views.screens.gate import case_row
    from perf_tests.views.screens.recorded_gate import RECORDED_HEADER, recorded_conditions, recorded_verdict

    base, head = (_launches(runs) for runs in found)
    first, second = (f"{runs[-1].commit} (runs {', '.join(str(run.number) for run in runs)})" for runs in found)
    title = f"Verdicts: {second} against {first}"
    reason = why_incomparable(base, head)
    if reason:
        return Table("verdicts", title, ("Case", "verdict"), 1, (), (reason,))
    result = conclude_recorded(base, head, RULES)
    rows = tuple(
        case_row(row) for row in sorted(result.cases, key=lambda row: (not row.is_failure, row.verdict == Verdict.OK))
    )
    notes = (recorded_verdict(result), *recorded_conditions(result, RULES), machine.newest.conditions)
    return Table("verdicts", title, ("Case", *RECORDED_HEADER[1:]), 1, rows, notes)


def two_commits(machine: MachineRuns) -> tuple[list[RecordedRun], list[RecordedRun]] | None:
    """(base, head): runs of the newest commit that has launches enough, and of the nearest before it that has."""
    by_commit: dict[str, list[RecordedRun]] = {}
    for run in machine.runs:
        if run.launch is not None:
            by_commit.setdefault(run.launch.data["commit_info"]["id"], []).append(run)
    newest_first = sorted(by_commit.values(), key=lambda runs: runs[-1].number, reverse=True)
    for place, head in enumerate(newest_first):
        for base in newest_first[place + 1 :]:
            if len(head) >= FEWEST_HEAD_LAUNCHES and len(base) >= FEWEST_BASE_LAUNCHES:
                return base, head
    return None


def _launches(runs: Sequence[RecordedRun]) -> list[StoredRecord]:
    return [run.launch for run in runs if run.launch is not None]
