"""Write the record that `recorded` replays: fake runs of shallow models whose dimensions are distinct primes."""

import json
import lzma
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import COUNTED_ATTENTION, Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.predict import costs, fake_run, recorded
from perf_tests_suite.perf_tests.predict.counting import Counting, StorageTracker
from perf_tests_suite.perf_tests.predict.parts import Parts, StorageBlock
from perf_tests_suite.perf_tests.records.record import Json

PRIMES = {"B": 13, "H": 11, "P": 19, "F": 101, "V": 211, "T": 541, "Q": 17}
"""Dimensions of a model; 541 tokens fill 17 tiles."""
PRIMES_ALONE = {"B": 13, "K": 19, "T": 541, "Q": 17}

LAYERS = {"training": (1, 2), "inference": (2, 3)}
"""Depths of which all others are extrapolated."""
CHECKPOINTS = ("none", "attention", "block")
OPTIMIZERS = ("loop", "foreach", "fused")
PRECISIONS = ("fp32", "bf16", "fp16", "fp16-unscaled")
BATCHES = (1, PRIMES["B"])


def symbol(number: int, primes: recorded.Dimensions, lengths: Collection[int] = ()) -> str:
    """`4BTT` of a size or stride. Raises ValueError where it is no product of the dimensions, 2, 3, 5 and 7, and the
    length of a list; of the batch alone everything is one."""
    if number == 0:
        return "0"
    letters = ""
    for letter, prime in primes.items():
        while number % prime == 0:
            number, letters = number // prime, letters + letter
    left = number if len(primes) > 1 else 1
    for small in (2, 3, 5, 7):
        while left % small == 0:
            left //= small
    if left != 1 and all(length % left for length in lengths):
        raise ValueError(f"{number}{letters} is no product of dimensions; choose other primes.")
    return f"{number}{letters}"


