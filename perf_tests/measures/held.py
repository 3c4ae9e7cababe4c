"""A few rounds watched for memory: the allocator's figures, and what holds each block."""

import pickle
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import model as model_package
from model.regions import regions_opened_by
from model.training import Training
from perf_tests.cases.case import Case
from perf_tests.instruments.counters import GRADIENTS, INPUTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests.instruments.kernel_cost import tensors_in
from perf_tests.instruments.memory_holders import Held, HolderWatch
from perf_tests.instruments.memory_snapshot import MOST_ENTRIES, Snapshot, snapshot_of_events, snapshot_of_held
from perf_tests.instruments.round_memory import (
    OpenPart,
    RoundMemory,
    allocated_bytes,
    memory_of_round,
)
from perf_tests.instruments.torch_private import cuda_memory_history, cuda_memory_snapshot
from perf_tests.measures.held_values import memory_values
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.phases import ATTENTION_ALONE
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole

PARTS = ("forward", "loss", "backward", "optimizer")
"""The regions of a training step that are parts of its round."""

PICKLE_PROTOCOL = 4
"""The newest that pytorch.org/memory_viz reads."""

MODEL_SOURCE = Path(model_package.__file__).parent


@dataclass(frozen=True)
class Standing:
    """The tensors that outlive a round."""

    training: Training | None
    inputs: tuple[Tensor, ...]

    def by_category(self) -> Iterable[tuple[str, list[Tensor]]]:
        """Gradients last, because they come and go."""
        leaves = [tensor for tensor in self.inputs if tensor.requires_grad]
        yield INPUTS, list(self.inputs)
        if self.training is not None:
            module, state = self.training.model, self.training.optimizer.state
            leaves = list(module.parameters())
            yield PARAMETERS, [*leaves, *module.buffers()]
            yield OPTIMIZER_STATE, list(tensors_in(state.values()))
        yield GRADIENTS, [leaf.grad for leaf in leaves if leaf.grad is not None]


@dataclass
class HeldMeasure(Measure):
    """Runs in a process of its own."""

    case: Case
    device: torch.device
    standing: Callable[[], Standing]
    """Called once the benchmark has built what its rounds need."""
    snapshot: Path | None

    def look(self, rounds: Rounds) -> Json:
        def play(open_part: OpenPart) -> None:
            with regions_opened_by(lambda name: open_part(name) if name in PARTS else nullcontext()):
                self._play(rounds, open_part)

        after_init = allocated_bytes(self.device)
        exact = memory_of_round(play, self.device, rounds.forget)
        watch = HolderWatch(self.device.type, MODEL_SOURCE, __file__, self._sees_operations, PARTS)
        self._register_standing(watch)
        with watch.round():
            self._play(rounds, watch.part)
        self._register_standing(watch)
        held = watch.finished()
        values = memory_values(self.case, after_init, exact, held, self._sees_operations)
        if self.snapshot is None:
            return values
        return values | self._keep_snapshot(self.snapshot, exact, held, rounds)

    def _register_standing(self, watch: HolderWatch) -> None:
        # A separate call, because a name left over would keep the gradients alive through the next round.
        for category, tensors in self.standing().by_category():
            watch.register(tensors, category)

    @property
    def _sees_operations(self) -> bool:
        """Whether Python sees each operation; compiled code runs in one piece."""
        return not self.case.is_compiled

    def _play(self, rounds: Rounds, open_part: OpenPart) -> None:
        """One round. Attention alone opens no regions, so its passes are made parts here."""

        def part(name: str) -> AbstractContextManager[object]:
            return open_part(name) if self.case.row.family == ATTENTION_ALONE else nullcontext()

        if rounds.setup is None:
            rounds.play(around_target=lambda: part("forward"))
        else:
            rounds.play(lambda: part("forward"), lambda: part("backward"))

    def _keep_snapshot(self, path: Path, exact: RoundMemory, held: Held, rounds: Rounds) -> Json:
        """Its path, or why it has none: a full folder costs the snapshot, not the case."""
        content = pickle.dumps(self._snapshot(exact, held, rounds), protocol=PICKLE_PROTOCOL)
        try:
            write_whole(path, content)
        except OSError as error:
            return {
                "snapshot": None,
                "snapshot_reason": f"the snapshot of {len(content):,} bytes cannot be written: {error}; "
                "free disk space and run again.",
            }
        return {"snapshot": f"{path.parent.name}/{path.name}"}

    def _snapshot(self, exact: RoundMemory, held: Held, rounds: Rounds) -> Snapshot:
        if self.device.type == "cuda":
            rounds.forget()
            with cuda_memory_history(MOST_ENTRIES):
                self._play(rounds, lambda name: nullcontext())
                return cuda_memory_snapshot()
        return snapshot_of_held(held) if self._sees_operations else snapshot_of_events(exact.events)
