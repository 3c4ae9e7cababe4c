"""A profiler's trace, of PyTorch (Kineto's Chrome trace) or Nsight Systems (SQLite): rounds, kernels, copies and calls.

Kernels are joined to the operation that launched them by Kineto's correlation number, and in the backward pass to the
forward operation that they differentiate by autograd's sequence number. Times are microseconds of one clock."""

import json
import re
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

from perf_tests_suite.perf_tests.records.record import AMOUNT, ANYTHING, KEY, NUMBER, TEXT, Json, misshapen

PHASES = ("full_step", "forward", "backward")
ELSEWHERE = "elsewhere"
"""Label of kernels in no region but a phase."""


@dataclass(frozen=True)
class Span:
    """A stretch of time, ends included."""

    start_us: float
    end_us: float

    @property
    def us(self) -> float:
        return self.end_us - self.start_us

    def holds(self, moment_us: float) -> bool:
        return self.start_us <= moment_us <= self.end_us


def total_us(spans: Iterable[Span]) -> float:
    """Sum of the durations, overlaps counted as often as they are."""
    return sum(span.us for span in spans)


@dataclass(frozen=True)
class TracedKernel(Span):
    """One run of one kernel; on a CPU, of one operation."""

    name: str
    kind: str
    """One of `KINDS`."""
    operator: str = ""
    """The PyTorch operation that launched it; empty if unknown."""
    shapes: str = ""
    regions: tuple[str, ...] = ()
    """The model's regions around it, outermost first; in the backward pass, those of the forward operation."""
    is_backward: bool = False
    launch: Span | None = None
    """The host's call; None on a CPU, where the operation is its own call."""
    is_first_of_operation: bool = True
    flops: int = 0
    bytes_touched: int | None = None
    """Inputs read once and outputs written once, of the whole operation; None if its shapes do not tell."""

    @property
    def issued_us(self) -> float:
        """The moment at which the host asked for it."""
        return self.start_us if self.launch is None else self.launch.start_us


@dataclass(frozen=True)
class MemoryOperation(Span):
    """A copy, or a fill that is no kernel."""

    kind: str
    """`host-to-device`, `device-to-host`, `device-to-device` or `memset`."""
    bytes_moved: int
    issued_us: float


@dataclass(frozen=True)
class Call(Span):
    """A call of the host into the device's runtime."""

    name: str
    thread: object


@dataclass(frozen=True)
class Region(Span):
    """One of the model's regions as the host ran it; `path` has those around it too, outermost first."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """One capture; without `is_on_gpu`, kernels are the host's own work."""

    is_on_gpu: bool
    rounds: Sequence[Span]
    kernels: Sequence[TracedKernel]
    memory_operations: Sequence[MemoryOperation] = field(default_factory=tuple)
    calls: Sequence[Call] = field(default_factory=tuple)
    regions: Sequence[Region] = field(default_factory=tuple)
    unlaunched: int = 0
    """Kernels left out because the trace begins after their launch."""

    def round_at(self, *moments_us: float) -> int | None:
        """The number of the first round that holds all of these moments, else None; `rounds` are in order of start."""
        place = bisect_left(self._latest_ends, max(moments_us))
        is_there = place < len(self.rounds) and all(map(self.rounds[place].holds, moments_us))
        return place if is_there else None

    @cached_property
    def _latest_ends(self) -> list[float]:
        """The latest end of each round and those before it: a capture may have a thousand, and as many kernels each."""
        return [*accumulate((span.end_us for span in self.rounds), max)]


def layer_of(path: tuple[str, ...]) -> str | None:
    """The region of the layer on the path, `block 3`; None outside of all."""
    return next((name for name in path if name.startswith("block ")), None)


def label(path: tuple[str, ...]) -> list[str]:
    """Names of the regions that a kernel counts in: `attention` and `attention / softmax` of
    `("forward", "block 3", "attention", "softmax")`."""
    names = [name for name in path if name not in PHASES and not name.startswith("block ")]
    if not names:
        return ["residual" if layer_of(path) else ELSEWHERE]
    return [" / ".join(names[: depth + 1]) for depth in range(len(names))]


