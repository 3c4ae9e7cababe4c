"""A gate run from its first launch pair to its result: which pair comes next is the statistics' decision, not ours."""

import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from perf_tests.bench.against import Against
from perf_tests.cases import Case
from perf_tests.gate.accepted import FILE_NAME, effective, read_accepted
from perf_tests.gate.conclusion import GateResult, RunVerdict, conclude, next_step
from perf_tests.gate.rules import Rules
from perf_tests.gate.samples import SamplesFile
from perf_tests.instruments.cores import can_bind
from perf_tests.options import Settings
from perf_tests.paired.launch_pair import SIDES, STEADY, Side
from perf_tests.paired.measuring import Measuring, Watch
from perf_tests.paired.trees import Commit, Trees, planted, state_of_head
from perf_tests.records.record import Json
from perf_tests.workers.settings import sent

IDLE_SECONDS_LIMIT = 0.002
"""CPU time that a side may take while it waits for its turn; a tenth of it is talk, and threads that spin take more."""


@dataclass(frozen=True)
class GatePlan:
    """Everything that a gate run depends on, chances apart."""

    root: Path
    storage: Path
    against: Against
    base: Commit | None
    """None where base is the working tree too, under another option."""
    settings: Settings
    cases: Mapping[str, Case]
    """What head measures, by node id, the cases of one model side by side."""
    ids_at_base: Mapping[str, str]
    """What base calls each of them."""
    machine_info: Json
    rules: Rules
    options: str
    """As typed, to measure a case again with."""

    @property
    def seconds(self) -> float:
        return 60 * self.against.minutes


