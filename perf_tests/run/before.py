"""Before the first case: refuse what cannot run, choose the baseline, open the journal."""

import math
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, chdir, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from perf_tests.bench.attention_under_test import load_attentions
from perf_tests.bench.benchmark_options import SavingOptions, same_parameters, show_beside_baseline
from perf_tests.bench.outcomes import KILLED, RANK_DIED, Outcome
from perf_tests.bench.progress import Line, Log, Progress
from perf_tests.bench.session import MeasuringSession, ResumeError, open_journal
from perf_tests.bench.stash import (
    AGAINST,
    CASE,
    OTHER_MEASURE,
    PASS,
    PEERS,
    PLACES,
    REPOSITORY,
    RUN,
    SAVING,
    SETTINGS,
    WORKBENCH,
    Run,
)
from perf_tests.bench.workbench import Workbench, set_up
from perf_tests.cases import FAMILIES, Case, LanguageModelCase
from perf_tests.gate.accepted import FILE_NAME, Acceptance, read_accepted
from perf_tests.instruments import machine
from perf_tests.instruments.kernels import ProfilerBusyError, check_no_profiler
from perf_tests.measures.ranged import RangedMeasure
from perf_tests.options import PASSES
from perf_tests.own.check import check_before_measuring, check_optimizer_before_measuring
from perf_tests.own.named import loaded_below
from perf_tests.own.repository import Repository
from perf_tests.own.source_digest import digest_of, suite_files
from perf_tests.passes.every_pass import EVERY_PASS
from perf_tests.records.journal import JournalContents, SilentJournal
from perf_tests.records.record import Json, machine_differences
from perf_tests.records.store import (
    BaselineError,
    StoredRecord,
    has_journal,
    latest_baseline,
    list_records,
    numbered_baseline,
)
from perf_tests.run.pace import announcement, predicted_here
from perf_tests.run.time_limit import TIME_LIMIT, read_time_limit
from perf_tests.run.timeout import Timeout

RETRIED = ("error", "process_died", "timed_out")
"""Outcomes of cases that --retry measures again."""


def read_run_options(config: pytest.Config) -> None:
    """Raises pytest.UsageError for a time limit, a way of resuming, or another plugin, that makes no sense here."""
    option = config.option
    if _may_measure(config):
        refuse_other_ways_to_run(config)
    for name, value in {"--retry": option.retry, "--resume-any-driver": option.resume_any_driver}.items():
        if value and not option.resume:
            raise pytest.UsageError(f"{name} is for an interrupted run; add --resume.")
    config.stash[TIME_LIMIT] = limit = read_time_limit(config)
    if limit.minutes < math.inf and (config.stash[SAVING].disabled or config.stash[SETTINGS].nvtx):
        raise pytest.UsageError("--time-limit keeps what is measured, and this run keeps nothing; drop one of the two.")


def refuse_other_ways_to_run(config: pytest.Config) -> None:
    """Raises pytest.UsageError where another plugin would run the benchmarks, and this one measures nothing."""
    if getattr(config.option, "dist", "no") != "no":
        raise pytest.UsageError(
            "Cases that run side by side, as pytest-xdist runs them, disturb each other's times; drop -n."
        )
    codspeed = getattr(config.option, "codspeed", None)
    if codspeed or (codspeed is not None and "CODSPEED_ENV" in os.environ):
        raise pytest.UsageError(
            "pytest-codspeed replaces pytest-benchmark, with which perf_tests measures; drop --codspeed, or"
            " unset CODSPEED_ENV."
        )


def _may_measure(config: pytest.Config) -> bool:
    """Whether an argument is a benchmark's file, or a folder with such files."""
    here = Path(__file__).parents[1]
    paths = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return any(path == here or path in here.parents or (path.parent == here and path.suffix == ".py") for path in paths)


