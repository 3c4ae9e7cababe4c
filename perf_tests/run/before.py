"""Before the first case: refuse what cannot run, choose the baseline, open the journal."""

import math
import os
from collections.abc import Mapping, Set
from contextlib import chdir
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.bench.checked_rounds import drawn_seed
from perf_tests_suite.perf_tests.bench.models import load_attentions
from perf_tests_suite.perf_tests.bench.options import SavingOptions, show_beside_baseline
from perf_tests_suite.perf_tests.bench.outcomes import KILLED, RANK_DIED
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession, Progress, line_or_log
from perf_tests_suite.perf_tests.bench.session import Run, Session, benchmark_of, session_of
from perf_tests_suite.perf_tests.bench.workbench import set_up
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.devices import facts_of_ranks, why_unsupported
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.options import PASSES, typed_or
from perf_tests_suite.perf_tests.cases.selected import FAMILIES, is_inside, selectable_cases
from perf_tests_suite.perf_tests.cases.settings import Settings, asks_for_ranks, is_typed
from perf_tests_suite.perf_tests.hardware import machine
from perf_tests_suite.perf_tests.hardware.device import why_less_is_known
from perf_tests_suite.perf_tests.passes.extra_pass import pass_named
from perf_tests_suite.perf_tests.passes.kernels import NvtxMeasure, ProfilerBusyError, check_no_profiler
from perf_tests_suite.perf_tests.records.comparison import Baseline
from perf_tests_suite.perf_tests.records.interrupted import ResumeError, newest_selection, open_journal
from perf_tests_suite.perf_tests.records.journal import JournalContents, SilentJournal, unfinished_journals
from perf_tests_suite.perf_tests.records.record import Json, how_many, identity_of, machine_differences, run_of
from perf_tests_suite.perf_tests.records.store import (
    BaselineError,
    StoredRecord,
    comparable_ids,
    identity_difference,
    is_disturbed,
    latest_baseline,
    list_records,
    numbered_baseline,
    rows_by_id,
)
from perf_tests_suite.perf_tests.run.ends import (
    TimeLimit,
    Timeout,
    eta,
    expected_seconds,
    predicted_here,
    quarantine,
    time_limit_of,
)
from perf_tests_suite.perf_tests.user_code.git import OF_GIT, lacks
from perf_tests_suite.perf_tests.user_code.model import check_before_measuring, check_optimizer_before_measuring
from perf_tests_suite.perf_tests.user_code.named import (
    CONFIGURED,
    SUITE,
    Repository,
    as_typed_here,
    digest_of,
    loaded_below,
    names_code,
    program,
    suite_files,
)

HERE = Path(__file__).parents[1]
"""The folder with the benchmarks."""

RETRIED = ("error", "process_died", "timed_out")
"""Outcomes of cases that --retry measures again."""


