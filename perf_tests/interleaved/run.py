"""A gate run from its first launch pair to its result; `gate.verdicts.next_step` chooses each pair."""

import json
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path

import torch

from perf_tests_suite.perf_tests.bench.options import Against
from perf_tests_suite.perf_tests.bench.worker_plugin import sent
from perf_tests_suite.perf_tests.bench.workers import WorkerEndedError, WorkerProcess, last_error_line
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.options import GROUPS
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.gate.accepted import FILE_NAME, effective, read_accepted, read_accepted_of_base
from perf_tests_suite.perf_tests.gate.samples import (
    PRESENT_ENGINE,
    SIDES,
    End,
    EndReason,
    ExactFinding,
    GateSamples,
    Incomparable,
    LeftOut,
    NotSame,
    Rules,
    Same,
    SampleEvent,
    SamplesFile,
    Side,
    case_of,
    compile_row,
)
from perf_tests_suite.perf_tests.gate.verdicts import (
    OF_TWO_BUILDS,
    SAME_PROGRAM,
    GateResult,
    RunVerdict,
    Verdict,
    conclude,
    failed_cases,
    next_step,
)
from perf_tests_suite.perf_tests.hardware.cores import can_bind
from perf_tests_suite.perf_tests.interleaved.measuring import (
    STEADY,
    GateProgress,
    Measuring,
    MinutesSpentError,
    OutOfTimeError,
    draw_pair,
    launched,
    receive_all,
)
from perf_tests_suite.perf_tests.interleaved.observer import Observation
from perf_tests_suite.perf_tests.interleaved.same import ObservedTree, differing, is_document, why_not_the_same
from perf_tests_suite.perf_tests.interleaved.sides import (
    Commit,
    Trees,
    changed_since,
    environment_of_side,
    environment_without_the_suite,
    measures,
    planted,
    state_of_head,
)
from perf_tests_suite.perf_tests.predict.difference import CompiledDifference, Difference, compare_sides, row_sentence
from perf_tests_suite.perf_tests.predict.operations import SideToRun, sent_case
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.record import Json, how_many, some_of
from perf_tests_suite.perf_tests.records.store import identity_difference
from perf_tests_suite.perf_tests.user_code.git import run_git
from perf_tests_suite.perf_tests.user_code.named import SUITE, Repository, program

IDLE_SECONDS_LIMIT = 0.002
"""CPU time per turn that a waiting side may use: ten times what its messages need, less than spinning threads use."""


@dataclass(frozen=True)
class TheirTest:
    """A pytest-benchmark test of the user's."""

    group: str | None
    module: str
    """The node id of what it stands in, a module or a class, whose tests are measured side by side."""

    def identity(self) -> Json:
        return asdict(self)

    @property
    def built_from(self) -> tuple[str]:
        return (self.module,)


@dataclass(frozen=True)
class GatePlan:
    """Everything that a gate run depends on, except its random seed."""

    repository: Repository
    storage: Path
    against: Against
    base: Commit | None
    """None where base is the working tree too, under another option."""
    settings: Settings | None
    """None for tests of the user's."""
    cases: Mapping[str, Case | TheirTest]
    """Head's cases by node id; those of one model are neighbours."""
    ids_at_base: Mapping[str, str]
    """Base's node id of each."""
    machine_info: Json
    rules: Rules
    options: str
    """What was typed, to measure a case again."""
    most_failures: int = 0
    """Failed cases after which nothing more is measured, as with -x; 0 measures all."""
    python_of_base: "OtherPython | None" = None
    environment: Mapping[str, str] = field(default_factory=lambda: {**os.environ})
    """Variables as they were before code of either side ran in this process: head's may have set some."""
    tests: Sequence[str] | None = None
    """The user's files, folders and node ids, seen from where this was started; None for cases of the suite."""
    words: Sequence[str] = ()
    """What else their pytest is given."""
    root: str = "."
    """Their rootdir, seen from where this was started."""
    cores: int | None = None
    """Cores that rounds of the user's tests keep busy."""

    @property
    def seconds(self) -> float:
        return 60 * self.against.minutes

    @property
    def python_path(self) -> str | None:
        """The interpreter of base where it is another one."""
        return None if self.python_of_base is None else self.python_of_base.path

    @property
    def threads(self) -> int | None:
        """Threads of a worker that is bound to cores; None on a GPU, whose host is not."""
        if self.settings is None:
            return self.cores
        return self.settings.threads if self.settings.device_type == "cpu" else None


