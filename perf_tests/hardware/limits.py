"""Lower bounds of a pass: arithmetic, traffic and resident bytes.

A figure below a bound is wrong. A bound omits what some implementation might avoid. No torch, no tensors."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from math import ceil, prod, sqrt

from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.perf_tests.hardware.datasheets import BLACKWELL_MAJORS, Gpu
from perf_tests_suite.perf_tests.phases import phase_named

# Rooms without torch take the model's shapes from here.
__all__ = ["FLOAT32_BYTES", "SIZES", "AttentionWork", "ModelConfig", "ModelWork", "Work", "saved_bytes"]

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ModelWork:
    """A language model's pass over `batch_size` sequences of `context_length` tokens."""

    size: str
    config: ModelConfig
    batch_size: int
    context_length: int

    def describe(self) -> str:
        return f"{self.size or 'model'} ctx {self.context_length} batch {self.batch_size}"

    def least_flops(self, phase: str, leaves_masked_half: bool) -> int | None:
        """Multiplications and additions in matrix products; None for a phase without known ones."""
        flops = self.config.forward_flops(self.batch_size, self.context_length)
        if leaves_masked_half:
            flops -= self.config.forward_attention_flops(self.batch_size, self.context_length) // 2
        return _of_phase(phase, flops)

    def least_resident_bytes(self, phase: str) -> int | None:
        """Bytes on the device at once: weights in fp32, in a backward pass their gradients.

        Without AdamW's moments, which do not exist before the first step.
        """
        row = phase_named(phase)
        if row is None:
            return None
        per_parameter = 2 if row.has_backward else 1
        return per_parameter * FLOAT32_BYTES * self.config.parameters


