"""The row of a collective alone: rates of bytes, where a model's row has rates of tokens and FLOPs."""

from dataclasses import dataclass

from perf_tests.cases.collective_alone import CollectiveCase
from perf_tests.limits.communication import bus_share
from perf_tests.measures.row import Row
from perf_tests.records.record import Json


@dataclass(frozen=True)
class CollectiveRow(Row):
    """Bandwidths as nccl-tests defines them: doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests."""

    case: CollectiveCase

    def _rates(self, median_seconds: float) -> Json:
        """Of the message over its time, and of what a rank has to send for it."""
        algorithm = self.case.exchanged_bytes / median_seconds
        return {
            "exchanged_bytes": self.case.exchanged_bytes,
            "algorithm_bytes_per_second": algorithm,
            "bus_bytes_per_second": algorithm * float(bus_share(self.case.collective, self.case.world)),
        }
