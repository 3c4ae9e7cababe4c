"""What all benchmarks of one run share: the device, the clock, the memory budget, the run's session."""

from dataclasses import dataclass, field

import torch

from model.precision import PRECISIONS
from perf_tests.cases import AttentionCase, Case
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.device import Device, open_device
from perf_tests.instruments.roofline import matmul_flops_per_second
from perf_tests.measure import Measure
from perf_tests.options import Settings
from perf_tests.outcomes import Outcome, why_too_large, why_unsupported
from perf_tests.session import MeasuringSession, TimeSpent


@dataclass
class Workbench:
    """Made once a run, before anything is built. `session` is None where nothing is measured."""

    settings: Settings
    device: Device
    clock: Clock
    budget_bytes: int
    time_spent: TimeSpent = field(default_factory=TimeSpent)
    session: MeasuringSession | None = None
    _ceilings: dict[str, float] = field(default_factory=dict)

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
            self._ceilings[precision] = matmul_flops_per_second(PRECISIONS[precision], self.device)
            self.device.release_memory()
        return self._ceilings[precision]

    def rounds(self, case: Case) -> int:
        alone = isinstance(case, AttentionCase)
        return self.settings.attention_alone_rounds if alone else self.settings.rounds

    def on_round(self, number: int) -> None:
        if self.session is not None:
            self.session.progress.round(number)

    def note_time(self, measure: Measure) -> None:
        self.time_spent.rounds_seconds += measure.rounds_seconds
        if "compile_cache" in measure.conditions:
            self.time_spent.first_compiled_calls_seconds += measure.first_call_seconds


def set_up(settings: Settings) -> Workbench:
    """Prepare this process: device, threads, and a cap that makes running out of memory an error."""
    torch.set_num_threads(settings.threads)
    device = open_device(torch.device(settings.device))
    available_bytes = device.available_bytes()
    budget_bytes = min(settings.memory_budget_bytes or available_bytes, available_bytes)
    device.limit_memory(budget_bytes)
    return Workbench(settings, device, Clock(device), budget_bytes)
