"""The memory pass (`--memory`): each case in a fresh process, its peaks beside those that its counters predict."""

import gc
import json
import os
import pickle
import signal
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.regions import regions_opened_by
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.audit.rounds import CPU_WORKSPACE_BYTES_PER_THREAD, RowFacts, raised
from perf_tests_suite.perf_tests.bench.loop import Measure, Rounds
from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.session import benchmark_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.bench.worker_plugin import examined, sent_elsewhere
from perf_tests_suite.perf_tests.bench.workers import (
    ClosedError,
    WorkerEndedError,
    WorkerProcess,
    channel_of_worker,
    inherited_environment,
    start_worker,
)
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.clock import multiplied_dtype
from perf_tests_suite.perf_tests.hardware.torch_private import cuda_memory_history, cuda_memory_snapshot, load_compiler
from perf_tests_suite.perf_tests.passes import memory_watch
from perf_tests_suite.perf_tests.passes.extra_pass import ExtraPass, Timing, kept_beside
from perf_tests_suite.perf_tests.passes.memory_watch import (
    HolderWatch,
    LiveTensors,
    Mark,
    OpenPart,
    Regions,
    RoundMemory,
)
from perf_tests_suite.perf_tests.phases import ATTENTION_ALONE, label_of
from perf_tests_suite.perf_tests.predict.costs import tensors_in
from perf_tests_suite.perf_tests.predict.counters import Counters
from perf_tests_suite.perf_tests.predict.expectation import expect
from perf_tests_suite.perf_tests.predict.fake_run import MODEL_SOURCE
from perf_tests_suite.perf_tests.predict.parts import GRADIENTS, INPUTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests_suite.perf_tests.records.record import Json, thinned
from perf_tests_suite.perf_tests.traces.trace import PHASES, layer_of

ALL_ROUNDS = 3
"""The first allocates what later ones reuse, the second gives the allocator's figures, the third the holders."""


class MemoryPass(ExtraPass):
    """A worker runs the rounds of each case in a process of their own."""

    rounds_of = staticmethod(lambda phase, rounds: ALL_ROUNDS)

    def examine(self, timing: Timing) -> Json:
        session, settings = self.workbench.session, self.workbench.settings
        task: Json = {"benchmark": self.benchmark_id(timing), "settings": sent_elsewhere(settings), "snapshot": None}
        if settings.memory_snapshot and session is not None:
            task["snapshot"] = str(session.side_file(self.request.node.nodeid, "pickle"))
        values = self.answered_by(partial(self.request.getfixturevalue("memory_worker").ask, task))
        expectation = expect(self.case, None, None, self.workbench.libraries)
        workspace_bytes = workspace_bytes_of(self.case, settings.threads)
        return with_prediction(values, expectation.counters, expectation.counters_reason, workspace_bytes)


def workspace_bytes_of(case: Case, threads: int) -> int:
    """Return what libraries may allocate beside the predicted peak, which has cuBLAS's workspaces on a GPU.

    Float32 products on a CPU allocate nothing.
    """
    if case.device == "cuda":
        return 0
    takes_some = case.attention != "naive" or multiplied_dtype(PRECISIONS[case.precision]) != torch.float32
    return threads * CPU_WORKSPACE_BYTES_PER_THREAD if takes_some else 0


def with_prediction(values: Json, counters: Counters | None, reason: str | None, workspace_bytes: int) -> Json:
    """Return the row's values with the peaks that the counters predict, and a flag where the two disagree."""
    predicted, held, peaks = None, None, {}
    if counters is not None:
        predicted, held = counters.peak_bytes, counters.highest_part.bytes_by_category
        # An inference runs in the region of a forward pass.
        regions = ("forward" if peak.part == "inference" else label_of(peak.part) for peak in counters.parts)
        peaks = dict(zip(regions, (peak.peak_bytes for peak in counters.parts), strict=True))
    allocated, requested = values["peak_allocated_bytes"], values.get("peak_requested_bytes")
    measured = allocated if requested is None else requested
    facts = RowFacts(peak_allocated_bytes=measured, predicted_peak_bytes=predicted, workspace_bytes=workspace_bytes)
    return {
        **values,
        "predicted_peak_bytes": predicted,
        "predicted_by_category_bytes": held,
        "prediction_reason": reason,
        "prediction_error": measured / predicted - 1 if predicted else None,
        "parts": [{**part, "predicted_peak_bytes": peaks.get(part["phase"])} for part in values["parts"]],
        "flags": [*values["flags"], *raised(facts)],
    }


