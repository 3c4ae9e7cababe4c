"""A Chrome trace as torch.profiler exports it (Kineto's schema), read into rounds, kernels, copies and calls.

Kernels are joined to the operation that launched them by Kineto's correlation number, and in the backward pass to the
forward operation that they differentiate by autograd's sequence number.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from perf_tests.records.record import Json
from perf_tests.records.shapes import AMOUNT, ANYTHING, KEY, NUMBER, TEXT, misshapen
from perf_tests.traces.kernel_events import Call, MemoryOperation, Region, Span, Trace, TracedKernel
from perf_tests.traces.kernel_kinds import bytes_of, flops_of, kind_of, tensors_of

ROUND, SET_UP = "round", "set-up"
"""The suite's annotations around each round and each set-up."""
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
    operations: list[tuple[Json, _Frame]] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    launches: dict[int, tuple[Call, _Frame]] = field(default_factory=dict)

    def read(self, event: Json) -> None:
        stack = self.stacks.setdefault(event["tid"], [])
        while stack and stack[-1].end_us <= event["ts"]:
            stack.pop()
        parent = stack[-1] if stack else self._around(event["ts"])
        frame = _Frame(_end_us(event), parent.regions, parent.is_backward, parent.operation)
        if event["cat"] == "user_annotation":
            self._read_annotation(event, frame)
        elif event["cat"] == "cpu_op":
            self._read_operation(event, frame)
        else:
            call = Call(event["ts"], _end_us(event), event["name"], event["tid"])
            self.calls.append(call)
            if "correlation" in event.get("args", {}):
                self.launches[event["args"]["correlation"]] = (call, frame)
        stack.append(frame)

    def _around(self, moment_us: float) -> _Frame:
        """For a thread without regions, such as autograd's: the regions in which the thread of the rounds waits."""
        frames = self.stacks.get(self.thread_of_rounds, [])
        innermost = next((frame for frame in reversed(frames) if frame.end_us > moment_us), _Frame(0.0))
        return _Frame(float("inf"), innermost.regions, innermost.is_backward)

    def _read_annotation(self, event: Json, frame: _Frame) -> None:
        name = event["name"]
        if name == ROUND:
            self.thread_of_rounds = event["tid"]
            self.rounds.append(Span(event["ts"], _end_us(event)))
        elif name != SET_UP and "#" not in name:  # PyTorch's own are like ProfilerStep#3
            frame.regions = (*frame.regions, name)
            frame.is_backward = frame.is_backward or name == "backward"
            self.regions.append(Region(event["ts"], _end_us(event), frame.regions))

    def _read_operation(self, event: Json, frame: _Frame) -> None:
        name, arguments = event["name"], event.get("args", {})
        number = arguments.get("Sequence number", -1)
        if name.startswith("autograd::engine::evaluate_function"):
            frame.is_backward = True
            frame.regions = self.regions_of_node.get(number, frame.regions)
            return
        if number >= 0 and not arguments.get("Fwd thread id"):
            self.regions_of_node[number] = frame.regions  # of several, the last one made the node
        # `where` calls scalar_tensor for a number: on a GPU it is its own launch.
        if name == "aten::scalar_tensor" or (frame.operation is None and _computes(name)):
            frame.operation = event
            if name not in _LAUNCHES_NOTHING:
                self.operations.append((event, frame))


def _computes(name: str) -> bool:
    """Whether an operation counts as a whole rather than as the operations inside it."""
    if "::" not in name:
        return _GENERATED.search(name) is not None
    return name not in _WRAPPERS and not name.startswith(("autograd::", "torch::autograd"))


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
    if not reader.rounds:
        raise ValueError(f"it has no range {ROUND!r}, which the suite puts around each traced round")
    on_device = [event for event in events if event["cat"] == "kernel"]
    copies = [event for event in events if event["cat"] in ("gpu_memcpy", "gpu_memset")]
    kernels = list(_device_kernels(on_device, reader))
    if not on_device:
        if copies or reader.calls:  # of the CUDA runtime
            raise NoDeviceEventsError
        kernels = [_kernel(event, frame, event) for event, frame in reader.operations]
    return Trace(
        is_on_gpu=bool(on_device),
        rounds=reader.rounds,
        kernels=sorted(kernels, key=lambda kernel: kernel.start_us),
        memory_operations=[_memory_operation(event, reader) for event in copies],
        calls=reader.calls,
        regions=reader.regions,
    )


def _place(event: Json) -> tuple[float, float]:
    return event["ts"], -event.get("dur", 0)


def _end_us(event: Json) -> float:
    return float(event["ts"]) + float(event.get("dur", 0))


def _device_kernels(events: list[Json], reader: _Reader) -> Iterator[TracedKernel]:
    seen: set[int] = set()
    for event in sorted(events, key=_place):
        call, frame = reader.launches.get(event.get("args", {}).get("correlation"), (None, _Frame(0)))
        kernel = _kernel(event, frame, frame.operation, call)
        if id(frame.operation) in seen:  # a product may be split and then summed: its cost belongs to it once
            kernel = replace(kernel, flops=0, bytes_touched=0, is_first_of_operation=False)
        if frame.operation is not None:
            seen.add(id(frame.operation))
        yield kernel


def _kernel(event: Json, frame: _Frame, operation: Json | None, launch: Call | None = None) -> TracedKernel:
    name = event["name"]
    made = partial(
        TracedKernel, event["ts"], _end_us(event), name,
        regions=frame.regions, is_backward=frame.is_backward, launch=launch,
    )  # fmt: skip
    if operation is None:
        return made(kind_of(name))
    operator, arguments = operation["name"], operation.get("args", {})
    dims, dtypes = arguments.get("Input Dims", []), arguments.get("Input type", [])
    tensors = tensors_of(dims, dtypes)
    kind = kind_of(name, operator, tuple(dtype for _, dtype in tensors))
    shapes = " ".join("x".join(map(str, shape)) or "1" for shape, _ in tensors)
    flops, touched = flops_of(operator, dims, dtypes), bytes_of(operator, dims, dtypes)
    return made(kind, operator, shapes, flops=flops, bytes_touched=touched)


def _memory_operation(event: Json, reader: _Reader) -> MemoryOperation:
    arguments = event.get("args", {})
    call, _ = reader.launches.get(arguments.get("correlation"), (None, None))
    kind = next((kind for mark, kind in _COPY_KINDS.items() if mark in event["name"]), "memset")
    issued_us = event["ts"] if call is None else call.start_us
    return MemoryOperation(event["ts"], _end_us(event), kind, int(arguments.get("bytes", 0)), issued_us)
