"""What a machine is and grants: cores to bind to, the load of others, limits of the host, and GPUs through NVML."""

import errno
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch

from perf_tests_suite.perf_tests.audit.rounds import POWER_CAP as POWER_CAP_NAME
from perf_tests_suite.perf_tests.bench import loop, workbench
from perf_tests_suite.perf_tests.hardware import cores, machine
from perf_tests_suite.perf_tests.hardware.bound import time as clocks
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from tests.support.example_cases import CPU, SETTINGS, language_model_case
from tests.support.fake_cuda import GPU
from tests.support.fake_device import LoopBenchmark, QueueDevice, linux_says

THREE_THREADS = """
import threading, time
for _ in range(2):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""
ALLOWED = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(ALLOWED) < 2, reason="this process may use one processor only")


@pytest.fixture
def process_id() -> Iterator[int]:
    """A process of three threads."""
    with subprocess.Popen([sys.executable, "-S", "-c", THREE_THREADS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@several_cores
def test_the_main_thread_has_the_first_core_until_let_go(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads share a single one; a process that has ended is left alone."""

    def cores_of_threads() -> list[set[int]]:
        return [os.sched_getaffinity(thread) for thread in sorted(map(int, os.listdir(f"/proc/{process_id}/task")))]

    second, first = ALLOWED[:2]
    for processors, bound in (([first, second], [{first}, {second}, {second}]), ([first], [{first}] * 3)):
        cores.keep_on(process_id, processors)
        assert cores_of_threads() == bound
    cores.let_go(process_id)
    assert cores_of_threads() == [set(ALLOWED)] * 3
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    cores.keep_on(ended.pid, [first])
    cores.let_go(ended.pid)
    assert cores.can_bind()
    monkeypatch.setattr(os, "sched_setaffinity", Mock(side_effect=PermissionError))
    assert not cores.can_bind(), "a machine may forbid it"


def test_threads_up_to_the_cores_have_one_each_and_more_share_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process_id: {0, 1, 2, 3})
    siblings = {0: "0,2\n", 1: "1,3\n", 2: "0,2\n", 3: "1,3\n"}
    folder = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    linux_says(monkeypatch, {folder.format(number): text for number, text in siblings.items()})
    assert cores.processor_of_each_core() == cores.processors_for(1) == cores.processors_for(2) == [0, 1]
    assert cores.processors_for(3) == [0, 1, 2, 3], "threads that are more than the cores would share one processor"
    linux_says(monkeypatch, {})
    assert cores.processor_of_each_core() == [0, 1, 2, 3], "where Linux does not say, each is a core"


def test_the_quota_is_the_least_of_the_control_groups_above(monkeypatch: pytest.MonkeyPatch) -> None:
    for job, above, quota in (
        ("", "", None), ("max 100000", "", None), ("150000 100000", "", 1.5), ("max 100000", "50000 100000", 0.5),
        ("200000 100000", "50000 100000", 0.5),
    ):  # fmt: skip
        limits = {f"/sys/fs/cgroup/{group}/cpu.max": of for group, of in (("ci/job", job), ("ci", above)) if of}
        linux_says(monkeypatch, {"/proc/self/cgroup": "1:cpu:/\n0::/ci/job\n", **limits})
        assert cores.processor_quota() == quota, (job, above)


def test_the_load_of_others_is_that_of_the_usable_processors_without_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds, in which this process kept one core busy; stolen time is others'."""
    ticks, clock, ours = os.sysconf("SC_CLK_TCK"), [0.0], [0.0]
    monkeypatch.setattr("perf_tests_suite.perf_tests.hardware.bound.time", Mock(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(os, "times", lambda: (ours[0],) * 4 + (clock[0],))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})

    def stat(*seconds: float) -> None:
        counts = " ".join(str(round(ticks * one / 2)) for one in seconds)
        of_another = " ".join(str(round(ticks * clock[0])) for _ in seconds)
        lines = [f"cpu 1 {counts}", f"cpu0 {counts}", f"cpu1 {of_another}", f"cpu2 {counts}", "intr 5"]
        linux_says(monkeypatch, {"/proc/stat": "\n".join(lines)})

    stat(5, 0, 0, 9, 0, 0, 0, 0, 0, 0)
    others = machine.OtherProcesses()
    clock[0], ours[0] = 10.0, 2.5
    stat(16, 1, 1, 99, 1, 1, 1, 1, 0, 0)
    assert others.cores() == pytest.approx(0.6)
    others.mark()
    clock[0] = 10.25  # too short to tell by ticks, so all of the time since the first reading
    stat(17, 1, 1, 99, 1, 1, 1, 1, 0, 0)
    assert others.cores() == pytest.approx(7 / 10.25)
    clock[0] = 11.0
    assert others.cores() == pytest.approx(1.0)
    for text in ("", "cpu0 1 2", "cpu0 a b c d e f g h"):
        linux_says(monkeypatch, {"/proc/stat": text})
        assert machine.OtherProcesses().cores() is None, "the kernel counts no time"