# The kind of work of a kernel, from the name of its operation or its own; FLOPs and bytes from its inputs' shapes.


KINDS = (
    "matrix product", "fused attention", "elementwise", "reduction", "cast", "copy", "memset", "indexing",
)  # fmt: skip
"""Every kind, in the order of tables. A memset is any kernel that only fills; a cast is a copy into another dtype."""

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "mkldnn::_linear_pointwise", "aten::_scaled_mm")

_COPIES = ("copy_", "clone", "cat", "contiguous", "_to_copy", "to", "_foreach_copy_")
_OPERATORS = {
    "reduction": {
        "sum", "mean", "max", "min", "amax", "amin", "argmax", "linalg_vector_norm", "norm", "var", "std", "prod",
        "any", "all", "logsumexp", "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
        "cumsum", "native_layer_norm", "_foreach_norm", "nll_loss_forward", "_fused_rms_norm",
    },
    "memset": {
        "fill_", "zero_", "zeros", "zeros_like", "new_zeros", "ones_like", "ones", "full", "full_like",
        "_foreach_zero_", "scalar_tensor",
    },
    "indexing": {
        "index", "gather", "scatter_", "scatter_add_", "scatter", "scatter_add", "_index_put_impl_", "index_put_",
        "embedding", "embedding_dense_backward", "index_select", "index_add_",
    },
}  # fmt: skip

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2,
}  # fmt: skip

# By a kernel's own name, the first that matches. Products are kernels of cuBLAS, CUTLASS, cuBLASLt and Triton's
# templates; the reduction of a split product is part of it.
_KERNELS = {
    "fused attention": r"flash|fmha|mem_eff|attention_kernel|triton_tem.*attention|sdpa",
    "matrix product": r"gemm|gemv|xmma|cutlass|nvjet|splitk|triton_tem.*mm|_mm_|wgmma",
    "cast": r"(bfloat16|float16|half|float8)_?copy|tofloat32|LoadWithCast|StoreWithCast",
    "memset": r"FillFunctor|memset",
    "reduction": r"reduce|softmax|norm|triton_(red|per)_|argm(ax|in)",
    "indexing": r"index|gather|scatter|embedding",
    "copy": r"copy|CatArray|transpose",
}


def kind_of(kernel: str, operator: str = "", dtypes: tuple[str, ...] = ()) -> str:
    """One of `KINDS`; `dtypes` are those of the operation's tensors, and `kernel` is its own name on a CPU.

    Names of elementwise and generated operations tell nothing: then the kernel's own name decides.
    """
    name = operator.rpartition("::")[2]
    if operator in PRODUCTS:
        return "matrix product"
    if "scaled_dot_product" in name or "flex_attention" in name or "_flash_attention" in name:
        return "fused attention"
    if name in _COPIES:
        return "cast" if len(set(dtypes[:2])) == 2 and name != "cat" else "copy"
    of_operator = (kind for kind, names in _OPERATORS.items() if name in names)
    of_kernel = (kind for kind, pattern in _KERNELS.items() if re.search(pattern, kernel, re.IGNORECASE))
    return next(of_operator, None) or next(of_kernel, "elementwise")


