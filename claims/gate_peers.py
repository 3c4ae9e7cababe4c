"""The verdicts of other tools' rules on gate trials with a known truth, beside the gate's."""

from collections.abc import Sequence

from claims.gate_power import by_slowdown, slowed_in
from claims.gate_trials import Trial
from claims.peer_rules import PEERS, VIEWS, Calls, calls_of_peers
from claims.share import Share
from perf_tests.gate.verdicts import Verdict
from perf_tests.records.format import table

GATE = "this gate"


def rules_table(unchanged: Sequence[Trial], injected: Sequence[Trial]) -> list[str]:
    """A line for each rule, the gate first: its false alarms and detections."""
    calls = {trial: calls_in(trial) for trial in (*unchanged, *injected)}
    sizes = by_slowdown(slowed_in(injected))
    rows = []
    for rule in (GATE, *(f"{rule}, {view}" for view in VIEWS for rule in PEERS)):
        alarms = Share(sum(bool(calls[trial][rule]) for trial in unchanged), len(unchanged))
        found = [sum(case.row.id in calls[case.trial][rule] for case in cases) for cases in sizes.values()]
        of = [len(cases) for cases in sizes.values()]
        rows.append((rule, str(alarms), *(f"{hits} of {all_of}" for hits, all_of in zip(found, of, strict=True))))
    return table(("rule", "runs with a false alarm", *(f"{size:.0%} found" for size in sizes)), rows)


def calls_in(trial: Trial) -> Calls:
    """The benchmarks that the gate and each rule call slower in this run; for the rules as kept, where they were."""
    slower = frozenset(row.id for row in trial.result.cases if row.verdict == Verdict.SLOWER)
    if trial.peer_calls is not None:
        return {GATE: slower, **trial.peer_calls}
    assert trial.samples is not None
    return {GATE: slower, **calls_of_peers(trial.samples)}