def test_what_the_host_grants_is_a_fact_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended machine and a date that is set are told apart from time that passes."""
    clocks = {time.CLOCK_REALTIME: 2000.0, time.CLOCK_BOOTTIME: 500.0, time.CLOCK_MONOTONIC: 400.0}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: clocks[clock])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process_id: {1, 3})
    group = {"/sys/fs/cgroup/memory.max": "4096\n", "/sys/fs/cgroup/memory.current": "5\n"}
    linux_says(monkeypatch, {"/proc/cpuinfo": "cpu MHz : 900.0\ncpu MHz : 2000.5\n", **group})
    known = {"usable_processors": 2, "memory_limit_bytes": 4096, "cpu_clock_mhz": 2000.5}
    for passed, booted, suspended in (
        ((0, 0, 0), 1500.0, 100.0), ((60, 60, 60), 1500.0, 100.0), ((70, 70, 10), 1500.0, 160.0),
        ((-3600, 10, 10), -2110.0, 160.0),
    ):  # fmt: skip
        for clock, seconds in zip(clocks, passed, strict=True):
            clocks[clock] += seconds
        now = known | {"booted_unix_seconds": booted, "suspended_seconds": suspended}
        assert machine.drifting_facts(CPU).items() >= now.items()


def test_the_age_of_the_process_counts_the_interpreters_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    fields = ["S", *map(str, range(18)), str(7 * ticks)]
    linux_says(monkeypatch, {"/proc/self/stat": f"12 (a (odd) name) {' '.join(fields)} 0"})
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 10.0}.__getitem__)
    assert machine.seconds_since_process_start() == 3.0


POWER_CAP, HEAT, IDLE = 0x004, 0x020, 0x001


class FakeNvml(ModuleType):
    """Cards by UUID and bus, and none by a slice's; `lacking` are functions that it refuses, with its words."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.lacking: dict[str, str] = {}
        self.bits, self.millijoules, self.mode = IDLE, 5_000, 3
        clocks = {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}
        self.asked: list[str] = []
        self.answers: dict[str, object] = {
            "Init": None, "DeviceGetHandleByUUID": self.find, "DeviceGetHandleByPciBusId": self.find,
            "DeviceGetPowerUsage": 71_500, "DeviceGetClockInfo": lambda handle, kind: clocks[kind],
            "DeviceGetTemperature": 41, "DeviceGetCurrentClocksEventReasons": lambda handle: self.bits,
            "DeviceGetTotalEnergyConsumption": lambda handle: self.millijoules,
            "DeviceGetPowerManagementLimit": 700_000, "DeviceGetMaxClockInfo": lambda handle, kind: clocks[kind],
            "DeviceGetComputeMode": lambda handle: self.mode, "SystemGetDriverVersion": "580.65.06",
            "DeviceGetMigMode": [0, 1],
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        name = name.removeprefix("nvml")
        if name not in self.answers:
            raise AttributeError(name)
        if name in self.lacking:
            return Mock(side_effect=self.NVMLError(self.lacking[name]))
        return answer if callable(answer := self.answers[name]) else Mock(return_value=answer)

    def find(self, uuid_or_bus: str) -> str:
        self.asked.append(uuid_or_bus)
        if uuid_or_bus.startswith("MIG"):
            raise self.NVMLError("Not Found")
        return uuid_or_bus


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    sees(monkeypatch, uuid="2222")
    return fake


def sees(monkeypatch: pytest.MonkeyPatch, **properties: object) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))


READING = {
    "sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "temperature_celsius": 41, "power_watts": 71.5,
    "clock_events": ["idle"],
}  # fmt: skip
LIMITS = {
    "power_limit_watts": 700.0, "max_sm_clock_mhz": 1980, "max_memory_clock_mhz": 2619,
    "compute_mode": "exclusive process", "mig": False,
}  # fmt: skip