@dataclass
class GateRun:
    """The state of a run; `result` is None when it was interrupted."""

    plan: GatePlan
    result: GateResult | None = None
    header: Json = field(default_factory=dict)
    """The first line of the judged samples."""
    paths: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    known: list[SampleEvent] = field(default_factory=list)
    """What is known of the cases before any is measured."""
    had: frozenset[str] = frozenset()
    """Tests of the user's that base had of its own."""
    why_measured: dict[str, str] = field(default_factory=dict)
    """Why each case is not shown to run the same program on both sides, empty where it is; none where not asked."""
    compiled: dict[str, CompiledDifference] = field(default_factory=dict)
    """What torch.compile makes of tests of the user's on both sides."""
    what_changed: list[str] = field(default_factory=list)
    """Lines on the program of the worst cases that failed."""
    explained: list[str] = field(default_factory=list)
    """The failed cases that these lines are of, the worst first."""
    how_long: Callable[[Sequence[str]], str] | None = None
    """Says how long it takes to measure these cases."""
    _start: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Return the rest of the minutes: tests of the user's, which may take any time, get no more for anything."""
        return self.plan.seconds - (time.monotonic() - self._start if self.plan.tests is not None else 0.0)


Compare = Callable[[GateRun, Trees, GateProgress], None]
"""Finds what of a run need not be measured, before anything is."""


def run_gate(run: GateRun, watch: GateProgress, compare: Compare | None = None) -> None:
    """Measure and judge. A contaminated run is repeated once. By default the cases are the suite's.

    Raises TreeError, UnmeasurableError and OSError.

    Whatever interrupts it keeps the samples, ends the workers, removes the trees and propagates.
    """
    with planted(run.plan.repository, run.plan.base) as trees, _environment(run.plan.environment):
        (compare or compare_programs)(run, trees, watch)
        if run.why_measured:
            watch.say(comparison_sentence(run.why_measured))
        if run.plan.against.compiles:
            add_compile_rows(run)
        run.result = _measure_and_judge(run, trees, watch)
        if run.result.verdict == RunVerdict.CONTAMINATED:
            if run.seconds_left > run.plan.seconds / 2:
                run.notes.append(f"The run was contaminated and is repeated; its samples: {run.paths[-1]}.")
                run.result = _measure_and_judge(run, trees, watch)
            else:
                run.notes.append("It is not repeated, because less than half of the minutes is left (--gate-minutes).")
        tell_what_changed(run, run.result, trees)


