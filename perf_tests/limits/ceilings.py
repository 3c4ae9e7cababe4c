"""Peak rates of a machine, from which times are predicted: products, memory traffic, launches.

In: a card's datasheet. Out: `Ceilings`, which `prediction/machine_ceilings.py` measures on a machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from perf_tests.limits.datasheets import Gpu


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
    """Host time between two launches of an eager forward pass or optimizer."""
    backward_launch_seconds: float
    """The same for launches by autograd's thread."""
    launches_overlap: bool
    """Whether the device works while the host launches; a CPU is both."""
    source: str
    burst_flops_per_second: Mapping[str, float] = field(default_factory=dict)
    """Of matrix products at the best moment, where it was measured apart."""

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
        }
        for name, value in figures.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} of {self.name} is {value}; a ceiling is a finite number above 0.")


# Fractions of a datasheet's peak that PyTorch's eager kernels reach on large shapes. 0.6, 0.5 and 0.85 are rules of
# thumb, not fitted here. Square products of 8192 in bf16 reach 0.8 on an H100 and an H200, and large streams 0.9 of the
# bandwidth; a model's products are smaller, and with those two the published times of Hopper in 16 bits are missed by
# 23 % in the median instead of 10 %. Cards with 64 FP32 lanes per multiprocessor instead of 128 feed them better: 0.8
# is fitted to five synchronised times on an A100 (kbjiang/cs336-assignment2-systems-mine), which no validation uses.
MATMUL_EFFICIENCY = {"fp32": 0.6, "tf32": 0.5, "bf16": 0.5, "fp16": 0.5}
FP32_EFFICIENCY_WITH_64_LANES = 0.8
CARDS_WITH_64_LANES = ("P100", "V100", "T4", "A100", "A800")
MEMORY_EFFICIENCY = 0.85

# Host time of one launch, which no datasheet gives: medians over the published times that launches bound, printed by
# `python -m perf_tests.proofs.predicted_times`. Hosts differ by a factor of 4 and more.
LAUNCH_SECONDS = 44e-6
BACKWARD_LAUNCH_SECONDS = 29e-6


def ceilings_of(gpu: Gpu) -> Ceilings:
    return Ceilings(
        name=gpu.name,
        matmul_flops_per_second={
            precision: rate * _matmul_efficiency(gpu, precision) for precision, rate in gpu.rates.items()
        },
        bytes_per_second=gpu.bytes_per_second * MEMORY_EFFICIENCY,
        launch_seconds=LAUNCH_SECONDS,
        backward_launch_seconds=BACKWARD_LAUNCH_SECONDS,
        launches_overlap=True,
        source=f"{gpu.source}, times the fraction that eager kernels reach; launch rate of a typical host",
    )


def _matmul_efficiency(gpu: Gpu, precision: str) -> float:
    if precision == "fp32" and gpu.name.startswith(CARDS_WITH_64_LANES):
        return FP32_EFFICIENCY_WITH_64_LANES
    return MATMUL_EFFICIENCY[precision]
