"""What all benchmarks of one run share: device, clock, memory budget, session, ceilings."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from model.precision import PRECISIONS
from perf_tests.bench.outcomes import Outcome, is_out_of_memory, why_too_large, why_unsupported
from perf_tests.bench.session import MeasuringSession
from perf_tests.cases import AttentionCase, Case
from perf_tests.instruments import matmul_rate as roofline
from perf_tests.instruments.cache_flush import CacheFlush
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.device import Device, open_device
from perf_tests.instruments.gpu_health import GpuHealth, NoHealthError, open_gpu_health
from perf_tests.limits.ceilings import Ceilings
from perf_tests.limits.datasheets import Gpu, gpu_named
from perf_tests.options import Settings
from perf_tests.prediction import machine_ceilings
from perf_tests.prediction.expectation import Expectation, expect

WORK = ("rounds", "compiling", "building", "counting", "passes")


@dataclass
class Workbench:
    """Made once per run, before any model. `session` is None where nothing is measured."""

    settings: Settings
    device: Device
    clock: Clock
    budget_bytes: int
    spent_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WORK, 0.0))
    """By kind of work; `compiling`, first rounds that generated code, is part of `rounds`."""
    session: MeasuringSession | None = None
    health: GpuHealth | None = None
    why_no_health: str | None = None
    """A sentence where the state of a GPU cannot be read."""
    _ceilings: dict[str, float] = field(default_factory=dict)

    @property
    def disabled(self) -> bool:
        """Whether every benchmark only runs once, as a test."""
        return self.session is None

    def why_not(self, case: Case) -> Outcome | None:
        """Why the case is not tried; None where it is."""
        earlier = self.session.contents.outcomes if self.session else []
        return why_unsupported(case, self.device.torch_device) or why_too_large(case, self.budget_bytes, earlier)

    def ceiling(self, precision: str) -> float:
        """Matrix-product rate of this machine in FLOP/s, measured at the first call."""
        return self._ceilings.get(precision) or self.measure_ceiling_again(precision)

    def measure_ceiling_again(self, precision: str) -> float:
        """The best rate so far, with one more measurement."""
        rate = roofline.matmul_flops_per_second(PRECISIONS[precision], self.device)
        self.device.release_memory()
        self._ceilings[precision] = max(rate, self._ceilings.get(precision, 0.0))
        return self._ceilings[precision]

    def expect(self, case: Case) -> Expectation:
        """The case's exact counters and the machine's ceilings."""
        with self.spending("counting"):
            return expect(case, self.ceilings_for(case.precision), self._gpu)

    @contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Adds the time inside to `spent_seconds`."""
        start = time.perf_counter()
        yield
        self.spent_seconds[kind] += time.perf_counter() - start

    def ceilings_for(self, precision: str) -> Ceilings | None:
        """This machine's, with the better of the rates measured earlier and in this run."""
        if self._machine is None:
            return None
        rates, name = self._machine.matmul_flops_per_second, precision.removesuffix("-unscaled")
        best = max(rates.get(name, 0.0), self.ceiling(precision))
        return replace(self._machine, matmul_flops_per_second={**rates, name: best})

    @cached_property
    def _machine(self) -> Ceilings | None:
        """Measured or read at the first case; None without the memory to measure them."""
        try:
            return machine_ceilings.ceilings_here(self.device)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    @property
    def _gpu(self) -> Gpu | None:
        """The datasheet of this GPU; None on a CPU, and for an unknown card."""
        if self.device.torch_device.type != "cuda":
            return None
        try:
            return gpu_named(torch.cuda.get_device_name(self.device.torch_device))
        except ValueError:
            return None

    def rounds(self, case: Case) -> int:
        alone = isinstance(case, AttentionCase)
        return self.settings.attention_alone_rounds if alone else self.settings.rounds

    def warmup_rounds(self, case: Case) -> int:
        return max(self.settings.warmup_rounds, case.fewest_warmup_rounds)

    def cache_flush(self, case: Case) -> CacheFlush | None:
        """Called before each measured round of a case with cold caches; None for other cases."""
        is_cold = isinstance(case, AttentionCase) and case.cache == "cold"
        return CacheFlush(self.device.torch_device) if is_cold else None

    def on_round(self, number: int) -> None:
        if self.session is not None:
            self.session.progress.round(number)


def set_up(settings: Settings) -> Workbench:
    """Prepare this process: device, threads, and a limit that makes running out of memory an error."""
    torch.set_num_threads(settings.threads)
    device = open_device(torch.device(settings.device))
    available_bytes = device.available_bytes()
    budget_bytes = min(settings.memory_budget_bytes or available_bytes, available_bytes)
    device.limit_memory(budget_bytes)
    workbench = Workbench(settings, device, Clock(device), budget_bytes)
    if device.torch_device.type == "cuda":
        try:
            workbench.health = open_gpu_health(device.torch_device)
        except NoHealthError as error:
            workbench.why_no_health = str(error)
    return workbench
