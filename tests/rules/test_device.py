"""A device, its memory and its queue, against fakes of torch.cuda and of Linux; which fused kernel runs on a CPU."""

import os
import resource
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from perf_tests_suite.model.attention import ATTENTION, naive_attention
from perf_tests_suite.perf_tests.bench.models import free_leftovers
from perf_tests_suite.perf_tests.bench.workbench import set_up
from perf_tests_suite.perf_tests.hardware import device as devices
from perf_tests_suite.perf_tests.hardware.device import CudaDevice, listed_cache_bytes, sdpa_backend
from perf_tests_suite.perf_tests.hardware.machine import seconds_since_process_start
from perf_tests_suite.perf_tests.predict.cuda_rules import libraries_here
from tests.support.example_cases import CPU, SETTINGS, attention_case
from tests.support.fake_cuda import GPU, TOTAL_BYTES, FakeCuda
from tests.support.fake_device import linux_says

MIB, GIB = 2**20, 2**30
V2, V1 = "/sys/fs/cgroup/memory.", "/sys/fs/cgroup/memory/memory."


GROUPS: list[tuple[dict[str, str], int | None, int]] = [
    # the control group's files, its limit, and the bytes that are available
    ({}, None, 50 * 1024),
    ({f"{V2}max": "max\n", f"{V2}current": "5\n"}, None, 50 * 1024),
    ({f"{V2}max": "40960\n", f"{V2}current": "1024\n"}, 40960, 39936),
    ({f"{V2}max": "409600\n", f"{V2}current": "1024\n"}, 409600, 50 * 1024),
    ({f"{V1}limit_in_bytes": "8192\n", f"{V1}usage_in_bytes": "92\n"}, 8192, 8100),
]


def test_the_hosts_memory_is_what_machine_and_control_group_both_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    for groups, limit, available in GROUPS:
        linux_says(monkeypatch, {"/proc/meminfo": "MemTotal: 90 kB\nMemAvailable: 50 kB\n", **groups})
        found = (devices.control_group_bytes() or [None])[0], devices.available_bytes(), devices.total_bytes()
        assert found == (limit, available, 90 * 1024)


def test_growth_is_capped_by_the_budget_below_the_systems_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    linux_says(monkeypatch, {"/proc/self/statm": "100 5 5\n"})
    monkeypatch.setattr(resource, "setrlimit", setrlimit := Mock())
    page = resource.getpagesize()
    for hard, limit in ((resource.RLIM_INFINITY, 100 * page + 7), (50 * page, 50 * page)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (1, hard))
        devices.cap_address_space(7)
        devices.uncap_address_space()
        assert [call.args[1] for call in setrlimit.call_args_list[-2:]] == [(limit, hard), (hard, hard)]