def test_a_reading_has_every_figure_in_its_unit_and_null_for_what_a_card_does_not_tell(nvml: FakeNvml) -> None:
    health = machine.open_gpu_health(GPU)
    assert (health.facts(), health.limits(), health.energy_joules()) == (READING, LIMITS, 5.0)
    nvml.mode = 7  # which nobody knows yet
    assert health.limits()["compute_mode"] is None
    nvml.lacking = dict.fromkeys(nvml.answers, "Not Supported")
    assert {*health.facts().values(), *health.limits().values(), health.energy_joules()} == {None}


def test_power_and_heat_throttle_and_idling_does_not_by_either_name_of_the_question(nvml: FakeNvml) -> None:
    health = machine.open_gpu_health(GPU)
    for _ in range(2):
        for nvml.bits in (0, *machine.REASONS, POWER_CAP | IDLE):
            reasons = [machine.REASONS[bit] for bit in sorted(machine.THROTTLING) if nvml.bits & bit]
            assert health.throttle_reasons() == reasons
        assert health.facts()["clock_events"] == ["idle", "power cap"]
        nvml.answers["DeviceGetCurrentClocksThrottleReasons"] = lambda handle: nvml.bits
        nvml.answers.pop("DeviceGetCurrentClocksEventReasons", None)
    assert sorted(machine.REASONS[bit] for bit in machine.THROTTLING) == [
        "hardware slowdown", "heat", "heat, by the hardware", "power brake", "power cap"
    ]  # fmt: skip


