"""A run for Nsight Systems (`--nvtx`): the rounds of each case inside NVTX ranges, and no timing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from model.regions import regions_opened_by
from perf_tests.bench.workbench import Workbench
from perf_tests.cases.case import Case
from perf_tests.instruments.kernels import ROUND, SET_UP
from perf_tests.instruments.nvtx_ranges import NvtxRanges, capture
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.measures.warm_up import warm_up


@dataclass
class RangedMeasure(Measure):
    """Ranges cost time, so nothing is timed; only the measured rounds are captured."""

    case: Case
    workbench: Workbench

    def look(self, rounds: Rounds) -> None:
        ranges, device = NvtxRanges(), self.workbench.device

        @contextmanager
        def ranged(name: str) -> Iterator[None]:
            with ranges(name):
                yield
                device.synchronize()

        def play(numbers: Iterable[int], name: str) -> None:
            for _ in numbers:
                self.workbench.clock.forget()
                rounds.play(lambda: ranged(SET_UP), lambda: ranged(name))

        with regions_opened_by(ranges):
            play(warm_up(device, self.workbench.warmup_rounds(self.case)), "warm-up")
            with capture(device.torch_device):
                play(range(self.workbench.rounds(self.case)), ROUND)