def tensors_of(dims: list[Any], dtypes: list[str]) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each tensor among the inputs; numbers, lists and sizes that no address has are left out."""
    return [
        (tuple(shape), dtype)
        for shape, dtype in zip(dims, dtypes, strict=False)
        if isinstance(dtype, str) and dtype in _ELEMENT_BYTES and isinstance(shape, list)
        if all(isinstance(size, int) and size >= 0 for size in shape) and prod(shape) < 2**63
    ]


def cost_of(operator: str, tensors: Sequence[tuple[tuple[int, ...], str]]) -> tuple[int, int | None]:
    """FLOPs: 2mnk of a product; one for each element that an elementwise operation writes or a reduction reads.

    Bytes: every input read once and the output written once; None for look-ups of rows and lists of tensors.
    """
    kind = kind_of(operator, operator, tuple(dtype for _, dtype in tensors))
    if not tensors:
        return 0, None
    sizes = [prod(shape) * _ELEMENT_BYTES[dtype] for shape, dtype in tensors]
    if kind == "matrix product":
        if len(tensors) < 2 or not all(shape for shape, _ in tensors[-2:]):
            return 0, None
        (first, _), (second, dtype) = tensors[-2:]
        flops = 2 * prod(first) * second[-1]
        if min(len(first), len(second)) < 2:
            return flops, None
        return flops, sizes[-2] + sizes[-1] + prod(first[:-1]) * second[-1] * _ELEMENT_BYTES[dtype]
    flops = max(prod(shape) for shape, _ in tensors) if kind in ("elementwise", "reduction") else 0
    match kind:
        case "indexing" | "fused attention":
            return flops, None
        case "memset":
            return flops, sizes[0]
        case "copy" | "cast":
            return flops, None if operator == "aten::cat" else sum(sizes[:2]) if len(sizes) > 1 else 2 * sizes[0]
        case "reduction":
            last = tensors[0][0][-1] if tensors[0][0] else 1
            return flops, sizes[0] + sizes[0] // max(last, 1)
    return flops, sum(sizes) + max(sizes)


ROUND, SET_UP = "round", "set-up"
"""The suite's annotations around each round and each set-up."""
STEP = "ProfilerStep#"
"""How the annotation of a step of `torch.profiler` begins: the rounds of a trace that this suite did not take."""
HOST_EVENTS = ("user_annotation", "cpu_op", "cuda_runtime", "cuda_driver")

# Composite operations, which only call others; every other operation that computes is one kernel on a CPU.
_WRAPPERS = {
    "aten::" + name
    for name in (
        "linear", "matmul", "einsum", "reshape", "flatten", "contiguous", "to", "_to_copy", "clone", "stack", "zeros",
        "zeros_like", "new_zeros", "ones", "ones_like", "full", "full_like", "new_full", "gather_backward",
        "value_selecting_reduction_backward", "index_put_", "pad", "tensor_split", "type_as", "norm", "outer", "conj",
        "scaled_dot_product_attention", "layer_norm", "rms_norm", "silu_", "dropout", "softmax", "log_softmax",
        "cross_entropy_loss", "nll_loss_nd", "nll_loss", "embedding_backward", "__and__", "__or__", "float_power",
    )
}  # fmt: skip

# A new name for old memory, new memory without content, or a number on its way to Python.
_LAUNCHES_NOTHING = {
    "aten::" + name
    for name in (
        "view", "_unsafe_view", "_reshape_alias", "as_strided", "transpose", "t", "permute", "expand", "expand_as",
        "unsqueeze", "squeeze", "select", "slice", "narrow", "unbind", "unflatten", "split", "chunk", "alias", "detach",
        "detach_", "resolve_conj", "resolve_neg", "numpy_T", "movedim", "view_as", "diagonal", "unfold", "T", "mT",
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize_",
        "result_type", "item", "_local_scalar_dense", "is_nonzero", "lift_fresh", "set_", "requires_grad_",
        "_has_compatible_shallow_copy_type", "_version", "data", "retain_grad", "record_stream",
    )
}  # fmt: skip

_GENERATED = re.compile(r"^(graph_\d+_)?(cpp_fused|triton)_")
_COPY_KINDS = {"HtoD": "host-to-device", "DtoH": "device-to-host", "DtoD": "device-to-device"}


_EVENT = {
    "cat": TEXT, "name": TEXT, "ts": NUMBER, "dur?": AMOUNT, "tid": KEY,
    "args?": {"correlation?": KEY, "Sequence number?": NUMBER, "Input Dims?": [ANYTHING], "Input type?": [ANYTHING],
              "bytes?": NUMBER},
}  # fmt: skip
"""What is read of an event; a CPU's operation has dims of tensors, of lists of tensors, and of numbers."""