def add_compile_rows(run: GateRun) -> None:
    """Give each compiled program rows of the seconds that its parts take to compile, behind the cases.

    Cases that differ in their phase alone share a program; the last has the parts of all.
    """
    plan = run.plan
    programs: dict[object, str] = {}
    for name, case in plan.cases.items():
        if isinstance(case, Case) and case.is_compiled:
            of_phase = ("phase", "optimizer", "zero_grad_policy")
            fields = {key: value for key, value in case.identity().items() if key not in of_phase}
            key = (case.phase_row.records_graph, json.dumps(fields, sort_keys=True))
            before = plan.cases.get(programs.get(key, ""))
            if not isinstance(before, Case) or case.phase_row.has_backward or not before.phase_row.has_backward:
                programs[key] = name
    of_row = dict[str, str]()
    for name in programs.values():
        case = plan.cases[name]
        assert isinstance(case, Case)
        cold = ("forward", "backward") if case.phase_row.has_backward else ("forward",)
        # What is found in the cache for the forward pass brings the backward's code too.
        of_row |= {compile_row(name, *of): name for of in (*((part, "cold") for part in cold), ("", "warm"))}
    run.plan = replace(
        plan,
        cases={**plan.cases, **{row: plan.cases[name] for row, name in of_row.items()}},
        ids_at_base={**plan.ids_at_base, **{row: plan.ids_at_base[name] for row, name in of_row.items()}},
    )
    if run.why_measured:
        run.why_measured |= {row: run.why_measured[name] for row, name in of_row.items()}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Return a context in which this process, and those that it starts, have these variables."""
    before = {**os.environ}
    try:
        os.environ.clear()
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def compare_programs(run: GateRun, trees: Trees, _: GateProgress) -> None:
    """Find the cases whose program is the same on both sides, which are not measured, and why the others are."""
    plan = run.plan
    if plan.against.measures_same or plan.base is None or plan.against.other_option or plan.python_of_base:
        return
    changed = changed_since(plan.repository.root, plan.base)
    is_ours = plan.repository.holds_suite and plan.repository.measured_by is None
    if is_ours and (ours := [name for name in changed if measures(Path(name), plan.repository)]):
        run.notes.append(
            f"The suite itself changed ({some_of(ours)}): not judged, because head's copy of it measures both sides."
        )
    why, files = why_all_measured(plan, trees, changed), differing(trees.base, trees.head)
    if why is None and files:
        run.why_measured = _programs_differ(run, trees, files)
    else:
        run.why_measured = dict.fromkeys(plan.cases, why or "")


def comparison_sentence(why_measured: Mapping[str, str]) -> str:
    """Return how many cases are the same program, and what makes the rest another one, most cases first."""
    reasons = Counter(why.rstrip(".") for why in why_measured.values() if why)
    measured = sum(reasons.values())
    same = (
        f"Of {how_many(len(why_measured), 'case')} {len(why_measured) - measured} will not be measured: {SAME_PROGRAM}."
    )
    if not reasons:
        return same
    (reason, count), *others = reasons.most_common()
    more = f"; {how_many(measured - count, 'case')} for {how_many(len(others), 'other reason')}" if others else ""
    rest = f"{how_many(count, 'case')}: {reason}{more}."
    return f"{same} Measured: {rest}" if measured < len(why_measured) else f"All are measured. {rest}"


def why_all_measured(plan: GatePlan, trees: Trees, changed: Mapping[str, bool]) -> str | None:
    """Why no case is shown to be the same, of what lies in neither tree."""
    submodules = [name for name, is_submodule in changed.items() if is_submodule]
    if submodules:
        return f"{submodules[0]} is a submodule, which is in neither tree, and differs"
    started = [plan.repository.folder_in(tree).relative_to(tree) for tree in (trees.head, trees.base)]
    if started[0] != started[1]:
        return f"base has no {started[0]}, where this was started, so that its paths mean other files there"
    name = "pyproject.toml"
    if plan.base is not None and plan.repository.holds_suite and name in changed:
        shown = run_git(plan.repository.root, "show", f"{plan.base.full_hash}:{plan.base.prefix}{name}").stdout
        try:
            base, head = (tomllib.loads(text) for text in (shown, (trees.head / name).read_text()))
        except (OSError, tomllib.TOMLDecodeError):
            return f"dependencies changed, not measured here: {name}"
        tables = ("project", "build-system", "dependency-groups")
        if any(base.get(table) != head.get(table) for table in tables):
            return f"dependencies changed, not measured here: {name}"
    return None


def _programs_differ(run: GateRun, trees: Trees, files: Sequence[str]) -> dict[str, str]:
    """Return why each case is measured, by what both workers ran and read; empty for the same program."""
    plan = run.plan
    tasks: dict[Side, Json] = {side: {**task, "is_rehearsal": True} for side, task in tasks_of(plan).items()}
    why: dict[str, str] = {}
    try:
        with launched(trees, tasks, draw_pair(0, 0)) as workers:
            for side, answer in receive_all(workers).items():
                for case, of_head in plan.cases.items():
                    identity = answer["ready"].get(case)
                    if identity is None or identity_difference(identity, of_head.identity()):
                        why.setdefault(case, f"{side} does not have it")
            order = [case for case in plan.cases if case not in why]
            for worker in workers.values():
                worker.send({"order": order})
            answers = receive_all(workers)
            code = why_code_differs(trees, answers, files)
            why |= {case: code or _why_operations_differ(answers, case) for case in order}
            same = [case for case in order if not why[case]]
            if same and not all(map(is_document, files)):
                why |= dict.fromkeys(same, _why_differs_once(run, workers, trees, files, same) or "")
    except WorkerEndedError as error:
        return dict.fromkeys(plan.cases, f"{error.side} could not run on fake tensors: {error}")
    return {case: why[case] for case in plan.cases}


def why_code_differs(trees: Trees, answers: Mapping[Side, Json], files: Sequence[str]) -> str | None:
    base = ObservedTree(trees.base, Observation.of(answers["base"]))
    return why_not_the_same(base, ObservedTree(trees.head, Observation.of(answers["head"])), files)


def _why_operations_differ(answers: Mapping[Side, Json], case: str) -> str:
    base, head = (answers[side]["digests"][case] for side in SIDES)
    if base["digest"] is None or head["digest"] is None:
        return str(head["reason"] or base["reason"])
    return "" if base["digest"] == head["digest"] else "it issues other operations"


def _why_differs_once(
    run: GateRun, workers: Mapping[Side, WorkerProcess], trees: Trees, files: Sequence[str], cases: Sequence[str]
) -> str | None:
    """Why code differs once these cases ran a round on real tensors: what only the timed step calls is known then."""
    try:
        for worker in workers.values():
            worker.send({"once": [*cases]})
        answers = receive_all(workers)
    except WorkerEndedError as error:
        unplayed = dict.fromkeys(cases, str(error))
        code = None
    else:
        unplayed = {**answers["base"]["unplayed"], **answers["head"]["unplayed"]}
        code = why_code_differs(trees, answers, files)
    for reason, count in Counter(unplayed.values()).items():
        run.notes.append(
            f"{how_many(count, 'case')} could not run a round on real tensors ({reason.rstrip('.')}), so that what "
            "else they may call is known by the names in their code alone."
        )
    return code


def _measure_and_judge(run: GateRun, trees: Trees, watch: GateProgress) -> GateResult:
    plan, seed = run.plan, secrets.randbits(32)
    why_not_counted = _why_not_counted(plan, trees) if plan.tests is None else None
    run.header, notes = _header(run, trees, seed)
    notes += [] if why_not_counted is None else [why_not_counted]
    run.notes = [*dict.fromkeys((*run.notes, *notes))]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    path = plan.storage / "gate" / f"{stamp}_{plan.base.short_hash if plan.base else 'working-tree'}.jsonl"
    samples_file = SamplesFile(path, run.header)
    run.paths.append(path)
    for event in run.known:
        samples_file.append(event.to_line())
    for case, why in run.why_measured.items():
        samples_file.append((NotSame(case, why) if why else Same(case)).to_line())
    measuring = Measuring(
        trees=trees,
        tasks=tasks_of(plan),
        ids_on_side={"base": plan.ids_at_base, "head": {case: case_of(case) for case in plan.cases}},
        identities={case_id: case.identity() for case_id, case in plan.cases.items()},
        seed=seed,
        samples_file=samples_file,
        watch=watch,
        differing_fields=frozenset({plan.against.other_option.identity_field} if plan.against.other_option else ()),
        # None where the scheduler places the threads.
        threads=plan.threads if can_bind() else None,
        python_of_base=plan.python_path,
    )
    try:
        if why_not_counted is None and plan.tests is None:  # theirs were counted as they were rehearsed
            to_count = dict.fromkeys(map(case_of, plan.cases))
            measuring.count([case for case in to_count if run.why_measured.get(case) != ""])
        end = _measure_until_decided(run, measuring)
        if (file := trees.written()) is not None:
            why = f"code under test wrote {file} while it was measured, so that side is no longer what it stands for"
            samples_file.append(Incomparable(f"{why}; let it write to a temporary folder").to_line())
        if alike := trees.written_alike():
            told = f"Tests wrote {some_of(alike)} in their own trees, alike on both sides."
            run.notes = [*dict.fromkeys((*run.notes, told))]
        samples_file.append(End(end).to_line())
    except BaseException:
        # A disk that refused a line refuses this one too; its own exception is propagating.
        with suppress(OSError):
            samples_file.append(End("interrupted").to_line())
        raise
    finally:
        with suppress(OSError):
            samples_file.close()
    if plan.threads is not None and measuring.threads is None:
        run.notes.append(
            "This machine does not allow binding processes to cores, so a neighbour can slow one side alone and "
            "figures are noisier."
        )
    idle_seconds = measuring.idle_cpu_seconds / max(1, measuring.turns)
    if idle_seconds > IDLE_SECONDS_LIMIT:
        run.notes.append(
            f"The waiting side uses {1e3 * idle_seconds:.1f} ms of CPU time per turn because its threads spin, so "
            "figures are noisier."
        )
    return conclude(samples_file.samples, plan.rules)


def _measure_until_decided(run: GateRun, measuring: Measuring) -> EndReason:
    """Measure pair after pair; why it stopped."""
    plan, start, pair, seconds = run.plan, time.monotonic(), 0, run.seconds_left
    samples = measuring.samples_file.samples
    if samples.of(Incomparable):
        return "finished"
    if plan.tests is not None:
        measuring.end = start + seconds
        measuring.fits = lambda launch, cases: PairCost(launch, cases).needed_seconds(cases, plan.rules) <= seconds
    while plan.seconds:
        has_failed = plan.most_failures and len(failed_cases(samples, plan.rules)) >= plan.most_failures
        if has_failed or measuring.trees.written() is not None:
            return "finished"
        step = next_step(samples, plan.rules)
        cases = [case for case in step.cases if case not in measuring.left_out] if step else []
        if step is None or not cases:
            return "finished"
        if pair and time.monotonic() - start + measuring.expected_seconds(step.stage, cases) > seconds:
            return "budget"
        so_far = None if pair else conclude(samples, plan.rules)
        if so_far is not None and (risen := {row.id for row in so_far.exact if row.is_failure}):
            tell_what_changed(run, so_far, measuring.trees)
            more = some_of([case_name(case) for case in plan.cases if case in risen])
            by = "".join(f": {line.strip()}" for line in run.what_changed[1:2])
            ends = "The gate fails already: Ctrl-C ends it here, with -x it would have ended"
            measuring.watch.say(f"{Verdict.MORE}: counters of {more} rose{by}. {ends}.")
        if not pair and run.how_long is not None:
            measuring.watch.say(run.how_long(cases))
        by_model = groupby(cases, key=lambda case_id: plan.cases[case_id].built_from)
        try:
            measuring.measure_pair(step.stage, pair, [list(group) for _, group in by_model])
        except OutOfTimeError:
            return "time_limit"
        except MinutesSpentError:
            run.notes.append(f"The minutes ended in launch pair {pair + 1}; what it had measured by then is kept.")
            return "budget"
        if pair == 0:  # where the time is too short for all cases, fewer are measured well
            measured = {case: measuring.case_seconds[case] for case in plan.cases if case in measuring.case_seconds}
            cost = PairCost(measuring.launch_seconds, measured)
            left = left_out(samples, cost, plan.rules, seconds - measuring.once_seconds)
            unreached = [case for case in cases if case not in measured and case not in measuring.left_out]
            for case in (*left, *unreached):
                measuring.samples_file.append(LeftOut(case).to_line())
            if left or unreached:
                said = too_short_sentence(left, cost, plan.rules, plan.seconds, len(unreached))
                measuring.watch.say(said)
                run.notes.append(said)
        pair += 1
    return "budget"


CONFIRMED_SHARE = 0.2
"""Share of the cases that fresh launches have to confirm or clear where little has changed."""


@dataclass(frozen=True)
class PairCost:
    """What the first launch pair took."""

    launch_seconds: float
    """What it took beside its cases."""
    case_seconds: Mapping[str, float]

    def needed_seconds(self, cases: Iterable[str], rules: Rules) -> float:
        """Seconds that stage 1 of these cases takes, and the first look of stage 2 at a share of them."""
        of_cases = sum(self.case_seconds.get(case, 0.0) for case in cases)
        confirming = rules.confirm_looks[0] * (self.launch_seconds + CONFIRMED_SHARE * of_cases)
        return rules.screen_pairs * (self.launch_seconds + of_cases) + confirming


def left_out(samples: GateSamples, cost: PairCost, rules: Rules, seconds: float) -> list[str]:
    """The cases that `seconds` are too short for.

    Those whose exact counters the change moves are measured first, then the cheapest, so that most are judged.
    """
    moved = {row.case for row in samples.of(ExactFinding) if row.new != row.old}
    ordered = sorted(cost.case_seconds, key=lambda case: (case not in moved, cost.case_seconds[case]))
    kept: list[str] = []
    for case in ordered:
        if kept and cost.needed_seconds([*kept, case], rules) > seconds:
            break
        kept.append(case)
    return [case for case in samples.cases if case in cost.case_seconds and case not in kept]


def too_short_sentence(left: Sequence[str], cost: PairCost, rules: Rules, seconds: float, unreached: int = 0) -> str:
    """Say which cases get the time; `unreached` are those that were not measured once, so nobody knows their need."""
    cases, needed = len(cost.case_seconds), cost.needed_seconds(cost.case_seconds, rules) / 60
    need = "" if unreached else f", which need about {needed:.0f} min"
    which = "as many as they suffice for" if unreached else "those with changed counters first, then the cheapest"
    return (
        f"{seconds / 60:.3g} min are too short for {how_many(cases + unreached, 'case')}{need} (--gate-minutes): after "
        f"the first pair the time goes to {cases - len(left)} of them, {which}; the rest is left UNDECIDED."
    )


def _why_not_counted(plan: GatePlan, trees: Trees) -> str | None:
    """Why the exact counters of base and head need no counting; None if they do."""
    if plan.against.other_option is not None:
        return "Exact counters are not compared, because the two sides run different settings."
    # What the model or a named file imports may lie anywhere beside it.
    if plan.python_of_base is None and not differing(trees.base, trees.head):
        is_model_alone = plan.repository.holds_suite and not plan.repository.files
        what = "model/" if is_model_alone else "The repository"
        return f"{what} is identical on both sides, so its exact counters are too."
    return None


def tasks_of(plan: GatePlan) -> dict[Side, Json]:
    """What each side's worker is told: settings, test files, and where the code under test lies."""
    repository = plan.repository
    if plan.tests is not None:
        return {side: {"words": [*plan.tests, *plan.words], "repository": repository.as_json} for side in SIDES}
    assert plan.settings is not None
    names = {case_id.partition("::")[0] for case_id in plan.cases}
    files = sorted(name if repository.holds_suite else str(SUITE / name) for name in names)
    sides: dict[Side, Settings] = {"base": plan.against.settings_of_base(plan.settings), "head": plan.settings}
    return {side: {"settings": sent(sides[side]), "files": files, "repository": repository.as_json} for side in SIDES}


