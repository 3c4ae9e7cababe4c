"""A gate run from its first launch pair to its result; `gate.conclusion.next_step` chooses each pair."""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from perf_tests.bench.options import Against
from perf_tests.bench.worker_plugin import sent
from perf_tests.cases.case import Case
from perf_tests.cases.settings import Settings
from perf_tests.gate.samples import PRESENT_ENGINE, SIDES, End, EndReason, LeftOut, Rules, SamplesFile, Side
from perf_tests.gate.verdicts import (
    FILE_NAME,
    OF_TWO_BUILDS,
    GateResult,
    RunVerdict,
    conclude,
    effective,
    next_step,
    read_accepted,
    read_accepted_of_base,
)
from perf_tests.hardware.machine import can_bind
from perf_tests.interleaved.measuring import (
    STEADY,
    Measuring,
    OtherPython,
    OutOfTimeError,
    PairCost,
    Watch,
    build_here,
    left_out,
    too_short_sentence,
)
from perf_tests.interleaved.sides import TREES, Commit, TreeError, Trees, planted, state_of_head
from perf_tests.records.record import Json, how_many
from perf_tests.user_code.named import SUITE, Repository

# One gate, or search with the gate, at a time: two would share the machine, and neither could tell its neighbour
# from
# a slow side.


class BesideAnotherError(Exception):
    """Another gate measures on this machine; the message is one sentence."""


@contextmanager
def alone(what: str = "gate", folders: str = TREES) -> Iterator[None]:
    """Holds the lock of the temporary folder, after removing the `folders` of runs that were killed.

    The lock ends with its process; its file stays. Raises BesideAnotherError where another run holds it, TreeError
    where it cannot be opened.
    """
    try:
        folder = Path(tempfile.gettempdir())
        lock = _opened(folder / f"perf-tests-{what}.lock")
    except OSError as error:
        raise TreeError(f"The {what} cannot lock the machine: {error}; set TMPDIR to a folder to write to.") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            process = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise BesideAnotherError(
                f"Another {what}, process {process}, is measuring on this machine, and two at once would disturb each "
                "other; wait for its end."
            ) from error
        with suppress(OSError):  # of another user, who left it
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        for left in folder.glob(f"{folders}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(lock)


def _opened(path: Path) -> int:
    """For every user: a shared temporary folder lets nobody create, or open to write, the file of another."""
    with suppress(FileExistsError):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):
            os.fchmod(lock, 0o666)
        return lock
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


IDLE_SECONDS_LIMIT = 0.002
"""CPU time per turn that a waiting side may use: ten times what its messages need, less than spinning threads use."""


@dataclass(frozen=True)
class GatePlan:
    """Everything that a gate run depends on, except its random seed."""

    repository: Repository
    storage: Path
    against: Against
    base: Commit | None
    """None where base is the working tree too, under another option."""
    settings: Settings
    cases: Mapping[str, Case]
    """Head's cases by node id; those of one model are neighbours."""
    ids_at_base: Mapping[str, str]
    """Base's node id of each."""
    machine_info: Json
    rules: Rules
    options: str
    """As typed, to measure a case again."""
    python_of_base: OtherPython | None = None

    @property
    def seconds(self) -> float:
        return 60 * self.against.minutes


@dataclass
class GateRun:
    """The state of a run; `result` is None when it was interrupted."""

    plan: GatePlan
    result: GateResult | None = None
    header: Json = field(default_factory=dict)
    """Of the judged samples."""
    paths: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_gate(run: GateRun, watch: Watch) -> None:
    """Measure and judge. A contaminated run is repeated once.

    Raises BesideAnotherError, TreeError, UnmeasurableError and OSError.

    Whatever interrupts it keeps the samples, ends the workers, removes the trees and propagates.
    """
    with alone(), planted(run.plan.repository, run.plan.base) as trees:
        run.result = _measure_and_judge(run, trees, watch)
        if run.result.verdict == RunVerdict.CONTAMINATED:
            run.notes.append(f"The run was contaminated and is repeated; its samples: {run.paths[-1]}.")
            run.result = _measure_and_judge(run, trees, watch)


def _measure_and_judge(run: GateRun, trees: Trees, watch: Watch) -> GateResult:
    plan = run.plan
    seed = secrets.randbits(32)
    why_not_counted = _why_not_counted(plan, trees)
    run.header, notes = _header(plan, trees, seed)
    notes += [] if why_not_counted is None else [why_not_counted]
    run.notes = [*dict.fromkeys((*run.notes, *notes))]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    path = plan.storage / "gate" / f"{stamp}_{plan.base.short_hash if plan.base else 'working-tree'}.jsonl"
    samples_file = SamplesFile(path, run.header)
    run.paths.append(path)
    measuring = Measuring(
        trees=trees,
        tasks=_tasks(plan),
        own_ids={"base": plan.ids_at_base, "head": {case: case for case in plan.cases}},
        identities={case_id: case.identity() for case_id, case in plan.cases.items()},
        seed=seed,
        samples_file=samples_file,
        watch=watch,
        differing_fields=frozenset({plan.against.other_option.identity_field} if plan.against.other_option else ()),
        # None where the scheduler places the threads.
        threads=plan.settings.threads if plan.settings.device_type == "cpu" and can_bind() else None,
        counts=why_not_counted is None,
        python_of_base=plan.python_of_base.path if plan.python_of_base else None,
    )
    try:
        samples_file.append(End(_measure_until_decided(run, measuring)).to_line())
    except BaseException:
        # A disk that refused a line refuses this one too; its own exception is propagating.
        with suppress(OSError):
            samples_file.append(End("interrupted").to_line())
        raise
    finally:
        with suppress(OSError):
            samples_file.close()
    run.notes += _noise_notes(plan.settings, measuring)
    return conclude(samples_file.samples, plan.rules)


