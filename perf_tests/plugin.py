"""pytest's hooks: which cases are collected, and what happens to each."""

import gc
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from model.device import why_gpu_is_passed_over
from model.precision import PRECISIONS
from perf_tests.bench import outcomes as benchmark_options
from perf_tests.bench.outcomes import ImpossibleError, Outcome, outcome_of_error, read_against
from perf_tests.bench.workbench import (
    AGAINST,
    CASE,
    OTHER_MEASURE,
    OUTCOME,
    PASS,
    PEERS,
    PLACES,
    REPOSITORY,
    SAVING,
    SETTINGS,
    WORKBENCH,
)
from perf_tests.cases.options import PASSES, add_options
from perf_tests.cases.selected import FAMILIES, examined_phases, family_of
from perf_tests.cases.settings import asks_for_ranks, read_settings
from perf_tests.hardware.device import uncap_address_space
from perf_tests.phases import EXAMINED, place_of
from perf_tests.records.record import Json
from perf_tests.run import after as reporting
from perf_tests.run import before
from perf_tests.run import before as baseline
from perf_tests.run import before as facts
from perf_tests.run import before as refusals
from perf_tests.run import before as terminal
from perf_tests.run.before import choose_nothing_anew, note_deselected, of_interrupted_run, places_of_share
from perf_tests.run.termination import TERMINATION, register
from perf_tests.user_code.guard import ChangedDefaultsError, OwnModelError, process_kept, torch_defaults_kept
from perf_tests.user_code.named import UNDER_TEST, repository_of

LEDGER_TEST = "test_counters.py"

COLLECTED = pytest.StashKey[int]()
"""On an item: its place in the collection, which plugins that shuffle tests would hide."""

_places = count()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    register(config)
    choose_nothing_anew(config)
    try:
        typed = {name: config.getoption(name) for name in UNDER_TEST}
        config.stash[REPOSITORY] = repository = repository_of(typed, config.invocation_params.dir)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    sys.dont_write_bytecode |= not repository.holds_suite  # beside their files
    if asks_for_ranks(config):
        from perf_tests.run import ranks as joining

        joining.begin(config)
    config.stash[SAVING] = benchmark_options.take_over(config, repository.root / ".benchmarks")


def pytest_sessionstart(session: pytest.Session) -> None:
    # The imported modules stay; without this every full garbage collection of the run walks them.
    gc.freeze()
    stash = session.config.stash
    with _agreed(stash, "settings"):
        stash[SETTINGS] = read_settings(session.config)
        try:
            stash[AGAINST] = read_against(session.config, stash[SETTINGS], stash[SAVING])
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        refusals.read_run_options(session.config)
    if PEERS in stash:
        from perf_tests.run import ranks as starts

        starts.compare_starts(session.config, stash[PEERS], facts.source_digest(stash[REPOSITORY]))


def _agreed(stash: pytest.Stash, topic: str) -> AbstractContextManager[None]:
    """In a run on several ranks, a usage error inside on any of them ends all; rank 0 says it."""
    if PEERS not in stash:
        return nullcontext()
    # Imported late, as wherever ranks begin: a run on one device must not start later for it.
    from perf_tests.run import ranks as joining

    return joining.agreed(stash[PEERS], topic)


def pytest_report_header(config: pytest.Config) -> list[str]:
    settings = config.stash.get(SETTINGS, None)
    if settings is None:
        return []
    reason = why_gpu_is_passed_over(settings.device)
    lines = [f"device: {settings.device}, threads: {settings.threads}", *([reason] if reason else [])]
    if settings.nvtx:
        lines.append("nvtx: rounds run inside ranges, so nothing is timed and nothing is saved")
    if settings.cold_cache:
        lines.append("caches: flushed before each measured round of attention alone, warm in language models")
    return lines


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return terminal.how_long(config)


