"""A few rounds traced kernel by kernel, and the trace itself beside the record."""

import gzip
from dataclasses import dataclass, field

from perf_tests.bench.workbench import Workbench
from perf_tests.cases import Case
from perf_tests.instruments.kernels import trace_rounds
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole
from perf_tests.traces.chrome_trace import read_chrome_trace
from perf_tests.traces.kernel_table import kernel_values
from perf_tests.views.screens.lines import case_name

COMPRESSION_LEVEL = 6
"""gzip's own default: the highest takes four times as long for 3 % less."""


@dataclass
class TracedMeasure(Measure):
    """`values` are what the trace says, never a timing."""

    case_id: str
    case: Case
    workbench: Workbench
    values: Json = field(default_factory=dict)

    def look(self, rounds: Rounds) -> None:
        """Raises ProfilerBusyError."""
        traced = trace_rounds(rounds.play, self.workbench.device)
        self.workbench.clock.forget()
        ceiling = None if self.workbench.disabled else self.workbench.ceiling(self.case.precision)
        self.values = kernel_values(
            read_chrome_trace(traced.trace), self.case.identity(), traced.plain_seconds, ceiling
        )
        self.values["trace"] = self._keep(traced.trace)

    def _keep(self, trace: bytes) -> str | None:
        """Its path from the folder of the record; None where nothing is kept."""
        if self.workbench.session is None:
            return None
        folder = self.workbench.session.side_folder()
        path = folder / f"{case_name(self.case_id).replace(' ', '-')}.trace.json.gz"
        write_whole(path, gzip.compress(trace, COMPRESSION_LEVEL))
        return path.relative_to(folder.parent).as_posix()