@dataclass(frozen=True)
class AttentionWork:
    """Attention without heads over (batch, sequence, head width)."""

    batch_size: int
    sequence_length: int
    head_dim: int

    def describe(self) -> str:
        return f"attention d {self.head_dim} seq {self.sequence_length} batch {self.batch_size}"

    def least_flops(self, phase: str, leaves_masked_half: bool) -> int | None:
        flops = 4 * self.batch_size * self.sequence_length**2 * self.head_dim
        return _of_phase(phase, flops // 2 if leaves_masked_half else flops)

    def least_resident_bytes(self, phase: str) -> int | None:
        return None


Work = ModelWork | AttentionWork


def saved_bytes(config: ModelConfig, batch_size: int, length: int) -> int:
    """fp32 tensors that autograd keeps of any eager pass.

    By block: a T x T matrix per head; in the width of the model the inputs of both norms, of the products before and
    after attention and of the feed-forward, and query, key and value; in that of the feed-forward the gate, its
    activation, the up projection and their product.
    """
    square = batch_size * config.num_heads * length**2
    rows = batch_size * length * (8 * config.d_model + 4 * config.d_ff)
    return config.num_layers * (square + rows) * FLOAT32_BYTES


def _of_phase(phase: str, forward_flops: int) -> int | None:
    row = phase_named(phase)
    return None if row is None or row.forward_multiple is None else row.forward_multiple * forward_flops


# Peak rates of a machine, from which times are predicted: products, memory traffic, launches.
#
# In: a card's datasheet. Out: `Ceilings`, which `predict/machine.py` measures on a machine.


LARGEST_NUMBER = 1e30
"""A whole number of any length can be read from a file, and not all become a float."""


@dataclass(frozen=True)
class Rate:
    """The rate of large operations, per second."""

    burst: float
    """The rate at the best moment: nothing is faster."""
    sustained: float
    """The rate under load, when power and heat have set the clocks."""

    def best_with(self, other: "Rate") -> "Rate":
        """Disturbances only lower a rate."""
        return Rate(max(self.burst, other.burst), max(self.sustained, other.sustained))


_MAY_BE_ZERO = ("last_wave_elements", "kernel_seconds", "multiprocessors", "fp32_tile_side")
_FIGURES = ("bytes_per_second", "launch_seconds", "backward_launch_seconds", "bare_launch_seconds",
            "loop_launch_seconds", "host_spread", *_MAY_BE_ZERO)  # fmt: skip


@dataclass(frozen=True)
class Ceilings:
    """Rates that programs reach, which are below the datasheet's peaks."""

    name: str
    matmul_flops_per_second: Mapping[str, float]
    """Sustained, by the precision of matrix products; without those that the machine lacks."""
    bytes_per_second: float
    """Memory traffic of operations on large tensors."""
    launch_seconds: float
    """Host time of one launch of an eager forward pass, on a fast host."""
    backward_launch_seconds: float
    """The same of a backward pass, whose launches autograd's thread makes."""
    bare_launch_seconds: float
    """The same where only operators run and no modules: attention alone."""
    loop_launch_seconds: float
    """The same in an optimizer's step."""
    launches_overlap: bool
    """Whether the device works while the host launches; a CPU is both."""
    source: str
    burst_flops_per_second: Mapping[str, float] = field(default_factory=dict)
    """The rate of matrix products at the best moment, where it was measured apart."""
    host_spread: float = 1.0
    """How many times as long a typical host takes as a fast one; 1 where the host is known."""
    strided_elements_per_second: float | None = None
    """The rate of elementwise kernels with a broadcast or transposed operand; None where only memory traffic bounds
    them."""
    last_wave_elements: int = 0
    """Elements of a product's result that the idle part of the last wave of tiles would hold, on tensor cores."""
    kernel_seconds: float = 0.0
    """Seconds of every kernel besides its work: filling the device, emptying it, and the gap to the next."""
    multiprocessors: int = 0
    """Those that share the tiles of a product in FP32; 0 where they are not known, and no wave of tiles is idle."""
    fp32_tile_side: int = 0
    """The width of a tile in FP32: a narrower product takes as long."""

    @property
    def highest_flops_per_second(self) -> dict[str, float]:
        """The rate of matrix products by precision that no program exceeds."""
        return {**self.matmul_flops_per_second, **self.burst_flops_per_second}

    @property
    def launch_seconds_by_kind(self) -> dict[str, float]:
        return {FORWARD: self.launch_seconds, BACKWARD: self.backward_launch_seconds,
                BARE: self.bare_launch_seconds, LOOP: self.loop_launch_seconds}  # fmt: skip

    def with_rate(self, precision: str, rate: Rate) -> "Ceilings":
        """Return the ceilings with the better of the known rate and `rate`."""
        sustained, burst = self.matmul_flops_per_second, self.burst_flops_per_second
        best = rate.best_with(Rate(burst.get(precision, 0.0), sustained.get(precision, 0.0)))
        return replace(
            self,
            matmul_flops_per_second={**sustained, precision: best.sustained},
            burst_flops_per_second={**burst, precision: best.burst},
        )

    def __post_init__(self) -> None:
        burst = {f"burst {name}": rate for name, rate in self.burst_flops_per_second.items()}
        figures = {**self.matmul_flops_per_second, **burst, **{name: getattr(self, name) for name in _FIGURES}}
        if self.strided_elements_per_second is not None:
            figures["strided_elements_per_second"] = self.strided_elements_per_second
        for name, value in figures.items():
            may_be_zero = name in _MAY_BE_ZERO
            if not (0 < value < LARGEST_NUMBER or (may_be_zero and value == 0)):
                allowed = "it is a finite number, 0 or more" if may_be_zero else "a ceiling is a finite number above 0"
                raise ValueError(f"{name} of {self.name} is {value}; {allowed}.")


TENSOR_EFFICIENCY, MEMORY_EFFICIENCY = 0.8, 0.9
"""Shares of the datasheet's peak, in 16 bits and TF32 and of memory: square products of 8192 on an H100 and an H200
reach the first, streams of 1 GiB the second."""

# The rest is fitted to published times of whole models; `python -m claims times-left-out` fits it again without each
# source in turn. Cards with 64 FP32 lanes per multiprocessor feed them better than those with 128.
FP32_EFFICIENCY, FP32_EFFICIENCY_WITH_64_LANES = 0.67, 0.92
CARDS_WITH_64_LANES = ("P100", "V100", "T4", "RTX 2080", "A100", "A800", "A30")
LAST_WAVE_ELEMENTS = 2**21
FP32_TILES = {128 * 128: 1.0, 128 * 64: 0.95, 64 * 64: 0.87, 32 * 32: 0.62}
"""Elements of the tiles that products in FP32 have to choose from, and the share of the largest one's rate that each
reaches, since it reads more for a product; stated before any fit. cuBLAS takes those that are done first."""
FP32_TILE_SIDE, FP32_TILE_SIDE_WITH_64_LANES = 64, 96
"""Read off published times of attention with head widths of 16 to 128: on H100 and H200 narrow products take as long as
64, on an A100 as 128 in one source and 64 in another."""
KERNEL_SECONDS = 3e-6

STRIDED_ELEMENTS_PER_CLOCK = 1.0
"""Elements by a multiprocessor and clock: on an A100 the kernels `elementwise_kernel` of a published profile move two
float32 in 1.18 to 1.26 TB/s, where `vectorized_elementwise_kernel` moves them in 1.81
(damek/cs336-assignment2-systems)."""

FAST_HOST_LAUNCH_SECONDS = {"forward": 18e-6, "backward": 12e-6, "bare": 7.5e-6}
LOOP_SHARE = 2 / 3
"""A launch of an optimizer over a bare one; stated, because few sources time an optimizer alone."""
BLACKWELL_HOST_SHARE = 0.53
"""Hosts of 2025's data-centre cards are faster: one of a B200 took 9.6 us a launch of a forward pass in bfloat16."""
HOST_SPREAD = 4.0
"""A range this wide holds nearly the most published launches, each author counting once, if it starts at a fast host;
single hosts differ by more."""


def ceilings_of(gpu: Gpu) -> Ceilings:
    efficiency = {"fp32": FP32_EFFICIENCY_WITH_64_LANES if has_64_lanes(gpu) else FP32_EFFICIENCY}
    # The clocks of all multiprocessors per second: a lane multiplies and adds once in each.
    clocks = gpu.rates["fp32"] / (2 * (64 if has_64_lanes(gpu) else 128))
    host = host_share(gpu)
    return Ceilings(
        name=gpu.name,
        matmul_flops_per_second={
            name: rate * efficiency.get(name, TENSOR_EFFICIENCY) for name, rate in gpu.rates.items()
        },
        bytes_per_second=gpu.bytes_per_second * MEMORY_EFFICIENCY,
        launch_seconds=host * FAST_HOST_LAUNCH_SECONDS["forward"],
        backward_launch_seconds=host * FAST_HOST_LAUNCH_SECONDS["backward"],
        bare_launch_seconds=host * FAST_HOST_LAUNCH_SECONDS["bare"],
        loop_launch_seconds=host * LOOP_SHARE * FAST_HOST_LAUNCH_SECONDS["bare"],
        launches_overlap=True,
        source=f"{gpu.source}, times the fraction that eager kernels reach; launches of a fast to a typical host",
        host_spread=HOST_SPREAD,
        strided_elements_per_second=clocks * STRIDED_ELEMENTS_PER_CLOCK,
        last_wave_elements=LAST_WAVE_ELEMENTS,
        kernel_seconds=KERNEL_SECONDS,
        multiprocessors=gpu.multiprocessors or 0,
        fp32_tile_side=FP32_TILE_SIDE_WITH_64_LANES if has_64_lanes(gpu) else FP32_TILE_SIDE,
    )


def host_share(gpu: Gpu) -> float:
    """How long a launch takes on a fast host of this card, of what it takes on one of a card until 2024."""
    return BLACKWELL_HOST_SHARE if gpu.compute_major == BLACKWELL_MAJORS[0] else 1.0


def has_64_lanes(gpu: Gpu) -> bool:
    return gpu.name.startswith(CARDS_WITH_64_LANES)


# The time of a phase and what bounds it, from its kernels and a machine's ceilings.
#
# The host launches kernels while the device runs earlier ones, so the slower of the two sets the time, not their sum.
# A kernel's own time is the longer of its arithmetic and its memory traffic (Williams et al., "Roofline", 2009).


LAUNCH, COMPUTE, MEMORY = "launch", "compute", "memory"
LAUNCH_ON_A_TYPICAL_HOST = "launch, on a typical host"

FORWARD, BACKWARD, BARE, LOOP = "forward", "backward", "bare", "loop"
"""Kinds of launches: among modules, by autograd's thread, of operators alone, of an optimizer."""

RECOMPUTED_LAUNCHES = 2.0
"""Launches of a forward pass that take the host as long as a kernel that a checkpoint runs again: itself and the hooks,
in Python, of what autograd saves of it, twice. They took 11 to 21 us a kernel on one CPU, where a fast host launches
one of a forward pass in 18."""

DEVICE_RANGE = (0.8, 1.5)
"""The multiples of a prediction between which 9 of 10 published times lie that the device bounds."""

WHOLE_MODELS, FULL_STEPS = "passes of whole models", "full steps with AdamW as a loop or foreach"
UPDATES = "AdamW's step as a loop over parameters"
ALONE, SOFTMAX_ALONE = "attention alone, softmax op by op", "attention alone, torch.softmax"
"""Classes of published times; those of whole models have the softmax op by op."""
BY_DO_BENCH = {name: f"{name}, by do_bench" for name in (ALONE, SOFTMAX_ALONE)}

IN_RANGE: dict[str, dict[str, tuple[int, int]]] = {
    WHOLE_MODELS: {LAUNCH: (79, 81), LAUNCH_ON_A_TYPICAL_HOST: (147, 173), COMPUTE: (128, 132), MEMORY: (22, 24)},
    FULL_STEPS: {LAUNCH: (1, 1), LAUNCH_ON_A_TYPICAL_HOST: (27, 34), COMPUTE: (31, 33)},
    UPDATES: {LAUNCH_ON_A_TYPICAL_HOST: (13, 14), MEMORY: (9, 9)},
    ALONE: {LAUNCH: (31, 36), LAUNCH_ON_A_TYPICAL_HOST: (25, 29), MEMORY: (118, 126)},
    SOFTMAX_ALONE: {LAUNCH: (24, 28), LAUNCH_ON_A_TYPICAL_HOST: (21, 25), COMPUTE: (85, 92), MEMORY: (15, 15)},
    BY_DO_BENCH[ALONE]: {LAUNCH: (55, 55), LAUNCH_ON_A_TYPICAL_HOST: (131, 163), COMPUTE: (4, 4), MEMORY: (184, 186)},
    BY_DO_BENCH[SOFTMAX_ALONE]: {LAUNCH_ON_A_TYPICAL_HOST: (84, 84), COMPUTE: (16, 16), MEMORY: (60, 60)},
}
"""Counts by class and bound: how many of how many published times lie in the range that the other sources give; printed
by `python -m claims times-left-out`."""


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
    """Terms of a matrix product that each element of the result adds up."""
    is_recomputed: bool = False
    """Whether a checkpoint runs it again, in a backward pass."""
    side: int = 0
    """The smaller dimension of a matrix product's result; 0 of everything else."""


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
    """Seconds of the host, for all launches."""
    compute_seconds: float
    """Sum over kernels bound by arithmetic."""
    memory_seconds: float
    """Sum over kernels bound by memory traffic."""
    bound: str
    """`launch` where a fast host is slower than the device, `launch, on a typical host` where only that one is, else
    the bound of most device time."""
    low_seconds: float
    """Seconds on a fast host with kernels as fast as published ones get."""
    high_seconds: float
    """Seconds on a typical host with slow kernels."""

    @property
    def kernel_seconds(self) -> float:
        return self.compute_seconds + self.memory_seconds

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the predicted seconds; they overlap, so they need not add up to 1."""
        parts = {LAUNCH: self.launching_seconds, COMPUTE: self.compute_seconds, MEMORY: self.memory_seconds}
        return {name: seconds / self.seconds if self.seconds else 0.0 for name, seconds in parts.items()}


FIRST_LAUNCHES = 8
"""What a call does before its first kernel and after its last takes the host as long as so many launches: short passes
of attention take the sum of both times, not the longer."""

DO_BENCH_BYTES = 256 * 2**20
"""What `triton.testing.do_bench` overwrites before each round, while the host launches what is timed already."""


Multiples = tuple[float, float, float]
"""The lower end of a range, its middle and its upper end."""


@dataclass(frozen=True)
class Spread:
    """Multiples of a fast host's launches and of the kernels' time between which those of a known machine lie."""

    host: Multiples | None
    """None for any host."""
    device: Multiples


def predicted_time(
    parts: Iterable[Part], ceilings: Ceilings, ahead_seconds: float = 0.0, spread: Spread | None = None
) -> PredictedTime:
    """Seconds of `parts` one after the other, without a wait between them: for one part max(launching, kernels).

    The host may be `ahead_seconds` ahead of the device, which is busy for so long with what is not timed.
    `spread` is that of a machine on which passes were measured. Raises ValueError for a precision that the machine has
    no rate for.
    """
    timed = []
    compute_seconds = memory_seconds = 0.0
    launch_seconds = ceilings.launch_seconds_by_kind
    for part in parts:
        before = compute_seconds + memory_seconds
        again = sum(kernel.calls for kernel in part.kernels if kernel.is_recomputed)
        launching = (part.launches - again) * launch_seconds[part.kind]
        launching += again * RECOMPUTED_LAUNCHES * ceilings.launch_seconds
        for kernel in part.kernels:
            arithmetic = _flops_with_idle(kernel, ceilings) / _rate(kernel.rate, ceilings) if kernel.flops else 0.0
            traffic = kernel.bytes / ceilings.bytes_per_second
            if ceilings.strided_elements_per_second is not None:
                traffic = max(traffic, kernel.strided_elements / ceilings.strided_elements_per_second)
            seconds = kernel.calls * (max(arithmetic, traffic) + ceilings.kernel_seconds)
            if arithmetic >= traffic:
                compute_seconds += seconds
            else:
                memory_seconds += seconds
        first = min(launching, FIRST_LAUNCHES * launch_seconds[part.kind])
        timed.append(Timed(launching, compute_seconds + memory_seconds - before, first))
    fast, kernels = sum(part.launching for part in timed), compute_seconds + memory_seconds
    low, high = DEVICE_RANGE
    any_host = (1.0, sqrt(ceilings.host_spread), ceilings.host_spread)
    # A host whose launches were measured is as uncertain as a device.
    known = spread or Spread(any_host if ceilings.host_spread > 1 else (low, 1.0, high), (low, 1.0, high))
    hosts, devices = known.host or any_host, known.device
    bound = COMPUTE if compute_seconds >= memory_seconds else MEMORY
    if fast * ceilings.host_spread - ahead_seconds >= kernels:
        bound = LAUNCH if fast - ahead_seconds >= kernels else LAUNCH_ON_A_TYPICAL_HOST
    low_seconds, seconds, high_seconds = (
        elapsed_seconds(timed, host, device, ceilings.launches_overlap, ahead_seconds)
        for host, device in zip(hosts, devices, strict=True)
    )
    return PredictedTime(
        seconds=seconds,
        launching_seconds=fast * hosts[1],
        compute_seconds=compute_seconds * devices[1],
        memory_seconds=memory_seconds * devices[1],
        bound=bound,
        low_seconds=low_seconds,
        high_seconds=high_seconds,
    )


def _flops_with_idle(kernel: KernelCost, ceilings: Ceilings) -> float:
    """FLOPs of a product and what multiprocessors could have done that have no tile of its last wave.

    In FP32 by waves of whole tiles, which are as wide as their kernel has them however narrow the product; on tensor
    cores by half of a wave, whatever the product.
    """
    if kernel.rate != "fp32":
        return kernel.flops + 2 * kernel.summed * ceilings.last_wave_elements
    if not (kernel.summed and ceilings.multiprocessors):
        return kernel.flops
    elements = kernel.flops / (2 * kernel.summed)
    elements *= max(1.0, ceilings.fp32_tile_side / kernel.side) if kernel.side else 1.0
    waves = {tile * ceilings.multiprocessors: share for tile, share in FP32_TILES.items()}
    return 2 * kernel.summed * min(ceil(elements / wave) * wave / share for wave, share in waves.items())


@dataclass(frozen=True)
class Timed:
    """Seconds of a part: of all its launches, of its kernels, of the first launch, which the device waits for."""

    launching: float
    kernels: float
    first: float = 0.0


def elapsed_seconds(
    parts: Sequence[Timed], host: float, device: float, overlap: bool, ahead_seconds: float = 0.0
) -> float:
    """Return the seconds of parts, launches times `host` and kernels times `device`."""
    launched, done = -ahead_seconds, 0.0
    for part in parts:
        # The device finishes after its queue, and not before the last launch; without overlap one waits for the other.
        started = max(done, launched + part.first * host)
        launched += part.launching * host
        done = (
            max(started + part.kernels * device, launched)
            if overlap
            else done + part.launching * host + part.kernels * device
        )
    return done


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


# The time of a message as a latency and a rate, fitted to measured messages of several sizes.


CONFIDENCE = 0.95

LEAST_GROWTH = 1e-6
"""Multiples of the shortest time, from no bytes to the largest size; less is no rate."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Link:
    """Seconds of a message: `latency_seconds` plus its bytes over `bytes_per_second`.

    Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994), equation 1. Intervals hold at 95 %
    where the messages scatter independently around the line; None for two sizes, through which any line passes.
    """

    latency_seconds: float
    bytes_per_second: float
    latency_interval: Interval | None
    rate_interval: tuple[float, float | None] | None
    """Its upper end is None where the sizes do not bound the rate."""
    largest_error: float
    """The largest error of the fitted sizes, relative to the measured time."""

    def seconds(self, message_bytes: float) -> float:
        return self.latency_seconds + message_bytes / self.bytes_per_second


def fit_link(messages: Sequence[tuple[float, float]]) -> Link | None:
    """Fit (bytes, seconds), weighted by relative error; None for fewer than two sizes, or times that shrink."""
    if len({size for size, _ in messages}) < 2:
        return None
    # Imported late: only runs that measure collectives need them.
    import numpy as np
    from scipy.optimize import lsq_linear
    from scipy.stats import t

    sizes, seconds = (np.array(values, dtype=float) for values in zip(*messages, strict=True))
    scale = sizes.max()
    of_a_second = np.column_stack([1 / seconds, sizes / scale / seconds])
    # Neither latency nor time of a byte can be negative.
    latency, of_scale = lsq_linear(of_a_second, np.ones(len(sizes)), bounds=(0, np.inf), method="bvls").x
    if of_scale < LEAST_GROWTH * seconds.min():
        return None
    errors = of_a_second @ (latency, of_scale) - 1
    latency_interval, rate_interval = None, None
    if len(messages) > 2:
        freedom = len(messages) - 2
        spread = np.sqrt(errors @ errors / freedom * np.linalg.inv(of_a_second.T @ of_a_second).diagonal())
        around = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * spread
        latency_interval = (max(0.0, float(latency - around[0])), float(latency + around[0]))
        slowest, fastest = of_scale + around[1], of_scale - around[1]
        rate_interval = (float(scale / slowest), float(scale / fastest) if fastest > 0 else None)
    return Link(
        float(latency), float(scale / of_scale), latency_interval, rate_interval, float(np.abs(errors).max())
    )  # fmt: skip


# The ways in which ranks can share a training step: their names, and what follows from each. No torch.
#
# `model.parallel` has each as a function, and is imported late: earlier revisions of `model`, which the gate
# measures, lack it.


VARIANTS = ("ddp-naive", "ddp-flat", "ddp", "zero1", "fsdp2", "fsdp2-bf16")
AFTERWARDS = ("ddp-naive", "ddp-flat")
"""Exchange gradients after the backward pass."""
BUCKETED = ("ddp", "zero1")
"""Exchange them in DDP's buckets, while the backward pass still computes."""
SHARDED = ("fsdp2", "fsdp2-bf16")
"""Keep slices of weights, gradients and moments."""
IN_BFLOAT16 = ("fsdp2-bf16",)
"""Send and add gradients in 16 bits, the others in 32."""


# How many bytes ranks must send: of one message, and of a training step in each way to share it.


Shape = tuple[int, ...]

_TIMES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""How often each part of a message crosses between ranks: an all-reduce is a reduce-scatter and an all-gather."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
"""Those that are timed alone."""

MIB = 2**20
FIRST_BUCKET_MB, BUCKET_MB = 1, 25
"""PyTorch's defaults: torch.nn.parallel.DistributedDataParallel, `bucket_cap_mb`."""


@dataclass(frozen=True, order=True)
class Message:
    """What all ranks exchange at once: held before an all-reduce or reduce-scatter, or after an all-gather."""

    kind: str
    message_bytes: int

    def sent_bytes(self, world: int) -> Fraction:
        """What one rank sends, the mean over ranks: the least that any algorithm can send.

        NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth": every byte has to reach the N - 1 other ranks, so a
        rank sends (N - 1) / N of it, and twice that where it is reduced first. Raises KeyError for another kind.
        """
        return bus_share(self.kind, world) * self.message_bytes


def bus_share(kind: str, world: int) -> Fraction:
    """Bus bandwidth over algorithm bandwidth, which is a message's bytes over its time: nccl-tests, as above."""
    return Fraction(_TIMES[kind] * (world - 1), world)


LINK_EFFICIENCY = (0.19, 0.8)
"""Shares of what a link can send between which exchanges of gradients lie. After four sources of one message, or of one
for each gradient, the next reaches the lower with 90 % (`published/ddp.csv`, tests/pages/test_published_links.py);
single messages of 1 GB reach the upper (`published/all_reduce.csv`)."""


def sent_bytes(messages: Iterable[Message], world: int) -> Fraction:
    """What one of `world` ranks sends for all of them, the mean over ranks."""
    return sum((message.sent_bytes(world) for message in messages), Fraction(0))


@dataclass(frozen=True)
class ParameterShapes:
    """Parameters of a model in float32, in its own order; FSDP2 gathers each block at once, and the rest at once."""

    rest: tuple[Shape, ...]
    blocks: tuple[tuple[Shape, ...], ...]
    by_gradient: tuple[Shape, ...]
    """All of them as a backward pass finishes their gradients, which is how DDP fills its buckets."""

    @property
    def all(self) -> tuple[Shape, ...]:
        return (*self.rest, *(shape for block in self.blocks for shape in block))

    @property
    def bytes(self) -> int:
        return sum(map(float32_bytes, self.all))


def float32_bytes(shape: Shape) -> int:
    return FLOAT32_BYTES * prod(shape)


def slice_bytes(shapes: Iterable[Shape], world: int) -> int:
    """What a rank keeps of parameters that FSDP2 slices: dimension 0, padded to a multiple of `world`."""
    return sum(-(-rows // world) * float32_bytes(tuple(columns)) for rows, *columns in shapes)


def step_messages(
    variant: str,
    shapes: ParameterShapes,
    world: int,
    bucket_mb: float | None = None,
    reshard: bool = True,
    norm_of_each: bool = True,
) -> list[Message]:
    """Every message of a training step with clipping and without loss scaling. Raises KeyError for another variant.

    For clipping FSDP2 adds up one norm of each parameter, before torch 2.10 one of all: `norm_of_each` says which.
    """
    return [*chain.from_iterable(messages_by_part(variant, shapes, world, bucket_mb, reshard, norm_of_each).values())]


def messages_by_part(
    variant: str,
    shapes: ParameterShapes,
    world: int,
    bucket_mb: float | None = None,
    reshard: bool = True,
    norm_of_each: bool = True,
) -> dict[str, list[Message]]:
    """The same, by the part of the step that sends them."""
    if variant in SHARDED:  # weights gathered before each pass of a block, gradients scattered after it, and norms
        narrower, norms = 2 if variant in IN_BFLOAT16 else 1, len(shapes.all) if norm_of_each else 1
        rest, *blocks = (world * slice_bytes(group, world) for group in (shapes.rest, *shapes.blocks))
        return {
            "forward": [Message("all_gather", size) for size in (rest, *blocks)],
            "backward": [
                *(Message("all_gather", size) for size in (blocks if reshard else ())),
                *(Message("reduce_scatter", size // narrower) for size in (rest, *blocks)),
            ],
            "optimizer": [Message("all_reduce", FLOAT32_BYTES * norms)],
        }
    buckets = bucket_bytes(shapes.by_gradient, bucket_mb)
    reduced = {
        "ddp-naive": [float32_bytes(shape) for shape in shapes.all],
        "ddp-flat": [shapes.bytes],
        "ddp": buckets,
        "zero1": buckets,
    }[variant]
    sent_back = shapes.all if variant == "zero1" else ()
    return {
        "backward": [Message("all_reduce", size) for size in reduced],
        "optimizer": [Message("broadcast", float32_bytes(shape)) for shape in sent_back],
    }


def bucket_bytes(by_gradient: Sequence[Shape], bucket_mb: float | None = None) -> list[int]:
    """DDP's buckets from the second step on: one is sent as soon as it holds its size, the first earlier by default.

    Li et al., "PyTorch Distributed", 2020 (arXiv:2006.15704), section 3.2.3; the rule is that of
    `compute_bucket_assignment_by_size`, torch/csrc/distributed/c10d/reducer.cpp.
    """
    first, others = (FIRST_BUCKET_MB, BUCKET_MB) if bucket_mb is None else (bucket_mb, bucket_mb)
    buckets: list[int] = []
    filled = 0
    for shape in by_gradient:
        filled += float32_bytes(shape)
        if filled >= int(MIB * (others if buckets else first)):
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets


# What one rank keeps of a model in training, and what it needs besides while it gathers and reduces.


BUCKETS, GATHERED, WHOLE_GRADIENTS = "DDP's buckets", "gathered weights", "whole gradients"


def kept_bytes(variant: str, shapes: ParameterShapes, world: int) -> tuple[int, int, int]:
    """Parameters, gradients and AdamW's two moments of the rank that keeps most, in float32."""
    if variant in SHARDED:
        kept = slice_bytes(shapes.all, world)
        return kept, kept, 2 * kept
    stepped = largest_part_bytes(shapes.all, world) if variant == "zero1" else shapes.bytes
    return shapes.bytes, shapes.bytes, 2 * stepped


def largest_part_bytes(shapes: Sequence[Shape], world: int) -> int:
    """Return the bytes of the rank that steps most: each parameter, largest first, goes to the rank with the fewest.

    torch.distributed.optim.ZeroRedundancyOptimizer, `_partition_parameters`.
    """
    elements = [0] * world  # a heap: the least stands first
    for size in sorted(map(prod, shapes), reverse=True):
        heapq.heapreplace(elements, elements[0] + size)
    return FLOAT32_BYTES * max(elements)


def working_bytes(variant: str, shapes: ParameterShapes, part: str, reshard: bool = True) -> dict[str, int]:
    """Return what a part of the step holds beside what is kept, by use: no less than is held at once, in any world.

    FSDP2 gathers what is outside of blocks for both passes, and a block while the next one arrives in a buffer, or,
    without `reshard`, keeps every block; the gradients of either are whole until they are scattered, out of a buffer as
    large. DDP copies gradients into buckets, which stay; ddp-flat into one tensor after its backward pass.
    """
    if variant in BUCKETED or (variant == "ddp-flat" and part == "backward"):
        return {BUCKETS: shapes.bytes}
    if variant not in SHARDED or part == "optimizer":
        return {}
    rest, *blocks = (sum(map(float32_bytes, group)) for group in (shapes.rest, *shapes.blocks))
    block = max(blocks, default=0)
    gathered = {GATHERED: rest + (3 * block if reshard else sum(blocks) + block)}
    return gathered | {WHOLE_GRADIENTS: rest + max(rest, 2 * block)} if part == "backward" else gathered
