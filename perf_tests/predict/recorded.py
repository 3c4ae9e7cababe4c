"""The operations of `model/`, recorded once in symbols and replayed for any known size, batch and context. No torch.

The record holds what fake runs of shallow models issued whose dimensions are distinct primes, so that each size and
stride is a product of those of the case. A replay gives the same tensors to the same rules as a fake run. It is of one
`model/` and one minor version of torch, and is used by `predict` alone, within `in_use`; what it lacks is counted anew.
"""

import json
import lzma
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.model_names import scales_loss, tensors_and_autocast, uses_tf32
from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.predict import costs
from perf_tests_suite.perf_tests.predict.allocator import CUDA_BLOCK_BYTES
from perf_tests_suite.perf_tests.predict.parts import (
    OpenPart,
    Parts,
    StorageBlock,
    StorageChange,
    add_launches,
    finished,
)
from perf_tests_suite.perf_tests.records.record import Json

FORMAT = 2
FOLDER = Path(__file__).parent / "exact_counters"
MODEL = Path(__file__).parents[2] / "model"

ROWS_OF_A_TILE = 32
"""The memory-efficient kernel keeps one number a query, in multiples of so many."""

ACCUMULATOR = -1
"""The size of a block that its operation alone knows."""

Dimensions = Mapping[str, int]
"""The value of each letter: B sequences, T tokens, Q tiles of them, H heads, P pairs of a head's K, F and V widths."""

_in_use: list[bool] = []


@contextmanager
def in_use() -> Iterator[None]:
    """Answer from the record inside, where it is of this `model/` and this torch."""
    _in_use.append(True)
    try:
        yield
    finally:
        _in_use.pop()


def is_in_use() -> bool:
    return bool(_in_use)


def path_of(torch_version: str) -> Path:
    """`torch-2.13-operations.json.xz` for torch 2.13.0+cpu."""
    return FOLDER / f"torch-{'.'.join(torch_version.split('.')[:2])}-operations.json.xz"


def digest_of_model() -> str:
    """Digest the source files of `model/`, names included."""
    found = sha256()
    for path in sorted(MODEL.glob("*.py")):
        found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()