def test_a_card_is_found_by_what_it_is_and_not_by_its_number(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under CUDA_VISIBLE_DEVICES=1 the card that CUDA calls 0 is the second one of NVML; a slice has its own UUID."""
    machine.open_gpu_health(GPU)
    sees(monkeypatch, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    machine.open_gpu_health(GPU)
    for properties, lacking, words in (
        ({"uuid": "MIG-2222"}, {}, "Not Found; check that nvidia-smi lists the GPU"),
        ({}, {}, "reports neither the UUID nor the PCI bus of cuda:0"),
        ({"uuid": "2222"}, {"Init": "Driver Not Loaded"}, "Driver Not Loaded"),
    ):
        sees(monkeypatch, **properties)
        nvml.lacking = lacking
        with pytest.raises(machine.NoHealthError, match=words):
            machine.open_gpu_health(GPU)
    assert nvml.asked == ["GPU-2222", "00000000:3B:00.0", "MIG-2222"]


def test_a_machine_is_known_by_what_administrator_and_user_set(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "perf_tests_suite.perf_tests.hardware.machine._driver_version", lambda: None
    )  # a virtual machine may hide it
    sees(monkeypatch, name="NVIDIA H200", total_memory=2**37, major=9, minor=0, multi_processor_count=132, uuid="2222")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91_002)
    chosen = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1", "CUDA_MODULE_LOADING": "EAGER"}
    for name, value in {**chosen, "TORCHINDUCTOR_CACHE_DIR": "/anywhere"}.items():
        monkeypatch.setenv(name, value)
    facts = machine.stable_facts(GPU, 1)
    known = {**LIMITS, "cudnn": 91_002, "compute_capability": "9.0", "driver": "580.65.06"}
    assert facts["gpu"].items() >= known.items()
    assert facts["environment"].items() >= chosen.items()
    assert not {"TORCHINDUCTOR_CACHE_DIR", "CUBLASLT_WORKSPACE_SIZE"} & facts["environment"].keys()
    nvml.lacking = {"SystemGetDriverVersion": "Unknown Error"}
    assert machine.stable_facts(GPU, 1)["gpu"]["driver"] is None
    nvml.lacking = {"Init": "Driver Not Loaded"}
    assert "power_limit_watts" not in machine.stable_facts(GPU, 1)["gpu"]
    assert machine.stable_facts(CPU, 1)["gpu"] is None


def test_a_gpu_without_the_package_is_measured_with_a_note(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(CpuDevice, "limit_memory", lambda device, budget_bytes: None)
    for where, note in ((CPU, "^None$"), (GPU, "nvidia-ml-py is not installed.*run `pip install nvidia-ml-py`")):
        monkeypatch.setattr(workbench, "open_device", lambda _, where=where: CpuDevice(where))
        bench = workbench.set_up(SETTINGS)
        assert bench.health is None
        assert re.search(note, str(bench.why_no_health))
    assert machine.drifting_facts(GPU)["sm_clock_mhz"] is None


def test_energy_is_that_of_one_round_and_none_of_short_ones(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counter is too coarse for these."""
    clock = QueueDevice()
    monkeypatch.setattr("perf_tests_suite.perf_tests.hardware.bound.time", clock)
    for seconds_of_a_round, joules in ((1.0, 300.0), (0.5, 300.0), (0.49, None)):
        rounds = machine.RoundHealth(machine.open_gpu_health(GPU))
        rounds.begin()
        assert rounds.of_rounds().energy_joules_per_round is None, "no round has ended"
        for _ in range(4):
            nvml.millijoules += 300_000
            clock.now += seconds_of_a_round
            rounds.end_of_round()
        assert rounds.of_rounds().energy_joules_per_round == joules


def test_throttled_rounds_are_kept_by_number_and_reason_and_heat_alone_is_flagged(nvml: FakeNvml) -> None:
    """Of two warm-up and three measured rounds; on a CPU all of this is null. Heavy work runs at the power limit."""

    def measured(health: machine.RoundHealth, throttled: Sequence[int] = (), bits: int = 0) -> dict[str, Any]:
        ran: list[int] = []

        def target() -> None:
            ran.append(1)
            nvml.bits = bits if len(ran) in throttled else IDLE

        device, fixture = CpuDevice(CPU), LoopBenchmark()
        loop.TimedMeasure(fixture, Clock(device), device, 3, 2, loop.RowBuilder(language_model_case()), health=health)(
            target
        )
        return fixture.extra_info

    heat, power = machine.REASONS[HEAT], machine.REASONS[POWER_CAP]
    for throttled, bits, numbers, reasons, is_flagged in (
        ((4, 5), HEAT, [2, 3], {heat: 2}, True), ((3, 4, 5), POWER_CAP, [1, 2, 3], {power: 3}, False),
        ((1, 2), HEAT, [], {}, False), ((4,), HEAT | POWER_CAP, [2], {heat: 1, power: 1}, True),
    ):  # fmt: skip
        info = measured(machine.RoundHealth(machine.GpuHealth(nvml, "card")), throttled, bits)
        assert (info["throttled_rounds"], info["throttle_reasons"]) == (numbers, reasons)
        assert ("throttled" in info["flags"], info["median_sm_clock_mhz"]) == (is_flagged, 1980)
    assert power == POWER_CAP_NAME
    on_cpu = measured(machine.RoundHealth(None))
    for name in ("throttled_rounds", "energy_joules_per_round", "throttle_reasons", "median_sm_clock_mhz"):
        assert on_cpu[name] is None


def test_two_runs_on_one_device_see_each_other_while_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their storage; what a killed run left is removed, what is about to be locked is not."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = machine.RunsBeside("cpu", "/first")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    second, on_gpu = machine.RunsBeside("cpu", "/second"), machine.RunsBeside("cuda:0", "/second")
    left, begun = tmp_path / "perf-tests-run-left", tmp_path / "perf-tests-run-begun"
    left.write_text('{"process": 8, "device": "cpu", "where": "/left"}')
    begun.touch()
    assert (second.scan(), on_gpu.scan()) == (True, False)
    (said,) = second.sentences()
    assert "measures on this machine at the same time, into /first: each run makes" in said
    assert (left.exists(), begun.exists(), on_gpu.sentences()) == (False, True, [])
    now = clocks.monotonic()
    first.close()
    assert (second.seen_since(now - 60), second.seen_since(now)) == (True, False)
    assert second.sentences() == [said], "a case had measured beside it"
    second.close()
    on_gpu.close()


def test_a_folder_of_compiled_code_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert machine.why_code_cannot_be_kept() is None
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert machine.why_code_cannot_be_kept() is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "folder"))
    assert "cannot be made: Not a directory; name a folder" in str(machine.why_code_cannot_be_kept())


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_folder_of_compiled_code_that_is_read_only_or_full_is_told_before_anything_is_measured(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal, file = OSError(number, os.strerror(number)), MagicMock()
    file.__exit__.return_value = None
    file.__enter__.return_value.write.side_effect = refusal
    makes = Mock(side_effect=refusal) if number == errno.EROFS else Mock(return_value=file)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", makes)
    told = f"={tmp_path} takes no compiled code: {os.strerror(number)}; name a folder"
    assert told in str(machine.why_code_cannot_be_kept())
