"""pytest's side of the suite: which cases are collected, and what becomes of each."""

import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from model.device import why_gpu_is_passed_over
from model.precision import PRECISIONS
from perf_tests.bench import benchmark_options
from perf_tests.bench.against import read_against
from perf_tests.bench.outcomes import ImpossibleError, Outcome
from perf_tests.bench.stash import AGAINST, CASE, OUTCOME, PASS, SAVING, SETTINGS, WORKBENCH
from perf_tests.cases import (
    ATTENTION_AXES,
    LANGUAGE_MODEL_AXES,
    AttentionCase,
    Case,
    attention_case,
    attention_grid,
    attention_id,
    chosen_phases,
    language_model_case,
    language_model_grid,
    language_model_id,
)
from perf_tests.identity import is_attention
from perf_tests.options import PASSES, Settings, add_options, read_settings
from perf_tests.phases import place_of
from perf_tests.records.record import Json
from perf_tests.run import after as reporting
from perf_tests.run import before as recording

LEDGER_TEST = "test_counters.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[SAVING] = benchmark_options.take_over(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    # The imported modules stay; else every full collection walks them again, in collecting and between any two cases.
    gc.freeze()
    stash = session.config.stash
    stash[SETTINGS] = read_settings(session.config)
    stash[AGAINST] = read_against(session.config, stash[SETTINGS], stash[SAVING])


def pytest_report_header(config: pytest.Config) -> list[str]:
    settings = config.stash.get(SETTINGS, None)
    if settings is None:
        return []
    reason = why_gpu_is_passed_over(settings.device)
    lines = [f"device: {settings.device}, threads: {settings.threads}", *([reason] if reason else [])]
    if settings.nvtx:
        lines.append("nvtx: the rounds have ranges in them, so nothing is timed and nothing is saved")
    return lines


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The ledger is checked where somebody asks for it; counting its grid would hold up a measurement."""
    asked = config.getoption("--update-counters") or any(LEDGER_TEST in argument for argument in config.args)
    return True if collection_path.name == LEDGER_TEST and not asked else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: Any) -> list[pytest.Item] | None:
    """A benchmark of a phase or pass that was not chosen is not collected; [] says so, None means: go on."""
    settings = collector.config.stash[SETTINGS]
    marks = {mark.name: mark.args[0] for mark in getattr(obj, "pytestmark", ()) if mark.args}
    if "phase" not in marks:
        return None
    is_chosen = marks["phase"] in chosen_phases(settings) and marks.get("extra_pass") in (None, *settings.passes)
    return None if is_chosen else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread a benchmark over the axes it asks for."""
    phase = _phase_of(metafunc.definition)
    if phase is None:
        return
    settings = metafunc.config.stash[SETTINGS]
    if "model_size" in metafunc.fixturenames:
        axes = ",".join(LANGUAGE_MODEL_AXES)
        values, ids = language_model_grid(settings), language_model_id
    else:
        axes = ",".join(ATTENTION_AXES)
        values, ids = attention_grid(settings), attention_id
    metafunc.parametrize(axes, values, ids=[ids(value) for value in values], indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the cases so that each model is built once, and get ready to measure them."""
    others = [item for item in items if _phase_of(item) is None]
    benchmarks = [item for item in items if _phase_of(item) is not None]
    for item in benchmarks:
        item.stash[CASE] = _case_of(item, config.stash[SETTINGS])
        extra_pass = _pass_of(item)
        if extra_pass is not None:
            item.stash[PASS] = extra_pass
    benchmarks = _side_by_side(benchmarks)
    if benchmarks and not config.option.collectonly and not session.testsfailed:
        benchmarks = recording.get_ready(config, benchmarks)
    items[:] = [*benchmarks, *others]


def _phase_of(item: Any) -> str | None:
    marker = item.get_closest_marker("phase")
    return None if marker is None else str(marker.args[0])


def _pass_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("extra_pass")
    return None if marker is None else str(marker.args[0])


def _case_of(item: pytest.Item, settings: Settings) -> Case:
    axes = item.callspec.params  # type: ignore[attr-defined]  # public on every parametrized pytest.Function
    make = attention_case if is_attention(axes) else language_model_case
    return make(_phase_of(item) or "", axes, settings)


def _side_by_side(benchmarks: list[pytest.Item]) -> list[pytest.Item]:
    """Cases of one model next to each other, the language models first, within each by precision and by phase.

    Extra passes come after every timing, in the same order.
    """
    cases = {item: item.stash[CASE] for item in benchmarks}
    alone_last = sorted(benchmarks, key=lambda item: isinstance(cases[item], AttentionCase))
    models = {built: place for place, built in enumerate(dict.fromkeys(cases[item].built_from for item in alone_last))}
    precisions = list(PRECISIONS)

    passes = list(PASSES)

    def place(item: pytest.Item) -> tuple[int, int, int, tuple[bool, int]]:
        case, extra_pass = cases[item], item.stash.get(PASS, None)
        after_timings = 0 if extra_pass is None else 1 + passes.index(extra_pass)
        return after_timings, models[case.built_from], precisions.index(case.precision), place_of(case.phase)

    return sorted(benchmarks, key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if CASE in item.stash:
        workbench = item.config.stash[WORKBENCH]
        refusal = workbench.why_not(item.stash[CASE])
        if refusal is not None:
            item.stash[OUTCOME] = refusal
            pytest.skip(refusal.in_words)
        if workbench.session is not None:
            reporting.note_start(item, workbench)
    yield from _out_of_memory_skips(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield from _out_of_memory_skips(item)
    except ImpossibleError as error:
        item.stash[OUTCOME] = Outcome("impossible", str(error))
        raise


def _out_of_memory_skips(item: pytest.Item) -> Generator[None, None, None]:
    """Running out of memory is an outcome of a case, not a failure of a test."""
    try:
        return (yield)
    except Exception as error:
        outcome = reporting.outcome_of_error(item, error)
        if outcome is None:
            raise
    # Out here the error is gone, and with it the frames that kept the tensors of the failed round alive.
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
    """A person who watches sees the figure of each case, and needs no dot beside it."""
    workbench = config.stash.get(WORKBENCH, None)
    if workbench is None or workbench.session is None or not workbench.session.progress.is_watched:
        return None
    return ("passed", "", "measured") if report.when == "call" and report.passed else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporting.finish(session)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reporting.show(terminalreporter)
    reporting.show_ledger(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Json) -> None:
    recording.complete_machine_info(config, machine_info)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_group_stats(config: pytest.Config | None, benchmarks: list[Json]) -> None:
    """Returning nothing leaves the grouping to pytest-benchmark, whose command line calls this without a config."""
    if config is not None:
        recording.prepare_table(config, benchmarks)