def _header(run: GateRun, trees: Trees, seed: int) -> tuple[Json, list[str]]:
    """The first line of the samples, and notes on it."""
    plan = run.plan
    # Of two settings both sides are the working tree, in which nothing expires. Git may ignore head's file.
    of_base = [] if plan.base is None else read_accepted_of_base(trees.base / ".benchmarks" / FILE_NAME)
    accepted, notes = effective(read_accepted(plan.repository.root / ".benchmarks" / FILE_NAME), of_base)
    head = state_of_head(plan.repository.root)
    changes = how_many(head["changed_files"], "uncommitted change") if head["changed_files"] else ""
    words = f"working tree ({str(head['commit'])[:12]}{changes and f' and {changes}'})"
    other = plan.against.other_option
    base_words = f"{plan.base.typed} ({plan.base.short_hash})" if plan.base else words
    base_words += f" with {other.axis} {other.value}" if other else ""
    base: Json = {"revision": plan.base.full_hash if plan.base else head["commit"], "label": base_words}
    of_head: Json = {"revision": head["commit"], "label": words, "changed_files": head["changed_files"]}
    if plan.python_of_base is not None:
        for side, build in ((base, plan.python_of_base.build), (of_head, build_here())):
            side |= {"label": f"{side['label']} under {build}", "build": build}
        if other is None:
            notes.append(f"Exact counters are shown and fail nothing, because {OF_TWO_BUILDS}.")
    header: Json = {
        "engine": PRESENT_ENGINE,
        "base": base,
        "head": of_head,
        "machine_info": plan.machine_info,
        "settings": {
            **asdict(plan.rules),
            "minutes": plan.against.minutes,
            "layout_seed": seed,
            "worker_environment": STEADY,
            "suite": {} if plan.settings is None else asdict(plan.settings),
        },
        "options": plan.options,
        **({} if plan.repository.holds_suite else {"suite": str(SUITE)}),
        **(
            {}
            if plan.tests is None
            else {"tests": {"root": plan.root, "at_base": sorted(run.had), "typed": [*plan.tests]}}
        ),
        "cases": [{"id": case_id, "identity": case.identity()} for case_id, case in plan.cases.items()],
        "started": datetime.now(UTC).isoformat(),
        "accepted": [asdict(entry) for entry in accepted],
    }
    return header, notes


