"""What is known of a case before it is measured: its exact counters and the least time that this machine needs.

From a measured time, an `Expectation` derives further figures and detects an impossible one."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import torch

from perf_tests_suite.perf_tests.audit.physics import MEASURED_CEILING_MARGIN
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.datasheets import CudaLibraries, Gpu, rate_name
from perf_tests_suite.perf_tests.hardware.device import last_level_cache_bytes
from perf_tests_suite.perf_tests.hardware.limits import BACKWARD, FORWARD, Ceilings, Part, PredictedTime, predicted_time
from perf_tests_suite.perf_tests.predict.counters import Counters, counters_or_reason
from perf_tests_suite.perf_tests.records.measured import Measured

M = TypeVar("M", bound=Measured)

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
    """FLOPs by the precision of the products; empty where no bound is known."""
    ceilings: Ceilings | None
    gpu: Gpu | None

    def derived(self, measured: M, median_seconds: float) -> M:
        """Return what was measured with what follows from a median.

        `mfu` is model FLOPs utilisation against the datasheet (Chowdhery et al., "PaLM", 2022, appendix B).
        `sustained_matmul_tflops_per_second` is of large products under load; the ceiling of a row is the burst.
        """
        predicted, precision = self._roofline(), self.case.precision
        roofline_seconds = predicted.kernel_seconds if predicted else None
        peak = self.gpu.flops_per_second(precision) if self.gpu else None
        rates = self.ceilings.matmul_flops_per_second if self.ceilings else {}
        sustained = rates.get(rate_name(precision))
        if self.counters is not None:
            measured = replace(
                measured,
                executed_flops=self.counters.executed_flops,
                kernel_launches=self.counters.kernel_launches,
                bytes_touched=self.counters.bytes_touched,
                saved_bytes=self.counters.saved_bytes,
                predicted_peak_bytes=self.counters.peak_bytes,
            )
        return replace(
            measured,
            counters_reason=self.counters_reason,
            roofline_seconds=roofline_seconds,
            launching_seconds=predicted.launching_seconds if predicted else None,
            roofline_fraction=roofline_seconds / median_seconds if roofline_seconds else None,
            bound=predicted.bound if predicted else None,
            memory_ceiling_gigabytes_per_second=self.ceilings.bytes_per_second / 1e9 if self.ceilings else None,
            mfu=self.model_flops / median_seconds / peak if peak and self.model_flops is not None else None,
            sustained_matmul_tflops_per_second=sustained / 1e12 if sustained is not None else None,
        )

    @property
    def model_flops(self) -> int | None:
        """Model FLOPs of one round; of a user's model only counted ones, and None where they are not known."""
        if self.case.user_model is not None:
            return self.counters.model_flops if self.counters else None
        return self.case.model_flops

    def _roofline(self) -> PredictedTime | None:
        if self.counters is None or self.ceilings is None:
            return None
        kind = BACKWARD if self.case.phase_row.timed[-1] == "backward" else FORWARD
        part = Part(self.counters.kernel_launches, self.counters.kernels, kind)
        # Nothing that is not measured on this machine belongs to its roofline.
        ceilings = replace(self.ceilings, kernel_seconds=0.0, last_wave_elements=0, multiprocessors=0)
        try:
            return predicted_time([part], ceilings)
        except ValueError:  # the machine has no rate for this precision
            return None

    def over_roofline(self, median_seconds: float) -> float | None:
        """Return the time of its kernels here over the median, less traffic that the last-level cache may serve.

        Of what each kernel reads and writes, that cache holds at most its own size from one kernel to the next.
        """
        if self.counters is None:
            return None
        cache_bytes = last_level_cache_bytes(torch.device(self.case.device))
        less_bytes = tuple(
            replace(one, bytes=max(0, one.bytes - cache_bytes), strided_elements=0) for one in self.counters.kernels
        )
        best = self.ceilings and replace(self.ceilings, matmul_flops_per_second=self.ceilings.highest_flops_per_second)
        predicted = replace(self, counters=replace(self.counters, kernels=less_bytes), ceilings=best)._roofline()
        return None if predicted is None else predicted.kernel_seconds / median_seconds

    def is_over_ceiling(self, median_seconds: float) -> bool:
        """Whether the products run faster than the best square one measured here; traffic may be served by caches."""
        return self._seconds_at(self.ceilings.highest_flops_per_second if self.ceilings else {}) > median_seconds

    def least_seconds(self) -> tuple[float, str]:
        """The time of the arithmetic alone at this machine's highest rate, and that rate in words."""
        if self.gpu is not None:
            rated = {precision: self.gpu.flops_per_second(precision) for precision in self.least_flops}
            rates = {name: rate * self.gpu.clock_margin_of(name) for name, rate in rated.items() if rate}
            return self._seconds_at(rates), f"the datasheet of {self.gpu.name}"
        measured = self.ceilings.highest_flops_per_second if self.ceilings else {}
        rates = {name: rate * MEASURED_CEILING_MARGIN for name, rate in measured.items()}
        return self._seconds_at(rates), f"{MEASURED_CEILING_MARGIN:g} x the best square product of this machine"

    def _seconds_at(self, rates: Mapping[str, float]) -> float:
        return sum(flops / rates[name] for name, flops in self.least_flops.items() if name in rates)


def expect(
    case: Case,
    ceilings: Ceilings | None,
    gpu: Gpu | None,
    libraries: CudaLibraries | None = None,
    count: Count = counters_or_reason,
) -> Expectation:
    """Count the case on fake tensors; nothing runs on the device."""
    counters, reason = count(case, libraries)
    least_flops: dict[str, int] = defaultdict(int)
    for kernel in counters.kernels if counters else ():
        if kernel.flops:
            least_flops[kernel.rate] += kernel.calls * kernel.flops
    if counters is None and case.work is not None:
        # What no compiler can skip; of a user's model nothing is certain.
        flops = case.work.least_flops(case.phase, leaves_masked_half=True)
        least_flops = {rate_name(case.precision): flops} if flops else {}
    return Expectation(case, counters, reason, dict(least_flops), ceilings, gpu)


def why_impossible(
    expectation: Expectation,
    rounds_seconds: Sequence[float],
    device_seconds: Sequence[float],
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
            ceilings = expectation.ceilings
            known = ceilings.highest_flops_per_second
            again = {
                name: max(rate, measure_again(name)) for name, rate in known.items() if name in expectation.least_flops
            }
            expectation = replace(expectation, ceilings=replace(ceilings, burst_flops_per_second={**known, **again}))
            least_seconds, rate = expectation.least_seconds()
            if seconds >= least_seconds:
                return None
    flops = sum(expectation.least_flops.values())
    rate_reached = flops / seconds if seconds > 0 else float("inf")
    tf32 = expectation.gpu.rates.get("tf32") if expectation.gpu else None
    cause = "a missing synchronisation, or less work than the case states: a smaller batch or context"
    if expectation.case.precision == "fp32" and tf32 is not None and rate_reached <= tf32:
        cause = "TF32 products under the name fp32, or a missing synchronisation"
    return (
        f"{seconds * 1e3:.4g} ms for {flops / 1e12:.4g} TFLOP is {rate_reached / 1e12:.4g} TFLOP/s; by {rate}, "
        f"{expectation.case.precision} takes at least {least_seconds * 1e3:.4g} ms. "
        f"Most likely {cause}."
    )
