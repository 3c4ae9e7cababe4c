"""What a machine is and grants: cores to bind to, the load of others, limits of the host, and GPUs through NVML."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from model.device import device_named
from perf_tests.audit.rounds import RowFacts, raised
from perf_tests.bench import workbench as workbench_module
from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.bench.workbench import set_up
from perf_tests.hardware import machine as gpu_health
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CpuDevice, CudaDevice
from perf_tests.hardware.machine import (
    GpuHealth,
    NoHealthError,
    OtherProcesses,
    RoundHealth,
    can_bind,
    drifting_facts,
    granted_by_host,
    keep_on,
    let_go,
    open_gpu_health,
    processor_of_each_core,
    processor_quota,
    processors_for,
    stable_facts,
)
from perf_tests.predict import machine as machine_ceilings
from perf_tests.predict.costs import libraries_here
from perf_tests.predict.machine import ceilings_here
from perf_tests.records.record import machine_differences
from tests.support.example_cases import CEILINGS, CPU, SETTINGS, language_model_case
from tests.support.fake_cuda import GPU, IDLE, POWER_CAP, FakeCuda, FakeNvml
from tests.support.fake_device import LoopBenchmark, QueueDevice

THREE_THREADS = """
import threading, time
for _ in range(2):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""

several_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process may use one processor only")


@pytest.fixture
def process_id() -> Iterator[int]:
    """A process of three threads."""
    process = subprocess.Popen([sys.executable, "-c", THREE_THREADS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def cores_of_threads(process_id: int) -> list[set[int]]:
    """The main thread's first."""
    return [os.sched_getaffinity(thread) for thread in sorted(map(int, os.listdir(f"/proc/{process_id}/task")))]


@several_cores
def test_the_main_thread_has_the_first_core_to_itself_and_all_threads_share_a_single_one(process_id: int) -> None:
    second, first = sorted(os.sched_getaffinity(0))[:2]
    keep_on(process_id, [first, second])
    assert cores_of_threads(process_id) == [{first}, {second}, {second}]
    keep_on(process_id, [first])
    assert cores_of_threads(process_id) == [{first}] * 3


@several_cores
def test_a_process_let_go_works_wherever_this_one_may(process_id: int) -> None:
    keep_on(process_id, [min(os.sched_getaffinity(0))])
    let_go(process_id)
    assert cores_of_threads(process_id) == [os.sched_getaffinity(0)] * 3


def test_a_process_that_has_ended_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: asked.append(thread))
    keep_on(ended.pid, [0])
    let_go(ended.pid)
    assert asked == []


def test_a_machine_may_forbid_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_bind()

    def refuse(process_id: int, cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert not can_bind()


def test_each_core_is_there_once() -> None:
    cores = processor_of_each_core()
    assert len(set(cores)) == len(cores) > 0
    assert set(cores) <= os.sched_getaffinity(0)


def test_of_two_hardware_threads_of_a_core_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process_id: {0, 1, 2, 3})
    siblings = {0: "0,2\n", 1: "1,3\n", 2: "0,2\n", 3: "1,3\n"}
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: siblings[int(path.parts[5].removeprefix("cpu"))])
    assert processor_of_each_core() == processors_for(1) == processors_for(2) == [0, 1]
    assert processors_for(3) == [0, 1, 2, 3], "threads that are more than the cores would share one processor"


