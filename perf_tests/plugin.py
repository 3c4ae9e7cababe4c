"""pytest's hooks: which cases are collected, and what happens to each."""

import gc
import os
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.model.device import why_gpu_is_passed_over
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.audit.rounds import why_replaced
from perf_tests_suite.perf_tests.bench.judged import start_judge, why_no_judge
from perf_tests_suite.perf_tests.bench.options import read_against, take_over
from perf_tests_suite.perf_tests.bench.outcomes import ImpossibleError, Outcome, SuspiciousError, outcome_of_error
from perf_tests_suite.perf_tests.bench.recording import uncaptured
from perf_tests_suite.perf_tests.bench.session import (
    BENCHMARK,
    SESSION,
    BenchmarkItem,
    Session,
    benchmark_of,
    is_benchmark,
    session_of,
)
from perf_tests_suite.perf_tests.cases.devices import read_settings
from perf_tests_suite.perf_tests.cases.options import PASSES, add_options
from perf_tests_suite.perf_tests.cases.selected import FAMILIES, examined_phases, family_of
from perf_tests_suite.perf_tests.cases.settings import asks_for_ranks
from perf_tests_suite.perf_tests.gate.verdicts import SKIPPED_COMMIT
from perf_tests_suite.perf_tests.hardware.bound import bind, bind_again, put_back, unbind
from perf_tests_suite.perf_tests.hardware.device import uncap_address_space
from perf_tests_suite.perf_tests.interleaved.sides import BesideAnotherError, TreeError, alone, find_base
from perf_tests_suite.perf_tests.phases import EXAMINED, place_of
from perf_tests_suite.perf_tests.records.record import FAILURES, Json
from perf_tests_suite.perf_tests.run import after, before
from perf_tests_suite.perf_tests.run.bisection import check_starter, tell
from perf_tests_suite.perf_tests.run.ends import keep_pace
from perf_tests_suite.perf_tests.run.termination import NAME, Termination, termination_of
from perf_tests_suite.perf_tests.user_code.attention import IncorrectError
from perf_tests_suite.perf_tests.user_code.guard import (
    UserCodeError,
    forked_processes_ended,
    process_kept,
    torch_defaults_kept,
)
from perf_tests_suite.perf_tests.user_code.named import (
    CONFIGURED,
    UNDER_TEST,
    names_code,
    repository_of,
    serves_a_side,
    suite_model_notice,
    why_not_gated,
)
from perf_tests_suite.perf_tests.user_code.own_names import share_model

LEDGER_TEST = Path(__file__).with_name("test_counters.py")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    add_options(parser)
    words = pluginmanager.getplugin("pytestconfig").invocation_params.args
    if list(words[:2]) == CONFIGURED:
        parser.prog = "perf-tests run"
        _refuse_unknown_option(parser, words)


def _refuse_unknown_option(parser: pytest.Parser, words: Sequence[str]) -> None:
    """Refuse, by pytest.UsageError with the closest option, a word that is none; every plugin has added its own."""
    unknown = parser.parse_known_and_unknown_args(words)[1]
    word = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
    if word is not None:
        known = re.findall(r"(?<!\S)--[\w-]+", parser.optparser.format_help())
        close = "".join(f"; did you mean {name}?" for name in get_close_matches(word, known, 1))
        raise pytest.UsageError(f"perf-tests run has no option {word}{close} (`perf-tests run --help-all` lists all)")


