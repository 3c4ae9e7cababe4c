"""The gate under pytest: measure the collected cases in turns with base, and report a verdict as each test's result."""

import os
import re
import shlex
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import pytest

from perf_tests_suite.model.device import why_gpu_is_passed_over
from perf_tests_suite.perf_tests.audit.rounds import BUSY_CORES
from perf_tests_suite.perf_tests.bench.options import Against
from perf_tests_suite.perf_tests.bench.recording import Line, line_or_log
from perf_tests_suite.perf_tests.bench.session import benchmark_of, is_benchmark, session_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.gate.accepted import FILE_NAME, read_accepted
from perf_tests_suite.perf_tests.gate.samples import Rules, case_of
from perf_tests_suite.perf_tests.gate.verdicts import BAD_COMMIT, SKIPPED_COMMIT, RunVerdict, Verdict
from perf_tests_suite.perf_tests.hardware.machine import RunsBeside, seconds_since_process_start
from perf_tests_suite.perf_tests.interleaved.measuring import (
    FEWEST_QUADRUPLES,
    QUADRUPLES_SECONDS,
    GateProgress,
    UnmeasurableError,
)
from perf_tests_suite.perf_tests.interleaved.run import (
    GatePlan,
    GateRun,
    OtherPythonError,
    PairCost,
    other_python,
    run_gate,
)
from perf_tests_suite.perf_tests.interleaved.sides import TreeError, find_base
from perf_tests_suite.perf_tests.predict.machine import kept_ceilings
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.format import in_markdown, painted, table
from perf_tests_suite.perf_tests.records.record import how_many
from perf_tests_suite.perf_tests.records.store import write_whole
from perf_tests_suite.perf_tests.report.gate_screens import (
    base_revision,
    finding_sentences,
    limits_to_accept,
    markdown,
    offer_entries,
    quiet_lines,
    report_lines,
    verdict_table,
)
from perf_tests_suite.perf_tests.run.before import machine_info_of
from perf_tests_suite.perf_tests.run.bisection import VARIABLE, tell
from perf_tests_suite.perf_tests.run.ends import kept_ratio, predicted_seconds, time_limit_of
from perf_tests_suite.perf_tests.user_code.git import run_git
from perf_tests_suite.perf_tests.user_code.named import CONFIGURED, program

SECONDS_BETWEEN_LINES = 60.0
"""Wait between lines of progress in a log: who waits sees that it goes on, and no job is ended for silence."""

VERDICT = "gate verdict"
"""The user property of a report that holds the verdict."""


def get_ready(config: pytest.Config, benchmarks: Sequence[pytest.Item]) -> None:
    """Refuse what cannot run before measuring, and register the plugin that runs the benchmarks."""
    suite = session_of(config)
    workbench, against, repository = suite.workbench, suite.against, suite.repository
    assert against is not None
    try:
        read_accepted(repository.root / ".benchmarks" / FILE_NAME)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    half_bytes = workbench.halve_memory()
    items, unmeasured = [], {}
    for item in benchmarks:
        refusal = workbench.why_not(benchmark_of(item).case)
        if refusal is None or refusal.is_of_a_side:
            items.append(item)
        else:
            unmeasured[item.nodeid] = refusal.sentence
    if against.compiles and not any(benchmark_of(item).case.is_compiled for item in benchmarks):
        raise pytest.UsageError(
            "--gate-compile judges seconds to compile, and none of these cases is compiled; add --execution compiled."
        )
    if not items:
        first, reason = next(iter(unmeasured.items()))
        raise pytest.UsageError(
            f"The gate can measure none of {len(unmeasured)} cases; of the first, {case_name(first)}: {reason}"
        )
    try:
        base = None if against.revision is None else find_base(repository, against.revision)
        device_type = suite.settings.device_type
        python_of_base = None if against.python is None else other_python(against.python, device_type)
    except (OtherPythonError, TreeError) as error:
        raise pytest.UsageError(str(error)) from error
    plan = GatePlan(
        repository=repository,
        storage=suite.saving.storage,
        against=against,
        base=base,
        settings=replace(suite.settings, memory_budget_bytes=half_bytes),
        cases={item.nodeid: benchmark_of(item).case for item in items},
        ids_at_base={item.nodeid: _id_at_base(item, against) for item in items},
        machine_info=machine_info_of(config),
        rules=replace(suite.gate_rules, undecided=against.undecided),
        python_of_base=python_of_base,
        environment=suite.environment,
        options=shlex.join(word for word in config.invocation_params.args if word not in config.args),
        most_failures=config.option.maxfail,
    )
    terminal, output = config.pluginmanager.getplugin("terminalreporter"), line_or_log(config)
    limit = time_limit_of(config)
    limit.refuse_if_too_short(items)
    watch = GateProgress(
        terminal,
        output if isinstance(output, Line) else None,  # None where nobody watches
        plan.rules.screen_pairs,
        plan.rules.confirm_looks[-1],
        plan.seconds,
        lambda: limit.seconds_left,
        0.0 if config.option.verbose > 0 else SECONDS_BETWEEN_LINES,
    )
    workbench.beside = RunsBeside(suite.settings.device, str(plan.storage))
    workbench.beside.scan()
    other_cores = workbench.others.cores()  # before workers are among them

    def how_long(left: Sequence[str]) -> str:
        measured = [item for item in items if item.nodeid in left]
        line = gate_eta(measured, plan.rules, against.minutes, workbench, other_cores)
        return f"{line} Beside them each pair compiles, twice a side." if against.compiles else line

    run = GateRun(plan, how_long=how_long)
    passed_over = why_gpu_is_passed_over(suite.settings.device)
    opening = [*([passed_over] if passed_over else []), *workbench.neighbours]
    config.pluginmanager.register(GateScreen(run, watch, unmeasured, opening), "gate")


