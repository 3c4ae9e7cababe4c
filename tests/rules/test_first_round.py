"""What a first round is spent on is read off two traces, and every microsecond of it goes to one part only."""

import mmap
import sys
from pathlib import Path

import pytest
import torch

from perf_tests.hardware.device import CpuDevice, page_faults, seconds_per_page_fault
from perf_tests.passes.warmup import imports_as_ranges, traced_call
from perf_tests.records.record import Json
from perf_tests.traces.kernels import TracedRound, first_round_parts, largest_growth
from tests.support.example_cases import CPU

MS = 1000.0
"""Kineto counts in microseconds."""


def event(name: str, start_ms: float, ms: float, cat: str = "cpu_op", tid: int = 1) -> Json:
    return {"ph": "X", "cat": cat, "name": name, "ts": start_ms * MS, "dur": ms * MS, "tid": tid}


def round_of(ms: float, *events: Json, page_faults: int = 0, system_seconds: float = 100.0) -> TracedRound:
    return TracedRound([event("round", 0, ms, "user_annotation"), *events], page_faults, system_seconds)


STEADY = round_of(10, event("aten::mm", 1, 6), event("aten::exp", 7, 2), system_seconds=0.0)


def spent(first: TracedRound, seconds_per_page_fault: float | None = None, steady: TracedRound = STEADY) -> Json:
    """Milliseconds of each part but the steady round, with which they sum to the first one."""
    parts = first_round_parts(first, steady, seconds_per_page_fault)
    assert sum(parts.values()) == pytest.approx(first.events[0]["dur"] / MS / 1e3)
    assert parts.pop("steady_round_seconds") == 0.01
    return {name.removesuffix("_seconds"): round(1e3 * value, 6) for name, value in parts.items() if abs(value) > 1e-9}


def test_each_part_is_what_it_grew_by() -> None:
    first = round_of(
        100,
        event("import of torch._dynamo", 1, 20, "user_annotation"),
        event("compile_inner (dynamo_timed)", 21, 30),
        event("aten::mm", 51, 16),
        event("aten::exp", 67, 5),
    )
    grown = {"module_loading": 20, "compilation": 30, "library_handles": 10, "other_operators": 3, "unexplained": 27}
    assert spent(first) == grown


def test_what_a_load_or_a_compilation_calls_is_counted_once() -> None:
    first = round_of(
        60,
        event("backend_compile (dynamo_timed)", 0, 40),
        event("import of sympy", 5, 10, "user_annotation"),
        event("aten::exp", 6, 3),  # a constant of the module
        event("aten::mm", 16, 4),  # constants folded by the compiler
        event("aten::mm", 41, 6),
        event("aten::exp", 47, 2),
    )
    assert spent(first) == {"module_loading": 10, "compilation": 30, "unexplained": 10}


def test_calls_of_the_driver_are_told_apart_inside_the_operators_that_make_them() -> None:
    first = round_of(
        90,
        event("aten::mm", 0, 60),
        event("cudaMalloc", 1, 7, "cuda_runtime"),
        event("cuLibraryLoadData", 10, 20, "cuda_driver"),
        event("cudaLaunchKernel", 40, 5, "cuda_runtime"),
        event("aten::exp", 60, 2),
        event("cudaDeviceSynchronize", 70, 15, "cuda_runtime"),
    )
    in_operators = {"module_loading": 20, "allocator_growth": 7, "library_handles": 22, "first_launches": 5}
    assert spent(first) == {**in_operators, "unexplained": 26}


def test_page_faults_are_taken_out_of_the_operators_that_ran_into_them() -> None:
    first = round_of(30, event("aten::mm", 0, 16), event("aten::exp", 16, 12), page_faults=12_000)
    steady = TracedRound(STEADY.events, 2_000, 0.0)
    assert spent(first, 1e-6, steady) == {"allocator_growth": 10, "library_handles": 5, "other_operators": 5}
    assert spent(first, 1e-3, steady) == {"allocator_growth": 20}, "at most what they grew by"


def test_page_faults_take_no_more_than_the_kernels_own_time() -> None:
    events = event("aten::mm", 0, 106), event("aten::exp", 106, 102)
    first = round_of(210, *events, page_faults=200_000, system_seconds=0.04)
    assert spent(first, 1e-6) == {"allocator_growth": 50, "library_handles": 75, "other_operators": 75}


def test_page_faults_of_a_compiler_are_not_laid_on_the_operators() -> None:
    first = round_of(40, event("inner (dynamo_timed)", 0, 20), event("aten::mm", 20, 16), page_faults=12_000)
    assert spent(first, 1e-6) == {"compilation": 20, "library_handles": 10}


def test_backward_on_another_thread_is_no_child_of_the_round() -> None:
    first = round_of(30, event("aten::mm", 2, 16, tid=7), event("aten::exp", 18, 2, tid=7))
    assert spent(first)["library_handles"] == 10


def test_a_round_that_is_no_slower_is_spent_on_nothing() -> None:
    assert spent(STEADY, 1e-6) == {}


def test_what_grew_most_is_named() -> None:
    first = round_of(60, event("aten::mm", 0, 26), event("aten::exp", 26, 7), event("aten::add", 40, 1))
    names = [row["name"] for row in largest_growth(first, STEADY)]
    assert names == ["aten::mm", "aten::exp", "aten::add"]


def test_a_trace_without_its_round_is_refused() -> None:
    with pytest.raises(ValueError, match="no round in it"):
        first_round_parts(TracedRound([event("aten::mm", 0, 1)], 0, 0.0), STEADY, None)


def test_an_import_inside_a_traced_call_is_its_module_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_inner.py").write_text("import time\ntime.sleep(0.02)\ntouched = b'1' * (8 << 20)\n")
    (tmp_path / "planted_outer.py").write_text("import planted_inner\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def function() -> torch.Tensor:
        __import__("planted_outer")
        return torch.ones(8) + 1

    device = CpuDevice(CPU)
    first, later = traced_call(function, device), traced_call(function, device)
    for name in ("planted_outer", "planted_inner"):
        del sys.modules[name]
    assert (first.modules_loaded, later.modules_loaded) == (2, 0)
    parts = first_round_parts(TracedRound(first.events, 0, 0.0), TracedRound(later.events, 0, 0.0), None)
    assert parts["module_loading_seconds"] >= 0.02
    assert first.page_faults < (8 << 20) // mmap.PAGESIZE  # those of the import are its own
    imports = [event["name"] for event in first.events if event.get("name", "").startswith("import of planted")]
    assert imports == ["import of planted_outer"]


def test_the_finder_goes_when_the_ranges_end() -> None:
    before = list(sys.meta_path)
    with imports_as_ranges():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def test_a_page_is_counted_when_it_is_touched_first() -> None:
    pages = (1 << 20) // mmap.PAGESIZE
    with mmap.mmap(-1, 1 << 20) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        before = page_faults()
        memory[:: mmap.PAGESIZE] = b"\x01" * pages
        assert pages <= page_faults() - before < 2 * pages
        memory[:: mmap.PAGESIZE] = b"\x02" * pages
        assert page_faults() - before < 2 * pages
    assert seconds_per_page_fault() > 0