def _is_late(config: pytest.Config) -> bool:
    """Whether pytest met these hooks and options as it collected, as `--pyargs` in another folder makes it do."""
    return SETTINGS not in config.stash


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The ledger is checked only on request, because counting its grid would delay a measurement."""
    if _is_late(config):
        return True
    asked = config.getoption("--update-counters") or any(LEDGER_TEST in argument for argument in config.args)
    return True if collection_path.name == LEDGER_TEST and not asked else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: Any) -> list[pytest.Item] | None:
    """A benchmark of a phase or pass that was not chosen is not collected; [] excludes it."""
    if _is_late(collector.config):
        return []
    settings = collector.config.stash[SETTINGS]
    marks = {mark.name: mark.args[0] for mark in getattr(obj, "pytestmark", ()) if mark.args}
    if "phase" not in marks:
        return None
    if marks["phase"] not in examined_phases(settings):
        return []
    if "extra_pass" in marks:
        return None if marks["extra_pass"] in settings.passes else []
    is_in_worker = OTHER_MEASURE in collector.config.stash
    return None if EXAMINED[marks["phase"]].is_timed or is_in_worker else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread a benchmark over the axes it asks for."""
    phase = _marked(metafunc.definition, "phase")
    if phase is None:
        return
    family = family_of(phase)
    grid = family.grid(metafunc.config.stash[SETTINGS])
    metafunc.parametrize(",".join(family.axes), grid, ids=[family.id_of(*values) for values in grid], indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.stash[COLLECTED] = next(_places)


def pytest_deselected(items: list[pytest.Item]) -> None:
    note_deselected(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_late(config):
        raise pytest.UsageError(
            "pytest began without the options of perf_tests; instead of --pyargs type the folder, "
            f"`pytest {Path(__file__).parent}`, or `perf-tests run`."
        )
    with _as_usage_error(config):
        _collect(session, config, items)


@contextmanager
def _as_usage_error(config: pytest.Config) -> Iterator[None]:
    """A model of the user's that cannot be measured, and too little memory to begin, in one sentence."""
    try:
        yield
    except OwnModelError as error:
        raise pytest.UsageError(str(error)) from error
    except MemoryError:
        uncap_address_space()  # or the refusal could not be printed
        raise refusals.too_small(config) from None


def _collect(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the cases so that each model is built once, and get ready to measure them."""
    settings = config.stash[SETTINGS]
    for item in items:
        if phase := _marked(item, "phase"):
            axes = item.callspec.params  # type: ignore[attr-defined]  # public on every parametrized pytest.Function
            item.stash[PASS] = extra_pass = _marked(item, "extra_pass")
            # A pass flushes no caches, which would show in its figures.
            of_item = settings if extra_pass is None else replace(settings, cold_cache=False)
            item.stash[CASE] = family_of(phase).of(phase, axes, of_item)
    others = [item for item in items if CASE not in item.stash]
    # Runs that are resumed, shared out or compared need one order.
    in_order = sorted(items, key=lambda item: item.stash[COLLECTED])
    benchmarks = of_interrupted_run(config, _side_by_side([item for item in in_order if CASE in item.stash]))
    if benchmarks and config.stash[SETTINGS].shard is not None:
        benchmarks = _share_of(config, benchmarks)
    if benchmarks and not config.option.collectonly and not session.testsfailed:
        with config.stash[TERMINATION].waiting(), _agreed(config.stash, "ready"), _as_usage_error(config):
            benchmarks = before.get_ready(config, benchmarks)
        if PEERS in config.stash:
            from perf_tests.run import ranks as together

            benchmarks = together.planned(config, config.stash[PEERS], benchmarks)
        if config.stash[AGAINST] is not None:
            # Imported late: its statistics load scipy, which would slow the start of every other run.
            from perf_tests.run import gate

            gate.get_ready(config, benchmarks)
    items[:] = [*benchmarks, *others]


def _marked(item: Any, name: str) -> str | None:
    marker = item.get_closest_marker(name)
    return None if marker is None else str(marker.args[0])


def _side_by_side(benchmarks: list[pytest.Item]) -> list[pytest.Item]:
    """Timings before extra passes; within each by family and model, then by precision and phase."""
    families = list(FAMILIES)
    alone_last = sorted((item.stash[CASE] for item in benchmarks), key=lambda case: families.index(case.row.family))
    models = {built: place for place, built in enumerate(dict.fromkeys(case.built_from for case in alone_last))}
    precisions, passes = list(PRECISIONS), [None, *PASSES]

    def place(item: pytest.Item) -> tuple[int, int, int, tuple[bool, int]]:
        case, extra_pass = item.stash[CASE], passes.index(item.stash[PASS])
        return extra_pass, models[case.built_from], precisions.index(case.precision), place_of(case.phase)

    return sorted(benchmarks, key=place)


def _share_of(config: pytest.Config, benchmarks: list[pytest.Item]) -> list[pytest.Item]:
    config.stash[PLACES] = places = places_of_share(benchmarks, config.stash[SETTINGS])
    config.hook.pytest_deselected(items=[item for place, item in enumerate(benchmarks) if place not in set(places)])
    return [benchmarks[place] for place in places]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if CASE in item.stash:
        workbench = item.config.stash[WORKBENCH]
        refusal = workbench.why_not(item.stash[CASE])
        if refusal is not None:
            item.stash[OUTCOME] = refusal
            if refusal.outcome in reporting.FAILURES:
                pytest.fail(refusal.in_words, pytrace=False)
            pytest.skip(refusal.in_words)
        if workbench.session is not None:
            reporting.note_start(item, workbench)
    yield from _device_limits_skip(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    capture = item.config.pluginmanager.getplugin("capturemanager")
    try:
        with ExitStack() as kept:
            if CASE in item.stash:
                kept.enter_context(torch_defaults_kept())
                kept.enter_context(process_kept(capture.global_and_fixture_disabled if capture else nullcontext))
            yield from _device_limits_skip(item)
    except ImpossibleError as error:
        item.stash[OUTCOME] = Outcome("impossible", str(error))
        raise
    except ChangedDefaultsError as error:
        item.stash[OUTCOME] = Outcome("error", str(error))
        raise


def _device_limits_skip(item: pytest.Item) -> Generator[None, None, None]:
    """Running out of memory, or of what a kernel needs, skips the case with an outcome."""
    try:
        return (yield)
    except Exception as error:
        if CASE not in item.stash:
            raise
        workbench = item.config.stash[WORKBENCH]
        outcome = outcome_of_error(error, item.stash[CASE], workbench.device, workbench.budget_bytes)
        if outcome is None:
            raise
    # Here the error is gone, and with it the frames that kept the tensors of the failed round alive.
    item.stash[OUTCOME] = outcome
    pytest.skip(outcome.in_words)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if CASE in item.stash:
        reporting.note_report(item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """The progress line shows the figure of each case, so it needs no dot."""
    workbench = config.stash.get(WORKBENCH, None)
    if workbench is None or workbench.session is None or workbench.session.progress.line is None:
        return None
    return ("passed", "", "measured") if report.when == "call" and report.passed else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    uncap_address_space()  # the budget is for the cases; the record is written whatever they left of it
    reporting.finish(session)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reporting.show(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Json) -> None:
    facts.complete_machine_info(config, machine_info)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_group_stats(config: pytest.Config | None, benchmarks: list[Json]) -> None:
    """Leaves the grouping to pytest-benchmark, whose own command line calls this without a config."""
    if config is not None:
        baseline.prepare_table(config, benchmarks)