class NoDeviceEventsError(ValueError):
    """The trace of a GPU without what ran on it; the message is one sentence without a period."""

    def __init__(self) -> None:
        super().__init__(
            "the profiler saw nothing of what ran on the GPU, because it could not use CUPTI, and the host's times are "
            "no kernels; take other CUDA versions off LD_LIBRARY_PATH, let the driver admit your user to profiling "
            "(NVreg_RestrictProfilingToAdminUsers=0), and trace again"
        )


@dataclass
class _Frame:
    """An open event: those inside it are being read."""

    end_us: float
    regions: tuple[str, ...] = ()
    is_backward: bool = False
    operation: Json | None = None
    """The computing operation around everything inside."""


@dataclass
class _Reader:
    """Walks all host events in the order of time, with a stack for each thread."""

    stacks: dict[object, list[_Frame]] = field(default_factory=dict)
    thread_of_rounds: object = None
    regions_of_node: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Sequence number of a node of autograd's graph to the regions it was made in."""
    rounds: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    """The profiler's own, which stand for rounds where there are none."""
    operations: list[tuple[Json, _Frame]] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    launches: dict[int, tuple[Call, _Frame]] = field(default_factory=dict)

    def read(self, event: Json) -> None:
        start_us, end_us, name = event["ts"], _end_us(event), event["name"]
        stack = self.stacks.setdefault(event["tid"], [])
        while stack and stack[-1].end_us <= start_us:
            stack.pop()
        parent = stack[-1] if stack else self._around(start_us)
        frame = _Frame(end_us, parent.regions, parent.is_backward, parent.operation)
        if event["cat"] == "cpu_op":
            self._read_operation(event, frame)
        elif event["cat"] != "user_annotation":
            self.calls.append(Call(start_us, end_us, name, event["tid"]))
            if "correlation" in event.get("args", {}):
                self.launches[event["args"]["correlation"]] = (self.calls[-1], frame)
        elif name == ROUND:
            self.thread_of_rounds = event["tid"]
            self.rounds.append(Span(start_us, end_us))
        elif name.startswith(STEP):
            self.thread_of_rounds = event["tid"] if self.thread_of_rounds is None else self.thread_of_rounds
            self.steps.append(Span(start_us, end_us))
        elif name != SET_UP and "#" not in name:  # PyTorch's own are like Optimizer.step#AdamW
            frame.regions = (*frame.regions, name)
            frame.is_backward = frame.is_backward or name == "backward"
            self.regions.append(Region(start_us, end_us, frame.regions))
        stack.append(frame)

    def _around(self, moment_us: float) -> _Frame:
        """The frame of a thread without regions, such as autograd's: the regions in which the rounds' thread waits."""
        frames = self.stacks.get(self.thread_of_rounds, [])
        innermost = next((frame for frame in reversed(frames) if frame.end_us > moment_us), _Frame(0.0))
        return _Frame(float("inf"), innermost.regions, innermost.is_backward)

    def _read_operation(self, event: Json, frame: _Frame) -> None:
        name, arguments = event["name"], event.get("args", {})
        number = arguments.get("Sequence number", -1)
        if name.startswith("autograd::engine::evaluate_function"):
            frame.is_backward = True
            frame.regions = self.regions_of_node.get(number, frame.regions)
            return
        if number >= 0 and not arguments.get("Fwd thread id"):
            self.regions_of_node[number] = frame.regions  # of several, the last one made the node
        # Whether it counts as a whole rather than as the operations inside it.
        computes = name not in _WRAPPERS and not name.startswith(("autograd::", "torch::autograd"))
        if "::" not in name:
            computes = _GENERATED.search(name) is not None
        # `where` calls scalar_tensor for a number: on a GPU it is its own launch.
        if name == "aten::scalar_tensor" or (frame.operation is None and computes):
            frame.operation = event
            if name not in _LAUNCHES_NOTHING:
                self.operations.append((event, frame))


