"""The time of a phase and what bounds it, from its kernels and a machine's ceilings.

The host launches kernels while the device runs earlier ones, so the slower of the two sets the time, not their sum. A
kernel's own time is the longer of its arithmetic and its memory traffic (Williams et al., "Roofline", 2009).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf_tests.limits.ceilings import Ceilings

LAUNCH, COMPUTE, MEMORY = "launch", "compute", "memory"

UNCERTAINTY = {LAUNCH: 0.7, COMPUTE: 0.3, MEMORY: 0.35}
"""By bound: the relative error within which 80 % of published times lie when their host is unknown, as printed by
`python -m perf_tests.proofs.predicted_times`."""

UNCERTAINTY_ON_A_KNOWN_HOST = {LAUNCH: 0.3, COMPUTE: 0.3, MEMORY: 0.3}
"""The same where the launch time was measured on the host."""


@dataclass(frozen=True)
class KernelCost:
    """The cost of one operation that launches a kernel."""

    name: str
    """The operator, `aten.mm`."""
    flops: int
    bytes: int
    """Read and written, at least."""
    rate: str
    """The arithmetic rate that bounds it: "fp32", "tf32", "bf16", "fp16"; "" for elementwise work."""


@dataclass(frozen=True)
class KernelGroup(KernelCost):
    """Equal kernel-launching operations of one phase."""

    calls: int


@dataclass(frozen=True)
class Part:
    """Consecutive launches of one host thread: a forward pass, a backward pass, an optimizer step."""

    launches: int
    kernels: Sequence[KernelGroup]
    is_backward: bool = False


@dataclass(frozen=True)
class PredictedTime:
    """Seconds of a phase and their parts."""

    seconds: float
    launching_seconds: float
    """Of the host, for all launches."""
    compute_seconds: float
    """Sum over kernels bound by arithmetic."""
    memory_seconds: float
    """Sum over kernels bound by memory traffic."""

    @property
    def kernel_seconds(self) -> float:
        return self.compute_seconds + self.memory_seconds

    @property
    def bound(self) -> str:
        """`launch` where the host is slower than the device, else the bound of most device time."""
        if self.launching_seconds >= self.kernel_seconds:
            return LAUNCH
        return COMPUTE if self.compute_seconds >= self.memory_seconds else MEMORY

    @property
    def shares(self) -> dict[str, float]:
        """Of the predicted seconds; they overlap, so they need not add up to 1."""
        parts = {LAUNCH: self.launching_seconds, COMPUTE: self.compute_seconds, MEMORY: self.memory_seconds}
        return {name: seconds / self.seconds if self.seconds else 0.0 for name, seconds in parts.items()}


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
            # The device finishes after its queue, and not before the last launch.
            done = max(done + compute + memory, launched)
        else:
            done += launching + compute + memory
        compute_seconds += compute
        memory_seconds += memory
    return PredictedTime(done, launched, compute_seconds, memory_seconds)


def _kernel_seconds(kernels: Iterable[KernelGroup], ceilings: Ceilings) -> tuple[float, float]:
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
        precision = "fp32"  # which a card without the path uses instead
    if precision not in known:
        raise ValueError(
            f"{ceilings.name} has no rate for matrix products in {precision or 'no known precision'}; "
            f"it has {', '.join(known)}."
        )
    return known[precision]
