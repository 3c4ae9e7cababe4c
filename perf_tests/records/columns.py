"""The one table of figures: every case of a record as a cell, and every figure of a cell as a column.

A figure is defined once, as a `Column`: its name, whose end is its unit, its kind, what it means, and where a record
holds it. Screens, tables, exports and the page are lists of names of columns. A cell that is not known is null,
whatever a damaged or hostile record holds there.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from statistics import median
from typing import Any

from perf_tests_suite.perf_tests import phases
from perf_tests_suite.perf_tests.phases import (
    FAMILIES,
    OF_A_PHASE,
    PHASES,
    is_attention,
    is_collective,
    label_of,
    optimizer_label,
)
from perf_tests_suite.perf_tests.records.format import (
    MIB,
    Column,
    MeanAndStd,
    Unit,
    Value,
    distinct,
    duration,
    duration_range,
    finite,
    mebibytes,
    order,
    text_column,
)
from perf_tests_suite.perf_tests.records.measured import KINDS, Measured
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json, Times, how_many, identity_of, timing_outcomes

PASSES = ("kernels", "memory", "warmup")
"""The extra passes, in the order of a write-up."""

LABELS = ("Size", "Context", "Phase", "Precision", "Implementation")
SHORT_OUTCOMES = {**OUTCOMES, "out_of_memory": "OOM"}
"""The words of an outcome in a cell between figures."""

NOT_TIMED = "not_timed"
"""The outcome of a case that only extra passes looked at."""

NEVER_TIMED = Times()


# The cases of a record.


@dataclass(frozen=True)
class CaseRow:
    """One case of one run; `rounds` are empty for a case without a valid timing.

    In a cell of an extra pass `info` holds what the pass found; a case that it lost has its outcome.
    """

    id: str
    identity: Json
    info: Json
    rounds: Times = NEVER_TIMED
    outcome: str = ""
    reason: str = ""
    file: str = ""
    """The record's path, where cells of several records stand beside each other."""
    quartiles_seconds: float = 0.0
    """Interquartile range of the rounds, as pytest-benchmark computes it."""

    @cached_property
    def measured(self) -> Measured:
        """The figures of a timed case; none of them is known of any other."""
        return Measured.of(self.info)

    @property
    def is_attention(self) -> bool:
        return is_attention(self.identity)

    @property
    def is_timed(self) -> bool:
        return bool(self.rounds)

    def field(self, name: str) -> object:
        """A field of the identity, or of what was recorded with it."""
        return self.identity.get(name, self.info.get(name))

    def label(self, name: str) -> str:
        """An identity field as text; empty where it is null or missing."""
        value = self.identity.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> float | None:
        """A finite number of the identity or the row's other fields; else None."""
        return finite(self.field(name))

    @property
    def flags(self) -> list[str]:
        found = self.info.get("flags")
        return list(map(str, found)) if isinstance(found, list) else []

    @cached_property
    def phase(self) -> str:
        """`forward` for attention's forward pass too."""
        return label_of(self.label("phase"))

    @cached_property
    def implementation(self) -> str:
        """How the same function is computed: attention, the other axes where they are not the default, the ranks."""
        parts = [self.label("attention")]
        for name, default, words in (
            ("execution", "eager", "{} model"), ("checkpoint", "none", "checkpoint {}"), ("model", "ours", "{}"),
            ("cache", "", "{} cache"),
        ):  # fmt: skip
            if self.label(name) not in ("", default):
                parts.append(words.format(self.label(name)))
        if self.label("parallel"):
            bucket_bytes = self.number("bucket_bytes")
            parts += [
                f"{self.label('parallel')} on {self.label('world')} ranks",
                "a batch each" if self.label("scaling") == "weak" else "",
                "" if bucket_bytes is None else f"buckets of {bucket_bytes / MIB:g} MiB",
                "not resharded" if self.identity.get("reshard") is False else "",
            ]
        return ", ".join(filter(None, parts))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The case's text under each of `LABELS`; of attention alone, width and length."""
        of = ("head_dim", "sequence_length") if self.is_attention else ("size", "context_length")
        first, second = map(self.label, of)
        start = f"d {first}" if self.is_attention else first
        return start, second, self.phase, self.label("precision"), self.implementation

    @property
    def name(self) -> str:
        """The labels, on an axis or in a list."""
        return " ".join(filter(None, self.labels))

    @property
    def place(self) -> str:
        """Size and context, or width and length, on an axis."""
        return ", ".join(self.labels[:2])

    @property
    def configuration(self) -> str:
        """The name without the phase."""
        return " ".join(filter(None, (*self.labels[:2], *self.labels[3:])))

    @property
    def case(self) -> str:
        """The name by the node id."""
        return case_name(self.id)

    @property
    def phase_place(self) -> tuple[tuple[bool, int], str]:
        """A sort key: phases in the order of a training step, then all others."""
        return phases.place_of(self.phase), self.phase

    def inside(self, *names: str) -> Json:
        """The innermost of nested objects of what was found; empty where one is missing or damaged."""
        return inside(self.info, *names)

    def rows(self, *names: str) -> Iterator[Json]:
        """The rows of a list of what was found, which may be nested, missing or damaged."""
        return rows_in(self.info, *names)


