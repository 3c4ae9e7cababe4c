"""A profiler's trace, of PyTorch or Nsight Systems: rounds, kernels with their launches, copies, calls of the host.

Times are microseconds of one clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PHASES = ("full_step", "forward", "backward")
ELSEWHERE = "elsewhere"
"""In no region but a phase."""


@dataclass(frozen=True)
class Span:
    start_us: float
    end_us: float

    @property
    def us(self) -> float:
        return self.end_us - self.start_us

    def holds(self, moment_us: float) -> bool:
        return self.start_us <= moment_us <= self.end_us


def total_us(spans: Iterable[Span]) -> float:
    return sum(span.us for span in spans)


@dataclass(frozen=True)
class TracedKernel(Span):
    """One run of one kernel; on a CPU, of one operation."""

    name: str
    kind: str
    """One of `KINDS` in kernel_kinds.py."""
    operator: str = ""
    """The PyTorch operation that launched it; empty if unknown."""
    shapes: str = ""
    regions: tuple[str, ...] = ()
    """The model's regions around it, outermost first; in the backward pass, those of the forward operation."""
    is_backward: bool = False
    launch: Span | None = None
    """The host's call; None on a CPU, where the operation is its own call."""
    is_first_of_operation: bool = True
    flops: int = 0
    bytes_touched: int | None = None
    """Inputs read once and outputs written once, of the whole operation; None if its shapes do not tell."""

    @property
    def issued_us(self) -> float:
        return self.start_us if self.launch is None else self.launch.start_us


@dataclass(frozen=True)
class MemoryOperation(Span):
    kind: str
    """`host-to-device`, `device-to-host`, `device-to-device` or `memset`."""
    bytes_moved: int
    issued_us: float


@dataclass(frozen=True)
class Call(Span):
    name: str
    thread: object


@dataclass(frozen=True)
class Region(Span):
    """One of the model's regions as the host ran it; `path` has those around it too, outermost first."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """One capture; without `is_on_gpu`, kernels are the host's own work."""

    is_on_gpu: bool
    rounds: Sequence[Span]
    kernels: Sequence[TracedKernel]
    memory_operations: Sequence[MemoryOperation] = field(default_factory=tuple)
    calls: Sequence[Call] = field(default_factory=tuple)
    regions: Sequence[Region] = field(default_factory=tuple)

    def round_at(self, *moments_us: float) -> int | None:
        """The number of the round that holds all of these moments, else None."""
        holding = (place for place, span in enumerate(self.rounds) if all(map(span.holds, moments_us)))
        return next(holding, None)


def layer_of(path: tuple[str, ...]) -> str | None:
    """The region of the layer on the path, `block 3`; None outside of all."""
    return next((name for name in path if name.startswith("block ")), None)


def label(path: tuple[str, ...]) -> list[str]:
    """`("forward", "block 3", "attention", "softmax")` to `["attention", "attention / softmax"]`."""
    names = [name for name in path if name not in PHASES and not name.startswith("block ")]
    if not names:
        return ["residual" if layer_of(path) else ELSEWHERE]
    return [" / ".join(names[: depth + 1]) for depth in range(len(names))]
