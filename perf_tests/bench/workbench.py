"""What all benchmarks of one run share: the device, the clock, the memory budget, the run's session."""

import time
from dataclasses import dataclass, field, replace

import torch

from model.precision import PRECISIONS
from perf_tests.bench.outcomes import Outcome, is_out_of_memory, why_too_large, why_unsupported
from perf_tests.bench.session import MeasuringSession, TimeSpent
from perf_tests.cases import AttentionCase, Case
from perf_tests.instruments import matmul_rate as roofline
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.device import Device, open_device
from perf_tests.instruments.gpu_health import GpuHealth, NoHealthError, open_gpu_health
from perf_tests.limits.ceilings import Ceilings
from perf_tests.limits.datasheets import Gpu, gpu_named
from perf_tests.options import Settings
from perf_tests.prediction import machine_ceilings
from perf_tests.prediction.expectation import Expectation, expect


@dataclass
class Workbench:
    """Made once a run, before anything is built. `session` is None where nothing is measured."""

    settings: Settings
    device: Device
    clock: Clock
    budget_bytes: int
    time_spent: TimeSpent = field(default_factory=TimeSpent)
    session: MeasuringSession | None = None
    health: GpuHealth | None = None
    why_no_health: str | None = None
    """A sentence where there is a GPU whose state cannot be read."""
    _ceilings: dict[str, float] = field(default_factory=dict)
    _machine: list[Ceilings | None] = field(default_factory=list)
    """Asked for once, at the first case; no element before."""

    @property
    def disabled(self) -> bool:
        """Whether every benchmark only runs once, as a test."""
        return self.session is None

    def why_not(self, case: Case) -> Outcome | None:
        """Why the case is not tried; None if it is."""
        earlier = self.session.contents.outcomes if self.session else []
        return why_unsupported(case, self.device.torch_device) or why_too_large(case, self.budget_bytes, earlier)

    def ceiling(self, precision: str) -> float:
        """Matrix product rate of this machine in FLOP/s, measured at the first case that asks."""
        if precision not in self._ceilings:
            self._ceilings[precision] = roofline.matmul_flops_per_second(PRECISIONS[precision], self.device)
            self.device.release_memory()
        return self._ceilings[precision]

    def measure_ceiling_again(self, precision: str) -> float:
        """The matrix product rate of this moment; the best so far is kept."""
        rate = roofline.matmul_flops_per_second(PRECISIONS[precision], self.device)
        self.device.release_memory()
        self._ceilings[precision] = max(rate, self._ceilings.get(precision, 0.0))
        return self._ceilings[precision]

    def expect(self, case: Case) -> Expectation:
        """The case's exact counters and the machine's ceilings, and what they cost to know noted."""
        start = time.perf_counter()
        expectation = expect(case, self._ceilings_for(case.precision), self._datasheet())
        self.time_spent.counting_seconds += time.perf_counter() - start
        return expectation

    def _ceilings_for(self, precision: str) -> Ceilings | None:
        """This machine's, with the better of the rates measured earlier and in this run; None without the memory."""
        if not self._machine:
            try:
                self._machine.append(machine_ceilings.ceilings_here(self.device))
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._machine.append(None)
        machine = self._machine[0]
        if machine is None:
            return None
        rates, name = machine.matmul_flops_per_second, precision.removesuffix("-unscaled")
        return replace(
            machine, matmul_flops_per_second={**rates, name: max(rates.get(name, 0.0), self.ceiling(precision))}
        )

    def _datasheet(self) -> Gpu | None:
        """Of the GPU that is here; None on a CPU, and for a card that is not known."""
        if self.device.torch_device.type != "cuda":
            return None
        try:
            return gpu_named(torch.cuda.get_device_name(self.device.torch_device))
        except ValueError:
            return None

    def rounds(self, case: Case) -> int:
        alone = isinstance(case, AttentionCase)
        return self.settings.attention_alone_rounds if alone else self.settings.rounds

    def on_round(self, number: int) -> None:
        if self.session is not None:
            self.session.progress.round(number)


def set_up(settings: Settings) -> Workbench:
    """Prepare this process: device, threads, and a cap that makes running out of memory an error."""
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