def cells_of(record: Json) -> list[CaseRow]:
    """Every case of the record that computes, by family, size, length, implementation, precision and phase."""
    return sorted((cell for cell in _cells(record) if not is_collective(cell.identity)), key=_order)


def collectives_of(record: Json) -> list[CaseRow]:
    """Every collective alone, in the order of the record: it computes nothing, so most tables leave it out."""
    return [cell for cell in _cells(record) if is_collective(cell.identity)]


def pass_cells(record: Json, name: str) -> list[CaseRow]:
    """The rows of one pass in the order of the record, then the cases that it lost."""
    found = [
        CaseRow(row["id"], row["identity"], row["values"])
        for row in rows_in(record, "passes")
        if row.get("pass") == name
        and isinstance(row.get("id"), str)
        and all(isinstance(row.get(part), dict) for part in ("identity", "values"))
    ]
    return found + [_lost(row) for row in rows_in(record, "outcomes") if row.get("pass") == name]


def _cells(record: Json) -> list[CaseRow]:
    return [*timed_cells(record), *map(_lost, timing_outcomes(record))]


def timed_cells(record: Json) -> list[CaseRow]:
    """Every case with a timing, in the order of the record."""
    return [
        CaseRow(
            row["fullname"],
            identity_of(row),
            row["extra_info"],
            Times.of(row["stats"]["data"]),
            quartiles_seconds=row["stats"]["iqr"],
        )
        for row in record["benchmarks"]
    ]


def _lost(row: Json) -> CaseRow:
    return CaseRow(row["id"], identity_of(row), {}, outcome=row["outcome"], reason=row["reason"])


def _order(cell: CaseRow) -> tuple[Any, ...]:
    if cell.is_attention:
        place: tuple[Any, ...] = (order(cell.identity.get("head_dim")), order(cell.identity.get("sequence_length")))
    else:
        # Smallest model first, by the parameters of its blocks; ours have four d x d and three d x d_ff matrices each.
        shape = [finite(cell.identity.get(name)) for name in ("d_model", "d_ff", "num_layers")]
        d_model, d_ff, num_layers = (math.inf if None in shape else value or 0.0 for value in shape)
        parameters = num_layers * (4 * d_model * d_model + 3 * d_model * d_ff)
        place = (parameters, cell.label("size"), order(cell.identity.get("context_length")))
    precision = cell.label("precision")
    names = ((cell.implementation != "naive", cell.implementation), (precision != "fp32", precision))
    return cell.is_attention, place, *names, cell.phase_place, cell.id