def read_chrome_trace(text: bytes) -> Trace:
    """The trace. Raises ValueError with one sentence for other text, a trace without rounds, or one of a GPU without
    kernels (NoDeviceEventsError)."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not a Chrome trace: {error!r}") from error
    if wrong := misshapen(read, {"traceEvents": [{}]}, "it"):
        raise ValueError(f"it is not a Chrome trace: {wrong}")
    events = [event for event in read["traceEvents"] if event.get("ph") == "X" and "cat" in event]
    for event in events:
        if wrong := misshapen(event, _EVENT, "an event"):
            raise ValueError(f"it is damaged: {wrong}: {event!r:.120}")
    return trace_of_events(events)


def trace_of_events(events: list[Json]) -> Trace:
    """The trace of events in Kineto's schema. Raises ValueError without rounds, or without kernels of a GPU."""
    reader = _Reader()
    for event in sorted((event for event in events if event["cat"] in HOST_EVENTS), key=_place):
        reader.read(event)
    rounds = reader.rounds or reader.steps
    if not rounds:
        raise ValueError(
            f"it has no range {ROUND!r}, which the suite puts around each traced round, and no {STEP}N of "
            "torch.profiler; call the profiler's step() after each step, or put record_function('round') around it"
        )
    on_device = sorted((event for event in events if event["cat"] == "kernel"), key=_place)
    copies = [event for event in events if event["cat"] in ("gpu_memcpy", "gpu_memset")]
    if not on_device and (copies or reader.calls):  # of the CUDA runtime
        raise NoDeviceEventsError
    kernels, costed = [], set()
    for event in on_device:
        call, frame = reader.launches.get(event.get("args", {}).get("correlation"), (None, _Frame(0)))
        kernel = _kernel(event, frame, frame.operation, call)
        if id(frame.operation) in costed:  # a product may be split and then summed: its cost belongs to it once
            kernel = replace(kernel, flops=0, bytes_touched=0, is_first_of_operation=False)
        if frame.operation is not None:
            costed.add(id(frame.operation))
        kernels.append(kernel)
    if not on_device:
        kernels = [_kernel(event, frame, event) for event, frame in reader.operations]
    operations = []
    for event in copies:
        arguments = event.get("args", {})
        call, _ = reader.launches.get(arguments.get("correlation"), (None, None))
        kind = next((kind for mark, kind in _COPY_KINDS.items() if mark in event["name"]), "memset")
        size, issued_us = int(arguments.get("bytes", 0)), event["ts"] if call is None else call.start_us
        operations.append(MemoryOperation(event["ts"], _end_us(event), kind, size, issued_us))
    # A kernel whose launch lies before the trace would count in the round that runs when it starts, which is another
    # one where the host runs ahead.
    launched = [kernel for kernel in kernels if kernel.launch is not None]
    return Trace(
        is_on_gpu=bool(on_device),
        rounds=rounds,
        kernels=sorted(launched or kernels, key=lambda kernel: kernel.start_us),
        unlaunched=len(kernels) - len(launched) if launched else 0,
        memory_operations=operations,
        calls=reader.calls,
        regions=reader.regions,
    )


def _place(event: Json) -> tuple[float, float]:
    return event["ts"], -event.get("dur", 0)


def _end_us(event: Json) -> float:
    return float(event["ts"]) + float(event.get("dur", 0))


def _kernel(event: Json, frame: _Frame, operation: Json | None, launch: Call | None = None) -> TracedKernel:
    name = event["name"]
    made = partial(
        TracedKernel, event["ts"], _end_us(event), name,
        regions=frame.regions, is_backward=frame.is_backward, launch=launch,
    )  # fmt: skip
    if operation is None:
        return made(kind_of(name))
    operator, arguments = operation["name"], operation.get("args", {})
    tensors = tensors_of(arguments.get("Input Dims", []), arguments.get("Input type", []))
    kind = kind_of(name, operator, tuple(dtype for _, dtype in tensors))
    shapes = " ".join("x".join(map(str, shape)) or "1" for shape, _ in tensors)
    flops, touched = cost_of(operator, tensors)
    return made(kind, operator, shapes, flops=flops, bytes_touched=touched)


