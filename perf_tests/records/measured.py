"""What a timed case's rounds showed: one typed figure for each key of a record's row beside its identity.

The loop fills it, the row is written from it, and columns read it back from rows of any age. So the name and the type
of a figure stand here alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from perf_tests_suite.perf_tests.records.format import finite, whole

WHERE_KNOWN = {"is_left_out_where_none": True}
"""The metadata of a figure that most cases do not have: their rows lack its key, others have null."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """None where unknown. A figure goes to the end; the order is a row's."""

    # What it depends on besides the identity of its case.
    seed: int | None = None
    warmup_rounds: int | None = None
    """Rounds asked for."""
    records_graph: bool | None = None
    float32_matmul_precision: str | None = None
    parameters: int | None = None
    sdpa_backend: str | None = field(default=None, metadata=WHERE_KNOWN)
    # Readings of clocks, allocator and compiler.
    first_setup_seconds: float | None = field(default=None, metadata=WHERE_KNOWN)
    first_round_seconds: float | None = field(default=None, metadata=WHERE_KNOWN)
    compile_cache: str | None = field(default=None, metadata=WHERE_KNOWN)
    recompiles: int | None = field(default=None, metadata=WHERE_KNOWN)
    """Graphs compiled after the first round; None where nothing is compiled, as the next."""
    cudagraph_skips: int | None = field(default=None, metadata=WHERE_KNOWN)
    warmup_rounds_run: int | None = None
    flushed_bytes: int | None = field(default=None, metadata=WHERE_KNOWN)
    before: Mapping[str, Any] = field(default_factory=dict)
    """The state of the machine before the measured rounds."""
    after: Mapping[str, Any] = field(default_factory=dict)
    throttled_rounds: Sequence[int] | None = None
    energy_joules_per_round: float | None = None
    """The set-up of a round included."""
    throttle_reasons: Mapping[str, int] | None = None
    median_sm_clock_mhz: float | None = None
    other_cores: float | None = None
    """Processors that other programs kept busy during the measured rounds."""
    device_seconds: Sequence[float] | None = None
    cpu_seconds: Sequence[float] | None = None
    """CPU time of all threads of this process, in each round; None where one of them waits for a device."""
    part_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    peak_allocated_bytes: int | None = None
    peak_requested_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    skipped_steps: int | None = None
    compile_seconds: Mapping[str, float] | None = None
    """Seconds by the part that compiled."""
    allocated_before_bytes: int | None = None
    sentinel_seconds: Sequence[float] | None = None
    device_busy_seconds: float | None = None
    model_flops: int | None = None
    empty_round_seconds: float | None = None
    # Rates at the median.
    tokens_per_second: float | None = None
    tflops_per_second: float | None = None
    matmul_ceiling_tflops_per_second: float | None = None
    share_of_matmul_ceiling: float | None = None
    exchanged_bytes: int | None = field(default=None, metadata=WHERE_KNOWN)
    algorithm_bytes_per_second: float | None = field(default=None, metadata=WHERE_KNOWN)
    bus_bytes_per_second: float | None = field(default=None, metadata=WHERE_KNOWN)
    # Exact counters, and what follows from them at the machine's ceilings.
    executed_flops: int | None = None
    kernel_launches: int | None = None
    bytes_touched: int | None = None
    saved_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    counters_reason: str | None = None
    roofline_seconds: float | None = None
    launching_seconds: float | None = None
    roofline_fraction: float | None = None
    bound: str | None = None
    memory_ceiling_gigabytes_per_second: float | None = None
    mfu: float | None = None
    sustained_matmul_tflops_per_second: float | None = None
    # What the rounds say of themselves.
    suggested_warmup_rounds: int | None = None
    flags: Sequence[str] = ()
    values_seed: int | None = None
    checked: Mapping[str, Any] | None = None
    # Of a case with torch.compile: exact, and None where unknown.
    graphs: int | None = field(default=None, metadata=WHERE_KNOWN)
    not_compiled: int | None = field(default=None, metadata=WHERE_KNOWN)
    """1 where there is no graph."""
    graph_breaks: int | None = field(default=None, metadata=WHERE_KNOWN)
    shape_recompiles: int | None = field(default=None, metadata=WHERE_KNOWN)
    """Those of other values, a shorter last batch and half the context."""
    generated_kernels: int | None = field(default=None, metadata=WHERE_KNOWN)
    library_calls: int | None = field(default=None, metadata=WHERE_KNOWN)
    """Operations that the compiler left to PyTorch's own kernels."""
    host_reads: int | None = field(default=None, metadata=WHERE_KNOWN)
    compiler_lines: Sequence[str] | None = field(default=None, metadata=WHERE_KNOWN)
    """A sentence for each graph break and each recompile."""
    compiler_reason: str | None = field(default=None, metadata=WHERE_KNOWN)
    """Why one of these is unknown, or nothing was compiled."""
    # Of a case on several ranks.
    rank_seconds: Sequence[Sequence[float]] | None = field(default=None, metadata=WHERE_KNOWN)
    """The rounds of each rank."""
    slowest_ranks: Sequence[int] | None = field(default=None, metadata=WHERE_KNOWN)
    rank_peak_allocated_bytes: Sequence[int] | None = field(default=None, metadata=WHERE_KNOWN)
    exposed_communication_seconds: float | None = field(default=None, metadata=WHERE_KNOWN)
    exposed_communication_reason: str | None = field(default=None, metadata=WHERE_KNOWN)
    """Why it is not known."""
    exposed_communication_interval: Sequence[float] | None = field(default=None, metadata=WHERE_KNOWN)
    seconds_with_communication: Sequence[float] | None = field(default=None, metadata=WHERE_KNOWN)
    seconds_without_communication: Sequence[float] | None = field(default=None, metadata=WHERE_KNOWN)
    sent_bytes: float | None = field(default=None, metadata=WHERE_KNOWN)
    """Bytes of one rank in a round; a mean over ranks need not be whole."""
    sent_by_part: Mapping[str, Any] | None = field(default=None, metadata=WHERE_KNOWN)
    predicted_sent_bytes: float | None = field(default=None, metadata=WHERE_KNOWN)
    predicted_sent_by_part: Mapping[str, Any] | None = field(default=None, metadata=WHERE_KNOWN)

    def as_row(self) -> dict[str, Any]:
        """The figures as a record's row has them."""
        values = ((one, getattr(self, one.name)) for one in fields(Measured))
        return {one.name: value for one, value in values if value is not None or not one.metadata}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The figures of a row of any age; one that is missing, damaged or of another kind is not known."""
        known = {name: read(row[name]) for name, read in _READERS.items() if name in row}
        return cls(**{name: value for name, value in known.items() if value is not None})


def _reader_of(hint: Any) -> Callable[[Any], Any]:
    """What takes a value of that type as it is, and gives None for any other."""
    kinds = {get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))}
    if float in kinds:
        return finite
    if int in kinds:
        return whole
    accepted = next(of for kind, of in {bool: bool, str: str, Mapping: dict, Sequence: list}.items() if kind in kinds)
    return lambda value: value if isinstance(value, accepted) else None


KINDS: dict[str, Any] = get_type_hints(Measured)
_READERS = {one.name: _reader_of(KINDS[one.name]) for one in fields(Measured)}