def gate_eta(
    items: Sequence[pytest.Item], rules: Rules, minutes: float, workbench: Workbench, others: float | None
) -> str:
    """Say before the first launch pair how long these cases will take, and whether the machine is too busy for them.

    `others` are the cores that other programs use, None where that is not known.
    """
    kept, of_cases = kept_ceilings(workbench.device), {}
    for item in items:
        case, settings = benchmark_of(item).case, workbench.settings
        round_seconds = predicted_seconds(item, settings, kept) / (workbench.rounds(case) + settings.warmup_rounds)
        rounds = max(4 * FEWEST_QUADRUPLES * round_seconds, QUADRUPLES_SECONDS[1])
        of_cases[item.nodeid] = 2 * settings.warmup_rounds * round_seconds + rounds
    # This process has started as a worker does: with torch, the suite and the collection.
    cost = PairCost(seconds_since_process_start(), of_cases)
    needed = cost.needed_seconds(of_cases, rules) * (kept_ratio(workbench.device) or 1.0) / 60
    cases, usable = how_many(len(items), "case"), len(os.sched_getaffinity(0))
    about = max(1, round(needed))
    line = f"{cases} to measure, about {about} min."
    if about > minutes:
        line = f"{cases} to measure, {minutes:g} min (--gate-minutes), too few to decide all."
    threads = workbench.settings.threads if workbench.settings.device_type == "cpu" else 1
    if others is None or others + min(threads, usable) <= usable + BUSY_CORES:
        return line
    return (
        f"{line} BUSY MACHINE: other programs use {others:.1f} of {usable} cores, so it will take longer and decide "
        "fewer cases; wait for a quiet machine where you can."
    )


def _id_at_base(item: pytest.Item, against: Against) -> str:
    """The node id of the same test with base's value on its axis."""
    other = against.other_option
    axes = dict(item.callspec.params)  # type: ignore[attr-defined]  # public on every parametrized pytest.Function
    if other is None or other.axis not in axes:
        return item.nodeid
    axes[other.axis] = other.value
    family = type(benchmark_of(item).case)
    return f"{item.nodeid.partition('[')[0]}[{family.id_of(*(axes[name] for name in family.axes))}]"


@dataclass(eq=False)  # pytest keeps its plugins in sets
class GateScreen:
    run: GateRun
    watch: GateProgress
    unmeasured: dict[str, str]
    """Why a case is not measured."""
    opening: Sequence[str] = ()
    """What is said before the first launch pair."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        if self.run.plan.cases and not session.testsfailed:
            for sentence in self.opening:
                self.watch.say(sentence)
            session.config.option.maxfail = 0  # the gate ends its measuring itself, and each case has a verdict
            try:
                run_gate(self.run, self.watch)
            except (TreeError, UnmeasurableError) as error:
                if isinstance(error, UnmeasurableError):
                    tell(SKIPPED_COMMIT)
                raise pytest.UsageError(str(error)) from error
            except OSError as error:
                kept = f"{self.run.paths[-1]} is complete up to here" if self.run.paths else "Nothing was measured"
                pytest.exit(
                    f"The gate's samples cannot be written: {error}. {kept}; free disk space and run it again.",
                    returncode=pytest.ExitCode.INTERNAL_ERROR,
                )
            finally:
                self.watch.ends()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report the verdict of the case, which has been measured."""
        if not is_benchmark(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        outcome, words, reason = self._verdict_on(item.nodeid)
        longrepr: str | tuple[str, int, str] | None = reason if outcome == "failed" else None
        if outcome == "skipped":
            longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {reason}")
        report = pytest.TestReport(
            item.nodeid,
            item.location,
            dict.fromkeys(item.keywords, 1),
            outcome,  # type: ignore[arg-type]  # one of the three that it takes
            longrepr,
            "call",
            user_properties=[(VERDICT, words)],
            _pdbshown=True,  # pytest lists it as failed, and leaves to the screen of the gate what it says
        )
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _verdict_on(self, case_id: str) -> tuple[str, str, str]:
        """pytest's outcome, the verdict, and the sentence that explains it."""
        result = self.run.result
        if case_id in self.unmeasured:
            return "skipped", "NOT MEASURED", self.unmeasured[case_id]
        assert result is not None
        if result.verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE):
            return "skipped", str(result.verdict), result.reason
        rows = [row for row in result.cases if case_of(row.id) == case_id]
        row, *to_compile = rows
        words = str(row.verdict) if row.effect is None else f"{row.verdict} {row.effect.effect:+.1%}"
        words += "".join(f", to compile {one.verdict}" for one in to_compile if one.is_failure)
        risen = [exact for exact in result.exact if exact.id == case_id and exact.is_failure]
        words += f", MORE {', '.join(exact.counter for exact in risen)}" if risen else ""
        failed_undecided = result.verdict == RunVerdict.UNDECIDED and Verdict.UNDECIDED in {one.verdict for one in rows}
        if any(one.is_failure for one in rows) or risen or failed_undecided:
            alone = replace(result, cases=rows, exact=risen, suite=None)
            found = finding_sentences(alone, self.run.header, self.run.plan.rules)
            return "failed", words, "\n".join([*table(*verdict_table(alone)), *found])
        if row.verdict == Verdict.NOT_MEASURED:
            return "skipped", words, row.explanation
        return "passed", words, ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
        words = dict(report.user_properties).get(VERDICT)
        if words is None:
            return None
        if config.option.verbose <= 0:
            return report.outcome, "", ""  # the screen has it
        letter = {"passed": ".", "failed": "F", "skipped": "s"}[report.outcome]
        return report.outcome, letter, re.sub(r" [+-][\d.]+%", "", str(words))  # the table has the figure

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if code := finish(self.run):
            session.exitstatus = code

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = ending_lines(self.run, is_whole=terminalreporter.config.option.verbose > 0)
        terminalreporter.ensure_newline()
        for line in lines:
            terminalreporter.write_line(painted(line, terminalreporter.hasmarkup))