# A few rounds watched for memory: the allocator's figures, and what holds each block.


PARTS = ("forward", "loss", "backward", "optimizer")
"""The regions of a training step that are parts of its round."""

PICKLE_PROTOCOL = 4
"""The newest that pytorch.org/memory_viz reads."""

Standing = Iterable[tuple[str, list[Tensor]]]
"""The tensors that outlive a round, by category."""


def standing(training: Training | None, inputs: Sequence[Tensor]) -> Standing:
    """Yield them with gradients last, because they come and go."""
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    yield INPUTS, list(inputs)
    if training is not None:
        module, state = training.model, training.optimizer.state
        leaves = list(module.parameters())
        yield PARAMETERS, [*leaves, *module.buffers()]
        yield OPTIMIZER_STATE, list(tensors_in(state.values()))
    yield GRADIENTS, [leaf.grad for leaf in leaves if leaf.grad is not None]


@dataclass
class MemoryMeasure(Measure):
    """Runs in a process of its own."""

    case: Case
    device: torch.device
    standing: Callable[[], Standing]
    """The tensors that outlive a round; called once the benchmark has built what its rounds need."""
    snapshot: Path | None

    def run_rounds(self, rounds: Rounds) -> Json:
        def run_round(open_part: OpenPart) -> None:
            with regions_opened_by(lambda name: open_part(name) if name in PARTS else nullcontext()):
                self._run_round(rounds, open_part)

        sees_operations = not self.case.is_compiled  # compiled code runs in one piece, of which Python sees nothing
        after_init = memory_watch.allocated_bytes(self.device)
        exact = memory_watch.memory_of_round(run_round, self.device, rounds.forget)
        # Stacks of blocks end at this file, which calls the benchmark's functions.
        watch = HolderWatch(self.device.type, MODEL_SOURCE, __file__, sees_operations, PARTS)
        self._register_standing(watch)
        with watch.round():
            self._run_round(rounds, watch.part)
        self._register_standing(watch)
        held = watch.finished()
        values = memory_values(self.case, after_init, exact, held, sees_operations)
        if self.snapshot is None:
            return values
        if self.device.type == "cuda":
            rounds.forget()
            with cuda_memory_history(memory_watch.MOST_ENTRIES):
                self._run_round(rounds, lambda name: nullcontext())
                snapshot = cuda_memory_snapshot()
        else:
            # Compiled code has no lines of Python, so that its blocks are known by the allocator alone.
            events = [(event.address, event.bytes, ()) for event in exact.events]
            before, during = held.happenings() if sees_operations else ([], events)
            snapshot = memory_watch.synthetic_snapshot(before, during)
        return values | kept_beside("snapshot", self.snapshot, pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL))

    def _register_standing(self, watch: HolderWatch) -> None:
        # A separate call, because a name left over would keep the gradients alive through the next round.
        for category, tensors in self.standing():
            watch.register(tensors, category)

    def _run_round(self, rounds: Rounds, open_part: OpenPart) -> None:
        """Run one round. Attention alone opens no regions, so its passes are made parts here."""

        def part(name: str) -> AbstractContextManager[object]:
            return open_part(name) if self.case.phase_row.family == ATTENTION_ALONE else nullcontext()

        if rounds.setup is None:
            rounds.run_round(around_target=lambda: part("forward"))
        else:
            rounds.run_round(lambda: part("forward"), lambda: part("backward"))