# What a change did to the program of the cases that a gate fails, told after everything is measured.

MOST_CASES, MOST_ROWS = 3, 3
"""Cases, and rows of each, that are told, worst first."""


def tell_what_changed(run: GateRun, result: GateResult, trees: Trees) -> None:
    """Keep with `run` what a change did to its cases that fail so far; of the same cases as before it is known."""
    plan = run.plan
    ours = {name: case for name, case in plan.cases.items() if isinstance(case, Case)}
    names = [name for name in worst_first(result) if name in ours or name in run.compiled]
    if names != run.explained and plan.python_of_base is None:  # of two builds every operation may differ
        other = plan.against.other_option
        values = {} if other is None else {other.axis: other.value}
        run.what_changed, run.explained = what_changed(names, ours, values, trees, run.compiled), names
        if left := names[MOST_CASES:]:
            typed = f"; to see one: {_diff_command(plan, left[0])}" if ours else "."
            run.what_changed.append(f"{how_many(len(left), 'case')} more{typed}")


def _diff_command(plan: GatePlan, case: str) -> str:
    """Return what to type to see what changed in a case, by those of the gate's options that say what is measured."""
    measured, typed = {option.name for option in GROUPS["what is measured"]}, shlex.split(plan.options)
    kept = [plan.base.short_hash if plan.base else "HEAD", "--case", case_name(case)]
    for word, value in pairwise([*typed, ""]):
        if word.partition("=")[0] in measured:
            kept += [word] if "=" in word else [word, value]
    return f"{program()} diff {shlex.join(kept)}"


