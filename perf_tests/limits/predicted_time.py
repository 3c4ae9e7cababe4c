"""How long a phase will take, and what bounds it, from its kernels and a machine's ceilings.

The host launches kernels while the device works on those launched before, so the later of the two sets the time, not
their sum. A kernel's own time is the later of its arithmetic and its memory traffic (Williams et al., "Roofline",
2009).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perf_tests.limits.ceilings import Ceilings

LAUNCH, COMPUTE, MEMORY = "launch", "compute", "memory"

UNCERTAINTY = {LAUNCH: 0.7, COMPUTE: 0.3, MEMORY: 0.35}
"""By what bounds a phase: the relative error that 4 of 5 published times stay within when nothing is known of their
host, as `python -m perf_tests.proofs.predicted_times` finds it."""

UNCERTAINTY_ON_A_KNOWN_HOST = {LAUNCH: 0.3, COMPUTE: 0.3, MEMORY: 0.3}
"""The same where the time of a launch was measured on the host."""


class Kernels(Protocol):
    """Kernels that are alike."""

    @property
    def calls(self) -> int: ...

    @property
    def flops(self) -> int:
        """Of one call, matrix products alone."""

    @property
    def bytes(self) -> int:
        """Read and written by one call."""

    @property
    def rate(self) -> str:
        """Precision that a matrix product runs in; empty for everything else."""


@dataclass(frozen=True)
class Part:
    """What one thread of the host launches in a row: a forward pass, a backward pass, an optimizer step."""

    launches: int
    kernels: Sequence[Kernels]
    is_backward: bool = False


@dataclass(frozen=True)
class PredictedTime:
    """Seconds of a phase beside what they are made of."""

    seconds: float
    launching_seconds: float
    """How long the host needs to launch everything."""
    compute_seconds: float
    """Kernels that their arithmetic bounds, added up."""
    memory_seconds: float
    """Kernels that their memory traffic bounds, added up."""

    @property
    def kernel_seconds(self) -> float:
        return self.compute_seconds + self.memory_seconds

    @property
    def bound(self) -> str:
        """`launch` where the host is slower than the device, else what bounds most of the device's time."""
        if self.launching_seconds >= self.kernel_seconds:
            return LAUNCH
        return COMPUTE if self.compute_seconds >= self.memory_seconds else MEMORY

    @property
    def shares(self) -> dict[str, float]:
        """Of the predicted seconds; they overlap, so that they need not add up to 1."""
        if not self.seconds:
            return {LAUNCH: 0.0, COMPUTE: 0.0, MEMORY: 0.0}
        parts = {LAUNCH: self.launching_seconds, COMPUTE: self.compute_seconds, MEMORY: self.memory_seconds}
        return {name: seconds / self.seconds for name, seconds in parts.items()}


def predicted_time(parts: Iterable[Part], ceilings: Ceilings) -> PredictedTime:
    """Seconds of `parts` one after the other, without a wait between them: for one part max(launching, kernels).

    Raises ValueError for a precision that the machine has no rate for.
    """
    launched = done = compute_seconds = memory_seconds = 0.0
    for part in parts:
        launching = part.launches * (ceilings.backward_launch_seconds if part.is_backward else ceilings.launch_seconds)
        launched += launching
        compute, memory = _kernel_seconds(part.kernels, ceilings)
        if ceilings.launches_overlap:
            # The device is done when it has worked off its queue, and not before the last kernel was launched.
            done = max(done + compute + memory, launched)
        else:
            done += launching + compute + memory
        compute_seconds += compute
        memory_seconds += memory
    return PredictedTime(done, launched, compute_seconds, memory_seconds)


def _kernel_seconds(kernels: Iterable[Kernels], ceilings: Ceilings) -> tuple[float, float]:
    """Seconds in kernels bound by arithmetic, and in those bound by memory."""
    compute_seconds = memory_seconds = 0.0
    for kernel in kernels:
        arithmetic = kernel.flops / _rate(kernel.rate, ceilings) if kernel.flops else 0.0
        traffic = kernel.bytes / ceilings.bytes_per_second
        if arithmetic >= traffic:
            compute_seconds += kernel.calls * arithmetic
        else:
            memory_seconds += kernel.calls * traffic
    return compute_seconds, memory_seconds


def _rate(precision: str, ceilings: Ceilings) -> float:
    known = ceilings.matmul_flops_per_second
    if precision == "tf32" and "tf32" not in known:
        precision = "fp32"  # what a card without the path multiplies in instead
    if precision not in known:
        raise ValueError(
            f"{ceilings.name} has no rate for matrix products in {precision or 'no known precision'}; "
            f"it has {', '.join(known)}."
        )
    return known[precision]