# Imported late in what follows: `run.ranks`, because a run on one device must not start later for it, and `run.gate`,
# whose statistics load scipy.


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    check_starter(config)
    if _has_a_screen_of_its_own(config):
        config.option.verbose, config.option.reportchars = QUIET, ""
    config.pluginmanager.register(Termination(), NAME)
    environment = {**os.environ}
    ended = ExitStack()
    ended.enter_context(forked_processes_ended())
    config.add_cleanup(ended.close)
    typed = {name: config.getoption(name) for name in UNDER_TEST}
    if names_code(typed.values()):
        bind()
    judge = None
    if before.times_attention_of_the_users(config):
        if why := why_no_judge():
            raise pytest.UsageError(why)
        judge = start_judge()
        config.add_cleanup(judge.close)
    try:
        repository = repository_of(typed, config.invocation_params.dir, config.getoption("--bisect"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[SESSION] = suite = Session(repository, environment, put_back())  # finding a module runs its package
    suite.judge = judge
    before.keep_selection(config)
    # Code of no repository is the user's too; a worker shares it, or not, before pytest begins.
    if repository.holds_suite and not (repository.outside or serves_a_side()):
        share_model()
    # In a repository of the user's no `__pycache__` may appear beside their files. It stays so to the end of the
    # process, because their modules may be imported at any time.
    sys.dont_write_bytecode |= not repository.holds_suite
    if asks_for_ranks(config):
        from perf_tests_suite.perf_tests.run import ranks

        ranks.rendezvous(config)
    suite.saving = take_over(config, repository.root / ".benchmarks")


QUIET = -2
"""pytest's verbosity without header, progress by file and summary."""


def _has_a_screen_of_its_own(config: pytest.Config) -> bool:
    """Whether this session gates or measures, and nobody asked for pytest's own words by -v or -q."""
    option = config.option
    shapes_a_table = any(word.startswith(before.SHAPES_TABLE) for word in config.invocation_params.args)
    if option.verbose or option.collectonly or option.usepdb or shapes_a_table:
        return False
    if option.against or option.against_option:
        return True
    is_timed = not (option.benchmark_disable or option.benchmark_skip or option.nvtx or asks_for_ranks(config))
    return is_timed and all(path == before.HERE or path.parent == before.HERE for path in before.typed_paths(config))


def pytest_sessionstart(session: pytest.Session) -> None:
    # The imported modules stay; without this every full garbage collection of the run walks them.
    gc.freeze()
    bind_again()  # other plugins may have changed the suite as they were configured
    suite = session_of(session.config)
    with _agreed(suite, "settings"):
        try:
            suite.settings = read_settings(session.config)
        except pytest.UsageError as error:
            typed = {name: session.config.getoption(name) or "" for name in UNDER_TEST}
            if any(":" in text and str(error).startswith(f"{name} ") for name, text in typed.items()):
                tell(SKIPPED_COMMIT)  # the commit may lack the file
            raise
        try:
            suite.against = against = read_against(session.config, suite.settings, suite.saving)
            if against is not None and not session.config.option.collectonly:
                if against.revision is not None:
                    find_base(suite.repository, against.revision)
                if against.minutes:  # until pytest ends
                    locked = ExitStack()
                    locked.enter_context(alone())
                    session.config.add_cleanup(locked.close)
        except (BesideAnotherError, TreeError, ValueError) as error:
            raise pytest.UsageError(str(error)) from error
        before.read_run_options(session.config)
    if suite.peers is not None:
        from perf_tests_suite.perf_tests.run import ranks

        ranks.check_launches(session.config, suite.peers, before.source_digest(suite.repository))


def _agreed(suite: Session, topic: str) -> AbstractContextManager[None]:
    """End all ranks of a run on several for a usage error inside on any of them; rank 0 says it."""
    if suite.peers is None:
        return nullcontext()
    from perf_tests_suite.perf_tests.run import ranks

    return ranks.agreed(suite.peers, topic)


def _is_late(config: pytest.Config) -> bool:
    """Whether pytest met these hooks and options as it collected, as `--pyargs` in another folder makes it do."""
    return SESSION not in config.stash or not hasattr(session_of(config), "settings")


def pytest_report_header(config: pytest.Config) -> list[str]:
    if _is_late(config):
        return []
    places = before.typed_paths(config)
    if places and all(path.is_relative_to(before.HERE.parent / "numerics_tests") for path in places):
        return []  # it has a line of its own, and other threads
    settings = session_of(config).settings
    reason = why_gpu_is_passed_over(settings.device)
    typed = {name: config.getoption(name) for name in UNDER_TEST}
    whose = None if config.getoption("--bisect") else suite_model_notice(typed, config.invocation_params.dir)
    device = f"device: {settings.device}, threads: {settings.threads}"
    lines = [line for line in (whose, device, reason) if line]
    if settings.nvtx:
        lines.append("nvtx: rounds run inside ranges, so nothing is timed and nothing is saved")
    if settings.cold_cache:
        lines.append("caches: flushed before each measured round of attention alone, warm in language models")
    return lines


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    if _is_late(config):
        return []
    is_recorded = session_of(config).run is not None
    header = pytest_report_header(config) if config.option.verbose == QUIET and is_recorded else []
    return [*header, *before.how_long(config)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the ledger but on request, because counting its grid would delay a measurement."""
    if _is_late(config):
        return True
    asked = config.getoption("--update-counters") or any(LEDGER_TEST.name in argument for argument in config.args)
    return True if collection_path == LEDGER_TEST and not asked else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: Any) -> list[pytest.Item] | None:
    """A benchmark of a phase or pass that was not chosen is not collected; [] excludes it."""
    if _is_late(collector.config):
        return []
    suite = session_of(collector.config)
    # Any module may hold an object that answers to every name, such as unittest.mock's `call`.
    marked = [mark for mark in getattr(obj, "pytestmark", ()) if isinstance(mark, pytest.Mark)]
    marks = {mark.name: mark.args[0] for mark in marked if mark.args}
    if "phase" not in marks:
        return None
    if marks["phase"] not in examined_phases(suite.settings):
        return []
    if "extra_pass" in marks:
        return None if marks["extra_pass"] in suite.settings.passes else []
    is_in_worker = suite.other_measure is not None
    return None if EXAMINED[marks["phase"]].is_timed or is_in_worker else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread a benchmark over the axes it asks for."""
    phase = _marked(metafunc.definition, "phase")
    if phase is None:
        return
    family = family_of(phase)
    grid = family.grid(session_of(metafunc.config).settings)
    metafunc.parametrize(",".join(family.axes), grid, ids=[family.id_of(*values) for values in grid])


def pytest_itemcollected(item: pytest.Item) -> None:
    if SESSION in item.config.stash:
        collected = session_of(item.config).collected
        collected[item] = len(collected)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        session_of(item.config).is_deselected = True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the order of the collection: a plugin that shuffles tests, as pytest-randomly does, is undone.

    Runs that are resumed or compared need one order.
    """
    if _is_late(config):
        raise pytest.UsageError(
            "pytest began without the options of perf_tests; instead of --pyargs type the folder, "
            f"`pytest {Path(__file__).parent}`, or `perf-tests run`."
        )
    with _as_usage_error(config):
        _collect(session, config, items)


@contextmanager
def _as_usage_error(config: pytest.Config) -> Iterator[None]:
    """Say in one sentence that a model of the user's cannot be measured, or that memory is too short to begin."""
    try:
        yield
    except UserCodeError as error:
        tell(SKIPPED_COMMIT)
        raise pytest.UsageError(str(error)) from error
    except MemoryError:
        uncap_address_space()  # or the refusal could not be printed
        budget = config.getoption("--memory-budget")
        words = "The memory that is free" if budget is None else f"--memory-budget {budget}"
        raise pytest.UsageError(
            f"{words} is less than the run needs before its first case; give it at least 256MiB."
        ) from None


def _collect(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the cases so that each model is built once, and get ready to measure them."""
    suite = session_of(config)
    settings = suite.settings
    for item in items:
        if phase := _marked(item, "phase"):
            axes = item.callspec.params  # type: ignore[attr-defined]  # public on every parametrized pytest.Function
            extra_pass = _marked(item, "extra_pass")
            # A pass flushes no caches, which would show in its figures.
            of_item = settings if extra_pass is None else replace(settings, cold_cache=False)
            item.stash[BENCHMARK] = BenchmarkItem(family_of(phase).of(phase, axes, of_item), extra_pass)
    others = [item for item in items if not is_benchmark(item)]
    in_order = sorted(filter(is_benchmark, items), key=suite.collected.__getitem__)
    # Side by side: timings before extra passes; within each by family and model, then by precision and phase.
    families, precisions, passes = list(FAMILIES), list(PRECISIONS), [None, *PASSES]
    alone_last = sorted(
        (benchmark_of(item).case for item in in_order), key=lambda case: families.index(case.phase_row.family)
    )
    models = {built: place for place, built in enumerate(dict.fromkeys(case.built_from for case in alone_last))}

    def place_in_run(item: pytest.Item) -> tuple[int, int, int, tuple[bool, int]]:
        case, extra_pass = benchmark_of(item).case, passes.index(benchmark_of(item).extra_pass)
        return extra_pass, models[case.built_from], precisions.index(case.precision), place_of(case.phase)

    benchmarks = before.of_interrupted_run(config, sorted(in_order, key=place_in_run))
    if suite.against is not None and others:
        raise pytest.UsageError(why_not_gated(os.path.relpath(others[0].path)))
    compared = [item for item in others if "benchmark" in getattr(item, "fixturenames", ())]
    if (suite.saving.compare or suite.saving.compare_fail) and compared:
        raise pytest.UsageError(
            f"{os.path.relpath(compared[0].path)} is no benchmark of the suite, whose records do not hold it, so "
            "nothing would compare it; run it alone, as pytest-benchmark does, or drop --benchmark-compare."
        )
    if config.option.verbose == QUIET and (others or not benchmarks):
        config.option.verbose = 0  # these have no screen of their own
    if benchmarks and not config.option.collectonly and not session.testsfailed:
        with termination_of(config).waiting(), _agreed(suite, "ready"), _as_usage_error(config):
            benchmarks = before.get_ready(config, benchmarks)
        if suite.peers is not None:
            from perf_tests_suite.perf_tests.run import ranks

            benchmarks = ranks.planned(config, suite.peers, benchmarks)
        if suite.against is not None:
            from perf_tests_suite.perf_tests.run import gate

            gate.get_ready(config, benchmarks)
    items[:] = [*benchmarks, *others]


def _marked(item: Any, name: str) -> str | None:
    marker = item.get_closest_marker(name)
    return None if marker is None else str(marker.args[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if is_benchmark(item):
        workbench = session_of(item.config).workbench
        refusal = workbench.why_not(benchmark_of(item).case)
        if refusal is not None:
            benchmark_of(item).outcome = refusal
            if refusal.outcome in FAILURES:
                pytest.fail(refusal.sentence, pytrace=False)
            pytest.skip(refusal.sentence)
        if workbench.session is not None:
            after.note_start(item, workbench)
    yield from _device_limits_skip(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    try:
        with ExitStack() as kept:
            if is_benchmark(item):
                kept.enter_context(torch_defaults_kept())
                kept.enter_context(process_kept(uncaptured(item.config)))
            yield from _device_limits_skip(item)
            if is_benchmark(item) and benchmark_of(item).case.user_code and (replaced := put_back()):
                raise SuspiciousError(why_replaced(replaced))
    except (ImpossibleError, IncorrectError, SuspiciousError, UserCodeError) as error:
        kinds = {ImpossibleError: "impossible", IncorrectError: "incorrect", SuspiciousError: "suspicious"}
        benchmark_of(item).outcome = Outcome(kinds.get(type(error), "error"), str(error))
        raise


def _device_limits_skip(item: pytest.Item) -> Generator[None, None, None]:
    """Let running out of memory, or of what a kernel needs, skip the case with an outcome."""
    try:
        return (yield)
    except Exception as error:
        if not is_benchmark(item):
            raise
        workbench = session_of(item.config).workbench
        outcome = outcome_of_error(error, benchmark_of(item).case, workbench.device, workbench.budget_bytes)
        if outcome is None:
            raise
    # Here the error is gone, and with it the frames that kept the tensors of the failed round alive.
    benchmark_of(item).outcome = outcome
    pytest.skip(outcome.sentence)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if is_benchmark(item):
        after.note_report(item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """The progress line shows the figure of each case, so it needs no dot."""
    suite = config.stash.get(SESSION, None)
    measuring = suite.workbench.session if suite is not None and suite.is_ready else None
    has_line = measuring is not None and measuring.progress.line is not None
    return ("passed", "", "measured") if has_line and report.when == "call" and report.passed else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    uncap_address_space()  # the budget is for the cases; the record is written whatever they left of it
    if not _is_late(session.config):
        keep_pace(session_of(session.config))
        after.finish(session)


def pytest_unconfigure() -> None:
    unbind()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _is_late(terminalreporter.config):
        after.show(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Json) -> None:
    before.complete_machine_info(config.stash.get(SESSION, None), machine_info)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_group_stats(config: pytest.Config | None, benchmarks: list[Json]) -> None:
    """Leave the grouping to pytest-benchmark, whose own command line calls this without a config."""
    if config is not None:
        before.prepare_table(config, benchmarks)
