"""After each case a line in the journal; after the last the record, the comparison, the exit code and the screen."""

import gc
import sys
from collections.abc import Iterable, Sequence

import pytest

from perf_tests.audit.notices import notice_lines, with_notices
from perf_tests.bench.benchmark_options import SavingOptions, regressions, row_of
from perf_tests.bench.outcomes import Outcome, is_out_of_memory, out_of_memory, outcome_of_report
from perf_tests.bench.session import MeasuringSession
from perf_tests.bench.stash import CASE, LEDGER_LINES, OUTCOME, PASS, PASS_VALUES, RUN, SAVING, SETTINGS, WORKBENCH, Run
from perf_tests.bench.workbench import Workbench
from perf_tests.cases import is_inside, selectable_cases
from perf_tests.records.compare import ComparedCase, compare
from perf_tests.records.record import Json, identity_of, ids_of
from perf_tests.records.store import encoded, write_whole
from perf_tests.run import recorded_verdict
from perf_tests.views.screens.comparison import Tone, comparison_lines, width
from perf_tests.views.screens.lines import result_lines, time_line
from perf_tests.views.screens.passes import pass_lines


def outcome_of_error(item: pytest.Item, error: Exception) -> Outcome | None:
    """The outcome that an error stands for, and a clean device after it; None for an error that is a failed test."""
    if CASE not in item.stash or not is_out_of_memory(error):
        return None
    return out_of_memory(error, item.stash[CASE], item.config.stash[WORKBENCH].budget_bytes)


def note_start(item: pytest.Item, workbench: Workbench) -> None:
    assert workbench.session is not None
    try:
        workbench.session.begin(item.nodeid, workbench.settings.warmup_rounds, workbench.rounds(item.stash[CASE]))
    except OSError as error:
        _stop_unkept(workbench.session, error)


def note_report(item: pytest.Item, report: pytest.TestReport) -> None:
    """Write the case's row, or why there is none, to the journal as soon as it is known."""
    workbench = item.config.stash[WORKBENCH]
    if workbench.session is None or report.when == "teardown":
        return
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    extra_pass = item.stash.get(PASS, None)
    try:
        if report.when == "call" and report.passed and extra_pass is not None:
            workbench.session.passed(item.nodeid, item.stash[CASE], extra_pass, item.stash[PASS_VALUES])
        elif report.when == "call" and report.passed:
            workbench.session.measured(row_of(benchmark))
        elif report.skipped or report.failed:
            rounds = list(benchmark.stats["data"]) if benchmark is not None and benchmark.stats else []
            outcome = item.stash.get(OUTCOME, None) or outcome_of_report(report)
            workbench.session.not_measured(item.nodeid, item.stash[CASE], outcome, rounds, extra_pass)
            _leave_nothing(item, workbench)
    except OSError as error:
        _stop_unkept(workbench.session, error)


def _stop_unkept(session: MeasuringSession, error: OSError) -> None:
    """What cannot be kept is not worth measuring."""
    pytest.exit(
        f"The journal {session.journal.path} cannot be written: {error}. What it holds is safe; "
        f"make room and go on with `{session.contents.header['command']}`.",
        returncode=pytest.ExitCode.INTERNAL_ERROR,
    )


def _leave_nothing(item: pytest.Item, workbench: Workbench) -> None:
    """After a failure: no tensors held by a kept traceback, and no further case on a device that is beyond use."""
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    gc.collect()
    if not workbench.device.is_alive():
        item.session.shouldstop = (
            f"{workbench.device.torch_device} is unusable after {item.name}; go on with --resume in a new process."
        )


def finish(session: pytest.Session) -> None:
    """Turn a complete run into its record and an exit code; an incomplete one keeps its journal."""
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    measuring = session.config.stash[WORKBENCH].session
    assert measuring is not None
    if not measuring.is_complete:
        _note_interruption(run, measuring)
        return
    saving = session.config.stash[SAVING]
    run.record = with_notices(measuring.record())
    _save(session, run, measuring, saving)
    if run.baseline is not None:
        _compare(session, run, run.baseline.data, saving)
        recorded_verdict.judge(run, saving.storage, is_asked=saving.compare_with is not None)
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # a resumed run of which every case was done
        session.exitstatus = pytest.ExitCode.OK
    # A case may have failed in the part of the run that this process resumed.
    failed = run.failures or any(row["outcome"] in ("error", "impossible") for row in run.record["outcomes"])
    if failed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif run.is_contaminated and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR  # as everything that cannot be compared