def pairs_along(cells: Iterable[CaseRow], axis: str, base: str, other: str = "") -> list[tuple[CaseRow, CaseRow]]:
    """Each (cell at `base`, cell at `other`, or at any other) that differ only along `axis`."""
    follow = (axis, *OF_A_PHASE) if axis == "phase" else (axis,)
    groups: dict[tuple[str, ...], dict[str, CaseRow]] = {}
    for cell in cells:
        same = tuple(f"{name}={value}" for name, value in cell.identity.items() if name not in follow)
        groups.setdefault(same, {})[cell.phase if axis == "phase" else cell.label(axis)] = cell
    found = (of for of in groups.values() if base in of)
    return [(of[base], of[name]) for of in found for name in of if name != base and other in ("", name)]


def case_name(node_id: str) -> str:
    """`forward small-ctx128-fp32-naive` from a node id of the suite's; that of a test of the user's is its name.

    What a row says behind the id, as that it is of compiling, stays behind the name.
    """
    if "::" in node_id and not node_id.startswith("perf_tests/"):
        return node_id
    function = node_id.rpartition("::")[2]
    name, _, parameters = function.removeprefix("test_").partition("[")
    return f"{name} {''.join(parameters.rpartition(']')[::2])}"


def last_phases(cells: Sequence[CaseRow]) -> list[CaseRow]:
    """The last phase of each configuration that has a row: a full step contains what the others hold."""
    known = (cell for cell in sorted(cells, key=lambda cell: cell.phase_place) if not cell.outcome)
    last = {cell.configuration: cell for cell in known}
    return [cell for cell in cells if last.get(cell.configuration) is cell]


def lost_lines(cells: Iterable[CaseRow]) -> tuple[str, ...]:
    """A sentence for each case without a timing, or without a row of its pass."""
    return tuple(f"{cell.case}: {OUTCOMES[cell.outcome]}: {cell.reason}" for cell in cells if cell.outcome)


def rows_in(values: Json, *names: str) -> Iterator[Json]:
    """The rows of a list that may be nested, missing or damaged."""
    found = inside(values, *names[:-1]).get(names[-1])
    return (row for row in (found if isinstance(found, list) else ()) if isinstance(row, dict))


def inside(values: Json, *names: str) -> Json:
    """The innermost of nested objects; empty where one is missing or damaged."""
    found: Any = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def seconds_of(series: Json, name: str) -> list[float]:
    """The positive finite rounds under that name, of a process of the warm-up study."""
    found = series.get(name)
    values = map(finite, found if isinstance(found, list) else [])
    return [value for value in values if value is not None and value > 0]


# The conditions of a record's figures, in words.


def machine_name(record: Json) -> str:
    """The GPU, else the CPU with its count of cores, as the machine names them."""
    machine = record["machine_info"]
    if gpu := (machine.get("torch") or {}).get("gpu"):
        return str(gpu.get("name", gpu) if isinstance(gpu, dict) else gpu)
    cpu = machine.get("cpu") or {}
    count = finite(cpu.get("count"))
    cores = "" if count is None else f", {how_many(round(count), 'core')}"
    return f"{cpu.get('brand_raw') or machine.get('machine') or 'unknown CPU'}{cores}"


def machine_line(record: Json) -> str:
    """The machine, and what of its build and settings changes a figure."""
    facts = record["machine_info"].get("torch") or {}
    known = {
        "torch {}": facts.get("torch"),
        "driver {}": inside(facts, "gpu").get("driver"),
        "{} threads": facts.get("threads"),
        "deterministic algorithms": facts.get("deterministic_algorithms") is True,
    }
    parts = [words.format(value) for words, value in known.items() if value]
    environment = [f"{name}={value}" for name, value in sorted(inside(facts, "environment").items())]
    return ", ".join([machine_name(record), *parts, *environment])


def commit_of(record: Json) -> str:
    """The abbreviated revision, marked where the working tree had changes."""
    commit = record.get("commit_info")
    if not isinstance(commit, dict) or not commit.get("id"):
        return ""
    return str(commit["id"])[:12] + (" with changes" if commit.get("dirty") else "")