# The values of a row: plain, and without what is predicted.


MARKS = ("after forward", "before backward", "before optimizer", "after optimizer")
MOST_MOMENTS = 300
"""Moments of a timeline; of more, the highest and the lowest of every stretch and the borders of parts are kept."""
LARGEST_ALLOCATIONS = 8

NOT_ATTRIBUTED = "not attributed"
"""Category of what compiled code holds."""


def memory_values(
    case: Case, after_init: tuple[int, int | None], exact: RoundMemory, held: LiveTensors, sees_operations: bool
) -> Json:
    """Return the row of what was measured; `after_init` are allocated and reserved bytes before the first round.

    Without seeing operations, as in compiled code, a block is its size alone.
    """
    marks = [Mark("after init", *after_init), *(mark for mark in exact.marks if mark.name in MARKS)]
    if sees_operations:
        at_peak, moments = dict(sorted(held.live_at_peak().items())), timeline(held)
        made = Counter((block.bytes, block.place, block.category) for block in held.allocations())
    else:
        totals = list(accumulate((event.bytes for event in exact.events), initial=exact.allocated_before_bytes))
        kept = {NOT_ATTRIBUTED: [totals[place] for place in thinned(totals, MOST_MOMENTS)]} if exact.events else {}
        at_peak, moments = {NOT_ATTRIBUTED: exact.peak_allocated_bytes}, {"category_bytes": kept, "parts": []}
        sizes = (event.bytes for event in exact.events if event.bytes > 0)
        made = Counter((size, "compiled code", NOT_ATTRIBUTED) for size in sizes)
    largest = sorted(made.items(), key=lambda item: (-item[0][0], item[0][1:]))[:LARGEST_ALLOCATIONS]
    values: Json = {
        "peak_allocated_bytes": exact.peak_allocated_bytes,
        "peak_requested_bytes": exact.peak_requested_bytes,
        "peak_reserved_bytes": exact.peak_reserved_bytes,
        "marks": [vars(mark) for mark in marks],
        "parts": list(exact.parts),
        "saved_bytes_by_part": saved_by_part(held.saved_bytes),
        "residual_tensor_bytes": case.residual_tensor_bytes,
        "fragmentation": exact.fragmentation,
        "resident_set_peak_bytes": memory_watch.resident_set_peak_bytes(),
        "snapshot": None,
        "flags": [],
        "peak_by_category_bytes": at_peak,
        "largest_allocations": [
            {"bytes": size, "count": count, "line": place, "category": category}
            for (size, place, category), count in largest
        ],
        "timeline": moments,
    }
    if case.phase_row.family == ATTENTION_ALONE:
        moment = "before backward" if case.phase_row.has_backward else "after forward"
        values["memory_before_backward_bytes"] = next(m.allocated_bytes for m in marks if m.name == moment)
    return values


def saved_by_part(saved_bytes: Counter[Regions]) -> list[Json]:
    """Return the bytes saved for the backward pass, by block and by the innermost region that saved them."""
    rows: Counter[tuple[str | None, str]] = Counter()
    for regions, count in saved_bytes.items():
        names = [name for name in regions if name not in PHASES and not name.startswith("block ")]
        part = names[-1] if names else "residual" if layer_of(regions) else "elsewhere"
        rows[layer_of(regions), part] += count
    return [{"block": block, "part": part, "saved_bytes": count} for (block, part), count in rows.items()]