def worst_first(result: GateResult) -> list[str]:
    """The cases that are SLOWER, the slowest first, then those that are MORE."""
    slower = [row for row in result.cases if row.verdict == Verdict.SLOWER and row.effect is not None]
    slower.sort(key=lambda row: -row.effect.effect if row.effect else 0.0)
    risen = [row.id for row in result.exact if row.verdict == Verdict.MORE]
    return [*dict.fromkeys((*(row.id for row in slower), *risen))]


def what_changed(
    names: Sequence[str],
    cases: Mapping[str, Case],
    other: Mapping[str, str],
    trees: Trees,
    known: Mapping[str, CompiledDifference],
) -> list[str]:
    """Return the worst lines of the program of the first of these cases, which fail; empty without any.

    `other` are base's values on the axes that differ on purpose, `known` what differs in tests of the user's.
    """
    if not names:
        return []
    base, head = (side_in(tree, trees.repository) for tree in (trees.base, trees.head))
    pairs, lines = [], list[str]()
    for case in (cases[name] for name in names[:MOST_CASES] if name in cases):
        values = {axis: value for axis, value in other.items() if hasattr(case, axis)}
        pairs.append((sent_case(replace(case, **values)), sent_case(case)))  # type: ignore[type-var]  # each is a dataclass
    alike: dict[tuple[str, ...], list[str]] = {}
    of_names = [known[name] for name in names[:MOST_CASES]] if known else compare_sides(base, head, pairs)
    for name, found in zip(names, of_names, strict=False):
        alike.setdefault(tuple(_difference_lines(found)), []).append(case_name(name))
    for told, of in alike.items():
        lines += [f"What changed in {', '.join(of)}:", *(f"  {line}" for line in told)]
    return lines