@dataclass
class GateRun:
    """What became of a run; `result` is None when it was interrupted."""

    plan: GatePlan
    result: GateResult | None = None
    header: Json = field(default_factory=dict)
    """Of the samples that were judged."""
    paths: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_gate(run: GateRun, watch: Watch) -> None:
    """Measure and judge. A contaminated run is measured again, once. Raises TreeError, UnmeasurableError and OSError.

    Ctrl-C, or a scheduler's SIGTERM, keeps the samples so far, ends the workers, removes the trees and goes on upwards.
    """
    with _sigterm_as_ctrl_c(), planted(run.plan.root, run.plan.base, run.plan.settings.model) as trees:
        run.result = _measure_and_judge(run, trees, watch)
        if run.result.verdict == RunVerdict.CONTAMINATED:
            run.notes.append(f"Contaminated, and measured again: {run.paths[-1]}.")
            run.result = _measure_and_judge(run, trees, watch)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """The process may end by it, but not before its workers have."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure_and_judge(run: GateRun, trees: Trees, watch: Watch) -> GateResult:
    plan = run.plan
    seed = secrets.randbits(32)
    why_not_counted = _why_not_counted(plan, trees)
    run.header, notes = _header(plan, trees, seed)
    notes += [] if why_not_counted is None else [why_not_counted]
    run.notes = [*dict.fromkeys((*run.notes, *notes))]
    path = _samples_path(plan)
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
        differing_fields=frozenset({plan.against.other_option.axis} if plan.against.other_option else ()),
        threads=_threads_on_shared_cores(plan.settings),
        counts=why_not_counted is None,
    )
    try:
        samples_file.append({"event": "end", "reason": _measure_until_decided(plan, measuring)})
    except BaseException:
        # A disk that refused a line refuses this one too, and that has its own exception.
        with suppress(OSError):
            samples_file.append({"event": "end", "reason": "interrupted"})
        raise
    finally:
        with suppress(OSError):
            samples_file.close()
    run.notes += [*_unbound_note(plan.settings, measuring), *_idle_note(measuring)]
    return conclude(samples_file.samples, plan.rules)


def _measure_until_decided(plan: GatePlan, measuring: Measuring) -> str:
    """Why it stopped, as the samples say it."""
    start, pair, last_pair_seconds = time.monotonic(), 0, 0.0
    while True:
        step = next_step(measuring.samples_file.samples, plan.rules)
        cases = [case for case in step.cases if case not in measuring.left_out] if step else []
        if step is None or not cases:
            return "finished"
        # Counting is not measuring: it takes nothing of the time that the user gave for that.
        measured_seconds = time.monotonic() - start - measuring.counting_seconds
        if pair and measured_seconds + last_pair_seconds > plan.seconds:
            return "budget"
        measuring.measure_pair(step.stage, pair, _groups(cases, plan.cases))
        # The pairs of one stage take alike; those of stage 2 have fewer cases.
        last_pair_seconds = measuring.samples_file.samples.pair_seconds[step.stage, pair]
        pair += 1


def _threads_on_shared_cores(settings: Settings) -> int | None:
    """With how many each side computes on the cores that both are kept on; None where the scheduler places them."""
    return settings.threads if settings.device_type == "cpu" and can_bind() else None


def _why_not_counted(plan: GatePlan, trees: Trees) -> str | None:
    """None where the exact counters of base and head are worth counting, else a sentence."""
    if plan.against.other_option is not None:
        return "The exact counters of two settings are those of two different things, and are not compared."
    if trees.have_the_same("model"):
        return "model/ is the same on both sides, byte for byte, and so are its exact counters."
    return None


def _groups(ids: Sequence[str], cases: Mapping[str, Case]) -> list[list[str]]:
    """Cases that share a model, together."""
    return [list(group) for _, group in groupby(ids, key=lambda case_id: cases[case_id].built_from)]


def _tasks(plan: GatePlan) -> dict[Side, Json]:
    """Both sides get half of the memory each, since both are there at once."""
    files = sorted({case_id.partition("::")[0] for case_id in plan.cases})
    sides: dict[Side, Settings] = {"base": plan.against.settings_of_base(plan.settings), "head": plan.settings}
    return {side: {"settings": sent(sides[side]), "files": files} for side in SIDES}


def _samples_path(plan: GatePlan) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    name = plan.base.short_hash if plan.base else "working-tree"
    return plan.storage / "gate" / f"{stamp}_{name}.jsonl"


def _header(plan: GatePlan, trees: Trees, seed: int) -> tuple[Json, list[str]]:
    """The first line of the samples, and what there is to be said about it."""
    head = state_of_head(plan.root)
    words = f"working tree ({str(head['commit'])[:12]}{_changes(head['changed_files'])})"
    other = plan.against.other_option
    base_words = f"{plan.base.typed} ({plan.base.short_hash})" if plan.base else words
    accepted, notes = effective(
        read_accepted(trees.head / ".benchmarks" / FILE_NAME), read_accepted(trees.base / ".benchmarks" / FILE_NAME)
    )
    if head["changed_files"]:
        notes.append(f"The working tree has {head['changed_files']} uncommitted changes, and was measured with them.")
    header = {
        "base": {
            "revision": plan.base.full_hash if plan.base else head["commit"],
            "label": f"{base_words} with {other.axis} {other.value}" if other else base_words,
        },
        "head": {"revision": head["commit"], "label": words, "changed_files": head["changed_files"]},
        "machine_info": plan.machine_info,
        "settings": {
            **plan.rules.settings(),
            "minutes": plan.against.minutes,
            "layout_seed": seed,
            "worker_environment": STEADY,
            "suite": asdict(plan.settings),
        },
        "options": plan.options,
        "cases": [{"id": case_id, "identity": case.identity()} for case_id, case in plan.cases.items()],
        "started": datetime.now(UTC).isoformat(),
        "accepted": [asdict(entry) for entry in accepted],
    }
    return header, notes


def _changes(count: int | None) -> str:
    return f" and {count} uncommitted changes" if count else ""


def _unbound_note(settings: Settings, measuring: Measuring) -> list[str]:
    if settings.device_type != "cpu" or measuring.threads is not None:
        return []
    return [
        "This machine does not let processes be bound to cores, so a neighbour can slow one side alone; figures are "
        "noisier for it."
    ]


def _idle_note(measuring: Measuring) -> list[str]:
    idle_seconds = measuring.idle_cpu_seconds / max(1, measuring.turns)
    if idle_seconds <= IDLE_SECONDS_LIMIT:
        return []
    return [
        f"The side that waits takes {1e3 * idle_seconds:.1f} ms of CPU time a turn, because its threads spin on; "
        "figures are noisier for it."
    ]
