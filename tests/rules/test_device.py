"""Choosing a device, its memory and its health, against fakes of torch.cuda; which fused kernel runs on a CPU."""

import warnings
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from model.attention import ATTENTION, naive_attention, sdpa_attention
from model.device import device_named, why_gpu_cannot_run, why_gpu_is_passed_over
from perf_tests.bench.models import free_leftovers
from perf_tests.bench.workbench import set_up
from perf_tests.hardware.datasheets import libraries_on
from perf_tests.hardware.device import CudaDevice, Device, sdpa_backend
from perf_tests.predict.costs import libraries_here
from tests.support.example_cases import CPU, SETTINGS, attention_case
from tests.support.fake_cuda import GPU, TOTAL_BYTES, WHEEL, FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture
def device(cuda: FakeCuda) -> CudaDevice:
    return CudaDevice(GPU)


def test_a_device_says_what_memory_it_has_and_limits_it() -> None:
    with pytest.raises(TypeError, match=r"available_bytes'?, '?limit_memory"):
        Device(CPU)  # type: ignore[abstract]


def test_a_name_becomes_a_device_and_auto_the_gpu_that_can_run(cuda: FakeCuda) -> None:
    names = {"auto": "cuda:0", "cuda": "cuda:0", "cuda:0": "cuda:0", "cpu": "cpu"}
    assert {text: str(device_named(text)) for text in names} == names
    assert why_gpu_is_passed_over("cpu") is None
    cuda.sees(capability=(6, 1))
    assert str(device_named("auto")) == "cpu"
    assert "6.1" in (why_gpu_is_passed_over("cpu") or "")
    assert why_gpu_is_passed_over("cuda:0") is None
    cuda.sees(capability=(6, 1), count=0)
    assert why_gpu_is_passed_over("cpu") is None


@pytest.mark.parametrize(
    "text, count, words",
    [
        ("cuda:9", 1, "'cuda:9' does not exist"),
        ("cuda:1", 1, "'cuda:1' does not exist"),
        ("cuda:2", 2, r"cuda:0 \(NVIDIA Example\), cuda:1 \(NVIDIA Relic\)\.$"),
        ("cuda:1", 2, r"compute capability 1\.0"),  # the named one must run
        ("cuda", 0, "needs an NVIDIA GPU"),
        ("gpu", 1, "'gpu' is unknown"),
        ("cuda:", 1, "'cuda:' is unknown"),
        ("cuda:-1", 1, "'cuda:-1' is unknown"),
        ("cuda:x", 1, "'cuda:x' is unknown"),
        ("", 1, "'' is unknown"),
    ],
)
def test_another_name_is_refused_in_one_sentence(cuda: FakeCuda, text: str, count: int, words: str) -> None:
    cuda.sees(count=count)
    with pytest.raises(ValueError, match=words) as refusal:
        device_named(text)
    assert str(refusal.value).count(". ") == 0


# c10/cuda/CUDAFunctions.cpp
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx"
)
NOT_READY = "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized.\nMore of it."


