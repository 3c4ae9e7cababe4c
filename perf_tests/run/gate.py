"""The gate under pytest: measure the collected cases in turns with base, and report a verdict as each test's result."""

import shlex
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from perf_tests.bench.against import Against
from perf_tests.bench.progress import Line
from perf_tests.bench.stash import AGAINST, CASE, GATE_RULES, SAVING, SETTINGS, WORKBENCH
from perf_tests.cases import family_of
from perf_tests.gate.conclusion import RunVerdict
from perf_tests.gate.rules import Rules
from perf_tests.gate.verdicts import CaseResult, Verdict
from perf_tests.paired.measuring import OutOfTimeError, UnmeasurableError
from perf_tests.paired.run import GatePlan, GateRun, run_gate
from perf_tests.paired.trees import Commit, TreeError, find_commit
from perf_tests.records.store import write_whole
from perf_tests.run.before import accepted_slowdowns, machine_info_of, terminal_line
from perf_tests.run.time_limit import TIME_LIMIT, TimeLimit
from perf_tests.views.screens.gate import finding_sentences, markdown, report_lines
from perf_tests.views.screens.lines import case_name

VERDICT = "gate verdict"
"""The user property of a report that holds the verdict."""


def get_ready(config: pytest.Config, benchmarks: Sequence[pytest.Item]) -> None:
    """Refuse what cannot run before measuring, and register the plugin that runs the benchmarks."""
    workbench, against = config.stash[WORKBENCH], config.stash[AGAINST]
    assert against is not None
    accepted_slowdowns(config.rootpath)
    # Base and head are in memory at the same time.
    workbench.budget_bytes //= 2
    items, unmeasured = [], {}
    for item in benchmarks:
        refusal = workbench.why_not(item.stash[CASE])
        # Base may support what head does not; only the two workers can tell.
        if refusal is None or refusal.outcome == "unsupported":
            items.append(item)
        else:
            unmeasured[item.nodeid] = refusal.in_words
    plan = GatePlan(
        root=config.rootpath,
        storage=config.stash[SAVING].storage,
        against=against,
        base=_base(config, against),
        settings=replace(config.stash[SETTINGS], memory_budget_bytes=workbench.budget_bytes),
        cases={item.nodeid: item.stash[CASE] for item in items},
        ids_at_base={item.nodeid: _id_at_base(item, against) for item in items},
        machine_info=machine_info_of(config),
        rules=replace(config.stash.get(GATE_RULES, Rules()), undecided=against.undecided),
        options=shlex.join(word for word in config.invocation_params.args if word not in config.args),
    )
    terminal = config.pluginmanager.getplugin("terminalreporter")
    limit = config.stash[TIME_LIMIT]
    if limit is not None:
        limit.refuse_if_too_short(items)
    watch = GateWatch(terminal, terminal_line(config), plan.rules.screen_pairs, plan.seconds, limit)
    config.pluginmanager.register(GatePlugin(GateRun(plan), watch, unmeasured), "gate")


def _base(config: pytest.Config, against: Against) -> Commit | None:
    try:
        return None if against.revision is None else find_commit(config.rootpath, against.revision)
    except TreeError as error:
        raise pytest.UsageError(str(error)) from error


def _id_at_base(item: pytest.Item, against: Against) -> str:
    """The node id of the same test with base's value on its axis."""
    other = against.other_option
    axes = dict(item.callspec.params)  # type: ignore[attr-defined]  # public on every parametrized pytest.Function
    if other is None or other.axis not in axes:
        return item.nodeid
    axes[other.axis] = other.value
    family = family_of(axes)
    return f"{item.nodeid.partition('[')[0]}[{family.id_of(*(axes[name] for name in family.axes))}]"


@dataclass
class GateWatch:
    """Shows the progress of the run: on a rewritten `line`, or without one as a line per launch pair."""

    terminal: pytest.TerminalReporter | None
    line: Line | None
    screen_pairs: int
    seconds: float
    """The run's budget."""
    limit: TimeLimit | None = None
    _start: float = field(default_factory=time.monotonic)
    _prefix: str = ""
    _cases: int = 0
    _pair_start: float | None = None
    _case_start: float | None = None
    _longest_case_seconds: float = 0.0

    def pair_begins(self, stage: int, pair: int, cases: int) -> None:
        if self.limit is not None:
            now = self.limit.now()
            if self._pair_start is not None:
                self._end_unless_left((now - self._pair_start) * cases / self._cases)
            self._pair_start, self._case_start = now, None
        self._cases = cases
        self._prefix = f"launch pair {pair + 1} of {self.screen_pairs}"
        if stage == 2:
            self._prefix = f"launch pair {pair + 1 - self.screen_pairs} of the undecided cases"
        if self.line is None and self.terminal is not None:
            seconds = time.monotonic() - self._start
            self.terminal.ensure_newline()
            self.terminal.write_line(f"{self._prefix}: {cases} cases, {seconds:.0f} s so far")

    def _end_unless_left(self, seconds: float) -> None:
        if self.limit is not None and seconds > self.limit.seconds_left:
            self.limit.is_reached = True
            raise OutOfTimeError

    def case_begins(self, case: str, place: int) -> None:
        if self.limit is not None:
            now = self.limit.now()
            if self._case_start is not None:
                self._longest_case_seconds = max(self._longest_case_seconds, now - self._case_start)
            self._case_start = now
            self._end_unless_left(self._longest_case_seconds)
        if self.line is not None:
            left = max(0.0, self.seconds - (time.monotonic() - self._start))
            left_words = f"at most {left / 60:.0f} min left"
            text = f"{self._prefix}  case {place + 1} of {self._cases}  {left_words}  {case_name(case)}"
            self.line.rewrite(text, erase=True)

    def ends(self) -> None:
        if self.line is not None:
            self.line.rewrite("", erase=True)


