"""After each case its row in the journal; after the last the record, the comparison, the exit code and the screen."""

import gc
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from perf_tests_suite.perf_tests.bench.outcomes import outcome_of_report
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession
from perf_tests_suite.perf_tests.bench.session import Run, Session, benchmark_of, session_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.hardware.machine import seconds_since_process_start
from perf_tests_suite.perf_tests.phases import FINE
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.comparison import Comparison
from perf_tests_suite.perf_tests.records.format import ScreenLine
from perf_tests_suite.perf_tests.records.record import how_many
from perf_tests_suite.perf_tests.records.store import DIRTY, encoded, write_whole
from perf_tests_suite.perf_tests.report.ranks import conclude
from perf_tests_suite.perf_tests.report.screens import time_line
from perf_tests_suite.perf_tests.report.show import comparison_section, shown
from perf_tests_suite.perf_tests.run.ends import TimeLimit
from perf_tests_suite.perf_tests.run.termination import termination_of

MOST_PRINTED = 4000
"""Characters of what a failed case printed that are shown."""


def note_start(item: pytest.Item, workbench: Workbench) -> None:
    assert workbench.session is not None
    with _or_stop(workbench.session):
        case = benchmark_of(item).case
        workbench.session.begin(item.nodeid, workbench.warmup_rounds(case), workbench.rounds(case))


def note_report(item: pytest.Item, report: pytest.TestReport) -> None:
    """Write the case's row, or why it has none, to the journal; after a failure stop where the device is unusable."""
    workbench = session_of(item.config).workbench
    session = workbench.session
    if session is not None and report.when != "teardown":
        benchmark: Any = getattr(item, "funcargs", {}).get("benchmark")
        case, extra_pass, values = benchmark_of(item).case, benchmark_of(item).extra_pass, benchmark_of(item).values
        with _or_stop(session):
            if not report.passed:
                outcome = benchmark_of(item).outcome or outcome_of_report(report)
                is_timed = benchmark is not None and benchmark.stats and outcome.outcome != "incorrect"
                rounds = list(benchmark.stats["data"]) if is_timed else []
                session.not_measured(item.nodeid, case, outcome, rounds, extra_pass)
            elif report.when == "call" and extra_pass is not None:
                assert values is not None
                session.passed(item.nodeid, case, extra_pass, values)
            elif report.when == "call":
                session.measured(benchmark.stats.as_dict(include_data=True))
    if report.passed:
        return
    report.sections = [(name, shortened(printed)) for name, printed in report.sections]
    # Free the tensors that a kept traceback holds.
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    gc.collect()
    if not workbench.device.is_alive():
        again = "start again" if session is None else "resume with --resume"
        item.session.shouldstop = (
            f"{workbench.device.torch_device} is unusable after {item.name}; {again} in a new process."
        )


def shortened(printed: str) -> str:
    """Return the end of what a case printed, and how much is left out: a model may print megabytes."""
    if len(printed) <= MOST_PRINTED:
        return printed
    return f"[{len(printed) - MOST_PRINTED:,} characters are left out]\n{printed[-MOST_PRINTED:]}"


@contextmanager
def _or_stop(session: MeasuringSession) -> Iterator[None]:
    """Measuring ends where the journal cannot be written."""
    try:
        yield
    except OSError as error:
        pytest.exit(
            f"The journal {session.journal.path} cannot be written: {error}. Finished cases are kept; "
            f"free disk space and resume with `{session.contents.header['command']}`.",
            returncode=pytest.ExitCode.INTERNAL_ERROR,
        )


