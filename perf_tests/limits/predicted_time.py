"""The time of a phase and what bounds it, from its kernels and a machine's ceilings.

The host launches kernels while the device runs earlier ones, so the slower of the two sets the time, not their sum. A
kernel's own time is the longer of its arithmetic and its memory traffic (Williams et al., "Roofline", 2009).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from perf_tests.limits.ceilings import Ceilings

LAUNCH, COMPUTE, MEMORY = "launch", "compute", "memory"
LAUNCH_ON_A_TYPICAL_HOST = "launch, on a typical host"

FORWARD, BACKWARD, BARE = "forward", "backward", "bare"
"""Kinds of launches: among modules, by autograd's thread, of operators alone."""

DEVICE_RANGE = (0.85, 1.45)
"""Of 10 published times that the device bounds, 9 lie between these multiples of the predicted one."""

HELD = {LAUNCH: (104, 125), LAUNCH_ON_A_TYPICAL_HOST: (88, 115), COMPUTE: (128, 137), MEMORY: (28, 33)}
"""By bound, how many of how many published times lie in the range that the other sources give; printed by
`python -m perf_tests.proofs.sources_left_out`."""


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
    strided_elements: int = 0
    """Elements of a broadcast or transposed operand's kernel, which computes an address for each."""
    summed: int = 0
    """Of a matrix product: how many terms each element of the result adds up."""


@dataclass(frozen=True)
class KernelGroup(KernelCost):
    """Equal kernel-launching operations of one phase."""

    calls: int = 1


@dataclass(frozen=True)
class Part:
    """Consecutive launches of one host thread: a forward pass, a backward pass, an optimizer step."""

    launches: int
    kernels: Sequence[KernelGroup]
    kind: str = FORWARD


@dataclass(frozen=True)
class PredictedTime:
    """Seconds of a phase and their parts, on a host in the middle between fast and typical."""

    seconds: float
    launching_seconds: float
    """Of the host, for all launches."""
    compute_seconds: float
    """Sum over kernels bound by arithmetic."""
    memory_seconds: float
    """Sum over kernels bound by memory traffic."""
    bound: str
    """`launch` where a fast host is slower than the device, `launch, on a typical host` where only that one is, else
    the bound of most device time."""
    low_seconds: float
    """On a fast host with kernels as fast as published ones get."""
    high_seconds: float
    """On a typical host with slow kernels."""

    @property
    def kernel_seconds(self) -> float:
        return self.compute_seconds + self.memory_seconds

    @property
    def shares(self) -> dict[str, float]:
        """Of the predicted seconds; they overlap, so they need not add up to 1."""
        parts = {LAUNCH: self.launching_seconds, COMPUTE: self.compute_seconds, MEMORY: self.memory_seconds}
        return {name: seconds / self.seconds if self.seconds else 0.0 for name, seconds in parts.items()}


def predicted_time(parts: Iterable[Part], ceilings: Ceilings) -> PredictedTime:
    """Seconds of `parts` one after the other, without a wait between them: for one part max(launching, kernels).

    Raises ValueError for a precision that the machine has no rate for.
    """
    pairs = []
    compute_seconds = memory_seconds = 0.0
    for part in parts:
        compute, memory = _kernel_seconds(part.kernels, ceilings)
        pairs.append((part.launches * _fast_launch_seconds(part.kind, ceilings), compute + memory))
        compute_seconds += compute
        memory_seconds += memory
    fast, kernels = sum(pair[0] for pair in pairs), compute_seconds + memory_seconds
    spread, overlap = ceilings.host_spread, ceilings.launches_overlap
    low, high = DEVICE_RANGE
    low_host, high_host = (1.0, spread) if spread > 1 else (low, high)  # a measured host is as uncertain as a device
    return PredictedTime(
        seconds=_elapsed_seconds(pairs, sqrt(spread), 1.0, overlap),
        launching_seconds=fast * sqrt(spread),
        compute_seconds=compute_seconds,
        memory_seconds=memory_seconds,
        bound=_bound(fast, fast * spread, kernels) or (COMPUTE if compute_seconds >= memory_seconds else MEMORY),
        low_seconds=_elapsed_seconds(pairs, low_host, low, overlap),
        high_seconds=_elapsed_seconds(pairs, high_host, high, overlap),
    )


def _elapsed_seconds(pairs: Sequence[tuple[float, float]], host: float, device: float, overlap: bool) -> float:
    """Of parts with (launching, kernel) seconds, times `host` and `device`."""
    launched = done = 0.0
    for launching, kernels in pairs:
        launched += launching * host
        # The device finishes after its queue, and not before the last launch; without overlap one waits for the other.
        done = max(done + kernels * device, launched) if overlap else done + launching * host + kernels * device
    return done


def _bound(fast_seconds: float, typical_seconds: float, kernel_seconds: float) -> str | None:
    if fast_seconds >= kernel_seconds:
        return LAUNCH
    return LAUNCH_ON_A_TYPICAL_HOST if typical_seconds >= kernel_seconds else None


def _fast_launch_seconds(kind: str, ceilings: Ceilings) -> float:
    return {
        FORWARD: ceilings.launch_seconds,
        BACKWARD: ceilings.backward_launch_seconds,
        BARE: ceilings.bare_launch_seconds,
    }[kind]


def _kernel_seconds(kernels: Iterable[KernelGroup], ceilings: Ceilings) -> tuple[float, float]:
    """Of all kernels that arithmetic bounds, and of all others."""
    compute_seconds = memory_seconds = 0.0
    for kernel in kernels:
        arithmetic = _flops(kernel, ceilings) / _rate(kernel.rate, ceilings) if kernel.flops else 0.0
        traffic = kernel.bytes / ceilings.bytes_per_second
        if ceilings.strided_elements_per_second is not None:
            traffic = max(traffic, kernel.strided_elements / ceilings.strided_elements_per_second)
        seconds = kernel.calls * (max(arithmetic, traffic) + ceilings.kernel_seconds)
        if arithmetic >= traffic:
            compute_seconds += seconds
        else:
            memory_seconds += seconds
    return compute_seconds, memory_seconds


def _flops(kernel: KernelGroup, ceilings: Ceilings) -> int:
    """With those that the idle multiprocessors of the last wave could have done."""
    return kernel.flops + (2 * kernel.summed * ceilings.last_wave_elements if kernel.rate != "fp32" else 0)


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
