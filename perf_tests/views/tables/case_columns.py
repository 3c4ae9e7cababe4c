"""The columns of the table `cases`: one row a case of one record, with everything that the record says of it.

Names and units stay as they are; a new column goes to the end of its group.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from perf_tests.identity import FAMILIES
from perf_tests.phases import PHASES
from perf_tests.records.record import Json
from perf_tests.views.tables.cells import Cell, finite, inside
from perf_tests.views.tables.conditions import machine_name

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Known:
    """What the columns of one case are read from."""

    cell: Cell
    record: Json
    record_name: str
    passes: Mapping[str, Json] = field(default_factory=dict)
    """By the name of an extra pass, what it found of the case."""


@dataclass(frozen=True)
class Column:
    """`kind` is `str`, `int`, `float` or `bool`; a cell that is not known is null, whatever its column holds."""

    name: str
    kind: type
    meaning: str
    of: Callable[[Known], object]

    def value(self, known: Known) -> Value:
        """Null where a damaged or hostile record has another kind of value there."""
        found = self.of(known)
        if self.kind is str:
            return None if found is None else str(found).encode("utf-8", "replace").decode()
        if self.kind is bool:
            return found if isinstance(found, bool) else None
        number = finite(found)
        if number is None or self.kind is float:
            return number
        return int(number) if number.is_integer() and abs(number) < 2**63 else None


def _of_case(name: str, kind: type, meaning: str) -> Column:
    """A field of the identity, or of what was recorded with it."""
    return Column(name, kind, meaning, lambda known: known.cell.identity.get(name, known.cell.info.get(name)))


def _rounds(name: str, kind: type, meaning: str, of: Callable[[Cell], object]) -> Column:
    """A figure of the measured rounds; null for a case without a timing."""
    return Column(name, kind, meaning, lambda known: of(known.cell) if known.cell.is_timed else None)


def _median_of(name: str, column: str, meaning: str, *inside_of: str) -> Column:
    """Of a list with a figure for each round."""

    def of(known: Known) -> object:
        found = inside(known.cell.info, *inside_of).get(name)
        values = [value for item in found if (value := finite(item)) is not None] if isinstance(found, list) else []
        return median(values) if values else None

    return Column(column, float, meaning, of)


def _of_record(name: str, kind: type, meaning: str, *path: str) -> Column:
    """A fact of the record, by its path there."""
    return Column(name, kind, meaning, lambda known: inside(known.record, *path[:-1]).get(path[-1]))


def _of_pass(name: str, kind: type, meaning: str, extra_pass: str, *path: str) -> Column:
    return Column(name, kind, meaning, lambda k: inside(k.passes.get(extra_pass, {}), *path[:-1]).get(path[-1]))


def _of_state(name: str, moment: str, meaning: str) -> Column:
    """`before` or `after` the rounds."""
    words = f"{meaning}, {moment} the rounds"
    return Column(f"{name}_{moment}", float, words, lambda known: inside(known.cell.info, moment).get(name))


def _end_of_interval(place: int) -> Callable[[Cell], object]:
    def of(cell: Cell) -> object:
        interval = cell.rounds.median_interval(0.95)
        return None if interval is None else interval[place]

    return of


_NUMBERS = {field.name: int for family in FAMILIES
            for field in family.__dataclass_fields__.values() if "int" in str(field.type)}  # fmt: skip

_MEANINGS = {
    "phase": "what is timed", "model": "`ours`, or a model of one's own", "size": "name of the shape",
    "d_model": "width", "d_ff": "width of the feed-forward part", "num_layers": "blocks", "num_heads": "heads",
    "vocab_size": "tokens in the vocabulary", "context_length": "tokens in a sequence of a language model",
    "batch_size": "sequences in a batch", "precision": "of the products", "attention": "implementation of attention",
    "execution": "of the whole model: eager, or a mode of torch.compile", "checkpoint": "activation checkpointing",
    "optimizer": "AdamW's implementation, in phases with a step", "zero_grad_policy": "when gradients are cleared",
    "device": "`cpu` or `cuda`", "model_args": "arguments of a model of one's own",
    "model_digest": "of these arguments and of a configuration", "head_dim": "width of attention alone",
    "sequence_length": "tokens in a sequence of attention alone", "cache": "`cold` where caches are flushed each round",
    "parallel": "how ranks share the model", "scaling": "`strong`: the ranks divide the batch; `weak`: each has one",
    "world": "ranks", "nodes": "machines of the ranks", "backend": "`gloo` or `nccl`, which carries their bytes",
    "collective": "exchange between ranks, without a model", "message_bytes": "of a collective, as asked for",
    "dtype": "of a collective's message",
}  # fmt: skip

WHERE = (
    Column("record", str, "folder and name of the record", lambda known: known.record_name),
    _of_record("run", str, "the run, however often it was saved", "suite", "run"),
    _of_record("written", str, "when the record was saved, ISO 8601", "datetime"),
    _of_record("commit", str, "git's hash", "commit_info", "id"),
    _of_record("commit_time", str, "when the commit was made, ISO 8601", "commit_info", "time"),
    _of_record("commit_has_changes", bool, "whether the working tree had changes", "commit_info", "dirty"),
    _of_record("source", str, "digest of the code", "suite", "source"),
    Column("device_name", str, "the GPU, else the CPU with its cores", lambda known: machine_name(known.record)),
    _of_record("driver", str, "of the GPU", "machine_info", "torch", "gpu", "driver"),
    _of_record("torch", str, "version", "machine_info", "torch", "torch"),
    _of_record("cuda", str, "version", "machine_info", "torch", "cuda"),
    _of_record("python", str, "version", "machine_info", "python_version"),
    _of_record("threads", int, "CPU threads of PyTorch", "machine_info", "torch", "threads"),
)

CASE = (
    Column("id", str, "node id of the benchmark", lambda known: known.cell.id),
    *(_of_case(name, _NUMBERS.get(name, str), meaning) for name, meaning in _MEANINGS.items()),
    _of_case("seed", int, "of weights and inputs"),
    _of_case("warmup_rounds", int, "unmeasured rounds asked for"),
    _of_case("warmup_rounds_run", int, "unmeasured rounds that ran"),
    _of_case("float32_matmul_precision", str, "`highest` is TF32 off"),
    _of_case("sdpa_backend", str, "kernel behind sdpa"),
)

OUTCOME = (
    Column("outcome", str, "`measured`, why there is no timing, or `not_timed` where only extra passes ran",
           lambda known: known.cell.outcome or "measured"),
    Column("reason", str, "the sentence of a case without a timing", lambda known: known.cell.reason or None),
    Column("flags", str, "remarks on the figure, separated by spaces",
           lambda known: " ".join(known.cell.flags) or None),
    _of_case("needed_bytes", int, "memory that a case without a timing needs at least"),
    _of_case("available_bytes", int, "memory that it may use"),
)  # fmt: skip

TIMES = (
    _rounds("rounds", int, "measured rounds", lambda cell: len(cell.rounds)),
    _rounds("median_seconds", float, "of the rounds", lambda cell: cell.median_seconds),
    _rounds("median_low_seconds", float, "lower end of its 95 % interval", _end_of_interval(0)),
    _rounds("median_high_seconds", float, "upper end", _end_of_interval(1)),
    _rounds("mean_seconds", float, "of the rounds", lambda cell: cell.mean_seconds),
    _rounds("stddev_seconds", float, "with n - 1", lambda cell: cell.std_seconds),
    _rounds("min_seconds", float, "fastest round", lambda cell: cell.rounds.ordered[0]),
    _rounds("max_seconds", float, "slowest round", lambda cell: cell.rounds.ordered[-1]),
    _rounds("p95_seconds", float, "95th percentile, from 100 rounds on", lambda cell: cell.percentile_seconds.get(95)),
    _rounds("p99_seconds", float, "99th percentile, from 100 rounds on", lambda cell: cell.percentile_seconds.get(99)),
    _median_of("device_seconds", "device_median_seconds", "in the device's stream, median"),
    _median_of("cpu_seconds", "cpu_median_seconds", "CPU time of the process in a round, median"),
    _of_case("device_busy_seconds", float, "of a round in which the device never waits for the host"),
    _median_of("sentinel_seconds", "sentinel_median_seconds", "of the product that shows the machine's drift, median"),
    *(_median_of(part, f"{part}_part_seconds", "part of a full step, median", "part_seconds")
      for part in PHASES["full_step"].timed),
    _of_case("first_setup_seconds", float, "first set-up, unmeasured"),
    _of_case("first_round_seconds", float, "first round, unmeasured"),
    _of_case("compile_seconds", float, "of the first round where it compiled"),
)  # fmt: skip

RATES = (
    _of_case("tokens_per_second", float, "at the median"),
    _of_case("tflops_per_second", float, "model FLOPs at the median"),
    _of_case("matmul_ceiling_tflops_per_second", float, "best square product here in this precision"),
    _of_case("share_of_matmul_ceiling", float, "of that rate, from 0 to 1"),
    _of_case("sustained_matmul_tflops_per_second", float, "the same under load"),
    _of_case("memory_ceiling_gigabytes_per_second", float, "memory traffic of large operations here"),
    _of_case("roofline_seconds", float, "least time of the case's kernels here"),
    _of_case("roofline_fraction", float, "roofline_seconds over median_seconds"),
    _of_case("launching_seconds", float, "predicted host time of its launches"),
    _of_case("bound", str, "`launch`, `compute` or `memory`"),
    _of_case("mfu", float, "model FLOPs utilisation against the datasheet"),
    _of_case("exchanged_bytes", int, "of a collective, after what the ranks cannot divide is cut"),
    _of_case("algorithm_bytes_per_second", float, "of a collective: exchanged_bytes over median_seconds"),
    _of_case("bus_bytes_per_second", float, "of a collective: what a rank must send over median_seconds"),
)

COUNTERS = (
    _of_case("parameters", int, "of the model"),
    _of_case("model_flops", int, "of a round, full T x T"),
    _of_case("executed_flops", int, "of a round, as its kernels do"),
    _of_case("kernel_launches", int, "of a round"),
    _of_case("bytes_touched", int, "of a round"),
    _of_case("saved_bytes", int, "for the backward pass"),
    _of_case("predicted_peak_bytes", int, "of a whole round"),
    _of_case("counters_reason", str, "why exact counters are not known"),
)

MEMORY = (
    _of_case("peak_allocated_bytes", int, "of the measured rounds"),
    _of_case("peak_reserved_bytes", int, "of the measured rounds"),
    _of_case("allocated_before_bytes", int, "before the first round"),
    _of_case("bytes_before_backward", int, "held before the backward pass"),
)

STATE = (
    _of_case("recompiles", int, "after the first warm-up round"),
    _of_case("compile_cache", str, "`warm` or `cold`"),
    _of_case("skipped_steps", int, "by the loss scaler"),
    _of_case("suggested_warmup_rounds", int, "where the warm-up was too short"),
    _of_case("energy_joules_per_round", float, "of the GPU, set-up included"),
    *(_of_state(name, moment, meaning) for moment in ("before", "after")
      for name, meaning in {"load_average_1min": "load", "cpu_clock_mhz": "clock", "sm_clock_mhz": "GPU clock",
                            "temperature_celsius": "GPU", "power_watts": "GPU", "usable_processors": "of the process",
                            "processor_quota": "share of their time", "memory_limit_bytes": "of the control group",
                            "booted_unix_seconds": "by the date; moves when that is set",
                            "suspended_seconds": "since the boot"}.items()),
)  # fmt: skip

PASSES = (
    _of_pass("traced_launches", int, "kernels pass: launches of a round", "kernels", "launches"),
    _of_pass("traced_kernel_seconds", float, "kernels pass: device time of a round", "kernels", "kernel_seconds"),
    _of_pass("traced_busy_share", float, "kernels pass: of the time the device works", "kernels", "busy_share"),
    _of_pass("traced_products_share", float, "kernels pass: matrix products in kernel time", "kernels",
             "matrix_products", "share_of_kernel_time"),
    _of_pass("memory_pass_peak_bytes", int, "memory pass: peak of allocated bytes", "memory", "peak_allocated_bytes"),
    _of_pass("memory_pass_predicted_bytes", int, "memory pass: its prediction", "memory", "predicted_peak_bytes"),
    _of_pass("recommended_warmup_rounds", int, "warm-up study", "warmup", "recommended_warmup_rounds"),
)  # fmt: skip

GROUPS = {
    "where": WHERE, "case": CASE, "outcome": OUTCOME, "times": TIMES, "rates": RATES, "counters": COUNTERS,
    "memory": MEMORY, "state": STATE, "passes": PASSES,
}  # fmt: skip
COLUMNS = {column.name: column for group in GROUPS.values() for column in group}

SPEEDUP = Column("speedup", float, "with --against-axis: median_seconds at its value over this row's", lambda _: None)

AXES = ("phase", "context_length", "batch_size", "precision", "attention", "execution", "checkpoint", "optimizer",
        "zero_grad_policy", "head_dim", "sequence_length", "cache", "model", "vocab_size")  # fmt: skip
"""Columns along which two cases may differ in nothing else."""