@dataclass(eq=False)  # pytest keeps its plugins in sets
class GatePlugin:
    run: GateRun
    watch: GateWatch
    unmeasured: dict[str, str]
    """Why a case is not measured."""
    rows: dict[str, CaseResult] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        if self.run.plan.cases and not session.testsfailed:
            self._measure()
        return (yield)

    def _measure(self) -> None:
        try:
            run_gate(self.run, self.watch)
        except (TreeError, UnmeasurableError) as error:
            raise pytest.UsageError(str(error)) from error
        except OSError as error:
            kept = f"{self.run.paths[-1]} is complete up to here" if self.run.paths else "Nothing was measured"
            pytest.exit(
                f"The gate's samples cannot be written: {error}. {kept}; free disk space and run it again.",
                returncode=pytest.ExitCode.INTERNAL_ERROR,
            )
        finally:
            self.watch.ends()
        result = self.run.result
        self.rows = {row.id: row for row in result.cases} if result else {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """The case has been measured; report its verdict."""
        if CASE not in item.stash:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=self._report(item))
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _report(self, item: pytest.Item) -> pytest.TestReport:
        outcome, words, reason = self._verdict_on(item.nodeid)
        longrepr: str | tuple[str, int, str] | None = reason if outcome == "failed" else None
        if outcome == "skipped":
            longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {reason}")
        return pytest.TestReport(
            item.nodeid,
            item.location,
            dict.fromkeys(item.keywords, 1),
            outcome,  # type: ignore[arg-type]  # one of the three that it takes
            longrepr,
            "call",
            user_properties=[(VERDICT, words)],
        )

    def _verdict_on(self, case_id: str) -> tuple[str, str, str]:
        """pytest's outcome, the verdict, and the sentence that explains it."""
        result = self.run.result
        if case_id in self.unmeasured:
            return "skipped", "NOT MEASURED", self.unmeasured[case_id]
        assert result is not None
        if result.verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE):
            return "skipped", str(result.verdict), result.reason
        row = self.rows[case_id]
        words = str(row.verdict) if row.effect is None else f"{row.verdict} {row.effect.effect:+.1%}"
        risen = [exact for exact in result.exact if exact.id == case_id and exact.is_failure]
        words += f", MORE {', '.join(exact.counter for exact in risen)}" if risen else ""
        failed_undecided = row.verdict == Verdict.UNDECIDED and result.verdict == RunVerdict.UNDECIDED
        if row.is_failure or risen or failed_undecided:
            alone = replace(result, cases=[row], exact=risen, suite=None)
            return "failed", words, "\n".join(finding_sentences(alone, self.run.header, self.run.plan.rules))
        if row.verdict == Verdict.NOT_MEASURED:
            return "skipped", words, row.explanation
        return "passed", words, ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        words = dict(report.user_properties).get(VERDICT)
        if words is None:
            return None
        letter = {"passed": ".", "failed": "F", "skipped": "s"}[report.outcome]
        return report.outcome, letter, str(words)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        result, summary = self.run.result, self.run.plan.against.summary
        if result is None:
            return
        limit = self.watch.limit
        if result.exit_code:
            session.exitstatus = result.exit_code
        elif limit is not None and limit.is_reached:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
            left = sum(row.verdict in (Verdict.UNDECIDED, Verdict.NOT_MEASURED) for row in result.cases)
            self.run.notes.append(
                f"--time-limit {limit.minutes:g} ended the gate with {left} of {len(result.cases)} cases undecided, "
                "which is no success; give it more minutes or fewer cases."
            )
        if summary is not None:
            try:
                write_whole(summary, markdown(result, self.run.header, self.run.plan.rules).encode())
            except OSError as error:
                self.run.notes.append(f"--gate-summary {summary} cannot be written: {error}.")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = ["No verdict: the run did not finish."]
        if self.run.result is not None:
            lines = report_lines(self.run.result, self.run.header, self.run.plan.rules)
        for path in self.run.paths[-1:]:
            self.run.notes.append(f"Samples: {path}. Judge them again with `python -m perf_tests replay {path}`.")
        terminalreporter.section("gate", sep="-")
        for line in (*lines, *self.run.notes):
            terminalreporter.write_line(line)