def dimensions_of(case: LanguageModelCase) -> dict[str, int]:
    config, tokens = case.config, case.context_length
    found = {"T": tokens, "Q": -(-tokens // ROWS_OF_A_TILE), "H": config.num_heads, "P": config.head_dim // 2}
    found |= {"F": config.d_ff, "V": config.vocab_size}
    return found | ({"B": case.batch_size} if case.batch_size > 1 else {})


def dimensions_alone(case: AttentionCase) -> dict[str, int]:
    tokens = case.sequence_length
    found = {"T": tokens, "Q": -(-tokens // ROWS_OF_A_TILE), "K": case.head_dim}
    return found | ({"B": case.batch_size} if case.batch_size > 1 else {})


# A batch of one has views where others have copies, so its operations are recorded apart.


def name_of_passes(case: LanguageModelCase) -> str:
    kind = "training" if case.phase_row.records_graph else "inference"
    way = f"{_precision(case.precision)}-{case.attention}-{case.checkpoint}-{case.config.num_layers}"
    return f"{kind}-{way}-{min(case.batch_size, 2)}"


def name_of_updates(case: LanguageModelCase) -> str:
    return f"optimizer-{case.optimizer}-{scales_loss(case.precision)}-{case.config.num_layers}"


def name_alone(case: AttentionCase) -> str:
    return f"attention-{_precision(case.precision)}-{case.attention}-{min(case.batch_size, 2)}"


def _precision(name: str) -> str:
    """What is cast and scaled; TF32 is another rate of the same operations."""
    return "-".join(map(str, (*tensors_and_autocast(name), scales_loss(name))))


def passes(case: LanguageModelCase) -> Parts | None:
    """What `fake_run.count_passes` gives; None where the record does not hold it."""
    return _replayed(case, name_of_passes, dimensions_of)


def updates(case: LanguageModelCase) -> Parts | None:
    """What `fake_run.count_updates` gives, or None."""
    return _replayed(case, name_of_updates, dimensions_of)


def attention_passes(case: AttentionCase) -> Parts | None:
    """What `fake_run.count_attention` gives, or None."""
    return _replayed(case, name_alone, dimensions_alone)


def _replayed(case: Any, name_of: Any, dimensions: Any) -> Parts | None:
    if not _in_use or case.device != "cuda" or case.user_code:
        return None
    if isinstance(case, LanguageModelCase) and case.config.context_length != case.context_length:
        return None
    sizes, record = dimensions(case), opened()
    if record is None or any(value < 2 for letter, value in sizes.items() if letter != "Q"):  # views in place of copies
        return None
    stream = record.streams.get(name_of(case))
    if stream is None:
        return None
    return replayed(record, stream, sizes, case.precision)


def replayed(record: "Record", stream: Json, dimensions: Dimensions, precision: str) -> Parts:
    """The counters of a stream's parts at these dimensions."""
    return _of_sizes(record, tuple(dimensions.items())).replayed(stream, "tf32" if uses_tf32(precision) else "fp32")


@cache
def opened() -> "Record | None":
    """The record of this torch and this `model/`; None where there is none or it is of another."""
    try:
        torch_version = version("torch")
        found = json.loads(lzma.decompress(path_of(torch_version).read_bytes()))
        if found["format"] != FORMAT or found["model"] != digest_of_model():
            return None
        return Record(found["tables"], found["streams"])
    except (OSError, ImportError, ValueError, KeyError, lzma.LZMAError):
        return None


@dataclass(frozen=True, eq=False)
class Record:
    """Tables of sizes, tensors, operations and blocks, and streams that name their rows."""

    table: Json
    streams: Mapping[str, Json]
    """Blocks, changes and parts of each fake run, by its name."""

    @cached_property
    def operators(self) -> list["RecordedOperator"]:
        return [RecordedOperator(name, (Tag("pointwise"),) if pointwise else ()) for name, pointwise in self._named]

    @property
    def _named(self) -> list[tuple[str, int]]:
        return self.table["operators"]


class Tag(NamedTuple):
    """What torch says of an operator."""

    name: str


@dataclass(frozen=True, eq=False)
class RecordedOperator:
    """What the rules of costs ask of an operator."""

    overloadpacket: str
    tags: tuple[Tag, ...]


class RecordedTensor:
    """What the rules of costs ask of a tensor."""

    __slots__ = ("_element_bytes", "_stride", "dtype", "shape")

    def __init__(self, dtype: str, element_bytes: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self._element_bytes, self._stride = element_bytes, stride

    def stride(self) -> tuple[int, ...]:
        return self._stride

    def element_size(self) -> int:
        return self._element_bytes

    def numel(self) -> int:
        return prod(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self._stride), strict=True):
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return True


@cache
def _of_sizes(record: Record, dimensions: tuple[tuple[str, int], ...]) -> "_Sized":
    return _Sized(record, dict(dimensions))


class _Sized:
    """The rows of a record's tables for the dimensions of a case, each worked out once."""

    def __init__(self, record: Record, dimensions: Dimensions) -> None:
        self._record, self._table = record, record.table
        self._sizes = [_value(text, dimensions) for text in self._table["sizes"]]
        self._tensors: dict[int, RecordedTensor] = {}
        self._costs: dict[tuple[int, str], tuple[int, KernelCost]] = {}

    def replayed(self, stream: Json, float32_rate: str) -> Parts:
        """The counters of a stream's parts."""
        blocks, words = list[StorageBlock](), self._table["words"]
        for row in stream["blocks"]:
            size, operator, place, category, on_host = self._table["blocks"][row]
            if size == ACCUMULATOR:
                asked, name = self._accumulator(operator)
            else:
                asked, name = self._sizes[size], words[operator]
            whole = -(-asked // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES
            blocks.append(StorageBlock(whole, name, words[place], words[category], bool(on_host)))
        changes: list[StorageChange] = []
        number = 0
        for age in stream["changes"]:
            if age == 0:
                changes.append(StorageChange(blocks[number], True))
                number += 1
            else:
                changes.append(StorageChange(blocks[number - age], False))
        parts = {}
        for name, first, last, saved, reads, operations in stream["parts"]:
            part = parts[name] = OpenPart(first, last, host_reads=reads)
            part.saved_bytes = sum(blocks[one].bytes for one in saved)
            for one in operations:
                launches, cost = self._cost(one, float32_rate)
                if launches:
                    add_launches(part.kernels, cost, launches)
        return finished(changes, parts)

    def _cost(self, number: int, float32_rate: str) -> tuple[int, KernelCost]:
        key = (number, float32_rate)
        if key not in self._costs:
            operator, args, kwargs, outputs, is_recomputed = self._table["operations"][number]
            args, kwargs, outputs = self._built(args), self._built(kwargs), self._built(outputs)
            inputs = list(costs.tensors_in((*args, *kwargs.values())))
            launches, cost = costs.launches_and_cost(
                self._record.operators[operator], tuple(args), kwargs, inputs, outputs, float32_rate, on_cuda=True
            )
            self._costs[key] = launches, KernelCost(**{**vars(cost), "is_recomputed": bool(is_recomputed)})
        return self._costs[key]

    def _accumulator(self, number: int) -> tuple[int, str]:
        """What an operation allocates for itself, and its name."""
        operator, args, *_ = self._table["operations"][number]
        name = self._record.operators[operator].overloadpacket
        return costs.accumulator_bytes(name, tuple(self._built(args))), name

    def _built(self, value: Any) -> Any:
        """Arguments with tensors in place of `{"t": row}`."""
        if isinstance(value, list):
            return [self._built(one) for one in value]
        if isinstance(value, dict):
            return self._tensor(value["t"]) if "t" in value else {key: self._built(one) for key, one in value.items()}
        return value

    def _tensor(self, number: int) -> RecordedTensor:
        if number not in self._tensors:
            dtype, element_bytes, shape, stride = self._table["tensors"][number]
            sizes = (tuple(self._sizes[one] for one in row) for row in (shape, stride))
            self._tensors[number] = RecordedTensor(dtype, element_bytes, *sizes)
        return self._tensors[number]


def _value(text: str, dimensions: Dimensions) -> int:
    """`4BTT` in numbers; letters that the case lacks belong to cases of the other family."""
    found = re.fullmatch(r"(\d+)([A-Z]*)", text)
    assert found is not None, text
    return int(found[1]) * prod(dimensions.get(letter, 0) for letter in found[2])