def timeline(held: LiveTensors) -> Json:
    """Return the bytes of each category after every change of the round, or after MOST_MOMENTS of them."""
    totals = list(accumulate((change.bytes for change in held.changes), initial=0))[held.first_of_round :]
    parts = [(part.name, part.first - held.first_of_round, part.end - held.first_of_round) for part in held.parts]
    borders = {min(border, len(totals) - 1) for _, *ends in parts for border in ends}
    chosen = sorted({*thinned(totals, MOST_MOMENTS - len(borders)), *borders})
    bytes_now: Counter[str] = Counter()
    done, moments = 0, []
    for changes in chosen:
        for change in held.changes[done : held.first_of_round + changes]:
            bytes_now[change.block.category] += change.bytes
        done = held.first_of_round + changes
        moments.append(+bytes_now)  # a copy without the categories of which nothing is left

    def place(changes: int) -> int:
        """The place among the chosen moments of the one after so many changes."""
        return min(bisect_left(chosen, changes), len(chosen) - 1)

    categories = sorted({category for moment in moments for category in moment})
    return {
        "category_bytes": {category: [moment[category] for moment in moments] for category in categories},
        "parts": [{"name": name, "first": place(first), "last": place(end)} for name, first, end in parts],
    }


# The worker, which forks a process for each case: `python -m perf_tests_suite.perf_tests.passes.memory SOCKET`.
#
# It imports what a case needs, but touches no device and starts no thread. pytest runs the benchmark, so that its
# rounds are those of the timings.


@dataclass
class MemoryWorker:
    """The suite's end. `root` is the folder that holds the suite; a worker that ended is started again."""

    root: Path
    _worker: WorkerProcess | None = None

    def ask(self, task: Json) -> Json:
        """Return the `values` or the `outcome` of a case. Raises WorkerEndedError with one sentence."""
        if self._worker is None:
            # numpy starts threads on import, and a fork does not inherit threads.
            environment = {**inherited_environment([self.root / "perf_tests/importable"]), "OPENBLAS_NUM_THREADS": "1"}
            self._worker = start_worker("perf_tests_suite.perf_tests.passes.memory", self.root, environment)
        try:
            return self._worker.ask(task)
        except WorkerEndedError as error:
            self.end()
            raise WorkerEndedError(f"the worker of the memory pass ended: {error}.") from error
        except BaseException:  # the time of the case is up: what it answers later is not the next one's
            self.end()
            raise

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None


def main() -> int:
    channel = channel_of_worker()
    if torch.version.cuda is None:
        # AdamW and torch.compile import it; a build with CUDA may ask the driver meanwhile, and no fork survives that.
        load_compiler()
    gc.freeze()  # no collection of a case need walk what is imported
    while True:
        try:
            channel.send(in_a_fork(channel.receive()))
        except ClosedError:  # the suite is done, or has died
            return 0


def in_a_fork(task: Json) -> Json:
    """Return the answer of a fork of this process; an outcome where it died."""

    def measure(item: Any, workbench: Workbench) -> MemoryMeasure:
        snapshot, device = None if task["snapshot"] is None else Path(task["snapshot"]), workbench.device.torch_device

        def standing_now() -> Standing:
            training = item.funcargs.get("training")
            return standing(training, item.funcargs["inputs" if training is None else "batch"].all)

        return MemoryMeasure(benchmark_of(item).case, device, standing_now, snapshot)

    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        # It ends without the clean-up that belongs to the process which was forked.
        try:
            os.close(read)
            with os.fdopen(write, "wb") as answers:
                no_answer = {"outcome": asdict(Outcome("error", "pytest did not run it"))}
                answers.write(json.dumps(examined(task, measure) or no_answer).encode())
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answered:
        content = answered.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    end = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    if code >= 0:
        with suppress(ValueError):
            answer: Json = json.loads(content)
            return answer
    if end == "SIGKILL":  # which Linux sends to the process that takes the machine's last memory
        reason = "its process was killed by SIGKILL, probably by the out-of-memory killer; set --memory-budget."
        return {"outcome": asdict(Outcome("out_of_memory", reason))}
    return {"outcome": asdict(Outcome("error", f"its process ended with {end}; run the case alone to see why."))}


if __name__ == "__main__":
    # This file once more, by its name: pytest loads it so, and what one copy sets the other would not see.
    from perf_tests_suite.perf_tests.passes import memory

    sys.exit(memory.main())
