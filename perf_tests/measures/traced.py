"""The kernel pass: the same rounds as the timings, traced; what stands in for `measure` in its tests."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perf_tests.bench.workbench import Workbench
from perf_tests.cases import Case
from perf_tests.instruments.kernels import trace_rounds
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole
from perf_tests.traces.chrome_trace import read_chrome_trace
from perf_tests.traces.kernel_table import kernel_values
from perf_tests.views.screens.lines import case_name

COMPRESSION_LEVEL = 6
"""gzip's own default: the highest takes four times as long for 3 % less."""


@dataclass
class TracedMeasure:
    """Called by a benchmark as `Measure` is; traces a few rounds and keeps what they say, never as a timing."""

    case_id: str
    case: Case
    workbench: Workbench
    values: Json | None = None

    def __call__(
        self,
        target: Callable[..., Any],
        setup: Callable[[], tuple[Any, ...] | None] | None = None,
        loss_scale: Callable[[], float] | None = None,
    ) -> Any:
        """The result of the last round of `target(*setup())`."""

        def prepare() -> tuple[Any, ...]:
            self.workbench.clock.forget()
            return (setup() if setup is not None else None) or ()

        traced = trace_rounds(target, prepare, self.workbench.device)
        trace = read_chrome_trace(traced.trace)
        values = kernel_values(trace, self.case.identity(), traced.plain_seconds, self._ceiling())
        values["trace"] = self._keep_trace(traced.trace)
        self.values = values
        return traced.result

    def _ceiling(self) -> float | None:
        return None if self.workbench.disabled else self.workbench.ceiling(self.case.precision)

    def _keep_trace(self, trace: bytes) -> str | None:
        """Its path from the folder of the record; None where nothing is kept."""
        if self.workbench.session is None:
            return None
        folder = self.workbench.session.side_folder()
        path = folder / f"{case_name(self.case_id).replace(' ', '-')}.trace.json.gz"
        write_whole(path, gzip.compress(trace, COMPRESSION_LEVEL))
        return path.relative_to(folder.parent).as_posix()
