"""A worker of the gate on a device with a queue of work: its turns, and the end of a process whose device is lost."""

import gc
from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests.bench.workbench import Workbench
from perf_tests.bench.workers import Channel
from perf_tests.hardware import clock as clock_module
from perf_tests.hardware.clock import Clock, sentinel_bytes, sentinels
from perf_tests.hardware.device import CpuDevice, Device
from perf_tests.interleaved import on_demand as gate
from perf_tests.interleaved.on_demand import GatePlugin, RoundsOnDemand
from tests.support.example_cases import CPU, SETTINGS, attention_case
from tests.support.fake_device import QueueDevice
from tests.support.items import benchmark, stash_of

GPU = torch.device("cuda", 0)


class RecordingChannel(Channel):
    """Asks for these requests; `sent` holds what the worker said, and whether its device was idle then."""

    def __init__(self, requests: list[dict[str, Any]], device: QueueDevice | None = None) -> None:
        self.requests, self.device = requests, device
        self.sent: list[tuple[dict[str, Any], bool]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append((message, self.device is None or self.device.now >= self.device.done_at))

    def receive(self, patience_seconds: float | None = None) -> dict[str, Any]:
        return self.requests.pop(0)


def served(monkeypatch: pytest.MonkeyPatch, device: QueueDevice) -> list[tuple[dict[str, Any], bool]]:
    """What a worker answers to a turn of two rounds and to a sentinel; a round launches a second of work."""
    monkeypatch.setattr(clock_module, "time", device)
    clock = Clock(device)
    turns: list[dict[str, Any]] = [
        {"unmeasured": 1, "rounds": 2},
        {"sentinel": "arithmetic", "count": 1},
        {"enough": True},
    ]
    channel = RecordingChannel(turns, device)
    plugin = GatePlugin(settings=SETTINGS, channel=channel)
    plugin._sentinels = {"arithmetic": lambda: device.launch(3.0)}
    measure = RoundsOnDemand(lambda *round: plugin.serve_rounds("case", clock, 0.0, *round), clock, device, 1)
    measure(lambda: device.launch(1.0), lambda: device.launch(5.0))
    return channel.sent


def test_a_turn_ends_once_the_device_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = served(monkeypatch, QueueDevice())
    assert [list(answer["seconds"]) for answer, _ in answers[1:]] == [[1.0, 1.0], [3.0]]
    assert all(is_idle for _, is_idle in answers)
    # Each round waits twice; without the second wait of the last round, work is left to the other side's turn.
    assert not all(is_idle for _, is_idle in served(monkeypatch, QueueDevice(deaf_to=8)))


@pytest.mark.parametrize("where, cpu_seconds", [(CPU, (0.5, 0.5)), (GPU, None)])
def test_the_cpu_time_of_a_thread_that_spins_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, where: torch.device, cpu_seconds: tuple[float, ...] | None
) -> None:
    device = QueueDevice()
    device.torch_device = where
    assert served(monkeypatch, device)[1][0]["cpu_seconds"] == cpu_seconds


@pytest.mark.parametrize("miss, seconds", [(0, 0.0), (1, 3.0)])
def test_what_generating_code_and_counting_took_is_told_apart_from_what_each_launch_takes(
    monkeypatch: pytest.MonkeyPatch, miss: int, seconds: float
) -> None:
    monkeypatch.setattr(gate, "count_compilations", lambda: Counter(cache_hits=1, cache_misses=miss))
    channel = RecordingChannel([{"enough": True}])
    plugin = GatePlugin(settings=SETTINGS, channel=channel)
    plugin.serve_rounds("case", Mock(spec=Clock), 0.25, Mock(), [5.0, 2.5, 2.0])
    ((answer, _),) = channel.sent
    assert (answer["round_seconds"], answer["once_seconds"]) == (2.0, 0.25 + seconds)


def item_on(workbench: Workbench) -> Any:
    config = Mock(stash=stash_of(workbench=workbench))
    return Mock(config=config, stash=benchmark(attention_case()).stash, session=Mock(shouldstop=False), nodeid="a")


