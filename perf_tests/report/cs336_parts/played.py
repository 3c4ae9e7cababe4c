"""Figures of the write-up that take no measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PeakBeside:
    """A published peak, and what is predicted under the conditions of its code, in the source's own unit."""

    source: str
    size: str
    context: int
    precision: str
    mode: str
    published: str
    unit: str
    predicted: float


@dataclass(frozen=True)
class FirstStep:
    """Peaks of the step in which AdamW's state is born, and of later ones."""

    size: str
    context: int
    batch_size: int
    precision: str
    first_bytes: int
    later_bytes: int


@dataclass(frozen=True)
class OrderPeak:
    """The peak of a full step under one order of zero_grad."""

    context: int
    order: str
    peak_bytes: int


@dataclass(frozen=True)
class Block:
    """Equal blocks of memory that one line of code makes in a forward pass."""

    size: str
    context: int
    bytes: int
    count: int
    line: str
    is_residual: bool


@dataclass(frozen=True)
class Played:
    """Figures that take no measurement: steps played on tensors without content, and exercises computed at once.

    The rows are those of `perf_tests.report.cs336_parts.writeup_peaks` and `numerics_tests.harness.exercises`.
    """

    peaks: tuple[PeakBeside, ...] = ()
    first_steps: tuple[FirstStep, ...] = ()
    orders: tuple[OrderPeak, ...] = ()
    blocks: tuple[Block, ...] = ()
    exercises: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """Name to rows of texts, the header first."""
