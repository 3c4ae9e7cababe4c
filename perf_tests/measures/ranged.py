"""A run for Nsight Systems (`--nvtx`): the rounds of each case with NVTX ranges in them, and no figure of any."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from model.regions import regions_opened_by
from perf_tests.bench.workbench import Workbench
from perf_tests.cases import Case
from perf_tests.instruments.kernels import ROUND, SET_UP
from perf_tests.instruments.nvtx_ranges import NvtxRanges, capture

WARM_UP = "warm-up"


@dataclass
class RangedMeasure:
    """Called by a benchmark as `Measure` is. Ranges cost time, so that nothing here is timed."""

    case: Case
    workbench: Workbench

    def __call__(
        self,
        target: Callable[..., Any],
        setup: Callable[[], tuple[Any, ...] | None] | None = None,
        loss_scale: Callable[[], float] | None = None,
    ) -> Any:
        """The result of the last round of `target(*setup())`; only the measured rounds are captured."""
        ranges, device = NvtxRanges(), self.workbench.device
        result = None

        def rounds(count: int, name: str) -> None:
            nonlocal result
            for _ in range(count):
                result = None
                self.workbench.clock.forget()
                with ranges(SET_UP):
                    arguments = (setup() if setup is not None else None) or ()
                    device.synchronize()
                with ranges(name):
                    result = target(*arguments)
                    device.synchronize()

        with regions_opened_by(ranges):
            rounds(self.workbench.settings.warmup_rounds, WARM_UP)
            with capture(device.torch_device):
                rounds(self.workbench.rounds(self.case), ROUND)
        return result
