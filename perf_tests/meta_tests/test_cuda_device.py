"""Choosing a GPU, and asking one for its memory and its health, against fakes of torch.cuda."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from model.device import device_named, why_gpu_cannot_run, why_gpu_is_passed_over
from perf_tests.instruments.device import CudaDevice

WHEEL = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
TOTAL_BYTES = 80 * 2**30


class FakeCuda:
    """One GPU, as far as torch.cuda tells of it; `calls` holds the names of the functions called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._monkeypatch = monkeypatch
        self.sees()
        self._replace("get_device_properties", SimpleNamespace(total_memory=TOTAL_BYTES))
        self._replace("mem_get_info", (TOTAL_BYTES // 2, TOTAL_BYTES))
        self._replace("max_memory_allocated", 300)
        self._replace("max_memory_reserved", 500)
        for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
            self._replace(name, None)
        self.limit = Mock()
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self.limit)

    def sees(
        self,
        capability: tuple[int, int] = (9, 0),
        built_for: list[str] = WHEEL,
        count: int = 1,
        has_driver: bool = True,
    ) -> None:
        """Every GPU but the first is of 2007."""
        self._replace("is_available", count > 0 and has_driver)
        self._replace("device_count", count)
        self._monkeypatch.setattr(torch.cuda, "get_device_capability", lambda n: capability if n == 0 else (1, 0))
        self._replace("get_device_name", "NVIDIA Example")
        self._replace("get_arch_list", built_for)

    def _replace(self, name: str, answer: object) -> None:
        def fake(*_: object) -> object:
            self.calls.append(name)
            return answer

        self._monkeypatch.setattr(torch.cuda, name, fake)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture
def device(cuda: FakeCuda) -> CudaDevice:
    return CudaDevice(torch.device("cuda", 0))


@pytest.mark.parametrize("text, name", [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cpu", "cpu")])
def test_a_name_becomes_a_device(cuda: FakeCuda, text: str, name: str) -> None:
    assert str(device_named(text)) == name


def test_auto_is_the_cpu_where_the_build_has_no_kernels_for_the_gpu(cuda: FakeCuda) -> None:
    cuda.sees(capability=(6, 1))
    assert str(device_named("auto")) == "cpu"
    assert "6.1" in (why_gpu_is_passed_over("cpu") or "")
    assert why_gpu_is_passed_over("cuda:0") is None
    cuda.sees(capability=(6, 1), count=0)
    assert why_gpu_is_passed_over("cpu") is None


def test_no_gpu_is_passed_over_that_could_run(cuda: FakeCuda) -> None:
    assert why_gpu_is_passed_over("cpu") is None


def test_a_gpu_without_a_working_driver_is_none(cuda: FakeCuda) -> None:
    """NVML counts it, the CUDA runtime cannot start."""
    cuda.sees(has_driver=False)
    with pytest.raises(ValueError, match="needs an NVIDIA GPU"):
        device_named("cuda")


def test_it_is_the_named_gpu_that_must_run(cuda: FakeCuda) -> None:
    cuda.sees(count=2)
    with pytest.raises(ValueError, match=r"compute capability 1\.0"):
        device_named("cuda:1")


@pytest.mark.parametrize(
    "text, count, words",
    [
        ("cuda:9", 1, "'cuda:9' does not exist"),
        ("cuda:1", 1, "'cuda:1' does not exist"),
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


def test_a_gpu_without_kernels_is_refused_with_what_to_install(cuda: FakeCuda) -> None:
    cuda.sees(capability=(6, 1))
    with pytest.raises(ValueError, match=r"NVIDIA Example has compute capability 6\.1.*sm_70 .*install the wheel"):
        device_named("cuda")


@pytest.mark.parametrize(
    "capability, built_for, runs",
    [
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
    ],
)
def test_a_build_serves_the_gpus_that_cuda_says_it_does(
    cuda: FakeCuda, capability: tuple[int, int], built_for: list[str], runs: bool
) -> None:
    cuda.sees(capability, built_for)
    assert (why_gpu_cannot_run(0) is None) == runs


@pytest.mark.parametrize(
    "error, alive",
    [
        (None, True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_only_an_error_other_than_out_of_memory_means_that_the_gpu_is_gone(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, error: Exception | None, alive: bool
) -> None:
    monkeypatch.setattr(torch, "zeros", Mock(side_effect=error, return_value=torch.zeros(1)))
    assert device.is_alive() is alive


@pytest.mark.parametrize("budget, fraction", [(TOTAL_BYTES // 4, 0.25), (TOTAL_BYTES, 1.0), (3 * TOTAL_BYTES, 1.0)])
def test_a_budget_is_a_share_of_the_gpu_and_never_more_than_all(
    cuda: FakeCuda, device: CudaDevice, budget: int, fraction: float
) -> None:
    device.limit_memory(budget)
    assert cuda.limit.call_args.args[0] == fraction


def test_opening_a_gpu_makes_it_the_current_one(cuda: FakeCuda) -> None:
    """Events are recorded on the current device's stream."""
    CudaDevice(torch.device("cuda", 0))
    assert cuda.calls == ["set_device"]


@pytest.mark.parametrize(
    "method, called",
    [("synchronize", "synchronize"), ("release_memory", "empty_cache"), ("start_peaks", "reset_peak_memory_stats")],
)
def test_what_the_suite_asks_reaches_the_driver(cuda: FakeCuda, device: CudaDevice, method: str, called: str) -> None:
    cuda.calls.clear()
    getattr(device, method)()
    assert cuda.calls == [called]


def test_memory_is_read_off_the_allocator(device: CudaDevice) -> None:
    assert device.available_bytes() == TOTAL_BYTES // 2
    assert device.peak_allocated_bytes() == 300
    assert device.peak_reserved_bytes() == 500


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


def test_the_time_between_events_is_in_seconds(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    first, second = device.record_event(), device.record_event()
    assert first is not None
    assert second is not None
    assert first.seconds_until(second) == 1e-3
