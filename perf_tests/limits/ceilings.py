"""Peak rates of a machine, from which times are predicted: products, memory traffic, launches.

In: a card's datasheet. Out: `Ceilings`, which `prediction/machine_ceilings.py` measures on a machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from perf_tests.limits.datasheets import Gpu

LARGEST_NUMBER = 1e30
"""A whole number of any length can be read from a file, and not all become a float."""


@dataclass(frozen=True)
class Rate:
    """Of large operations, per second."""

    burst: float
    """At the best moment: nothing is faster."""
    sustained: float
    """Under load, when power and heat have set the clocks."""

    def best_with(self, other: "Rate") -> "Rate":
        """Disturbances only lower a rate."""
        return Rate(max(self.burst, other.burst), max(self.sustained, other.sustained))


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
    """The same where only operators run and no modules: an optimizer's loop, attention alone."""
    launches_overlap: bool
    """Whether the device works while the host launches; a CPU is both."""
    source: str
    burst_flops_per_second: Mapping[str, float] = field(default_factory=dict)
    """Of matrix products at the best moment, where it was measured apart."""
    host_spread: float = 1.0
    """How many times as long a typical host takes as a fast one; 1 where the host is known."""
    strided_elements_per_second: float | None = None
    """Of elementwise kernels with a broadcast or transposed operand; None where only memory traffic bounds them."""
    last_wave_elements: int = 0
    """Of a product on tensor cores: elements of the result that the idle part of the last wave of tiles would hold."""
    kernel_seconds: float = 0.0
    """Of every kernel besides its work: filling the device, emptying it, and the gap to the next."""

    @property
    def highest_flops_per_second(self) -> dict[str, float]:
        """Of matrix products by precision: what no program exceeds."""
        return {**self.matmul_flops_per_second, **self.burst_flops_per_second}

    def with_rate(self, precision: str, rate: Rate) -> "Ceilings":
        """With the better of the known rate and `rate`."""
        sustained, burst = self.matmul_flops_per_second, self.burst_flops_per_second
        best = rate.best_with(Rate(burst.get(precision, 0.0), sustained.get(precision, 0.0)))
        return replace(
            self,
            matmul_flops_per_second={**sustained, precision: best.sustained},
            burst_flops_per_second={**burst, precision: best.burst},
        )

    def __post_init__(self) -> None:
        figures = {
            **self.matmul_flops_per_second,
            **{f"burst {name}": rate for name, rate in self.burst_flops_per_second.items()},
            "bytes_per_second": self.bytes_per_second,
            "launch_seconds": self.launch_seconds,
            "backward_launch_seconds": self.backward_launch_seconds,
            "bare_launch_seconds": self.bare_launch_seconds,
            "host_spread": self.host_spread,
        }
        if self.strided_elements_per_second is not None:
            figures["strided_elements_per_second"] = self.strided_elements_per_second
        for name, value in figures.items():
            if not 0 < value < LARGEST_NUMBER:
                raise ValueError(f"{name} of {self.name} is {value}; a ceiling is a finite number above 0.")
        may_be_zero = {"last_wave_elements": self.last_wave_elements, "kernel_seconds": self.kernel_seconds}
        for name, value in may_be_zero.items():
            if not 0 <= value < LARGEST_NUMBER:
                raise ValueError(f"{name} of {self.name} is {value}; it is a finite number, 0 or more.")


TENSOR_EFFICIENCY, MEMORY_EFFICIENCY = 0.8, 0.9
"""Of the datasheet's peak, in 16 bits and TF32 and of memory: square products of 8192 on an H100 and an H200 reach the
first, streams of 1 GiB the second."""

# The rest is fitted to published times of whole models; `python -m perf_tests.proofs.sources_left_out` fits it again
# without each source in turn. Cards with 64 FP32 lanes per multiprocessor feed them better than those with 128.
FP32_EFFICIENCY, FP32_EFFICIENCY_WITH_64_LANES = 0.6, 0.85
CARDS_WITH_64_LANES = ("P100", "V100", "T4", "RTX 2080", "A100", "A800", "A30")
LAST_WAVE_ELEMENTS = 2**21
KERNEL_SECONDS = 3e-6

STRIDED_ELEMENTS_PER_CLOCK = 1.0
"""By a multiprocessor: on an A100 the kernels `elementwise_kernel` of a published profile move two float32 in 1.18 to
1.26 TB/s, where `vectorized_elementwise_kernel` moves them in 1.81 (damek/cs336-assignment2-systems)."""

FAST_HOST_LAUNCH_SECONDS = {"forward": 25e-6, "backward": 16e-6, "bare": 8e-6}
HOST_SPREAD = 2.5
"""A range this wide holds nearly the most published launches, each author counting once, if it starts at a fast host;
hosts differ by more."""


def ceilings_of(gpu: Gpu) -> Ceilings:
    fast = FAST_HOST_LAUNCH_SECONDS
    return Ceilings(
        name=gpu.name,
        matmul_flops_per_second={
            precision: rate * _matmul_efficiency(gpu, precision) for precision, rate in gpu.rates.items()
        },
        bytes_per_second=gpu.bytes_per_second * MEMORY_EFFICIENCY,
        launch_seconds=fast["forward"],
        backward_launch_seconds=fast["backward"],
        bare_launch_seconds=fast["bare"],
        launches_overlap=True,
        source=f"{gpu.source}, times the fraction that eager kernels reach; launches of a fast to a typical host",
        host_spread=HOST_SPREAD,
        strided_elements_per_second=_multiprocessor_clocks(gpu) * STRIDED_ELEMENTS_PER_CLOCK,
        last_wave_elements=LAST_WAVE_ELEMENTS,
        kernel_seconds=KERNEL_SECONDS,
    )


def has_64_lanes(gpu: Gpu) -> bool:
    return gpu.name.startswith(CARDS_WITH_64_LANES)


def _multiprocessor_clocks(gpu: Gpu) -> float:
    """Of all multiprocessors, per second: a lane multiplies and adds once in each."""
    return gpu.rates["fp32"] / (2 * (64 if has_64_lanes(gpu) else 128))


def _matmul_efficiency(gpu: Gpu, precision: str) -> float:
    if precision != "fp32":
        return TENSOR_EFFICIENCY
    return FP32_EFFICIENCY_WITH_64_LANES if has_64_lanes(gpu) else FP32_EFFICIENCY