class _Table:
    """Rows, each once, by number."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {
            name: [] for name in ("sizes", "words", "operators", "tensors", "operations", "blocks")
        }
        self._known: dict[tuple[str, str], int] = {}

    def number(self, table: str, row: Any) -> int:
        key = (table, json.dumps(row))
        if key not in self._known:
            self._known[key] = len(self.rows[table])
            self.rows[table].append(row)
        return self._known[key]


class _Tracker(StorageTracker):
    """Follows blocks as its base does, and knows their bytes before they are rounded."""

    def __init__(self) -> None:
        super().__init__(on_cuda=True)
        self.asked: dict[int, tuple[StorageBlock, int]] = {}
        self.operation_of: dict[int, int] = {}
        self.newest_saved: StorageBlock | None = None
        self.accumulators: list[StorageBlock] = []

    def _block(self, size: int, operator: str, place: str, category: str, on_host: bool) -> StorageBlock:
        block = super()._block(size, operator, place, category, on_host)
        self.asked[id(block)] = block, size
        return block

    def passes_by(self, size: int, operator: str, place: str) -> None:
        super().passes_by(size, operator, place)
        self.accumulators.append(self.changes[-1].block)

    def saved(self, tensor: Tensor) -> tuple[Tensor, int]:
        detached, size = super().saved(tensor)
        self.newest_saved = self.block_of(detached) if size else None
        return detached, size


class _Recorder(Counting):
    """Counts as its base does, and keeps each operation as a row of `table`."""

    table: _Table
    primes: recorded.Dimensions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tracker: _Tracker = _Tracker()
        self._operations: dict[int, list[int]] = {}
        self._saved: dict[int, list[StorageBlock]] = {}
        self._call: tuple[Any, tuple[Any, ...], dict[str, Any]] = (None, (), {})
        self._lengths: set[int] = set()
        self.stream: Json = {}

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._call = func, args, kwargs or {}
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._call = None, (), {}  # autograd copies a gradient that anything else holds

    def note(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cost: KernelCost, launches: int) -> None:
        func, args, kwargs = self._call
        if launches == 0:  # the host reads a value
            return
        operator = self.table.number("operators", [costs.operator_name(func), int(costs.is_pointwise(func))])
        values = self._row(list(args)), self._row(kwargs), self._row(list(outputs))
        row = [operator, *values, int(cost.is_recomputed)]
        number = self.table.number("operations", row)
        self._operations.setdefault(id(self._current), []).append(number)
        for block in self.tracker.accumulators:
            self.tracker.operation_of[id(block)] = number
        self.tracker.accumulators.clear()

    def _note_saved(self, tensor: Tensor) -> Tensor:
        detached = super()._note_saved(tensor)
        if self.tracker.newest_saved is not None:
            self._saved.setdefault(id(self._current), []).append(self.tracker.newest_saved)
        return detached

    def finished(self) -> Parts:
        numbers: dict[int, int] = {}
        rows: list[int] = []
        changes: list[int] = []

        def numbered(block: StorageBlock) -> int:
            if id(block) not in numbers:
                numbers[id(block)] = len(rows)
                rows.append(self.table.number("blocks", self._block_row(block)))
            return numbers[id(block)]

        for change in self.tracker.changes:
            if change.is_allocation:
                assert id(change.block) not in numbers
                numbered(change.block)
                changes.append(0)
            else:
                changes.append(len(rows) - numbered(change.block))
        parts = [
            [name, part.first_change, part.last_change, [*map(numbered, self._saved.get(id(part), []))],
             part.host_reads, self._operations.get(id(part), [])]
            for name, part in self._parts.items()
        ]  # fmt: skip
        self.stream.update(blocks=rows, changes=changes, parts=parts)
        return super().finished()

    def _block_row(self, block: StorageBlock) -> list[int]:
        words = [self.table.number("words", word) for word in (block.operator, block.place, block.category)]
        if (operation := self.tracker.operation_of.get(id(block))) is not None:
            return [recorded.ACCUMULATOR, operation, *words[1:], int(block.on_host)]
        return [self._size(self.tracker.asked[id(block)][1]), *words, int(block.on_host)]

    def _size(self, number: int) -> int:
        return self.table.number("sizes", symbol(number, self.primes, self._lengths))

    def _row(self, value: Any) -> Any:
        """Tensors by number, lists, and what else may say how much is computed: whole numbers and truths."""
        if isinstance(value, Tensor):
            shape, stride = ([self._size(one) for one in sizes] for sizes in (value.shape, value.stride()))
            row = [str(value.dtype).removeprefix("torch."), value.element_size(), shape, stride]
            return {"t": self.table.number("tensors", row)}
        if isinstance(value, list | tuple):
            self._lengths.add(len(value))
            return [self._row(one) for one in value]
        if isinstance(value, dict):
            return {key: self._row(one) for key, one in value.items()}
        return value if isinstance(value, bool) or (isinstance(value, int) and -8 < value < 8) else None


def _stream(table: _Table, count: Callable[[type[Counting]], Parts], primes: recorded.Dimensions) -> Json:
    """What a fake run issues, its rows in `table`."""
    kept: list[_Recorder] = []

    class _Kept(_Recorder):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.table, self.primes = table, primes
            kept.append(self)

    count(_Kept)
    return kept[0].stream


LARGE_BATCH = 1009
"""A prime that no other size of a model has for a factor."""


def in_batches(case: LanguageModelCase, counted: Parts) -> Callable[[int], Parts] | None:
    """Replay the passes of `case` in any other batch, from one fake run more; None where that is not exact.

    It is held to what was `counted` in the batch of `case`: code may do something else in another one.
    """
    table, large = _Table(), replace(case, batch_size=LARGE_BATCH)
    try:
        stream = _stream(table, partial(fake_run.count_passes, large), {"B": LARGE_BATCH})
        record = recorded.Record(table.rows, {})

        def of_batch(batch_size: int) -> Parts:
            return recorded.replayed(record, stream, {"B": batch_size}, case.precision)

        return of_batch if of_batch(case.batch_size) == counted else None
    except (ValueError, RuntimeError, TypeError, AttributeError, LookupError):  # whatever the user's code issues
        return None


def record() -> bytes:
    """The record of this `model/` and this torch, as packed JSON; about five minutes. Raises ValueError."""
    table, streams = _Table(), dict[str, Json]()

    def add(name: str, count: Callable[[type[Counting]], Parts], primes: recorded.Dimensions) -> None:
        streams[name] = _stream(table, count, primes)

    for case in cases():
        if isinstance(case, AttentionCase):
            primes = {letter: value for letter, value in PRIMES_ALONE.items() if letter != "B" or case.batch_size > 1}
            add(recorded.name_alone(case), partial(fake_run.count_attention, case), primes)
            continue
        assert isinstance(case, LanguageModelCase)
        primes = {letter: value for letter, value in PRIMES.items() if letter != "B" or case.batch_size > 1}
        if case.phase == "optimizer":
            add(recorded.name_of_updates(case), partial(fake_run.count_updates, case), primes)
        else:
            add(recorded.name_of_passes(case), partial(fake_run.count_passes, case), primes)
    head = {"format": recorded.FORMAT, "torch": torch.__version__, "model": recorded.digest_of_model()}
    written = head | {"tables": table.rows, "streams": streams}
    return lzma.compress(json.dumps(written, separators=(",", ":")).encode(), preset=9)


def cases() -> Iterator[Case]:
    """A case of each kind that is recorded, in prime dimensions."""
    shape = {"d_model": 2 * PRIMES["H"] * PRIMES["P"], "d_ff": PRIMES["F"], "num_heads": PRIMES["H"]}
    shape |= {"vocab_size": PRIMES["V"], "context_length": PRIMES["T"]}

    def of_model(layers: int, **fields: Any) -> LanguageModelCase:
        return LanguageModelCase(**{
            "phase": "backward", "size": "prime", "config": ModelConfig(**shape, num_layers=layers),
            "context_length": PRIMES["T"], "precision": "fp32", "attention": "naive", "execution": "eager",
            "checkpoint": "none", "optimizer": None, "device": "cuda", "model": "ours", **fields,
        })  # fmt: skip

    for precision, attention, checkpoint, batch in product(PRECISIONS, COUNTED_ATTENTION, CHECKPOINTS, BATCHES):
        way = {"precision": precision, "attention": attention, "checkpoint": checkpoint, "batch_size": batch}
        for phase, kind in (("backward", "training"), ("inference", "inference")):
            for layers in LAYERS[kind]:
                yield of_model(layers, phase=phase, **way)
    depths = sorted({config.num_layers for config in SIZES.values()})
    for optimizer, precision, layers in product(OPTIMIZERS, ("fp32", "fp16"), depths):
        yield of_model(layers, phase="optimizer", optimizer=optimizer, precision=precision, batch_size=1)
    for precision, attention, batch in product((*PRECISIONS, "bf16-tensors"), COUNTED_ATTENTION, BATCHES):
        yield AttentionCase(
            "attention_forward", PRIMES_ALONE["K"], PRIMES_ALONE["T"], batch, precision, attention, "cuda"
        )