def date_of(record: Json) -> str:
    """Return the moment at which the record was saved, to the minute."""
    return str(record.get("datetime") or "")[:16].replace("T", " ")


def rounds_line(cells: list[CaseRow]) -> str:
    """Batch, warm-up and measured rounds, TF32 state: each value that occurs among these cells."""
    timed = [cell for cell in cells if cell.is_timed]

    def warmups(cell: CaseRow) -> str:
        # A GPU may have needed more rounds than were asked for, to reach its clock rates.
        asked, ran = cell.number("warmup_rounds"), cell.number("warmup_rounds_run")
        return "" if asked is None else f"{'at least ' if ran is not None and ran > asked else ''}{asked:.0f}"

    found: dict[str, Iterable[str]] = {
        "batch {}": (cell.label("batch_size") for cell in cells),
        "{} measured rounds": (str(len(cell.rounds)) for cell in timed),
        "{} warm-up rounds": map(warmups, timed),
        "{}": (optimizer_label(name) for cell in timed if (name := cell.label("optimizer"))),
        "float32 products {}": (str(cell.info.get("float32_matmul_precision") or "") for cell in timed),
        "SDPA backend {}": (str(cell.info.get("sdpa_backend") or "") for cell in timed),
    }
    known = {words: list(filter(None, distinct(values))) for words, values in found.items()}
    return ", ".join(words.format(" and ".join(values)) for words, values in known.items() if values)


# The columns. Names and units stay as they are; a new column goes to the end of its part.


Row = dict[str, Value]


@dataclass(frozen=True)
class CaseContext:
    """What the columns of one case are read from."""

    cell: CaseRow
    record: Json = field(default_factory=dict)
    record_name: str = ""
    passes: Json = field(default_factory=dict)
    """What each extra pass found of the case, by its name."""


CaseColumn = Column[CaseContext]


def found_in(
    heading: str, *path: str, unit: Unit | None = None, source: Callable[[Json], Json] = lambda row: row
) -> Column[Json]:
    """A figure at the end of a path in a row of a pass, for people alone."""
    return Column(
        path[-1], float, "", lambda row: inside(source(row), *path[:-1]).get(path[-1]), heading=heading, own_unit=unit
    )


def _axis(name: str, kind: type, meaning: str) -> CaseColumn:
    """A field of the identity."""
    return Column(name, kind, meaning, lambda known: known.cell.identity.get(name))


def _figure(name: str, meaning: str, heading: str = "") -> CaseColumn:
    """A figure of `Measured`, of which its kind is; raises StopIteration for any other name."""
    kind = next(one for one in (bool, int, float, str) if KINDS[name] == one | None)
    return Column(name, kind, meaning, lambda known: getattr(known.cell.measured, name), heading=heading)


def _shown(column: CaseColumn) -> CaseColumn:
    """The column for people too."""
    return replace(column, is_shown=True)


def _rounds(name: str, kind: type, meaning: str, of: Callable[[Times], object]) -> CaseColumn:
    """A figure of the measured rounds; null for a case without a timing."""
    return Column(name, kind, meaning, lambda known: of(known.cell.rounds) if known.cell.is_timed else None)


def _median(name: str, meaning: str, of_rounds: Callable[[Measured], object]) -> CaseColumn:
    """The median of a list with a figure for each round."""

    def of(known: CaseContext) -> object:
        found = of_rounds(known.cell.measured)
        values = [value for item in found if (value := finite(item)) is not None] if isinstance(found, list) else []
        return median(values) if values else None

    return Column(name, float, meaning, of)


def _part_seconds(part: str, measured: Measured) -> object:
    return measured.part_seconds.get(part)


def _compile_seconds(part: str, known: CaseContext) -> object:
    return (known.cell.measured.compile_seconds or {}).get(part)