def side_in(tree: Path, repository: Repository) -> SideToRun:
    """The side whose code lies in `tree`, run in the folder and environment of a gate's worker."""
    folder = tree if repository.holds_suite else repository.folder_in(tree)
    return SideToRun(tree, folder, environment_of_side(repository, tree), repository.as_json)


def _difference_lines(found: Difference | CompiledDifference | str) -> list[str]:
    if isinstance(found, str):
        return [found]
    if isinstance(found, CompiledDifference):
        return found.lines
    if not found.rows:
        beside = "tensors that are kept, or work in Python"
        return [f"both sides issue the same operations; the cause is none that they show, such as {beside}."]
    told = [*map(row_sentence, found.rows[:MOST_ROWS])]
    left = len(found.rows) - len(told)
    return [*told[:-1], f"{told[-1]} ({how_many(left, 'row')} more: perf-tests diff)"] if left else told


# The interpreter of base where it is another one: asked what it has, and refused where the suite cannot run in it.

SECONDS = 120
"""Time limit of its answer; it imports torch."""

# Prints what it runs, and what of the needs of the project it lacks. Any Python 3 understands it.
QUESTION = """
import json, platform, sys
needs, pythons, device = json.loads(sys.argv[1])
import torch
from importlib import metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
lacking = [] if SpecifierSet(pythons).contains(platform.python_version()) else ["Python " + pythons]
for need in map(Requirement, needs):
    try:
        there = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        there = None
    if there is None or not need.specifier.contains(there, prereleases=True):
        lacking.append("%s (%s there)" % (need, there or "not"))
if device == "cuda" and not torch.cuda.is_available():
    lacking.append("a torch that sees the GPU")
print(json.dumps([platform.python_version(), torch.__version__, lacking]))
"""