def get_ready(config: pytest.Config, benchmarks: list[pytest.Item]) -> list[pytest.Item]:  # noqa: C901  # one story
    """Refuse what cannot run before measuring; returns the cases still to be measured. A gate plans its own run.

    Raises pytest.UsageError, and UserCodeError for a model or an optimizer of the user's that cannot be measured.
    """
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "perf_tests measures with pytest-benchmark, and -p no:benchmark switched it off; drop that option."
        )
    suite = session_of(config)
    settings, peers, is_gate = suite.settings, suite.peers, suite.against is not None
    is_in_worker = suite.other_measure is not None
    cases = [benchmark_of(item).case for item in benchmarks]
    # A worker may run any part of the selection.
    if settings.cold_cache and not is_in_worker and not any(case.cache for case in cases):
        raise pytest.UsageError(
            "--cold-cache is for timings of attention alone, and none is selected; drop it or add test_attention.py."
        )
    missing = {*settings.passes} - {benchmark_of(item).extra_pass for item in benchmarks}
    by_cache = suite.keeps_selection or any(getattr(config.option, name, False) for name in ("lf", "stepwise"))
    if missing and not (is_in_worker or by_cache):
        name = min(missing)
        raise pytest.UsageError(
            f"{PASSES[name]} runs cases of its own, and none is selected; drop it or add test_{name}.py or "
            f"test_attention_{name}.py."
        )
    if why := machine.why_code_cannot_be_kept():
        raise pytest.UsageError(why)
    is_recorded = not (is_gate or suite.saving.disabled or settings.nvtx)
    limit, timeout = time_limit_of(config), None
    if is_recorded and not config.option.usepdb:  # in a debugger a person may take any time
        timeout = Timeout(config, limit)
        config.pluginmanager.register(timeout, "case timeout")
    suite.workbench = workbench = set_up(settings, peers)
    device = workbench.device.torch_device
    workbench.replaced += suite.replaced
    _judge_ready(suite, benchmarks, settings.seed if is_typed(config, "--seed") else None)
    workbench.replaced_by = load_attentions(cases)
    if not is_in_worker:  # a worker's run was checked where it began
        of_models = [case for case in cases if isinstance(case, LanguageModelCase)]
        own = next((case.user_model for case in of_models), None)
        if own is not None:
            check_before_measuring(own, list(dict.fromkeys(case.config for case in of_models)), device)
        trained = next((case for case in of_models if case.user_optimizer is not None), None)
        if trained is not None and trained.user_optimizer is not None:
            check_optimizer_before_measuring(trained.user_optimizer, own, trained.config, device)
        workbench.check_attentions(() if is_gate else cases)  # the gate checks each side
    workbench.values_seed = settings.seed if is_typed(config, "--seed") else drawn_seed()
    if is_gate:
        return benchmarks
    for item in benchmarks:
        marks = [pytest.mark.benchmark(timer=workbench.clock, group=benchmark_of(item).case.phase, disable_gc=True)]
        # A warning of another torch or of the user's model fails no case; the second is torch's own on import of what
        # compiles, or shards optimizers, which no user can change.
        marks.append(pytest.mark.filterwarnings("default"))
        of_import = ".torch.jit.(script|script_method|interface). is"
        marks.append(pytest.mark.filterwarnings(f"ignore:{of_import}:DeprecationWarning"))
        if settings.nvtx:
            marks.append(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"))
        for mark in marks:
            item.add_marker(mark)
    if settings.nvtx:
        suite.other_measure = lambda item, workbench: NvtxMeasure(benchmark_of(item).case, workbench)
    if not is_recorded:
        return benchmarks
    if peers is not None and not peers.is_rank0:
        if timeout is not None:
            timeout.grace_seconds *= 2  # rank 0 writes first why a case that hangs ends
        header = {"selection": [item.nodeid for item in benchmarks], "command": "--resume on rank 0"}
        workbench.session = MeasuringSession(SilentJournal(), JournalContents(header), Progress(None))
        return benchmarks
    return _open_run(config, suite, benchmarks, limit)


def _open_run(
    config: pytest.Config, suite: Session, benchmarks: list[pytest.Item], limit: TimeLimit
) -> list[pytest.Item]:
    """Choose the baseline and open the journal; returns the cases that it does not hold yet."""
    saving, settings, workbench, option = suite.saving, suite.settings, suite.workbench, config.option
    run = Run()
    run.notes += filter(None, (workbench.why_no_health, why_less_is_known()))
    machine_info = machine_info_of(config)
    try:
        for name in settings.passes:
            if pass_named(name).uses_profiler:
                check_no_profiler(PASSES[name])
        timed = {
            item.nodeid: benchmark_of(item).case.identity()
            for item in benchmarks
            if benchmark_of(item).extra_pass is None
        }
        if (chosen := choose_baseline(run, saving, machine_info, timed)) is not None:
            run.baseline = inside_of_axes(chosen, settings, timed.keys(), not is_restricted(config), saving)
            if not run.baseline.gone_counts:
                left_out = how_many(selectable_cases(settings) - len(timed), "case")
                run.notes.append(f"{left_out} of these axes not selected, so not reported as missing.")
        header = _header(config, suite, [item.nodeid for item in benchmarks], machine_info)
        journal, contents, notes = open_journal(saving.storage, header, option.resume, option.resume_any_driver)
    except (BaselineError, ResumeError, ProfilerBusyError) as error:
        raise pytest.UsageError(str(error)) from error
    except OSError as error:
        raise pytest.UsageError(
            f"The run cannot be saved under {saving.storage}: {error}. "
            "Make the folder writable or choose another with --benchmark-storage=file://PATH."
        ) from error
    workbench.beside = machine.RunsBeside(settings.device, str(saving.storage))
    workbench.beside.scan()
    workbench.session = session = MeasuringSession(journal, contents, Progress(line_or_log(config)))
    suite.run = run
    run.notes += notes
    left = cases_left(benchmarks, session, option.retry and session.saved is None)
    session.progress.predicted_seconds.update(predicted_here(left, workbench))
    limit.refuse_if_too_short(left)
    config.pluginmanager.register(limit, "time limit")
    if contents.starts or contents.finished_ids:
        done = len(benchmarks) - len(left)
        run.notes.append(f"Resumed {journal.path.name}: {done} of {len(benchmarks)} cases were done.")
    elif option.resume:
        run.opening = ["No interrupted run of this machine to resume; this is a new run."]
    return quarantine(left, session, KILLED if suite.peers is None else RANK_DIED)


def times_attention_of_the_users(config: pytest.Config) -> bool:
    """Whether rounds of attention alone may be timed here, out of code of the user's; the gate does it in workers."""
    option = config.option
    if not names_code((option.attention,)) or option.collectonly or option.against or option.against_option:
        return False
    if option.benchmark_disable or option.benchmark_skip or option.nvtx or asks_for_ranks(config):
        return False
    return any(path in (HERE, *HERE.parents) or path.parent == HERE for path in typed_paths(config))


def _judge_ready(suite: Session, benchmarks: list[pytest.Item], seed: int | None) -> None:
    """Let the judge learn what handing over a round of each attention takes, before code of the user's is imported."""
    judge, workbench = suite.judge, suite.workbench
    if judge is None:
        return
    found = [benchmark_of(item) for item in benchmarks]
    cases = [one.case for one in found if isinstance(one.case, AttentionCase) and one.extra_pass is None]
    if not any(case.user_attention for case in cases):
        suite.judge = None
        judge.close()
        return
    if seed is not None:
        judge.tell({"ask": "seed", "seed": seed})
    device = workbench.device
    with workbench.spending("counting"):
        for case in {(one.query_shape, one.precision, one.phase): one for one in cases}.values():
            fits = 2 * case.least_bytes < workbench.budget_bytes
            if fits and why_unsupported(case, device.torch_device) is None:
                judge.learn_cost(case, device, workbench.cache_flush(case))
    judge.seal()


def cases_left(benchmarks: list[pytest.Item], session: MeasuringSession, retries: bool) -> list[pytest.Item]:
    """Return the cases that the journal does not hold."""
    for row in list(session.contents.outcomes) if retries else []:
        if row["outcome"] in RETRIED:
            session.measure_again(row["id"])
    finished = session.contents.finished_ids
    return [item for item in benchmarks if item.nodeid not in finished]


LONG_SECONDS = 600.0
"""What nobody waits for without having chosen it."""


def how_long(config: pytest.Config) -> list[str]:
    """Say before the first case of a run that measures how long it will take here."""
    suite = session_of(config)
    if not suite.is_ready or suite.workbench.session is None:
        return []
    predicted = suite.workbench.session.progress.predicted_seconds
    if suite.run is None or not predicted:
        return [] if suite.run is None else suite.run.opening
    suite.run.opening += [eta(predicted, suite.workbench.device)]
    is_size_chosen = any(word.startswith("--size") for word in config.invocation_params.args)
    if not is_size_chosen and expected_seconds(predicted, suite.workbench.device) >= LONG_SECONDS:
        suite.run.opening += ["For a first try add --size tiny --context 32, or choose by --phase and -k."]
    suite.run.opening += suite.workbench.neighbours
    return suite.run.opening


# What cannot run, or would say nothing, is refused before the first case.


def typed_paths(config: pytest.Config) -> list[Path]:
    """Files and folders that pytest was given, without the tests named in them."""
    return [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]


def read_run_options(config: pytest.Config) -> None:
    """Check options of the run; raises pytest.UsageError for a time limit, a way of resuming, or another plugin, that
    makes no sense here.
    """
    option, suite = config.option, session_of(config)
    paths = typed_paths(config)
    theirs = [path for path in paths if path.exists() and not path.is_relative_to(SUITE)]
    if theirs and list(config.invocation_params.args[:2]) == CONFIGURED:
        raise pytest.UsageError(
            f"{theirs[0]} is not the suite's, and stands where an option may take it for its value; type it first, as "
            f"in `{program()} run {os.path.relpath(theirs[0])}`."
        )
    # Not where only other tests run, in whatever way their user likes.
    if any(path == HERE or path in HERE.parents or (path.parent == HERE and path.suffix == ".py") for path in paths):
        if getattr(option, "dist", "no") != "no":
            raise pytest.UsageError(
                "Cases that run side by side, as pytest-xdist runs them, disturb each other's times; drop -n."
            )
        for name, plugin in (("reruns", "rerunfailures"), ("count", "repeat")):
            if (getattr(option, name, None) or 0) > (1 if name == "count" else 0):
                raise pytest.UsageError(
                    f"--{name} runs a case several times, and a record holds one row a case; drop it, or turn its "
                    f"plugin off with -p no:{plugin}."
                )
        codspeed = getattr(option, "codspeed", None)
        if codspeed or (codspeed is not None and "CODSPEED_ENV" in os.environ):
            raise pytest.UsageError(
                "pytest-codspeed replaces pytest-benchmark, with which perf_tests measures; drop --codspeed, or"
                " unset CODSPEED_ENV."
            )
    for name, value in {"--retry": option.retry, "--resume-any-driver": option.resume_any_driver}.items():
        if value and not option.resume:
            raise pytest.UsageError(f"{name} is for an interrupted run; add --resume.")
    suite.most_minutes = typed_or(config, "--time-limit", math.inf)
    if suite.most_minutes < math.inf and (suite.saving.disabled or suite.settings.nvtx):
        raise pytest.UsageError("--time-limit keeps what is measured, and this run keeps nothing; drop one of the two.")


# Which cases of its axes a run leaves out: by what was typed, by pytest's cache, or by another plugin.


def is_restricted(config: pytest.Config) -> bool:
    """Whether cases were selected by more than the axes, so that a missing case is not gone."""
    option = config.option
    words = (option.keyword, option.markexpr, option.deselect, option.ignore, option.ignore_glob)
    if any(words) or getattr(option, "lf", False) or session_of(config).is_deselected:
        return True
    whole = any(path == HERE or path in HERE.parents for path in typed_paths(config))
    return not whole or any("::" in argument for argument in config.args)


def keep_selection(config: pytest.Config) -> None:
    """Keep what was selected: with --resume, --lf and --stepwise would choose other cases than when the run began;
    call before pytest does.
    """
    option = config.option
    if option.resume and (getattr(option, "lf", False) or getattr(option, "stepwise", False)):
        session_of(config).keeps_selection = True
        option.lf, option.stepwise_reset = False, True  # it still stops at a failure


def of_interrupted_run(config: pytest.Config, benchmarks: list[pytest.Item]) -> list[pytest.Item]:
    """Return those that the interrupted run had chosen, where it chose by pytest's cache."""
    suite = session_of(config)
    if not suite.keeps_selection:
        return benchmarks
    chosen = newest_selection(suite.saving.storage)
    left_out = [item for item in benchmarks if item.nodeid not in chosen]
    if len(left_out) in (0, len(benchmarks)):
        return benchmarks
    config.hook.pytest_deselected(items=left_out)
    return [item for item in benchmarks if item.nodeid in chosen]


# The record that a run is compared with, and the table that shows both.


def choose_baseline(
    run: Run, saving: SavingOptions, machine_info: Json, selection: Mapping[str, Json]
) -> StoredRecord | None:
    """Return the record to compare the cases of `selection` with, identities by id, where one is asked for.

    Raises BaselineError.
    """
    if not saving.compare:
        if saving.compare_fail:
            raise BaselineError("--benchmark-compare-fail has nothing to compare with; add --benchmark-compare.")
        return None
    if saving.compare_with is not None:
        baseline: StoredRecord | None = numbered_baseline(saving.storage, saving.compare_with, machine_info)
    else:
        listing = list_records(saving.storage)
        run.notes += listing.left_out
        # A run whose journal is still there is about to be resumed, or just ends.
        unfinished = {path.stem for path in unfinished_journals(saving.storage)}
        earlier = [record for record in listing.records if run_of(record.data) not in unfinished]
        baseline = latest_baseline(earlier, machine_info, selection)
        if baseline is None and saving.compare_fail:
            raise BaselineError(
                f"--benchmark-compare-fail has nothing to compare with: no record under {saving.storage} is of this "
                "machine, build and selection; record a baseline first by running without --benchmark-compare-fail."
            )
        if baseline is not None:
            newer = [r for r in earlier[earlier.index(baseline) + 1 :] if comparable_ids(r.data, selection)]
            if newer and all(is_disturbed(record.data) for record in newer):
                run.notes.append(
                    f"Compared with {baseline.name}, as other programs disturbed the newer {newer[-1].name}."
                )
        if baseline is None and earlier:
            differences = machine_differences(machine_info, earlier[-1].data["machine_info"])
            reason = "; ".join(differences) or "it has none of these cases"
            run.notes.append(f"None of {len(earlier)} records is comparable; the newest, {earlier[-1].name}: {reason}.")
        elif baseline is None:
            run.notes.append(f"No baseline yet: {saving.storage} holds no earlier record; this run becomes the first.")
    if baseline and saving.compare_fail and selection and not comparable_ids(baseline.data, selection):
        rows = rows_by_id(baseline.data)
        known = (f"{case}: {identity_difference(rows[case], selection[case])}" for case in selection if case in rows)
        raise BaselineError(
            f"--benchmark-compare-fail has nothing to compare with in {baseline.name}: "
            f"{next(known, 'it has none of these cases')}. Record a baseline with these options first."
        )
    return baseline


def inside_of_axes(
    chosen: StoredRecord, settings: Settings, ids: Set[str], gone_counts: bool, saving: SavingOptions
) -> Baseline:
    """Return the record without rows that are neither of the cases with these ids nor inside of the run's axes.

    `gone_counts` is whether a case of it that the run lacks fails the run; not where the user left cases out.
    """
    inside = {
        kind: [row for row in chosen.data[kind] if row[key] in ids or is_inside(identity_of(row), settings)]
        for kind, key in (("benchmarks", "fullname"), ("outcomes", "id"))
    }
    return Baseline(chosen.name, {**chosen.data, **inside}, gone_counts, saving.compare_fail)


SHAPES_TABLE = tuple(
    f"--benchmark-{name}"
    for name in ("columns", "cprofile", "group-by", "histogram", "name", "sort", "time-unit", "verbose")
)
"""Options of pytest-benchmark that show its table."""


def prepare_table(config: pytest.Config, benchmarks: list[Json]) -> None:
    """Leave the valid rows of pytest-benchmark's table, each below its baseline's, where an option shapes the table.

    Without such an option the table would repeat the figures of the suite's own.
    """
    suite = session_of(config)
    if suite.run is None:
        return
    if not any(word.startswith(SHAPES_TABLE) for word in config.invocation_params.args):
        benchmarks.clear()
        return
    assert suite.workbench.session is not None
    measured = {row["fullname"] for row in suite.workbench.session.contents.benchmarks}
    benchmarks[:] = [row for row in benchmarks if row["fullname"] in measured]
    axes = dict.fromkeys((axis for family in FAMILIES.values() for axis in family.axes), "-")
    for row in benchmarks:  # `--benchmark-group-by=param:NAME` fails on rows without the name
        row["params"] = {**axes, **(row["params"] or {})}
    if suite.run.baseline:
        show_beside_baseline(benchmarks, suite.run.baseline.data, suite.run.baseline.name)


# What a record says of its commit, machine and code, and what makes two calls one run.


def _header(config: pytest.Config, suite: Session, selection: list[str], machine_info: Json) -> Json:
    """Return what two calls must share to be one run, the command that resumes it, and when it started."""
    words, settings = [*config.invocation_params.args], asdict(suite.settings)
    words += [] if "--resume" in words else ["--resume"]
    return {
        "settings": {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        "selection": selection,
        "machine_info": machine_info,
        "commit_info": commit_info_of(config),
        "source": source_digest(suite.repository),
        "command": " ".join([*(suite.peers.launched.command if suite.peers else ()), as_typed_here(words)]),
        "started": datetime.now(UTC).isoformat(),
    }


def commit_info_of(config: pytest.Config) -> Json:
    """Return pytest-benchmark's, of the folder of what is under test, with new files as changes."""
    repository = session_of(config).repository
    named_elsewhere = {name: os.environ.pop(name) for name in OF_GIT if name in os.environ}
    try:
        with chdir(repository.root):  # pytest-benchmark asks git about the folder that pytest was started in
            commit_info: Json = config.hook.pytest_benchmark_generate_commit_info(config=config)
            config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit_info)
    finally:
        os.environ.update(named_elsewhere)
    # Git's own word leaves out new files that an option names, whose code no commit holds.
    commit_info["dirty"] = bool(commit_info.get("dirty")) or lacks(repository.root, repository.files)
    return commit_info


def machine_info_of(config: pytest.Config) -> Json:
    machine_info: Json = config.hook.pytest_benchmark_generate_machine_info(config=config)
    config.hook.pytest_benchmark_update_machine_info(config=config, machine_info=machine_info)
    return machine_info


def complete_machine_info(suite: Session | None, machine_info: Json) -> None:
    """Add what a figure depends on, and drop the current clock rate, which would make any two runs differ."""
    for name in ("hz_actual", "hz_actual_friendly", "hz_advertised", "hz_advertised_friendly"):
        machine_info.get("cpu", {}).pop(name, None)
    if suite is not None and suite.is_ready:
        device = suite.workbench.device.torch_device
        machine_info["torch"] = machine.stable_facts(device, suite.workbench.settings.threads)
        if suite.peers is not None:
            machine_info["torch"]["ranks"] = facts_of_ranks(suite.peers.launched, device)


def source_digest(repository: Repository) -> str:
    """Return a digest of the code that is measured, once it is loaded, and of the code that measures."""
    ours = suite_files()
    named = [repository.root / file for file in repository.files]
    loaded = loaded_below(repository.root) if named else []
    theirs = {*named, *loaded}.difference(path for _, path in ours)
    return digest_of([*ours, *sorted((path.relative_to(repository.root), path) for path in theirs)])