def _at(source: Callable[[CaseContext], Json], name: str, kind: type, meaning: str, *path: str) -> CaseColumn:
    """What stands at the end of a path from there."""
    return Column(name, kind, meaning, lambda known: inside(source(known), *path[:-1]).get(path[-1]))


def _sum(seconds: Mapping[str, float] | None) -> float | None:
    """The sum; None where one of them is not known."""
    parts = [finite(value) for value in (seconds or {}).values()]
    return sum(filter(None, parts)) if parts and None not in parts else None


_record, _pass, _info = (partial(_at, attrgetter(source)) for source in ("record", "passes", "cell.info"))


_NUMBERS = {field.name: int for family in FAMILIES
            for field in family.__dataclass_fields__.values() if "int" in str(field.type)}  # fmt: skip

_IDENTITY = {
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

_SHOWN = {"phase", "size", "context_length", "precision", "attention", "execution", "checkpoint", "head_dim",
          "sequence_length", "world", "collective", "message_bytes"}  # fmt: skip
"""Fields of the identity that people are shown."""

_STATE = {
    "load_average_1min": "load", "cpu_clock_mhz": "clock", "sm_clock_mhz": "GPU clock", "temperature_celsius": "GPU",
    "power_watts": "GPU", "usable_processors": "of the process", "processor_quota": "share of their time",
    "memory_limit_bytes": "of the control group", "booted_unix_seconds": "by the date; moves when that is set",
    "suspended_seconds": "since the boot",
}  # fmt: skip

_COLUMNS: tuple[CaseColumn, ...] = (
    # Where and when.
    Column("record", str, "folder and name of the record", lambda known: known.record_name),
    _record("run", str, "the run, however often it was saved", "suite", "run"),
    _record("written", str, "when the record was saved, ISO 8601", "datetime"),
    _record("commit", str, "git's hash", "commit_info", "id"),
    _record("commit_time", str, "when the commit was made, ISO 8601", "commit_info", "time"),
    _record("commit_has_changes", bool, "whether the working tree had changes", "commit_info", "dirty"),
    _record("source", str, "digest of the code", "suite", "source"),
    Column("device_name", str, "the GPU, else the CPU with its cores", lambda known: machine_name(known.record)),
    _record("driver", str, "of the GPU", "machine_info", "torch", "gpu", "driver"),
    _record("torch", str, "version", "machine_info", "torch", "torch"),
    _record("cuda", str, "version", "machine_info", "torch", "cuda"),
    _record("python", str, "version", "machine_info", "python_version"),
    _record("threads", int, "CPU threads of PyTorch", "machine_info", "torch", "threads"),
    # The case.
    Column("id", str, "node id of the benchmark", lambda known: known.cell.id),
    *(replace(_axis(name, _NUMBERS.get(name, str), meaning), is_shown=name in _SHOWN)
      for name, meaning in _IDENTITY.items()),
    _figure("seed", "of weights, and of the first inputs"),
    _figure("warmup_rounds", "unmeasured rounds asked for"),
    _figure("warmup_rounds_run", "unmeasured rounds that ran"),
    _figure("float32_matmul_precision", "`highest` is TF32 off"),
    _figure("sdpa_backend", "kernel behind sdpa"),
    # How it ended.
    _shown(Column("outcome", str, "`measured`, why there is no timing, or `not_timed` where only extra passes ran",
                  lambda known: known.cell.outcome or "measured")),
    Column("reason", str, "the sentence of a case without a timing", lambda known: known.cell.reason),
    Column("flags", str, "remarks on the figure, separated by spaces", lambda known: " ".join(known.cell.flags)),
    _info("needed_bytes", int, "memory that a case without a timing needs at least", "needed_bytes"),
    _info("available_bytes", int, "memory that it may use", "available_bytes"),
    # Times.
    _rounds("rounds", int, "measured rounds", len),
    replace(_rounds("median_seconds", float, "of the rounds", lambda times: times.median),
            is_shown=True, heading="median"),
    _rounds("median_low_seconds", float, "lower end of its 95 % interval",
            lambda times: (times.median_interval(0.95) or (None,))[0]),
    _rounds("median_high_seconds", float, "upper end", lambda times: (times.median_interval(0.95) or (None,))[-1]),
    _rounds("mean_seconds", float, "of the rounds", lambda times: times.mean),
    _rounds("stddev_seconds", float, "with n - 1", lambda times: times.deviation),
    _rounds("min_seconds", float, "fastest round", lambda times: times.ordered[0]),
    _rounds("max_seconds", float, "slowest round", lambda times: times.ordered[-1]),
    _rounds("p95_seconds", float, "95th percentile, from 100 rounds on", lambda times: times.percentiles.get(95)),
    _rounds("p99_seconds", float, "99th percentile, from 100 rounds on", lambda times: times.percentiles.get(99)),
    _median("device_median_seconds", "in the device's stream, median", attrgetter("device_seconds")),
    _median("cpu_median_seconds", "CPU time of the process in a round, median", attrgetter("cpu_seconds")),
    _figure("device_busy_seconds", "of a round in which the device never waits for the host"),
    _figure("empty_round_seconds", "wall time of a round without work on this GPU, part of every round"),
    _figure("median_sm_clock_mhz", "the GPU's clock at the ends of the rounds; a power limit lowers it"),
    _median("sentinel_median_seconds", "of the product that shows the machine's drift, median",
            attrgetter("sentinel_seconds")),
    _figure("other_cores", "processors that other programs used during the rounds"),
    *(_median(f"{part}_part_seconds", "part of a full step, median", partial(_part_seconds, part))
      for part in PHASES["full_step"].timed),
    _figure("first_setup_seconds", "first set-up, unmeasured"),
    _figure("first_round_seconds", "first round, unmeasured"),
    Column("compile_seconds", float, "of the first round where it compiled",
           lambda known: _sum(known.cell.measured.compile_seconds)),
    *(Column(f"compile_{part}_seconds", float, f"of its {part} part; compile_cache says whether cold",
             partial(_compile_seconds, part)) for part in ("forward", "backward")),
    # Rates.
    _shown(_figure("tokens_per_second", "at the median", "tokens/s")),
    _shown(_figure("tflops_per_second", "model FLOPs at the median", "TFLOP/s")),
    _figure("matmul_ceiling_tflops_per_second", "best square product here in this precision"),
    _figure("share_of_matmul_ceiling", "of that rate, from 0 to 1", "of ceiling"),
    _figure("sustained_matmul_tflops_per_second", "the same under load"),
    _figure("memory_ceiling_gigabytes_per_second", "memory traffic of large operations here"),
    _figure("roofline_seconds", "least time of the case's kernels here", "least time"),
    _figure("roofline_fraction", "roofline_seconds over median_seconds", "roofline"),
    _figure("launching_seconds", "predicted host time of its launches"),
    _shown(_figure("bound", "`launch`, `compute` or `memory`", "bound")),
    _figure("mfu", "model FLOPs utilisation against the datasheet", "MFU"),
    _figure("exchanged_bytes", "of a collective, after what the ranks cannot divide is cut"),
    _figure("algorithm_bytes_per_second", "of a collective: exchanged_bytes over median_seconds", "algorithm"),
    _shown(_figure("bus_bytes_per_second", "of a collective: what a rank must send over median_seconds", "bus")),
    _figure("sent_bytes", "of several ranks: what one sends in a round", "sent"),
    _figure("exposed_communication_seconds", "of several ranks: what exchanging gradients adds to a round"),
    replace(_info("scaling_efficiency", float,
                  "of several ranks: tokens per second of a rank over those of relative_to", "scaling_efficiency"),
            heading="efficiency"),
    _info("relative_to", str, "node id of the row with fewer ranks", "relative_to"),
    # Exact counters.
    _figure("parameters", "of the model"),
    _figure("model_flops", "of a round, full T x T"),
    _figure("executed_flops", "of a round, as its kernels do"),
    _figure("kernel_launches", "of a round", "launches"),
    _figure("bytes_touched", "of a round"),
    _figure("saved_bytes", "for the backward pass"),
    _figure("predicted_peak_bytes", "of a whole round", "predicted peak"),
    _figure("counters_reason", "why exact counters are not known"),
    _figure("graphs", "compiled of it"),
    _figure("graph_breaks", "places at which the compiler stopped"),
    _figure("shape_recompiles", "by other values, a shorter last batch, half the context"),
    _figure("generated_kernels", "by the compiler"),
    _figure("library_calls", "products, and what the compiler left to PyTorch's kernels"),
    _figure("host_reads", "of a forward pass under torch.compile: values that the host waits for"),
    _figure("compiler_reason", "why one of these is not known, or nothing was compiled"),
    # Memory.
    _figure("peak_allocated_bytes", "of the measured rounds", "peak"),
    _figure("peak_requested_bytes", "the same without what a GPU allocator's blocks are larger by"),
    _figure("peak_reserved_bytes", "of the measured rounds"),
    _figure("allocated_before_bytes", "before the first round"),
    _info("bytes_before_backward", int, "held before the backward pass", "bytes_before_backward"),
    # What the machine and the run were in.
    _figure("recompiles", "graphs compiled after the first warm-up round"),
    _figure("compile_cache", "`warm` or `cold`"),
    _figure("skipped_steps", "by the loss scaler"),
    _figure("suggested_warmup_rounds", "where the warm-up was too short"),
    _figure("energy_joules_per_round", "of the GPU, set-up included"),
    *(_info(f"{name}_{moment}", float, f"{meaning}, {moment} the rounds", moment, name)
      for moment in ("before", "after") for name, meaning in _STATE.items()),
    # What extra passes found.
    _pass("traced_launches", int, "kernels pass: launches of a round", "kernels", "launches"),
    _pass("traced_kernel_seconds", float, "kernels pass: device time of a round", "kernels", "kernel_seconds"),
    _pass("traced_busy_share", float, "kernels pass: of the time the device works", "kernels", "busy_share"),
    _pass("traced_products_share", float, "kernels pass: matrix products in kernel time", "kernels",
          "matrix_products", "share_of_kernel_time"),
    _pass("memory_pass_peak_bytes", int, "memory pass: peak of allocated bytes", "memory", "peak_allocated_bytes"),
    _pass("memory_pass_predicted_bytes", int, "memory pass: its prediction", "memory", "predicted_peak_bytes"),
    _pass("recommended_warmup_rounds", int, "warm-up study", "warmup", "recommended_warmup_rounds"),
)  # fmt: skip
COLUMNS = {column.name: column for column in _COLUMNS}
assert len(COLUMNS) == len(_COLUMNS), "a column stands there twice"

HOST_SHOWS_BELOW_SECONDS = 2e-4
"""Medians of which launching, events and waiting are a good part, so that the device's own time is shown beside."""


def _spread(known: CaseContext) -> float | None:
    rounds = known.cell.rounds
    return known.cell.quartiles_seconds / rounds.median if len(rounds) > 1 else None


def _busy(known: CaseContext) -> float | None:
    is_short = known.cell.is_timed and known.cell.rounds.median < HOST_SHOWS_BELOW_SECONDS
    return known.cell.measured.device_busy_seconds if is_short else None


def _exposed(known: CaseContext) -> str | None:
    measured = known.cell.measured
    seconds, interval = measured.exposed_communication_seconds, measured.exposed_communication_interval
    if seconds is None:
        return None
    low, high = (max(end, 0.0) for end in interval or (0.0, 0.0))
    around = "few rounds" if interval is None else duration_range(low, high)
    return f"{duration(seconds) if seconds > 0 else '0 s'} ({around})"


def _slowest(known: CaseContext) -> str | None:
    medians = [median(own) for own in known.cell.measured.rank_seconds or []]
    slowest = max(medians, default=0.0)
    return f"rank {medians.index(slowest)}, {slowest / median(medians) - 1:+.1%}" if len(medians) > 1 else None


def _rank_peaks(known: CaseContext) -> str | None:
    peaks = known.cell.measured.rank_peak_allocated_bytes or ()
    return " to ".join(distinct(mebibytes(end) for end in (min(peaks), max(peaks)))) if peaks else None


def _relative_to(known: CaseContext) -> str | None:
    base = known.cell.info.get("relative_to")
    return case_name(base) if isinstance(base, str) else None


def _mean(known: CaseContext) -> MeanAndStd | None:
    rounds = known.cell.rounds
    return MeanAndStd(rounds.mean, rounds.deviation) if rounds else None


FOR_PEOPLE = {
    column.name: column
    for column in (
        text_column("case", lambda known: known.cell.case),
        Column("mean_and_deviation_seconds", MeanAndStd, "of the rounds", _mean, heading="mean ± std"),
        Column("median_interval_seconds", tuple, "of the median",
               lambda known: known.cell.rounds.median_interval(0.95), heading="95 % interval"),
        text_column("relative to", _relative_to),
        text_column("slowest", _slowest),
        text_column("exposed", _exposed),
        text_column("peaks", _rank_peaks),
        Column("rounds_spread", float, "interquartile range over median", _spread, heading="spread"),
        Column("short_busy_seconds", float, "device_busy_seconds of a short round", _busy, heading="busy"),
    )
}  # fmt: skip
"""Columns that people are shown, and programs work out of the others."""
EVERY_COLUMN = {**COLUMNS, **FOR_PEOPLE}

SPEEDUP: CaseColumn = Column(
    "speedup", float, "with --against-axis: median_seconds at its value over this row's", lambda _: None
)

AXES = ("phase", "context_length", "batch_size", "precision", "attention", "execution", "checkpoint", "optimizer",
        "zero_grad_policy", "head_dim", "sequence_length", "cache", "model", "vocab_size")  # fmt: skip
"""Columns along which two cases may differ in nothing else."""


def case_rows(record: Json, record_name: str, against: tuple[str, str] | None = None) -> list[Row]:
    """A row for each case of the record, with every column, collectives last; `against` is an axis and its value."""
    found: dict[str, dict[str, Json]] = {}
    passed: dict[str, CaseRow] = {}
    for extra_pass in PASSES:
        for cell in pass_cells(record, extra_pass):
            found.setdefault(_key(cell), {})[extra_pass] = cell.info
            passed.setdefault(_key(cell), CaseRow(cell.id, cell.identity, {}, outcome=NOT_TIMED))
    outcomes = {row["id"]: row for row in record["outcomes"]}  # which name the memory that a case needs
    cells = [*cells_of(record), *collectives_of(record)]
    cells = [cell if cell.is_timed else replace(cell, info=outcomes[cell.id]) for cell in cells]
    to_be_timed = set(map(_key, cells))
    cells += [cell for key, cell in passed.items() if key not in to_be_timed]
    speedups: dict[int, float] = {}
    if against is not None:
        axis, value = against
        speedups |= {id(cell): 1.0 for cell in cells if cell.is_timed and cell.label(axis) == value}
        pairs = ((base, other) for base, other in pairs_along(cells, axis, value) if base.is_timed and other.is_timed)
        speedups |= {id(other): base.rounds.median / other.rounds.median for base, other in pairs}
    return [
        {name: column.value(known) for name, column in COLUMNS.items()} | {SPEEDUP.name: speedups.get(id(known.cell))}
        for known in (CaseContext(cell, record, record_name, found.get(_key(cell), {})) for cell in cells)
    ]


def _key(cell: CaseRow) -> str:
    return repr(sorted(cell.identity.items()))