@pytest.mark.parametrize(
    "words, visible, told, passed_over",
    [
        (TOO_OLD, None, r"too old \(found version 12080\); update the driver, install torch for an older CUDA", True),
        (NOT_READY, None, "Error 802: system not yet initialized; use cpu", True),
        (NO_DRIVER, None, "no NVIDIA driver on your system; use cpu", False),
        ("No CUDA GPUs are available", None, "available; use cpu", False),
        ("No CUDA GPUs are available", "", "CUDA_VISIBLE_DEVICES='' hides them: unset it", False),
        ("No CUDA GPUs are available", "GPU-0af3", "CUDA_VISIBLE_DEVICES='GPU-0af3' hides them", False),
    ],
)
def test_a_gpu_that_does_not_start_is_refused_with_why_and_not_passed_over_in_silence(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, words: str, visible: str | None, told: str, passed_over: bool
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cuda.sees(count=0)
    cuda.does_not_start(words)
    with pytest.raises(ValueError, match=told) as refusal:
        device_named("cuda")
    assert "Please" not in str(refusal.value)
    assert str(device_named("auto")) == "cpu"
    assert bool(why_gpu_is_passed_over("cpu")) == passed_over


def test_torchs_own_warning_of_an_old_driver_is_no_error(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> bool:
        warnings.warn(f"CUDA initialization: {TOO_OLD}", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", warn)
    assert str(device_named("auto")) == "cpu"


def test_a_gpu_without_kernels_is_refused_with_what_to_install(cuda: FakeCuda) -> None:
    cuda.sees(capability=(6, 1))
    with pytest.raises(ValueError, match=r"NVIDIA Example has compute capability 6\.1.*sm_70 .*install the wheel"):
        device_named("cuda")


BUILDS: list[tuple[tuple[int, int], list[str], bool]] = [
    ((8, 0), ["sm_80"], True),
    ((8, 9), ["sm_86"], True),  # a later minor revision
    ((8, 0), ["sm_86"], False),  # an earlier one
    ((9, 0), ["sm_80", "sm_86"], False),  # machine code stays within its major revision
    ((9, 0), ["sm_90a"], True),
    ((10, 0), ["sm_100a"], True),
    ((10, 3), ["sm_100a"], False),  # code of one architecture runs on that one
    ((10, 3), ["sm_100f"], True),  # code of a family runs on its later members
    ((12, 0), ["sm_100f"], False),
    ((9, 0), ["compute_80"], True),  # PTX is translated for later ones
    ((8, 0), ["compute_80"], True),
    ((12, 0), ["compute_100f"], False),
    ((12, 1), ["sm_75", "compute_120"], True),
    ((7, 5), ["compute_80"], False),
    ((10, 0), ["compute_90a"], False),
    ((6, 1), WHEEL, False),
    ((12, 0), ["sm_90", "sm_120"], True),
    ((9, 0), [], False),
]


def test_a_build_serves_the_gpus_that_cuda_says_it_does(cuda: FakeCuda) -> None:
    for capability, built_for, runs in BUILDS:
        cuda.sees(capability, built_for)
        assert (why_gpu_cannot_run(0) is None) == runs, (capability, built_for)


@pytest.mark.parametrize(
    "error, alive",
    [
        (None, True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA error: unspecified launch failure"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_only_an_error_other_than_out_of_memory_means_that_the_gpu_is_gone(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, error: Exception | None, alive: bool
) -> None:
    monkeypatch.setattr(torch, "zeros", Mock(side_effect=error, return_value=torch.zeros(1)))
    assert device.is_alive() is alive


def test_a_budget_is_a_share_of_the_gpu_and_never_more_than_all(cuda: FakeCuda, device: CudaDevice) -> None:
    for budget, fraction in ((TOTAL_BYTES // 4, 0.25), (TOTAL_BYTES, 1.0), (3 * TOTAL_BYTES, 1.0)):
        device.limit_memory(budget)
        assert cuda.limit.call_args.args[0] == fraction


def test_workspaces_go_back_to_the_allocator_before_its_cache_is_emptied(
    cuda: FakeCuda, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next case holds what the last one multiplied with, 64 MiB on an H100."""
    clear = "perf_tests.hardware.device.clear_cublas_workspaces"
    monkeypatch.setattr(clear, lambda: cuda.calls.append("clear workspaces"))
    free_leftovers(device)
    assert cuda.calls[-2:] == ["clear workspaces", "empty_cache"]


def test_the_libraries_rules_are_those_of_the_gpu_that_is_here(cuda: FakeCuda) -> None:
    here, on_ampere = libraries_here(GPU), libraries_on(8, torch.__version__, {})
    assert here is not None
    assert here.workspace_bytes > on_ampere.workspace_bytes
    assert libraries_here(CPU) is None


def test_what_the_suite_asks_reaches_the_driver(cuda: FakeCuda) -> None:
    """Opening a GPU makes it the current one: events are recorded on the current device's stream."""
    device = CudaDevice(GPU)
    device.synchronize()
    device.start_peaks()
    assert cuda.calls == ["set_device", "synchronize", "reset_peak_memory_stats"]
    device.release_memory()
    assert cuda.calls[-1] == "empty_cache"


def test_memory_is_read_off_the_allocator(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.available_bytes() == TOTAL_BYTES // 2 - 2 * 2**30
    assert (device.peak_allocated_bytes(), device.peak_reserved_bytes()) == (300, 500)
    monkeypatch.setattr(torch.cuda, "mem_get_info", Mock(return_value=(2**30, TOTAL_BYTES)))
    assert device.available_bytes() == 0, "others have filled it"
    assert device.memory_in_words() == "NVIDIA Example has 80.0 GiB: 1.0 GiB free, 79.0 GiB used"


MIG = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
MIG_BYTES = 10 * 2**30


def test_of_a_slice_of_a_gpu_its_own_memory_counts_and_a_case_that_does_not_fit_names_it(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: MIG)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (MIG_BYTES - 2**30, MIG_BYTES))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(total_memory=MIG_BYTES))
    workbench = set_up(replace(SETTINGS, device="cuda:0"))
    assert workbench.budget_bytes == MIG_BYTES - 3 * 2**30
    assert cuda.limit.call_args.args[0] == pytest.approx(0.7)
    refusal = workbench.why_not(attention_case(device="cuda", sequence_length=2**20))
    assert refusal is not None
    assert f"7.0 GiB may be used ({MIG} has 10.0 GiB: 9.0 GiB free, 1.0 GiB used)" in refusal.reason


@pytest.mark.parametrize("words", ["CUDA-capable device(s) is/are busy or unavailable", "out of memory"])
def test_a_gpu_that_takes_no_further_process_is_refused_in_one_sentence(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    error = RuntimeError(f"CUDA error: {words}\nCUDA kernel errors might be asynchronously reported")
    monkeypatch.setattr(torch.cuda, "mem_get_info", Mock(side_effect=error))
    with pytest.raises(pytest.UsageError) as refusal:
        set_up(replace(SETTINGS, device="cuda:0"))
    step = "see what nvidia-smi says of it, or measure with --device cpu."
    assert str(refusal.value) == f"cuda:0 cannot be used: CUDA error: {words}; {step}"


class FakeEvent:
    """A CUDA event recorded at the next whole millisecond."""

    now = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.now += 1
        self.at = FakeEvent.now

    def elapsed_time(self, later: "FakeEvent") -> float:
        return later.at - self.at

    def query(self) -> bool:
        return False


def test_the_time_between_events_is_in_seconds(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    first, second = device.record_event(), device.record_event()
    assert first is not None
    assert second is not None
    assert first.seconds_until(second) == 1e-3
    assert not first.is_done()


def test_a_queue_is_held_for_at_least_its_time_at_any_clock_rate(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    spin = Mock()
    monkeypatch.setattr("perf_tests.hardware.device.spin_cuda", spin)
    device.hold(0.05)
    (cycles,) = spin.call_args.args
    assert cycles / 2.9e9 >= 0.05


SHAPE = (2, 64, 16)


def test_a_call_without_a_head_dimension_takes_the_math_path() -> None:
    """The reason for the extra dimension in `sdpa_attention`; if this fails, drop it there."""
    without = partial(scaled_dot_product_attention, is_causal=True)
    assert sdpa_backend(without, SHAPE, torch.float32, CPU, records_graph=True) == "math"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("records_graph", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, (2, 4, 64, 16)], ids=["alone", "heads"])
def test_our_call_takes_a_fused_kernel(shape: tuple[int, ...], records_graph: bool, dtype: torch.dtype) -> None:
    assert sdpa_backend(ATTENTION["sdpa"].build(), shape, dtype, CPU, records_graph) == "flash"


def test_a_forced_math_path_is_reported_as_math_and_attention_without_the_call_has_no_backend() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert sdpa_backend(sdpa_attention, SHAPE, torch.float32, CPU, records_graph=True) == "math"
    assert sdpa_backend(naive_attention, SHAPE, torch.float32, CPU, records_graph=False) is None