def finish(session: pytest.Session) -> None:
    """Turn a complete run into its record and an exit code; an incomplete one keeps its journal."""
    suite = session_of(session.config)
    run = suite.run
    if run is None:
        return
    measuring = suite.workbench.session
    assert measuring is not None
    if not measuring.is_complete or measuring.killed_in:
        _finish_for_now(session, suite, run, measuring)
        return
    run.record = record = measuring.record()
    conclude(record)
    saving, commit = suite.saving, record["commit_info"]
    name = saving.save_name or f"{str(commit.get('id'))[:12]}{DIRTY if commit.get('dirty') else ''}"
    try:
        if saving.json_path is not None:
            write_whole(saving.json_path, encoded(record))
            run.notes.append(f"Wrote {saving.json_path}.")
        is_first = not any(saving.storage.glob("*/[0-9]*_*.json*"))
        path, earlier = measuring.save(record, saving.storage, name), measuring.saved
        ignored = " Let git ignore .benchmarks/*-CPython-*/ and .benchmarks/gate/." if is_first else ""
        held = f"{path} held this run already; removed its journal."
        run.notes.append(f"Saved {path}.{ignored}" if earlier is None else held)
        if suite.peers is not None:  # a rank that dies from here on must not make torchrun measure a second record
            suite.peers.end_for_good()
    except OSError as error:
        run.failures.append(
            f"The record cannot be written: {error}. The journal {measuring.journal.path} holds the whole run; "
            f"free disk space and save it with `{measuring.contents.header['command']}`."
        )
    run.screen = shown(record, None if run.baseline is None else Comparison.of(record, run.baseline))
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # every case of a resumed run was done
        session.exitstatus = pytest.ExitCode.OK
    # A case may have failed in the part of the run that this process resumed.
    if session.exitstatus == pytest.ExitCode.OK and (run.failures or run.screen.exit_code != FINE):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _finish_for_now(session: pytest.Session, suite: Session, run: Run, measuring: MeasuringSession) -> None:
    """What is measured at a time limit is compared; cases left are no success where the comparison may fail."""
    limit: TimeLimit | None = session.config.pluginmanager.getplugin("time limit")  # None where it refused the run
    if limit is not None and limit.is_reached:
        selection, saving = measuring.contents.header["selection"], suite.saving
        left = len(set(selection) - measuring.contents.finished_ids)
        run.notes.append(
            f"--time-limit {limit.minutes:g} is reached, {how_many(left, 'case')} {'is' if left == 1 else 'are'} left."
        )
        if run.baseline is not None:
            run.comparison = Comparison.of(measuring.record(), replace(run.baseline, gone_counts=False))
        if session.exitstatus == pytest.ExitCode.OK and run.comparison and run.comparison.failures:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == pytest.ExitCode.OK and saving.compare_fail:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
    journal, header, finished = measuring.journal, measuring.contents.header, len(measuring.contents.finished_ids)
    # torchrun ends the other ranks with SIGTERM where one died, perhaps of the case in flight.
    is_suspect = suite.peers is not None and termination_of(session.config).came == signal.SIGTERM
    if measuring.in_flight is not None and not is_suspect:
        with suppress(OSError):  # a full disk, which was reported already
            measuring.measure_again(measuring.in_flight)
    if not finished and not is_suspect:
        journal.discard()
        run.notes.append("Incomplete: no case finished, so nothing is kept.")
        return
    journal.close()
    if not (measuring.killed_in and measuring.is_complete):
        run.notes.append(
            f"Incomplete: {finished} of {len(header['selection'])} cases are kept in {journal.path}; "
            f"resume with `{header['command']}`."
        )
    else:
        names, command = ", ".join(map(case_name, measuring.killed_in)), header["command"]
        run.notes.append(
            f"Not saved yet: the process was killed twice while {names} ran, perhaps from outside. "
            f"`{command} --retry` measures again, `{command}` saves what {journal.path} holds."
        )
    if measuring.killed_in and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def show(terminal: pytest.TerminalReporter) -> None:
    """Write the screen of the record, below pytest-benchmark's table, and what only this process knows of the run."""

    def section(title: str, lines: Sequence[ScreenLine]) -> None:
        if lines and (is_titled or title not in ("results", "run")):
            terminal.section(title, sep="-")
        for text, is_red in lines:
            # pytest's own colours, which `--color` and NO_COLOR turn off.
            terminal.write_line(text, red=is_red)

    suite = session_of(terminal.config)
    is_titled = terminal.config.option.verbose >= 0
    terminal.ensure_newline()
    run, counters = suite.run, [(line, False) for line in suite.ledger_lines]
    if run is None:
        section("counters", counters)
        return
    screen, comparison = run.screen, run.comparison
    for title, lines in screen.sections if screen else [comparison_section(comparison)] if comparison else []:
        section(title, lines)
    seconds = {"total": seconds_since_process_start(), **suite.workbench.spent_seconds}
    neighbours = [sentence for sentence in suite.workbench.neighbours if sentence not in run.opening]
    said = [time_line(seconds), *suite.workbench.doubts, *neighbours, *run.notes]
    section("run", [(line, False) for line in said])
    for failure in (*run.failures, *(screen.failures if screen else comparison.failures if comparison else ())):
        terminal.write_line(failure, red=True)
    section("counters", counters)
    if screen is not None:
        terminal.write_line(screen.last, red=bool(run.failures) or screen.exit_code != FINE, bold=True)