def get_ready(config: pytest.Config, benchmarks: list[pytest.Item]) -> list[pytest.Item]:
    """Refuse what cannot run before measuring; returns the cases still to be measured. A gate plans its own run."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "perf_tests measures with pytest-benchmark, and -p no:benchmark switched it off; drop that option."
        )
    saving, settings = config.stash[SAVING], config.stash[SETTINGS]
    # A worker or a shard may run any part of the selection.
    if settings.cold_cache and OTHER_MEASURE not in config.stash and settings.shard is None:
        check_cold_cache(benchmarks)
    peers = config.stash.get(PEERS, None)
    is_recorded = config.stash[AGAINST] is None and not (saving.disabled or settings.nvtx)
    if is_recorded and not config.option.usepdb:  # in a debugger a person may take any time
        config.pluginmanager.register(Timeout(config), "case timeout")
    config.stash[WORKBENCH] = workbench = set_up(settings, peers)
    cases = [item.stash[CASE] for item in benchmarks]
    load_attentions(cases)
    if OTHER_MEASURE not in config.stash:  # a worker's run was checked where it began
        _check_what_is_own(cases, workbench.device.torch_device)
        workbench.check_attentions(cases if config.stash[AGAINST] is None else ())  # the gate checks each side
    if config.stash[AGAINST] is not None:
        return benchmarks
    _mark(benchmarks, workbench)
    if settings.nvtx:
        config.stash[OTHER_MEASURE] = lambda item, workbench: RangedMeasure(item.stash[CASE], workbench)
    if not is_recorded:
        return benchmarks
    if peers is not None and not peers.leads:
        timeout = config.pluginmanager.getplugin("case timeout")
        timeout.grace_seconds *= 2  # rank 0 writes first why a case that hangs ends
        header = {"selection": [item.nodeid for item in benchmarks], "command": "--resume on rank 0"}
        workbench.session = MeasuringSession(SilentJournal(), JournalContents(header), Progress(None))
        return benchmarks
    return _open_run(config, benchmarks, workbench)


def check_cold_cache(benchmarks: list[pytest.Item]) -> None:
    if not any(item.stash[CASE].identity().get("cache") for item in benchmarks):
        raise pytest.UsageError(
            "--cold-cache is for timings of attention alone, and none is selected; drop it or add test_attention.py."
        )


def too_small(config: pytest.Config) -> pytest.UsageError:
    """The refusal of a budget that is used up before the first case."""
    budget = config.getoption("--memory-budget")
    words = "The memory that is free" if budget is None else f"--memory-budget {budget}"
    return pytest.UsageError(f"{words} is less than the run needs before its first case; give it at least 256MiB.")


def _check_what_is_own(cases: list[Case], device: torch.device) -> None:
    """Raises OwnModelError for a model or an optimizer of the user's that cannot be measured."""
    of_models = [case for case in cases if isinstance(case, LanguageModelCase)]
    own = next((case.own for case in of_models), None)
    if own is not None:
        check_before_measuring(own, list(dict.fromkeys(case.config for case in of_models)), device)
    trained = next((case for case in of_models if case.own_optimizer is not None), None)
    if trained is not None and trained.own_optimizer is not None:
        check_optimizer_before_measuring(trained.own_optimizer, own, trained.config, device)


def _open_run(config: pytest.Config, benchmarks: list[pytest.Item], workbench: Workbench) -> list[pytest.Item]:
    """Choose the baseline and open the journal; returns the cases that it does not hold yet."""
    saving, settings = config.stash[SAVING], config.stash[SETTINGS]
    run = Run(gone_counts=settings.shard is None and not _is_restricted(config))
    if workbench.why_no_health:
        run.notes.append(workbench.why_no_health)
    machine_info = machine_info_of(config)
    try:
        for name in settings.passes:
            if EVERY_PASS[name].uses_profiler:
                check_no_profiler(PASSES[name])
        timed = {item.nodeid for item in benchmarks if item.stash[PASS] is None}
        run.baseline = _baseline(run, saving, machine_info, timed)
        run.accepted = accepted_slowdowns(config.stash[REPOSITORY].root) if saving.compare else ()
        header = _header(config, [item.nodeid for item in benchmarks], machine_info)
        option = config.option
        journal, contents, notes = open_journal(saving.storage, header, option.resume, option.resume_any_driver)
    except (BaselineError, ResumeError, ProfilerBusyError) as error:
        raise pytest.UsageError(str(error)) from error
    except OSError as error:
        raise pytest.UsageError(
            f"The run cannot be saved under {saving.storage}: {error}. "
            "Make the folder writable or choose another with --benchmark-storage=file://PATH."
        ) from error
    workbench.session = MeasuringSession(journal, contents, Progress(terminal_line(config) or _log(config)))
    config.stash[RUN] = run
    run.notes += notes
    left = cases_left(benchmarks, workbench.session, option.retry and workbench.session.saved is None)
    workbench.session.progress.predicted_seconds.update(predicted_here(left, workbench))
    _limit_time(config, left)
    if contents.starts or contents.finished_ids:
        done = len(benchmarks) - len(left)
        run.notes.append(f"Resumed {journal.path.name}: {done} of {len(benchmarks)} cases were done.")
    elif config.option.resume:
        run.notes.append("No interrupted run of this machine to resume; this is a new run.")
    return without_killers(left, workbench.session, KILLED if PEERS not in config.stash else RANK_DIED)


