"""A Chrome trace in Kineto's schema, as it comes from a GPU: kernels given back to their regions, copies apart."""

import json
from typing import Any

import pytest

from perf_tests.traces.trace import NoDeviceEventsError, Trace, TracedKernel, read_chrome_trace
from tests.support.synthetic_trace import CAST, DIV, HOST, SGEMM, HandWritten, forward_and_backward


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_chrome_trace(forward_and_backward().text())


def kernels_in(trace: Trace, region: str, is_backward: bool) -> list[TracedKernel]:
    return [k for k in trace.kernels if k.regions[-1:] == (region,) and k.is_backward is is_backward]


def test_kernels_are_those_of_the_device_and_not_its_operations(trace: Trace) -> None:
    assert trace.is_on_gpu
    assert len(trace.kernels) == 9
    assert {kernel.operator for kernel in trace.kernels} == {
        "aten::bmm", "aten::div", "aten::exp", "aten::mul", "aten::copy_"
    }  # fmt: skip


def test_a_kernel_belongs_to_the_region_it_was_launched_in(trace: Trace) -> None:
    scores = kernels_in(trace, "scores", is_backward=False)
    assert [kernel.name for kernel in scores] == [SGEMM, DIV]
    assert scores[0].regions == ("forward", "block 0", "attention", "scores")


def test_a_backward_kernel_belongs_to_the_region_of_the_operation_it_derives(trace: Trace) -> None:
    assert [kernel.operator for kernel in kernels_in(trace, "softmax", is_backward=True)] == ["aten::mul"]
    assert [kernel.operator for kernel in kernels_in(trace, "value_product", is_backward=True)] == ["aten::bmm"]
    assert [kernel.operator for kernel in kernels_in(trace, "scores", is_backward=True)] == ["aten::bmm"]


def kernels_of(*spans: tuple[Any, ...]) -> list[TracedKernel]:
    """Of a round of these on a CPU: name, start and end, of operations also thread, number and forward thread."""
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    for name, start, end, *numbers in spans:
        write = trace.operation if "::" in name else trace.annotation
        write(name, start, end, *numbers)
    return list(read_chrome_trace(trace.text()).kernels)


def test_a_number_that_several_operations_bear_belongs_to_the_last_of_them() -> None:
    """An operation that makes no node, here an arange in the region before, reports the number of the next one."""
    kernels = kernels_of(
        ("mask", 5, 20),
        ("aten::arange", 6, 10, HOST, 8),
        ("softmax", 25, 40),
        ("aten::exp", 26, 30, HOST, 8),
        ("autograd::engine::evaluate_function: ExpBackward0", 50, 60, HOST, 8, 1),
        ("aten::mul", 51, 59),
    )
    assert [kernel.regions for kernel in kernels if kernel.is_backward] == [("softmax",)]


def test_what_is_recomputed_going_back_is_in_its_own_regions() -> None:
    checkpoint = ("autograd::engine::evaluate_function: CheckpointBackward", 10, 60, HOST, 1, 1)
    (kernel,) = kernels_of(checkpoint, ("feed_forward", 12, 40), ("aten::mm", 15, 35, HOST, 5))
    assert (kernel.regions, kernel.is_backward) == (("feed_forward",), True)


def test_each_kernel_knows_when_it_was_launched(trace: Trace) -> None:
    assert [kernel.start_us - kernel.issued_us for kernel in trace.kernels] == [10, 10, 10, 10, 10, 10, 10, 5, 10]


def test_the_cost_of_an_operation_is_that_of_its_first_kernel(trace: Trace) -> None:
    product, reduction = kernels_in(trace, "value_product", is_backward=False)
    assert (product.flops, product.bytes_touched) == (2 * 4 * 8 * 16 * 8, 4 * 4 * (8 * 16 + 16 * 8 + 8 * 8))
    assert (reduction.flops, reduction.kind, reduction.is_first_of_operation) == (0, "matrix product", False)


def test_a_copy_into_another_dtype_is_a_cast(trace: Trace) -> None:
    (cast,) = (kernel for kernel in trace.kernels if kernel.name == CAST)
    assert (cast.kind, cast.shapes, cast.bytes_touched) == ("cast", "32x16 32x16", 32 * 16 * 6)


def test_copies_and_memsets_are_no_kernels(trace: Trace) -> None:
    seen = [(operation.kind, operation.bytes_moved) for operation in trace.memory_operations]
    assert seen == [("host-to-device", 4096), ("memset", 512)]


def test_pytorchs_own_annotations_are_no_regions() -> None:
    (kernel,) = kernels_of(("optimizer", 5, 50), ("Optimizer.step#AdamW.step", 10, 40), ("aten::mul_", 15, 20))
    assert kernel.regions == ("optimizer",)


def test_on_a_cpu_a_kernel_is_the_operation_that_computes_and_not_what_it_calls_or_is_called_by() -> None:
    kernels = kernels_of(
        ("aten::linear", 1, 30),
        ("aten::t", 2, 5),
        ("aten::transpose", 3, 4),
        ("aten::matmul", 6, 29),
        ("aten::mm", 8, 28),
        ("aten::resolve_conj", 9, 10),
        ("aten::sum", 40, 60),
        ("aten::fill_", 41, 45),
        ("aten::zeros_like", 70, 90),
        ("aten::empty_like", 71, 75),
        ("aten::zero_", 76, 89),
        ("aten::fill_", 77, 88),
    )
    assert [(kernel.name, kernel.start_us) for kernel in kernels] == [
        ("aten::mm", 8), ("aten::sum", 40), ("aten::zero_", 76)
    ]  # fmt: skip


def test_a_number_that_is_made_a_tensor_is_a_launch_of_its_own_also_inside_another_operation() -> None:
    kernels = kernels_of(("aten::where", 1, 30), ("aten::scalar_tensor", 2, 5), ("aten::where", 6, 29))
    assert [kernel.name for kernel in kernels] == ["aten::where", "aten::scalar_tensor"]


def test_a_trace_of_a_gpu_without_its_kernels_is_refused_and_the_hosts_times_are_not_taken_for_them() -> None:
    with pytest.raises(NoDeviceEventsError, match="could not use CUPTI"):
        read_chrome_trace(forward_and_backward().without_device().text())


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"traceEvents": 3}', json.dumps({"traceEvents": []}).encode()])
def test_what_is_no_trace_is_refused_in_one_sentence(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it (is not a Chrome trace|has no range)"):
        read_chrome_trace(text)