def workbench_on(device: Device, **changes: Any) -> Workbench:
    return Workbench(SETTINGS, device, Mock(spec=Clock), 2**40, **changes)


@pytest.mark.parametrize("stops, key", [(False, "done"), ("cuda:0 is unusable", "ended")])
def test_a_worker_whose_device_is_lost_says_so_instead_of_serving_the_next_case(stops: object, key: str) -> None:
    item = item_on(workbench_on(Mock(spec=Device, torch_device=GPU)))
    channel = RecordingChannel([])
    plugin = GatePlugin(settings=SETTINGS, channel=channel)
    protocol = plugin.pytest_runtest_protocol(item)
    next(protocol)
    plugin.outcome = {"outcome": "error", "reason": "CUDA error: device-side assert triggered"}
    item.session.shouldstop = stops
    with pytest.raises(StopIteration):
        protocol.send(None)
    ((message, _),) = channel.sent
    assert key in message
    assert "device-side assert triggered" in str(message)


def test_why_the_suite_refuses_to_measure_reaches_the_gate() -> None:
    plugin = GatePlugin(settings=SETTINGS, channel=RecordingChannel([]))
    collection = plugin.pytest_collection()
    next(collection)
    with pytest.raises(pytest.UsageError):
        collection.throw(pytest.UsageError("cuda:0 cannot be used."))
    assert plugin.trouble == "cuda:0 cannot be used."


def test_a_gpu_notices_its_sentinels_and_each_side_keeps_room_for_them() -> None:
    assert sentinel_bytes(GPU) == 3 * 4 * 4096**2 + 2 * 2**30
    assert sentinel_bytes(CPU) == 0
    device = Mock(spec=Device, torch_device=GPU, kept_free_bytes=2 * 2**30)
    workbench = workbench_on(device)
    half_bytes = workbench.halve_memory()
    assert half_bytes == (2**40 - 2 * 2**30) // 2
    assert workbench.budget_bytes == half_bytes - sentinel_bytes(GPU)


def test_a_case_that_does_not_fit_beside_the_other_side_says_so_in_one_sentence() -> None:
    workbench = workbench_on(CpuDevice(CPU))
    workbench.budget_bytes = 2
    workbench.halve_memory()
    refusal = workbench.why_not(attention_case())
    assert refusal is not None
    assert "may be used by each of base and head, which are in memory at the same time; choose" in refusal.reason


def test_a_worker_takes_the_gates_order_and_what_an_earlier_launch_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)  # for good, and this process goes on
    workbench = workbench_on(CpuDevice(CPU))
    cases = {"a": attention_case(), "b": attention_case(head_dim=32)}
    config = Mock(stash=stash_of(workbench=workbench))
    items: list[Any] = [benchmark(case, nodeid=name) for name, case in cases.items()]
    plugin = GatePlugin(settings=SETTINGS, channel=RecordingChannel([{"order": ["b", "a"], "measured": ["b"]}]))
    collecting = plugin.pytest_collection_modifyitems(Mock(testsfailed=0), config, items)
    next(collecting)
    with pytest.raises(StopIteration):
        collecting.send(None)
    assert [item.nodeid for item in items] == ["b", "a"]
    assert workbench.known_to_fit == {cases["b"]}


def test_the_memory_of_a_case_that_an_earlier_launch_measured_is_not_counted_again() -> None:
    case = attention_case()
    workbench = workbench_on(CpuDevice(CPU), known_to_fit=frozenset([case]))
    workbench.budget_bytes = 2
    assert workbench.why_not(case) is None
    assert workbench.why_not(attention_case(head_dim=32)) is not None


def test_the_sentinels_run_without_tf32_whatever_the_case_before_left() -> None:
    torch.set_float32_matmul_precision("high")
    sentinels(CPU)["arithmetic"]()
    assert torch.get_float32_matmul_precision() == "highest"