def cases_left(benchmarks: list[pytest.Item], session: MeasuringSession, retries: bool) -> list[pytest.Item]:
    """The cases that the journal does not hold."""
    for row in list(session.contents.outcomes) if retries else []:
        if row["outcome"] in RETRIED:
            session.measure_again(row["id"])
    finished = session.contents.finished_ids
    return [item for item in benchmarks if item.nodeid not in finished]


def _limit_time(config: pytest.Config, items: list[pytest.Item]) -> None:
    limit = config.stash[TIME_LIMIT]
    limit.refuse_if_too_short(items)
    config.pluginmanager.register(limit, "time limit")


def _mark(benchmarks: list[pytest.Item], workbench: Workbench) -> None:
    for item in benchmarks:
        phase = item.stash[CASE].phase
        item.add_marker(pytest.mark.benchmark(timer=workbench.clock, group=phase, disable_gc=True))
        # A warning of another torch or of the user's model fails no case.
        item.add_marker(pytest.mark.filterwarnings("default"))
        if workbench.settings.nvtx:
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"))


def _header(config: pytest.Config, selection: list[str], machine_info: Json) -> Json:
    """What two calls must share to be one run, the command that resumes it, and when it started."""
    commit_info = commit_info_of(config)
    words, settings = ["pytest", *config.invocation_params.args], asdict(config.stash[SETTINGS])
    places = config.stash.get(PLACES, None)
    return {
        **({} if places is None else {"places": places}),
        "settings": {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        "selection": selection,
        "machine_info": machine_info,
        "commit_info": commit_info,
        "source": source_digest(config.stash[REPOSITORY]),
        "command": shlex.join(words if "--resume" in words else [*words, "--resume"]),
        "started": datetime.now(UTC).isoformat(),
    }


def commit_info_of(config: pytest.Config) -> Json:
    with chdir(config.stash[REPOSITORY].root):  # pytest-benchmark asks git about the folder that pytest was started in
        commit_info: Json = config.hook.pytest_benchmark_generate_commit_info(config=config)
        config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit_info)
    return commit_info


def machine_info_of(config: pytest.Config) -> Json:
    machine_info: Json = config.hook.pytest_benchmark_generate_machine_info(config=config)
    config.hook.pytest_benchmark_update_machine_info(config=config, machine_info=machine_info)
    return machine_info


def complete_machine_info(config: pytest.Config, machine_info: Json) -> None:
    """Add what a figure depends on, and drop the current clock rate, which would make any two runs differ."""
    for name in ("hz_actual", "hz_actual_friendly", "hz_advertised", "hz_advertised_friendly"):
        machine_info.get("cpu", {}).pop(name, None)
    workbench = config.stash.get(WORKBENCH, None)
    if workbench is not None:
        machine_info["torch"] = machine.stable_facts(workbench.device.torch_device, workbench.settings.threads)
        if PEERS in config.stash:
            from perf_tests.ranks.devices import facts_of_ranks

            launched = config.stash[PEERS].launched
            machine_info["torch"]["ranks"] = facts_of_ranks(launched, workbench.device.torch_device)