class OtherPythonError(Exception):
    """Base cannot run under this interpreter; the message is one sentence."""


@dataclass(frozen=True)
class OtherPython:
    """The interpreter of base."""

    path: str
    """Absolute, links kept: a virtual environment is found by the path that its interpreter is started by."""
    build: str
    """`Python 3.11.7 with torch 2.12.1+cpu`."""


def build_here() -> str:
    return f"Python {platform.python_version()} with torch {torch.__version__}"


def other_python(typed: str, device_type: str) -> OtherPython:
    """The interpreter that was typed; raises OtherPythonError with what it lacks and the next step."""
    found = shutil.which(typed)
    if found is None:
        raise OtherPythonError(f"--against-python {shlex.quote(typed)} is not a program that can be run.")
    path = os.path.abspath(found)
    project = tomllib.loads((SUITE / "pyproject.toml").read_text())["project"]
    try:
        asked = subprocess.run(
            [path, "-c", QUESTION, json.dumps([project["dependencies"], project["requires-python"], device_type])],
            cwd=os.path.dirname(path), env=environment_without_the_suite(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OtherPythonError(f"--against-python {typed} cannot be run: {error}.") from error
    if asked.returncode or not asked.stdout.startswith("["):
        why = last_error_line(asked.stderr) or "it is not a Python"
        raise OtherPythonError(
            f"--against-python {typed} cannot run the suite: {why}; make an environment of another build with "
            "`make .venv-2.11.0/.installed TORCH=2.11.0`, and give its bin/python."
        )
    python, its_torch, lacking = json.loads(asked.stdout)
    if lacking:
        raise OtherPythonError(
            f"--against-python {typed} lacks what the suite needs: {', '.join(lacking)}; install it there."
        )
    return OtherPython(path, f"Python {python} with torch {its_torch}")