@pytest.mark.parametrize("limits, quota", [
    ({}, None), ({"ci/job": "max 100000"}, None), ({"ci/job": "150000 100000"}, 1.5),
    ({"ci/job": "max 100000", "ci": "50000 100000"}, 0.5), ({"ci/job": "200000 100000", "ci": "50000 100000"}, 0.5),
])  # fmt: skip
def test_the_quota_is_the_least_of_the_control_groups_above(
    limits: dict[str, str], quota: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/proc/self/cgroup": "1:cpu:/\n0::/ci/job\n"}
    files |= {f"/sys/fs/cgroup/{group}/cpu.max": f"{limit}\n" for group, limit in limits.items()}

    def read(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert processor_quota() == quota


@several_cores
def test_a_processor_taken_away_is_a_fact_of_the_moment() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert drifting_facts(torch.device("cpu"))["usable_processors"] == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert drifting_facts(torch.device("cpu"))["usable_processors"] == len(allowed)


def stat(monkeypatch: pytest.MonkeyPatch, *jiffies: int) -> None:
    line = f"cpu {' '.join(map(str, jiffies))}\ncpu0 1\n"
    monkeypatch.setattr(Path, "read_text", lambda path: line)


def test_the_load_of_others_is_that_of_all_processors_without_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, clock, ours = os.sysconf("SC_CLK_TCK"), [0.0], [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(os, "times", lambda: Mock(user=ours[0], system=0.0))
    stat(monkeypatch, 5 * ticks, 0, 0, 9 * ticks, 0, 0, 0, 0, 0, 0)
    others = OtherProcesses()
    clock[0], ours[0] = 10.0, 10.0  # ten seconds, in which this process kept one core busy
    stat(monkeypatch, 16 * ticks, ticks, ticks, 99 * ticks, ticks, ticks, ticks, ticks, 0, 0)
    assert others.cores() == pytest.approx(0.6)


def test_without_the_kernels_count_the_load_of_the_last_minute_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stat(monkeypatch)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    assert OtherProcesses().cores() == 3.0


NOW = {time.CLOCK_REALTIME: 2000.0, time.CLOCK_BOOTTIME: 500.0, time.CLOCK_MONOTONIC: 400.0}


@pytest.fixture
def facts_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], dict[str, object]]:
    def facts(clocks: dict[int, float]) -> dict[str, object]:
        with monkeypatch.context() as patch:
            patch.setattr(time, "clock_gettime", clocks.__getitem__)
            return drifting_facts(torch.device("cpu"))

    return facts


@pytest.mark.parametrize(("seconds", "flags"), [
    (dict.fromkeys(NOW, 60.0), []),
    ({time.CLOCK_REALTIME: 70.0, time.CLOCK_BOOTTIME: 70.0, time.CLOCK_MONOTONIC: 10.0}, ["suspended"]),
    ({time.CLOCK_REALTIME: -3600.0, time.CLOCK_BOOTTIME: 10.0, time.CLOCK_MONOTONIC: 10.0}, ["date_set"]),
])  # fmt: skip
def test_a_suspended_machine_and_a_date_that_is_set_are_told_apart_from_time_that_passes(
    seconds: dict[int, float], flags: list[str], facts_at: Callable[[dict[int, float]], dict[str, object]]
) -> None:
    before, after = facts_at(NOW), facts_at({clock: value + seconds[clock] for clock, value in NOW.items()})
    found = raised(RowFacts([1.0, 1.0], before=before, after=after))
    assert [flag for flag in found if flag in ("suspended", "date_set")] == flags


@pytest.mark.parametrize(("limit", "bytes_"), [("max", None), ("1073741824", 2**30)])
def test_the_memory_of_the_control_group_is_a_fact_of_the_moment(
    limit: str, bytes_: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text
    files = {"/sys/fs/cgroup/memory.max": f"{limit}\n", "/sys/fs/cgroup/memory.current": "5\n"}

    def read_text(path: Path) -> str:
        if path.is_relative_to("/sys/fs/cgroup/memory"):
            raise FileNotFoundError(path)
        return files[str(path)] if str(path) in files else read(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert drifting_facts(torch.device("cpu"))["memory_limit_bytes"] == bytes_


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    sees(monkeypatch, uuid="2222")
    return fake


def sees(monkeypatch: pytest.MonkeyPatch, **properties: object) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))


def test_a_reading_has_every_figure_in_its_unit(nvml: FakeNvml) -> None:
    assert open_gpu_health(GPU).facts() == {
        "sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "temperature_celsius": 41, "power_watts": 71.5,
        "clock_events": ["idle"],
    }  # fmt: skip


FACTS = {
    "name": "NVIDIA H200", "total_memory": 2**37, "major": 9, "minor": 0, "multi_processor_count": 132, "uuid": "2222",
}  # fmt: skip


def test_a_machine_is_known_by_what_its_administrator_set(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(monkeypatch, **FACTS)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91_002)
    nvml.lacking = {"nvmlDeviceGetMaxClockInfo": "Not Supported"}
    gpu = stable_facts(GPU, 1)["gpu"]
    assert (gpu["cudnn"], gpu["power_limit_watts"], gpu["max_sm_clock_mhz"]) == (91_002, 700.0, None)
    assert (gpu["compute_mode"], gpu["mig"]) == ("exclusive process", False)
    nvml.lacking = {"nvmlInit": "Driver Not Loaded"}
    assert "power_limit_watts" not in stable_facts(GPU, 1)["gpu"]


def test_variables_that_choose_kernels_are_facts_of_the_machine_where_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1", "CUDA_MODULE_LOADING": "EAGER"}
    for name, value in {**chosen, "TORCHINDUCTOR_CACHE_DIR": "/anywhere"}.items():
        monkeypatch.setenv(name, value)
    environment = stable_facts(CPU, 1)["environment"]
    assert environment.items() >= chosen.items()
    assert not {"TORCHINDUCTOR_CACHE_DIR", "CUBLASLT_WORKSPACE_SIZE"} & environment.keys()


def test_a_card_is_found_by_what_it_is_and_not_by_its_number(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under CUDA_VISIBLE_DEVICES=1 the card that CUDA calls 0 is the second one of NVML."""
    open_gpu_health(GPU)
    assert nvml.asked == ["GPU-2222"]
    sees(monkeypatch, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    open_gpu_health(GPU)
    assert nvml.asked[-1] == "00000000:3B:00.0"


def test_a_slice_of_a_card_keeps_the_kind_of_its_uuid(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(monkeypatch, uuid="MIG-2222")
    with pytest.raises(NoHealthError, match="Not Found; check that nvidia-smi lists the GPU"):
        open_gpu_health(GPU)
    assert nvml.asked == ["MIG-2222"]


def test_what_a_card_does_not_tell_is_null_and_the_rest_is_read(nvml: FakeNvml) -> None:
    nvml.lacking = dict.fromkeys(("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"), "Not Supported")
    health = open_gpu_health(GPU)
    assert health.energy_joules() is None
    assert health.facts()["power_watts"] is None
    assert health.facts()["temperature_celsius"] == 41


def test_an_older_package_is_asked_by_the_older_name(nvml: FakeNvml) -> None:
    del nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    nvml.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda handle: POWER_CAP
    assert open_gpu_health(GPU).facts()["clock_events"] == ["power cap"]


@pytest.mark.parametrize("bits, is_throttled", [
    (0x000, False), (0x001, False), (0x002, False), (0x010, False), (0x100, False),
    (0x004, True), (0x008, True), (0x020, True), (0x040, True), (0x080, True), (0x005, True),
])  # fmt: skip
def test_power_and_heat_throttle_and_idling_does_not(nvml: FakeNvml, bits: int, is_throttled: bool) -> None:
    nvml.bits = bits
    assert open_gpu_health(GPU).is_throttled() is is_throttled


def test_without_a_driver_the_reason_is_the_drivers_own(nvml: FakeNvml) -> None:
    nvml.lacking = {"nvmlInit": "Driver Not Loaded"}
    with pytest.raises(NoHealthError, match="Driver Not Loaded"):
        open_gpu_health(GPU)


def test_a_gpu_without_uuid_or_bus_is_refused(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(monkeypatch)
    with pytest.raises(NoHealthError, match="reports neither the UUID nor the PCI bus of cuda:0"):
        open_gpu_health(GPU)


def test_a_cpu_never_imports_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(workbench_module, "open_device", lambda device: UncappedDevice(device))
    bench = set_up(SETTINGS)
    assert (bench.health, bench.why_no_health) == (None, None)


def test_a_gpu_without_the_package_is_measured_with_a_note(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(workbench_module, "open_device", lambda device: UncappedDevice(GPU))
    bench = set_up(SETTINGS)
    assert bench.health is None
    assert re.search("nvidia-ml-py is not installed.*run `pip install nvidia-ml-py`", bench.why_no_health or "")
    assert drifting_facts(GPU, bench.health) == {"sm_clock_mhz": None, **granted_by_host()}


class UncappedDevice(CpuDevice):
    """Leaves the memory of the test's own process alone."""

    def limit_memory(self, budget_bytes: int) -> None:
        return


@pytest.mark.parametrize("seconds_of_a_round, joules", [(1.0, 300.0), (0.1, None)])
def test_energy_is_that_of_one_round_and_none_where_its_counter_is_too_coarse(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, seconds_of_a_round: float, joules: float | None
) -> None:
    clock = QueueDevice()
    monkeypatch.setattr(gpu_health, "time", clock)
    rounds = RoundHealth(open_gpu_health(GPU))
    rounds.begin()
    for _ in range(4):
        nvml.millijoules += 300_000
        clock.now += seconds_of_a_round
        rounds.end_of_round()
    assert rounds.facts()["energy_joules_per_round"] == joules


def measured(nvml: FakeNvml, throttled: range) -> dict[str, Any]:
    """`extra_info` of two warm-up and three measured rounds, and how many ran; `throttled` are numbers from 1."""
    health = GpuHealth(nvml, "card")
    device, benchmark = CpuDevice(CPU), LoopBenchmark()
    done = 0

    def target() -> None:
        nonlocal done
        done += 1
        nvml.bits = POWER_CAP if done in throttled else IDLE

    row = Row(language_model_case())
    measure = TimedMeasure(benchmark, Clock(device), device, 3, 2, row, health=RoundHealth(health))
    measure(target)
    return {**benchmark.extra_info, "rounds_run": done}


@pytest.mark.parametrize(
    ("throttled", "numbers"),
    [(range(4, 6), [2, 3]), (range(1, 3), []), (range(0), [])],
    ids=["measured rounds", "warm-up rounds", "none"],
)
def test_throttled_rounds_are_flagged_by_number_and_kept(nvml: FakeNvml, throttled: range, numbers: list[int]) -> None:
    info = measured(nvml, throttled)
    assert info["throttled_rounds"] == numbers
    assert ("throttled" in info["flags"]) == bool(numbers)
    assert info["rounds_run"] == 5


def test_on_a_cpu_health_is_null() -> None:
    device, benchmark = CpuDevice(CPU), LoopBenchmark()
    TimedMeasure(benchmark, Clock(device), device, 3, 0, Row(language_model_case()))(lambda: None)
    assert benchmark.extra_info["throttled_rounds"] is None
    assert benchmark.extra_info["energy_joules_per_round"] is None


KINDS = {
    0: SimpleNamespace(name="NVIDIA H200", uuid="aaaa", total_memory=141 * 2**30, major=9, minor=0,
                       multi_processor_count=132, power_watts=700.0),
    1: SimpleNamespace(name="NVIDIA RTX A4000", uuid="bbbb", total_memory=16 * 2**30, major=8, minor=6,
                       multi_processor_count=48, power_watts=140.0),
}  # fmt: skip


class TwoCards(ModuleType):
    """NVML, which counts by the bus and finds a card by its UUID."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")

    def nvmlInit(self) -> None:  # noqa: N802 -- NVML's name
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimpleNamespace:  # noqa: N802
        return next(kind for kind in KINDS.values() if uuid == f"GPU-{kind.uuid}")

    def nvmlDeviceGetPowerManagementLimit(self, kind: SimpleNamespace) -> float:  # noqa: N802
        return float(kind.power_watts * 1000)

    def __getattr__(self, name: str) -> object:
        if name.startswith("NVML_"):
            return 0
        return self.does_not_tell

    def does_not_tell(self, *_: object) -> None:
        raise self.NVMLError("Not Supported")


def kind_of(device: torch.device | int) -> SimpleNamespace:
    return KINDS[device if isinstance(device, int) else device.index or 0]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch).sees(count=2)
    monkeypatch.setitem(sys.modules, "pynvml", TwoCards())
    monkeypatch.setattr(torch.cuda, "get_device_properties", kind_of)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: kind_of(device).name)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: (kind_of(device).major, kind_of(device).minor)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (kind_of(device).total_memory,) * 2)


def test_the_facts_of_each_are_its_own(two_gpus: None) -> None:
    for place, kind in KINDS.items():
        device = device_named(f"cuda:{place}")
        facts = stable_facts(device, 1)["gpu"]
        assert (facts["name"], facts["memory_bytes"]) == (kind.name, kind.total_memory)
        assert facts["power_limit_watts"] == kind.power_watts
        assert open_gpu_health(device).limits()["power_limit_watts"] == kind.power_watts
        assert CudaDevice(device).available_bytes() == kind.total_memory - CudaDevice.kept_free_bytes


def test_the_libraries_rules_are_those_of_the_kind_that_is_named(two_gpus: None) -> None:
    large, small = (libraries_here(device_named(f"cuda:{place}")) for place in KINDS)
    assert large is not None
    assert small is not None
    assert large.workspace_bytes > small.workspace_bytes


def test_times_of_one_are_not_compared_with_those_of_the_other(two_gpus: None) -> None:
    here, there = ({"torch": stable_facts(device_named(f"cuda:{place}"), 1)} for place in KINDS)
    assert "gpu.name: 'NVIDIA H200' here, 'NVIDIA RTX A4000' there" in machine_differences(here, there)


def test_what_one_can_do_is_not_taken_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_gpus: None
) -> None:
    measured: list[str] = []

    def measure(device: CudaDevice) -> object:
        measured.append(kind_of(device.torch_device).name)
        return CEILINGS

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_ceilings, "measured_ceilings", measure)
    monkeypatch.setattr(OtherProcesses, "cores", lambda _: 0.0)
    for place in (0, 0, 1, 1):
        ceilings_here(CudaDevice(device_named(f"cuda:{place}")))
    assert measured == [kind.name for kind in KINDS.values()]


def test_a_third_is_refused_with_the_names_of_the_two(two_gpus: None) -> None:
    with pytest.raises(ValueError, match=r"cuda:0 \(NVIDIA H200\), cuda:1 \(NVIDIA RTX A4000\)\.$"):
        device_named("cuda:2")