# Nsight Systems' SQLite export, read into the same trace as PyTorch's own.
#
# Schema: NVIDIA, "Nsight Systems Exporter", section "SQLite Schema Reference". An export has only the tables that it
# fills, and columns differ between versions, so both are looked up first. A kernel belongs to the ranges of the thread
# that launched it, at the moment of the launch: its time is the device's, projected on the range.


KERNELS, CALLS, RANGES, STRINGS = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds",
)  # fmt: skip
COPIES, MEMSETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"

DOMAIN = "transformer-perf-tests"
"""The NVTX domain of the suite's own ranges."""

_PUSH_POP, _DOMAIN_CREATED = 59, 75  # of NVTX_EVENTS.eventType
# CUPTI, CUpti_ActivityMemcpyKind, as Kineto spells them.
_NSYS_COPY_KINDS = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD"}
# The upper bits of a thread's number are its process.
_THREADS_OF_A_PROCESS = 2**24
_AUTOGRAD_RANGE = re.compile(r"^(?P<name>.+?), .*\bseq = (?P<number>\d{1,18})\b")


class RangeError(ValueError):
    """No range has the given name; the message is one sentence without a period."""


def read_sqlite(path: Path, range_name: str | None = None) -> Trace:
    """The trace in `nsys export --type sqlite`'s database, of the suite's rounds or of the ranges named `range_name`.

    Raises RangeError where no range has that name, ValueError with one sentence where there is nothing to read.
    """
    try:
        with _opened(path) as database:
            events = list(database.events())
    except sqlite3.Error as error:
        raise ValueError(f"it is not a database of Nsight Systems: {error}") from error
    if not any(event["cat"] == "kernel" for event in events):
        raise ValueError(
            "it holds no kernels: nothing ran on a GPU while it captured, or CUDA was not traced (--trace=cuda,nvtx)"
        )
    names = {event["name"] for event in events if event["cat"] == "user_annotation"}
    if range_name is not None and range_name not in names:
        known = ", ".join(sorted(names)) or "none"
        raise RangeError(f"no range is named {range_name!r}; the report has {known}")
    if ROUND not in names:  # of another program: all of its capture is one round
        first, last = min(event["ts"] for event in events), max(event["ts"] + event["dur"] for event in events)
        events.append({"cat": "user_annotation", "name": ROUND, "tid": None, "ts": first, "dur": last - first})
    trace = trace_of_events(events)
    if range_name in (None, ROUND):
        return trace
    # The kernels launched in ranges of this name; each range spans its first to its last kernel.
    inside = [
        [kernel for kernel in trace.kernels if range_name in kernel.regions and region.holds(kernel.issued_us)]
        for region in trace.regions
        if region.path[-1] == range_name and trace.round_at(region.start_us) is not None
    ]
    inside = [kernels for kernels in inside if kernels]
    if not inside:
        raise RangeError(f"no kernel was launched in a range named {range_name!r}")
    return Trace(
        is_on_gpu=True,
        rounds=sorted(
            (Span(min(k.start_us for k in group), max(k.end_us for k in group)) for group in inside),
            key=attrgetter("start_us"),
        ),
        kernels=[replace(kernel, launch=None) for group in inside for kernel in group],
        regions=trace.regions,
    )


def versions_of(path: Path) -> Json:
    """Versions of the program that wrote the database, from its metadata."""
    try:
        with _opened(path) as database:
            tables = [table for table in database.columns if table.startswith("META_DATA_")]
            rows = [row for table in tables for row in database.rows(table, "name", "value")]
    except sqlite3.Error:
        return {}
    return {str(name): str(value) for name, value in rows if "VERSION" in str(name).upper()}


@contextmanager
def _opened(path: Path) -> Iterator["_Database"]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        yield _Database(connection)


