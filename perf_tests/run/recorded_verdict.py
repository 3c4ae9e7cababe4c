"""`--benchmark-compare` with enough recorded launches: verdicts instead of bare ratios."""

from pathlib import Path

from perf_tests.bench.stash import Run
from perf_tests.gate.recorded_sides import sides_of
from perf_tests.records.store import StoredRecord, list_records


def judge(run: Run, storage: Path, is_asked: bool) -> None:
    """Add to `run` the verdicts that its recorded launches allow, or why they allow none."""
    if run.record is None or run.baseline is None or not run.record["benchmarks"]:
        return
    now = StoredRecord(storage / "now" / "this run.json", run.record)
    sides = sides_of(now, list_records(storage).records, run.baseline, is_asked)
    if sides.why_no_verdict:
        run.notes.append(sides.why_no_verdict)
        return
    # Imported late: these statistics load scipy, which would slow every other run.
    from perf_tests.gate.recorded import RULES, conclude_recorded
    from perf_tests.views.screens.recorded_gate import failure_sentences, recorded_lines

    known = [entry for entry in run.accepted if entry.is_of(sides.base_name)]
    result = conclude_recorded(sides.base, sides.head, RULES, known)
    run.verdict_lines = recorded_lines(result, RULES, sides.base_name)
    run.is_contaminated = bool(result.contaminated)
    if not run.is_contaminated:
        run.failures += failure_sentences(result, RULES)