def prepare_table(config: pytest.Config, benchmarks: list[Json]) -> None:
    """The rows of pytest-benchmark's table: the valid ones, each below its baseline's."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    session = config.stash[WORKBENCH].session
    assert session is not None
    measured = {row["fullname"] for row in session.contents.benchmarks}
    benchmarks[:] = [row for row in benchmarks if row["fullname"] in measured]
    same_parameters(benchmarks, [name for family in FAMILIES for name in family.axes])
    if run.baseline:
        show_beside_baseline(benchmarks, run.baseline.data, run.baseline.name)


def source_digest(repository: Repository) -> str:
    """A digest of the code that is measured, once it is loaded, and of the code that measures."""
    theirs = {*loaded_below(repository.root), *(repository.root / file for file in repository.files)}
    of_theirs = () if repository.holds_suite else sorted((path.relative_to(repository.root), path) for path in theirs)
    return digest_of([*suite_files(), *of_theirs])


def _baseline(run: Run, saving: SavingOptions, machine_info: Json, selection: set[str]) -> StoredRecord | None:
    """The record to compare with, where one is asked for. Raises BaselineError."""
    if not saving.compare:
        if saving.compare_fail:
            raise BaselineError("--benchmark-compare-fail has nothing to compare with; add --benchmark-compare.")
        return None
    if saving.compare_with is not None:
        return numbered_baseline(saving.storage, saving.compare_with, machine_info)
    listing = list_records(saving.storage)
    run.notes += listing.left_out
    earlier = [record for record in listing.records if not has_journal(record)]
    baseline = latest_baseline(earlier, machine_info, selection)
    if baseline is None:
        if saving.compare_fail:
            raise BaselineError(
                f"--benchmark-compare-fail has nothing to compare with: no record under {saving.storage} is of this "
                "machine, build and selection; record a baseline first by running without --benchmark-compare-fail."
            )
        run.notes.append(_why_no_baseline(earlier, machine_info, saving.storage))
    return baseline


def accepted_slowdowns(root: Path) -> list[Acceptance]:
    try:
        return read_accepted(root / ".benchmarks" / FILE_NAME)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _why_no_baseline(records: list[StoredRecord], machine_info: Json, storage: Path) -> str:
    if not records:
        return f"No baseline yet: {storage} holds no earlier record; this run becomes the first."
    differences = machine_differences(machine_info, records[-1].data["machine_info"])
    reason = "; ".join(differences) if differences else "it has none of these cases"
    return f"None of {len(records)} records is comparable; the newest, {records[-1].name}: {reason}."


def _is_restricted(config: pytest.Config) -> bool:
    """Whether the user selected cases by more than the axes, so that a missing case is not gone."""
    option = config.option
    if option.keyword or option.markexpr or option.deselect or getattr(option, "lf", False):
        return True
    here = Path(__file__).parents[1]
    folders = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    whole = any(folder == here or folder in here.parents for folder in folders)
    return not whole or any("::" in argument for argument in config.args)


def terminal_line(config: pytest.Config) -> Line | None:
    """The line that shows progress; None where the output is no terminal."""
    is_terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
    reporter, uncaptured = _output(config)
    return None if reporter is None or not is_terminal or os.environ.get("CI") else Line(reporter, uncaptured)


def _log(config: pytest.Config) -> Log | None:
    reporter, uncaptured = _output(config)
    return None if reporter is None else Log(reporter, uncaptured)


def _output(config: pytest.Config) -> tuple[pytest.TerminalReporter | None, Callable[[], AbstractContextManager[None]]]:
    """Pytest's, and what switches its capture off."""
    capture = config.pluginmanager.getplugin("capturemanager")
    uncaptured = nullcontext if capture is None else capture.global_and_fixture_disabled
    return config.pluginmanager.getplugin("terminalreporter"), uncaptured


def how_long(config: pytest.Config) -> list[str]:
    """Before the first case of a run that measures, how long it will take here."""
    workbench = config.stash.get(WORKBENCH, None)
    if workbench is None or workbench.session is None or not workbench.session.progress.predicted_seconds:
        return []
    return [announcement(workbench.session.progress.predicted_seconds, workbench.device)]


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