class _Database:
    """The rows of an export, tables and columns that it lacks included."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self.columns = {
            name: {row[1] for row in database.execute(f"PRAGMA table_info({_quoted(name)})")} for name in names
        }
        self.strings: dict[object, str] = {key: str(value) for key, value in self.rows(STRINGS, "id", "value")}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of the table; None for a missing column, no rows for a missing table."""
        if table not in self.columns:
            return
        chosen = ", ".join(_quoted(name) if name in self.columns[table] else "NULL" for name in columns)
        # Fetched whole: an error in the caller must not leave a cursor open.
        yield from self.database.execute(f"SELECT {chosen} FROM {_quoted(table)}").fetchall()

    def events(self) -> Iterator[Json]:
        """What the export has of ranges, calls, kernels, copies and fills, as Kineto writes it.

        Ranges are those of the suite's domain and of autograd; without the suite's domain, all of them.
        """
        rows = [
            (start, end, kind, text if text and isinstance(text, str) else self._text(text_id), thread, domain)
            for start, end, kind, text, text_id, thread, domain in self.rows(
                RANGES, "start", "end", "eventType", "text", "textId", "globalTid", "domainId"
            )
        ]
        ours = {domain for _, _, kind, text, _, domain in rows if kind == _DOMAIN_CREATED and text == DOMAIN}
        for start, end, kind, text, thread, domain in rows:
            if end is None or kind not in (_PUSH_POP, None):
                continue
            if autograd := _AUTOGRAD_RANGE.match(text):
                number = {"Sequence number": int(autograd["number"])}
                yield _event("cpu_op", autograd["name"], start, end, thread, **number)
            elif not ours or domain in ours:
                yield _event("user_annotation", text, start, end, thread)
        for name_id, times, thread, key in self._activities(CALLS, "globalTid", "nameId"):
            yield _event("cuda_runtime", self._text(name_id[0]), *times, thread, correlation=key)
        for names, times, _, key in self._activities(KERNELS, "globalPid", "demangledName", "shortName", "name"):
            name = next((self._text(name) for name in names if name is not None), "unnamed")
            yield _event("kernel", name, *times, 0, correlation=key)
        for (kind, size), times, _, key in self._activities(COPIES, "globalPid", "copyKind", "bytes"):
            name = _NSYS_COPY_KINDS.get(kind, "Memcpy DtoD")
            yield _event("gpu_memcpy", name, *times, 0, correlation=key, bytes=size or 0)
        for (size,), times, _, key in self._activities(MEMSETS, "globalPid", "bytes"):
            yield _event("gpu_memset", "Memset", *times, 0, correlation=key, bytes=size or 0)

    def _activities(self, table: str, owner: str, *columns: str) -> Iterator[tuple[Any, tuple[int, int], Any, Any]]:
        """(values of `columns`, start and end, thread or process, key that joins a launch with its kernel)."""
        # Each process numbers its launches from 0; older exports do not name a kernel's process.
        knows = "globalPid" in self.columns.get(KERNELS, ())
        for start, end, of, correlation, *values in self.rows(table, "start", "end", owner, "correlationId", *columns):
            process = of // _THREADS_OF_A_PROCESS if knows and isinstance(of, int) else 0
            yield values, (start, end), of, (process, correlation)

    def _text(self, value: object) -> str:
        """Names are ids into the table of strings; older exports hold the text itself."""
        if isinstance(value, str):
            return value
        if value is not None and STRINGS not in self.columns:
            raise ValueError(f"its names are ids into the table {STRINGS}, which is missing; export it again")
        return self.strings.get(value, "unnamed")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _event(cat: str, name: str, start_ns: int, end_ns: int, thread: object, **arguments: Any) -> Json:
    if wrong := misshapen([start_ns, end_ns, arguments.get("bytes", 0)], [NUMBER], "it"):
        raise ValueError(f"it is damaged: of {name[:60]!r} start, end or bytes is wrong: {wrong}")
    times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"cat": cat, "name": name, "tid": thread, **times, "args": arguments}