def _measure_until_decided(run: GateRun, measuring: Measuring) -> EndReason:
    """Why it stopped."""
    plan, start, pair = run.plan, time.monotonic(), 0
    samples = measuring.samples_file.samples
    while True:
        step = next_step(samples, plan.rules)
        cases = [case for case in step.cases if case not in measuring.left_out] if step else []
        if step is None or not cases:
            return "finished"
        # The user's time limit is for measuring, not for counting.
        measured_seconds = time.monotonic() - start - measuring.counting_seconds
        if pair and measured_seconds + measuring.expected_seconds(step.stage, cases) > plan.seconds:
            return "budget"
        by_model = groupby(cases, key=lambda case_id: plan.cases[case_id].built_from)
        try:
            measuring.measure_pair(step.stage, pair, [list(group) for _, group in by_model])
        except OutOfTimeError:
            return "time_limit"
        if pair == 0:
            _leave_out(run, measuring)
        pair += 1


def _leave_out(run: GateRun, measuring: Measuring) -> None:
    """After the first launch pair: measure fewer cases well where the time is too short for all."""
    measured = {case: measuring.case_seconds[case] for case in run.plan.cases if case in measuring.case_seconds}
    cost = PairCost(measuring.launch_seconds, measured)
    still = run.plan.seconds - measuring.once_seconds
    left = left_out(measuring.samples_file.samples, cost, run.plan.rules, still)
    for case in left:
        measuring.samples_file.append(LeftOut(case).to_line())
    if left:
        said = too_short_sentence(left, cost, run.plan.rules, run.plan.seconds)
        measuring.watch.say(said)
        run.notes.append(said)


def _why_not_counted(plan: GatePlan, trees: Trees) -> str | None:
    """Why the exact counters of base and head need no counting; None if they do."""
    if plan.against.other_option is not None:
        return "Exact counters are not compared, because the two sides run different settings."
    # What a named file imports may lie anywhere beside it.
    is_model_alone = plan.repository.holds_suite and not plan.repository.files
    if plan.python_of_base is None and trees.have_the_same("model" if is_model_alone else "."):
        what = "model/" if is_model_alone else "The repository"
        return f"{what} is identical on both sides, so its exact counters are too."
    return None


def _tasks(plan: GatePlan) -> dict[Side, Json]:
    repository = plan.repository
    names = {case_id.partition("::")[0] for case_id in plan.cases}
    files = sorted(name if repository.holds_suite else str(SUITE / name) for name in names)
    sides: dict[Side, Settings] = {"base": plan.against.settings_of_base(plan.settings), "head": plan.settings}
    where: Json = {
        "root": str(repository.root), "folder": str(repository.folder), "holds_suite": repository.holds_suite,
        "named": repository.named,
    }  # fmt: skip
    return {side: {"settings": sent(sides[side]), "files": files, "repository": where} for side in SIDES}


def _header(plan: GatePlan, trees: Trees, seed: int) -> tuple[Json, list[str]]:
    """The first line of the samples, and notes on it."""
    # Of two settings both sides are the working tree, in which nothing expires. Git may ignore head's file.
    of_base = [] if plan.base is None else read_accepted_of_base(trees.base / ".benchmarks" / FILE_NAME)
    accepted, notes = effective(read_accepted(plan.repository.root / ".benchmarks" / FILE_NAME), of_base)
    sides = _sides(plan)
    if changed := sides["head"]["changed_files"]:
        notes.append(f"The working tree was measured with its {how_many(changed, 'uncommitted change')}.")
    if plan.python_of_base is not None and plan.against.other_option is None:
        notes.append(f"Exact counters are shown and fail nothing, because {OF_TWO_BUILDS}.")
    header: Json = {
        "engine": PRESENT_ENGINE,
        "base": sides["base"],
        "head": sides["head"],
        "machine_info": plan.machine_info,
        "settings": {
            **plan.rules.settings(),
            "minutes": plan.against.minutes,
            "layout_seed": seed,
            "worker_environment": STEADY,
            "suite": asdict(plan.settings),
        },
        "options": plan.options,
        **({} if plan.repository.holds_suite else {"suite": str(SUITE)}),
        "cases": [{"id": case_id, "identity": case.identity()} for case_id, case in plan.cases.items()],
        "started": datetime.now(UTC).isoformat(),
        "accepted": [asdict(entry) for entry in accepted],
    }
    return header, notes


def _sides(plan: GatePlan) -> dict[Side, Json]:
    """What base and head are, for the header."""
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
    return {"base": base, "head": of_head}


def _noise_notes(settings: Settings, measuring: Measuring) -> list[str]:
    notes = []
    if settings.device_type == "cpu" and measuring.threads is None:
        notes.append(
            "This machine does not allow binding processes to cores, so a neighbour can slow one side alone and "
            "figures are noisier."
        )
    idle_seconds = measuring.idle_cpu_seconds / max(1, measuring.turns)
    if idle_seconds > IDLE_SECONDS_LIMIT:
        notes.append(
            f"The waiting side uses {1e3 * idle_seconds:.1f} ms of CPU time per turn because its threads spin, so "
            "figures are noisier."
        )
    return notes