def _note_interruption(run: Run, measuring: MeasuringSession) -> None:
    contents = measuring.contents
    if not contents.finished_ids:
        measuring.journal.discard()
        run.notes.append("Not complete: no case was finished, and nothing is kept.")
        return
    run.notes.append(
        f"Not complete: {len(contents.finished_ids)} of {len(contents.header['selection'])} cases are kept in "
        f"{measuring.journal.path}; go on with `{contents.header['command']}`."
    )
    measuring.journal.close()


def _save(session: pytest.Session, run: Run, measuring: MeasuringSession, saving: SavingOptions) -> None:
    assert run.record is not None
    commit = run.record["commit_info"]
    name = saving.save_name or f"{str(commit.get('id'))[:12]}{'-dirty' if commit.get('dirty') else ''}"
    try:
        if saving.json_path is not None:
            write_whole(saving.json_path, encoded(run.record))
            run.notes.append(f"Wrote {saving.json_path}.")
        run.notes.append(f"Saved {measuring.save(run.record, saving.storage, name)}.")
    except OSError as error:
        run.failures.append(
            f"The record cannot be written: {error}. Nothing is lost: {measuring.journal.path} holds the run; "
            f"make room and finish it with `{measuring.contents.header['command']}`."
        )


def _compare(session: pytest.Session, run: Run, baseline: Json, saving: SavingOptions) -> None:
    assert run.record is not None
    settings = session.config.stash[SETTINGS]
    ids = ids_of(run.record)
    inside = {
        kind: [row for row in baseline[kind] if row[key] in ids or is_inside(identity_of(row), settings)]
        for kind, key in (("benchmarks", "fullname"), ("outcomes", "id"))
    }
    run.rows = compare({**baseline, **inside}, run.record, run.gone_counts)
    run.failures += [f"{row.id}: {row.status}, {row.explanation}" for row in run.rows if row.is_failure]
    run.failures += regressions(run.record, baseline, saving.compare_fail)
    if not run.gone_counts:
        left_out = selectable_cases(settings) - len(ids)
        run.notes.append(f"{left_out} cases of this run's axes were not selected; none of them counts as gone.")


def show(terminal: pytest.TerminalReporter) -> None:
    """The result screen, below pytest-benchmark's table."""
    run = terminal.config.stash.get(RUN, None)
    if run is None:
        return
    if run.record is not None:
        if lines := [*result_lines(run.record), *notice_lines(run.record)]:
            _show(terminal, "results", lines)
        for name, lines in pass_lines(run.record).items():
            _show(terminal, name, lines)
    if run.baseline is not None and run.rows:
        _show_comparison(terminal, f"compared with {run.baseline.name}", run.rows)
    if run.verdict_lines:
        _show(terminal, "gate", run.verdict_lines)
    spent = terminal.config.stash[WORKBENCH].time_spent
    _show(terminal, "run", [time_line(spent.parts()), *run.notes])
    for failure in run.failures:
        terminal.write_line(failure, red=True)


def _show_comparison(terminal: pytest.TerminalReporter, title: str, rows: Sequence[ComparedCase]) -> None:
    """In pytest's own colours, which `--color` and NO_COLOR turn off."""
    terminal.section(title, sep="-")
    for line in comparison_lines(rows, width()):
        terminal.write_line(line.text, red=line.tone == Tone.BAD, green=line.tone == Tone.GOOD)


def show_ledger(terminal: pytest.TerminalReporter) -> None:
    """What moved in the ledger of exact counters, or why nothing was compared."""
    lines = terminal.config.stash.get(LEDGER_LINES, [])
    if lines:
        _show(terminal, "counters", lines)


def _show(terminal: pytest.TerminalReporter, title: str, lines: Iterable[str]) -> None:
    terminal.section(title, sep="-")
    for line in lines:
        terminal.write_line(line)
