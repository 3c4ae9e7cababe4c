"""Before the first case: refuse what cannot run, choose the baseline, open the journal."""

import shlex
from dataclasses import asdict
from datetime import UTC, datetime

import pytest

from perf_tests.bench.attention_under_test import load_attentions
from perf_tests.bench.outcomes import KILLED, RANK_DIED
from perf_tests.bench.progress import Progress
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
from perf_tests.instruments.kernels import ProfilerBusyError, check_no_profiler
from perf_tests.measures.ranged import RangedMeasure
from perf_tests.options.table import PASSES
from perf_tests.passes.every_pass import EVERY_PASS
from perf_tests.records.journal import JournalContents, SilentJournal
from perf_tests.records.record import Json
from perf_tests.records.store import BaselineError
from perf_tests.run.baseline import accepted_slowdowns, choose_baseline
from perf_tests.run.facts import commit_info_of, machine_info_of, source_digest
from perf_tests.run.given_up import without_killers
from perf_tests.run.pace import predicted_here
from perf_tests.run.refusals import check_cold_cache, check_what_is_own
from perf_tests.run.selection import is_restricted
from perf_tests.run.terminal import log, terminal_line
from perf_tests.run.time_limit import TIME_LIMIT
from perf_tests.run.timeout import Timeout

RETRIED = ("error", "process_died", "timed_out")
"""Outcomes of cases that --retry measures again."""


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
        check_what_is_own(cases, workbench.device.torch_device)
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


def _open_run(config: pytest.Config, benchmarks: list[pytest.Item], workbench: Workbench) -> list[pytest.Item]:
    """Choose the baseline and open the journal; returns the cases that it does not hold yet."""
    saving, settings = config.stash[SAVING], config.stash[SETTINGS]
    run = Run(gone_counts=settings.shard is None and not is_restricted(config))
    if workbench.why_no_health:
        run.notes.append(workbench.why_no_health)
    machine_info = machine_info_of(config)
    try:
        for name in settings.passes:
            if EVERY_PASS[name].uses_profiler:
                check_no_profiler(PASSES[name])
        timed = {item.nodeid: item.stash[CASE].identity() for item in benchmarks if item.stash[PASS] is None}
        run.baseline = choose_baseline(run, saving, machine_info, timed)
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
    workbench.session = MeasuringSession(journal, contents, Progress(terminal_line(config) or log(config)))
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
        if workbench.groups is not None:
            # Torch's own on import of what shards optimizers; nothing a user of ranks can change.
            item.add_marker(pytest.mark.filterwarnings("ignore:.torch.jit.(script|interface). is:DeprecationWarning"))
        if workbench.settings.nvtx:
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"))


def _header(config: pytest.Config, selection: list[str], machine_info: Json) -> Json:
    """What two calls must share to be one run, the command that resumes it, and when it started."""
    commit_info = commit_info_of(config)
    started_by = config.stash[PEERS].launched.command if PEERS in config.stash else ["pytest"]
    words, settings = [*started_by, *config.invocation_params.args], asdict(config.stash[SETTINGS])
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
