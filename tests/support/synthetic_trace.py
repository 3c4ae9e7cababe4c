"""Small traces as Kineto writes them, by hand: one round of a GPU with a forward and a backward pass in it."""

import json
from typing import Any

from perf_tests_suite.perf_tests.records.record import Json

HOST, BACKWARD_THREAD, STREAM = 100, 101, 7
NUMBERS = ("correlation", "Sequence number")

SHAPES: dict[str, tuple[list[list[int]], list[str]]] = {
    "aten::bmm": ([[4, 8, 16], [4, 16, 8]], ["float", "float"]),
    "aten::mm": ([[32, 16], [16, 24]], ["float", "float"]),
    "aten::div": ([[4, 8, 8], []], ["float", "double"]),
    "aten::copy_": ([[32, 16], [32, 16], []], ["c10::BFloat16", "float", ""]),
}
"""Dims and dtypes of the inputs of each operation."""


class HandWritten:
    """Events in the order of writing; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[Json] = []

    def host(self, cat: str, name: str, start: float, end: float, tid: int = HOST, **args: Any) -> None:
        self.events += [
            {"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": start, "dur": end - start, "args": args}
        ]

    def annotation(self, name: str, start: float, end: float) -> None:
        """An annotation on the host, and as Kineto projects it on the device."""
        self.host("user_annotation", name, start, end)
        self.host("gpu_user_annotation", name, start + 50, end + 50, STREAM)

    def operation(
        self, name: str, start: float, end: float, tid: int = HOST, number: int | None = None, fwd: int = 0
    ) -> None:
        dims, dtypes = SHAPES.get(name, ([], []))
        numbers = {} if number is None else {"Sequence number": number, "Fwd thread id": fwd}
        self.host("cpu_op", name, start, end, tid, **{"Input Dims": dims, "Input type": dtypes}, **numbers)

    def kernel(
        self, name: str, launched: float, start: float, end: float, tid: int = HOST, cat: str = "kernel", **args: Any
    ) -> None:
        """A call of the runtime that takes 4 us, and what it started on the device."""
        correlation = len(self.events)
        self.host("cuda_runtime", "a call", launched, launched + 4, tid, correlation=correlation)
        self.host(cat, name, start, end, STREAM, correlation=correlation, **args)

    def without_device(self) -> "HandWritten":
        """A trace as from a profiler that sees the calls of the host alone."""
        self.events = [event for event in self.events if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset")]
        return self

    def twice(self) -> "HandWritten":
        """The same again 2 ms later."""
        for event in list(self.events):
            numbers = {name: event["args"][name] + 1000 for name in NUMBERS if name in event["args"]}
            self.events.append({**event, "ts": event["ts"] + 2000, "args": {**event["args"], **numbers}})
        return self

    def text(self) -> bytes:
        named = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {}}
        return json.dumps({"schemaVersion": 1, "traceEvents": [named, *self.events]}).encode()


def row(rows: list[Json], **values: object) -> Json:
    """The one row with these values."""
    (found,) = (row for row in rows if values.items() <= row.items())
    return found


SGEMM = "ampere_sgemm_128x64_tn"
DIV = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, DivFunctor>>"
EXP = "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda(at::TensorIteratorBase&)>"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>"


def forward_and_backward() -> HandWritten:
    """One layer: scores (a product and a division), softmax (an exponential), a value product split in two kernels."""
    trace = HandWritten()
    trace.annotation("set-up", 0, 90)
    trace.kernel("Memcpy HtoD (Pageable -> Device)", 10, 20, 30, cat="gpu_memcpy", bytes=4096)
    trace.annotation("round", 100, 1000)
    trace.annotation("forward", 105, 400)
    trace.annotation("block 0", 110, 390)
    trace.annotation("attention", 115, 380)
    trace.annotation("scores", 120, 200)
    trace.operation("aten::matmul", 125, 160, number=1)
    trace.operation("aten::bmm", 130, 158, number=1)
    trace.kernel(SGEMM, 140, 150, 170)
    trace.operation("aten::div", 165, 190, number=2)
    trace.kernel(DIV, 170, 180, 190)
    trace.annotation("softmax", 210, 260)
    trace.operation("aten::exp", 215, 250, number=3)
    trace.kernel(EXP, 220, 230, 260)
    trace.annotation("value_product", 270, 370)
    trace.operation("aten::bmm", 275, 360, number=4)
    trace.kernel(SGEMM, 280, 290, 310)
    trace.kernel("void splitKreduce_kernel<32, 16, int, float, float>", 300, 310, 315)
    node = "autograd::engine::evaluate_function: "
    trace.operation(f"{node}BmmBackward0", 500, 560, BACKWARD_THREAD, number=4, fwd=1)
    trace.operation("BmmBackward0", 502, 558, BACKWARD_THREAD, number=4, fwd=1)
    trace.operation("aten::bmm", 505, 530, BACKWARD_THREAD)
    trace.kernel(SGEMM, 510, 520, 545, BACKWARD_THREAD)
    trace.operation(f"{node}ExpBackward0", 600, 650, BACKWARD_THREAD, number=3, fwd=1)
    trace.operation("aten::mul", 605, 640, BACKWARD_THREAD)
    trace.kernel("void at::native::vectorized_elementwise_kernel<4, MulFunctor>", 610, 620, 640, BACKWARD_THREAD)
    trace.operation(f"{node}BmmBackward0", 655, 700, BACKWARD_THREAD, number=1, fwd=1)
    trace.operation("aten::bmm", 660, 690, BACKWARD_THREAD)
    trace.kernel(SGEMM, 665, 670, 700, BACKWARD_THREAD)
    trace.operation("aten::copy_", 800, 830)
    trace.kernel(CAST, 805, 815, 825)
    trace.kernel("Memset (Device)", 840, 850, 855, cat="gpu_memset", bytes=512)
    trace.host("cuda_runtime", "cudaDeviceSynchronize", 860, 990, correlation=99)
    return trace
