"""Cases that are given up: the process died in them twice, or they did not return in time."""

import pytest

from perf_tests.bench.outcomes import KILLED, Outcome
from perf_tests.bench.session import MeasuringSession
from perf_tests.bench.stash import CASE, PASS
from perf_tests.records.journal import JournalContents


def without_killers(left: list[pytest.Item], session: MeasuringSession, killed: Outcome = KILLED) -> list[pytest.Item]:
    """Give up on a case in which the process died twice, or that did not return in time."""
    spared = []
    for item in left:
        outcome = _why_given_up(item.nodeid, session.contents, killed)
        if outcome is None:
            spared.append(item)
        else:
            session.not_measured(item.nodeid, item.stash[CASE], outcome, extra_pass=item.stash[PASS])
    if any(item.nodeid in session.contents.starts for item in spared):
        session.journal.keep_last_words()
    return spared


def _why_given_up(case_id: str, contents: JournalContents, killed: Outcome) -> Outcome | None:
    is_last = case_id == contents.last_started
    if is_last and contents.out_of_time:
        return Outcome("timed_out", "did not return in time, and the process was ended.")
    if contents.starts.get(case_id, 0) < 2:
        return None
    if is_last and contents.fatal_error:
        reason = (
            f"the process died twice while this case ran, last of: {contents.fatal_error}; run it alone to see why."
        )
        return Outcome("process_died", reason)
    return killed