def finish(run: GateRun) -> int:
    """Tell git and write the summary where they are asked for; the exit code of what was judged."""
    result, summary = run.result, run.plan.against.summary
    if result is None:
        return 0
    tell(result.bisect_code)
    if result.verdict == RunVerdict.UNFINISHED:
        run.notes.append("An unfinished gate is not a success; give it more minutes or fewer cases.")
    if summary is not None:
        try:
            text = markdown(result, run.header, run.plan.rules)
            text += "".join(f"* {in_markdown(line)}\n" for line in run.what_changed)
            write_whole(summary, text.encode())
        except OSError as error:
            run.notes.append(f"--gate-summary {summary} cannot be written: {error}.")
    return result.exit_code


def ending_lines(run: GateRun, is_whole: bool = False) -> list[str]:
    """Everything for a terminal at the end of a run, with where its samples and what may be accepted lie; the verdict
    comes first and last.
    """
    lines = ["No verdict: the run did not finish."]
    if run.result is not None:
        shown = report_lines if is_whole else quiet_lines
        lines = shown(run.result, run.header, run.plan.rules, run.what_changed)
        limits = limits_to_accept(run.result, base_revision(run.header))
        if limits:
            stem = run.paths[-1].name.partition(".")[0]
            run.notes.append(offer_entries(limits, run.paths[-1].with_name(f"{stem}_accept.toml")))
    for path in run.paths[-1:]:
        typed = shlex.quote(os.path.relpath(path))
        run.notes.append(f"Samples: `{program()} replay {typed}` judges them again.")
    last = lines[-1:] if run.result is not None else []
    return [*(lines[:-1] if last else lines), *run.notes, *search_lines(run), *last]


def search_lines(run: GateRun) -> list[str]:
    """What to type to find the commit after base that is slower; none where there is only one, or a change of the
    working tree may be it.
    """
    plan, result = run.plan, run.result
    bad = result is not None and plan.base is not None and result.bisect_code == BAD_COMMIT
    if result is None or plan.base is None or not bad or os.environ.get(VARIABLE):
        return []
    root, base = plan.repository.root, plan.base
    between = run_git(root, "rev-list", "--count", f"{base.full_hash}..HEAD").stdout.strip()
    if run.header["head"].get("changed_files") or not between.isdecimal() or int(between) < 2:
        return []
    risen = [row.id for row in result.exact if row.verdict == Verdict.MORE]
    case = next(iter([row.id for row in result.cases if row.verdict == Verdict.SLOWER] + risen), "")
    options = shlex.split(re.sub(r"--against[= ]\S+", "", plan.options))
    options = options[2:] if options[:2] == CONFIGURED else options
    case = case if plan.tests is None else os.path.normpath(f"{plan.root}/{case}")
    typed = shlex.join(["run", case.removeprefix("perf_tests/"), *options, "--against", base.short_hash, "--bisect"])
    command, first = program(), ""
    if plan.repository.holds_suite:  # what measures must not be what git checks out
        copy = f"../{root.name}-judge"
        first = f"git worktree add --detach {copy} HEAD && make -C {copy} .venv/.installed && "
        command = f"{copy}/.venv/bin/perf-tests"
    return [
        f"Which of {between} commits is it? Type in {root}:",
        f"  {first}git bisect start HEAD {base.short_hash} && git bisect run {command} {typed}",
    ]
