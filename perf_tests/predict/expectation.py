"""What is known of a case before it is measured: its exact counters and the least time that this machine needs.

From a measured time, an `Expectation` derives further figures and detects an impossible one."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from perf_tests.audit.physics import MEASURED_CEILING_MARGIN
from perf_tests.cases.case import Case
from perf_tests.hardware.datasheets import CudaLibraries, Gpu
from perf_tests.hardware.limits import (
    BACKWARD,
    FORWARD,
    Ceilings,
    Part,
    PredictedTime,
    predicted_time,
)
from perf_tests.predict.counters import Counters, counters_or_reason
from perf_tests.records.record import Json

# What is known about a case before it is measured: its exact counters and the least time that this machine needs.
#
# From a measured time, an `Expectation` derives further figures and detects an impossible one.
Count = Callable[[Case, CudaLibraries | None], tuple[Counters | None, str | None]]
"""How a case's exact counters are come by."""


WALL_OVER_DEVICE = 0.95
"""Wall time may be this fraction of device time, because events have a finite resolution."""


MEASURED_AGAIN = 5
"""How often a ceiling is measured again, a second each on a CPU, before a time is called impossible."""


@dataclass(frozen=True)
class Expectation:
    """A case's counters, or the reason why there are none; `least_flops` is a lower bound of what is executed."""

    case: Case
    counters: Counters | None
    counters_reason: str | None
    least_flops: Mapping[str, int]
    """By the precision of the products; empty where no bound is known."""
    ceilings: Ceilings | None
    gpu: Gpu | None

    def derived(self, median_seconds: float) -> Json:
        """Fields of `extra_info`, null where unknown."""
        predicted = self._roofline()
        roofline_seconds = predicted.kernel_seconds if predicted else None
        exact = ("executed_flops", "kernel_launches", "bytes_touched", "saved_bytes")
        return {
            **{name: getattr(self.counters, name, None) for name in exact},
            "predicted_peak_bytes": self.counters.peak_bytes if self.counters else None,
            "counters_reason": self.counters_reason,
            "roofline_seconds": roofline_seconds,
            "launching_seconds": predicted.launching_seconds if predicted else None,
            "roofline_fraction": roofline_seconds / median_seconds if roofline_seconds else None,
            "bound": predicted.bound if predicted else None,
            "memory_ceiling_gigabytes_per_second": self.ceilings.bytes_per_second / 1e9 if self.ceilings else None,
            "mfu": self._mfu(median_seconds),
            "sustained_matmul_tflops_per_second": self._sustained_teraflops(),
        }

    @property
    def model_flops(self) -> int | None:
        """Model FLOPs of one round; of a user's model only counted ones, and None where they are not known."""
        if self.case.user_model is not None:
            return self.counters.model_flops if self.counters else None
        return self.case.model_flops

    def _roofline(self) -> PredictedTime | None:
        if self.counters is None or self.ceilings is None:
            return None
        kind = BACKWARD if self.case.row.timed[-1] == "backward" else FORWARD
        part = Part(self.counters.kernel_launches, self.counters.kernels, kind)
        # Nothing that is not measured on this machine belongs to its roofline.
        ceilings = replace(self.ceilings, kernel_seconds=0.0, last_wave_elements=0)
        try:
            return predicted_time([part], ceilings)
        except ValueError:  # the machine has no rate for this precision
            return None

    def _sustained_teraflops(self) -> float | None:
        """Rate of large products under load in this precision; `matmul_ceiling_tflops_per_second` is the burst."""
        rates = self.ceilings.matmul_flops_per_second if self.ceilings else {}
        rate = rates.get(self.case.precision.removesuffix("-unscaled"))
        return None if rate is None else rate / 1e12

    def _mfu(self, median_seconds: float) -> float | None:
        """Model FLOPs utilisation against the datasheet (Chowdhery et al., "PaLM", 2022, appendix B)."""
        peak = self.gpu.flops_per_second(self.case.precision) if self.gpu else None
        if peak is None or self.model_flops is None:
            return None
        return self.model_flops / median_seconds / peak

    def is_over_ceiling(self, median_seconds: float) -> bool:
        """Whether the products run faster than the best square one measured here; traffic may be served by caches."""
        rates = self.ceilings.highest_flops_per_second if self.ceilings else {}
        return sum(flops / rates[name] for name, flops in self.least_flops.items() if name in rates) > median_seconds

    def least_seconds(self) -> tuple[float, str]:
        """The time of the arithmetic alone at this machine's highest rate, and that rate in words."""
        rates, words = self._highest_rates()
        return sum(flops / rates[name] for name, flops in self.least_flops.items() if name in rates), words

    def _highest_rates(self) -> tuple[dict[str, float], str]:
        if self.gpu is not None:
            rated = {precision: self.gpu.flops_per_second(precision) for precision in self.least_flops}
            margin = self.gpu.clock_margin
            return {name: rate * margin for name, rate in rated.items() if rate}, f"the datasheet of {self.gpu.name}"
        if self.ceilings is None:
            return {}, ""
        measured = self.ceilings.highest_flops_per_second
        words = f"{MEASURED_CEILING_MARGIN:g} x the best square product of this machine"
        return {name: rate * MEASURED_CEILING_MARGIN for name, rate in measured.items()}, words