def test_only_an_error_beside_out_of_memory_means_a_lost_gpu(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")
    lost = RuntimeError("CUDA error: device-side assert triggered")
    for error, alive in ((None, True), *((error, True) for error in lacks), (lost, False)):
        monkeypatch.setattr(torch, "zeros", Mock(side_effect=error))
        assert CudaDevice(GPU).is_alive() is alive, error


def test_what_is_asked_of_a_gpu_reaches_the_driver(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening makes it the current one, whose stream has the events; workspaces go back before the cache is emptied."""
    clear = "perf_tests_suite.perf_tests.hardware.device.clear_cublas_workspaces"
    monkeypatch.setattr(clear, lambda: cuda.calls.append("clear workspaces"))
    device = CudaDevice(GPU)
    device.synchronize()
    device.start_peaks()
    free_leftovers(device)
    told = ["set_device", "synchronize", "reset_peak_memory_stats", "clear workspaces", "empty_cache"]
    assert cuda.calls == told
    for budget, fraction in ((TOTAL_BYTES // 4, 0.25), (TOTAL_BYTES, 1.0), (3 * TOTAL_BYTES, 1.0)):
        device.limit_memory(budget)
        assert cuda.limit.call_args.args[0] == fraction


def test_a_gpus_memory_is_read_off_the_allocator(cuda: FakeCuda) -> None:
    device = CudaDevice(GPU)
    assert device.available_bytes() == TOTAL_BYTES // 2 - 2 * GIB
    cuda.says(memory_stats={"requested_bytes.all.peak": 290})
    assert (device.allocated_bytes(), device.peaks()) == (100, (300, 290, 500))
    assert device.memory_state() == "NVIDIA Example has 80.0 GiB: 40.0 GiB free, 40.0 GiB used"
    cuda.says(mem_get_info=(GIB, TOTAL_BYTES))
    assert device.available_bytes() == 0, "others have filled it"


def test_of_a_slice_of_a_gpu_its_own_memory_counts_and_a_case_that_does_not_fit_names_it(cuda: FakeCuda) -> None:
    name, total = "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 * GIB
    properties = SimpleNamespace(total_memory=total)
    cuda.says(get_device_name=name, mem_get_info=(total - GIB, total), get_device_properties=properties)
    workbench = set_up(replace(SETTINGS, device="cuda:0"))
    assert workbench.budget_bytes == total - 3 * GIB
    assert cuda.limit.call_args.args[0] == pytest.approx(0.7)
    refusal: Any = workbench.why_not(attention_case(device="cuda", sequence_length=2**20))
    assert f"7.0 GiB may be used ({name} has 10.0 GiB: 9.0 GiB free, 1.0 GiB used)" in refusal.reason


def test_a_gpu_that_takes_no_more_processes_is_one_sentence(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("CUDA error: device(s) is/are busy\nCUDA kernel errors might be asynchronously reported")
    monkeypatch.setattr(torch.cuda, "mem_get_info", Mock(side_effect=error))
    with pytest.raises(pytest.UsageError, match=r"busy; see what nvidia-smi says .*, or measure with --device cpu\.$"):
        set_up(replace(SETTINGS, device="cuda:0"))


def test_events_tell_seconds_and_a_hold_lasts_at_any_rate(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    event = Mock(**{"elapsed_time.return_value": 2.0, "query.return_value": False})
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event if enable_timing else None)
    monkeypatch.setattr(devices, "spin_cuda", spin := Mock())
    device = CudaDevice(GPU)
    events: list[Any] = [device.record_event(), device.record_event()]
    assert (events[0].seconds_until(events[1]), events[0].is_done(), event.record.call_count) == (2e-3, False, 2)
    device.hold(0.05)
    assert 0.05 * 2.9e9 <= spin.call_args.args[0] <= 0.1 * 2.9e9


def test_the_libraries_rules_are_those_of_the_gpu_that_is_named(cuda: FakeCuda) -> None:
    for major, mebibytes in ((9, 32), (8, 8.125)):
        cuda.sees((major, 0))
        libraries: Any = libraries_here(GPU)
        assert libraries.workspace_bytes == mebibytes * MIB
    assert libraries_here(CPU) is None


def test_twice_the_last_level_cache_is_flushed(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's L2; of a CPU each cache of its own processors once, a stated size where Linux lists none."""
    assert devices.last_level_cache_bytes(GPU) == 50 * MIB
    assert listed_cache_bytes(tmp_path) == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    for processor, shared_by in enumerate(["0-1", "0-1", "2-3", "2-3", "4"]):
        for level, size in ((2, "512K"), (3, "4096K")):
            cache = tmp_path / f"cpu{processor}" / "cache" / f"index{level}"
            cache.mkdir(parents=True)
            for name, content in (("level", level), ("size", size), ("shared_cpu_list", shared_by)):
                (cache / name).write_text(f"{content}\n")
    assert listed_cache_bytes(tmp_path) == 2 * 4 * MIB
    for listed, flushed in ((3 * MIB // 2 + 1, 4 * MIB), (0, 512 * MIB)):
        monkeypatch.setattr(devices, "listed_cache_bytes", lambda _, listed=listed: listed)
        flush = devices.CacheFlush(CPU)
        assert flush.bytes == flushed
    flush()
    assert bool((flush._buffer == 1).all())


def test_a_compilers_cache_is_cold_once_anything_was_generated() -> None:
    states = [devices.cache_state(Counter(cache_hits=h, cache_misses=misses)) for h, misses in ((0, 0), (2, 0), (2, 1))]
    assert states == [None, "warm", "cold"]


def test_the_kernel_that_ran_is_named_and_attention_without_the_call_has_none() -> None:
    """Ours is fused. Without a head dimension it is the math path, the reason for the one in `sdpa_attention`."""
    ours, without, shape = ATTENTION["sdpa"].build(), partial(scaled_dot_product_attention, is_causal=True), (2, 64, 16)
    for size, records_graph, dtype in product((shape, (2, 4, 64, 16)), (False, True), (torch.float32, torch.bfloat16)):
        assert sdpa_backend(ours, size, dtype, CPU, records_graph) == "flash"
    with sdpa_kernel(SDPBackend.MATH):
        forced = sdpa_backend(ours, shape, torch.float32, CPU, records_graph=True)
    found = [sdpa_backend(one, shape, torch.float32, CPU, records_graph=True) for one in (without, naive_attention)]
    assert [forced, *found] == ["math", "math", None]


def test_without_proc_the_c_library_tells_the_memory_and_nothing_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    known, limit = devices.total_bytes(), resource.getrlimit(resource.RLIMIT_AS)
    assert devices.why_less_is_known() is None
    linux_says(monkeypatch, {})
    monkeypatch.setattr("os.path.exists", lambda path: False)
    assert devices.total_bytes() == pytest.approx(known, rel=0.05)
    assert 0 < devices.available_bytes() <= devices.total_bytes()
    devices.cap_address_space(2**30)
    assert resource.getrlimit(resource.RLIMIT_AS) == limit
    assert "other_cores and clock rates are null" in (devices.why_less_is_known() or "")
    assert seconds_since_process_start() > 0