def expect(
    case: Case,
    ceilings: Ceilings | None,
    gpu: Gpu | None,
    libraries: CudaLibraries | None = None,
    count: Count = counters_or_reason,
) -> Expectation:
    """Count the case on fake tensors; nothing runs on the device."""
    counters, reason = count(case, libraries)
    return Expectation(case, counters, reason, _least_flops(case, counters), ceilings, gpu)


def _least_flops(case: Case, counters: Counters | None) -> dict[str, int]:
    """Executed FLOPs by precision; of uncounted cases what no compiler can skip, nothing of a user's model."""
    if counters is not None:
        by_rate: dict[str, int] = defaultdict(int)
        for kernel in counters.kernels:
            if kernel.flops:
                by_rate[kernel.rate] += kernel.calls * kernel.flops
        return dict(by_rate)
    flops = case.work.least_flops(case.phase, leaves_masked_half=True) if case.work else None
    return {case.precision.removesuffix("-unscaled"): flops} if flops else {}


def why_impossible(
    expectation: Expectation,
    rounds_seconds: list[float],
    device_seconds: list[float],
    measure_again: Callable[[str], float] | None,
) -> str | None:
    """None for a possible time, else one sentence why it is impossible, with the likeliest cause.

    Before a time is called impossible by measured ceilings, `measure_again` measures the matrix product rate of a
    precision once more: a neighbour may have slowed the first measurement.
    """
    seconds = median(rounds_seconds)
    if device_seconds and seconds < WALL_OVER_DEVICE * median(device_seconds):
        return (
            f"wall time is {seconds * 1e3:.4g} ms and device time {median(device_seconds) * 1e3:.4g} ms: the clock was "
            "read before the device finished. Most likely a synchronisation is missing."
        )
    least_seconds, rate = expectation.least_seconds()
    if seconds >= least_seconds:
        return None
    if expectation.gpu is None and measure_again is not None and expectation.ceilings is not None:
        for _ in range(MEASURED_AGAIN):
            expectation = _with_rates_of_now(expectation, measure_again)
            least_seconds, rate = expectation.least_seconds()
            if seconds >= least_seconds:
                return None
    flops = sum(expectation.least_flops.values())
    rate_reached = flops / seconds if seconds > 0 else float("inf")
    return (
        f"{seconds * 1e3:.4g} ms for {flops / 1e12:.4g} TFLOP is {rate_reached / 1e12:.4g} TFLOP/s; by {rate}, "
        f"{expectation.case.precision} takes at least {least_seconds * 1e3:.4g} ms. "
        f"Most likely {_likely_cause(expectation, rate_reached)}."
    )


def _with_rates_of_now(expectation: Expectation, measure_again: Callable[[str], float]) -> Expectation:
    assert expectation.ceilings is not None
    known = expectation.ceilings.highest_flops_per_second
    rates = {name: max(rate, measure_again(name)) for name, rate in known.items() if name in expectation.least_flops}
    return replace(expectation, ceilings=replace(expectation.ceilings, burst_flops_per_second={**known, **rates}))


def _likely_cause(expectation: Expectation, rate: float) -> str:
    tf32 = expectation.gpu.rates.get("tf32") if expectation.gpu else None
    if expectation.case.precision == "fp32" and tf32 is not None and rate <= tf32:
        return "TF32 products under the name fp32, or a missing synchronisation"
    return "a missing synchronisation, or less work than the case states: a smaller batch or context"
