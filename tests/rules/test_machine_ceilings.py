"""The ceilings of a machine are measured once and kept; a cache that cannot be trusted is measured over."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from model.precision import PRECISIONS, Precision
from perf_tests.bench.workbench import Workbench
from perf_tests.hardware import clock as roofline
from perf_tests.hardware.device import CpuDevice
from perf_tests.hardware.limits import Ceilings, Rate
from perf_tests.hardware.machine import OtherProcesses
from perf_tests.predict import machine as machine_ceilings
from perf_tests.predict.machine import cache_path, ceilings_here
from tests.support.example_cases import CEILINGS
from tests.support.fake_device import QueueDevice

CPU = CpuDevice(torch.device("cpu"))


@pytest.fixture
def measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Ceilings]:
    """How often the machine was measured, with a cache of the test's own and a measurement that takes no time."""
    done: list[Ceilings] = []

    def measured(device: object) -> Ceilings:
        done.append(replace(CEILINGS, launch_seconds=1e-5 * (len(done) + 1)))
        return done[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_ceilings, "measured_ceilings", measured)
    monkeypatch.setattr(OtherProcesses, "cores", lambda _: 0.1)
    return done


def test_the_second_time_nothing_is_measured(measurements: list[Ceilings]) -> None:
    first, second = ceilings_here(CPU), ceilings_here(CPU)
    assert first == second == measurements[0]
    assert len(measurements) == 1


def test_what_a_busy_machine_measured_is_said_to_be_so_and_not_kept(
    measurements: list[Ceilings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherProcesses, "cores", lambda _: 1.0)
    assert "busy machine" in ceilings_here(CPU).source
    assert not cache_path(CPU.torch_device).exists()
    monkeypatch.setattr(OtherProcesses, "cores", lambda _: 0.1)
    assert ceilings_here(CPU) == measurements[1]


def edited(cached: bytes, name: str, value: Any) -> bytes:
    data = json.loads(cached)
    return json.dumps({**data, name: {**data[name], **value} if isinstance(value, dict) else value}).encode()


EDITS: list[tuple[str, Any]] = [
    ("identity", {"cpu": "another"}), ("identity", {"torch": "1.0"}), ("identity", {"threads": 99}),
    ("identity", None), ("ceilings", None),
    *(("ceilings", {name: value}) for name, value in (
        ("bytes_per_second", -1), ("bytes_per_second", "fast"), ("bytes_per_second", 10**400),
        ("launch_seconds", None), ("strided_elements_per_second", []), ("strided_elements_per_second", 0),
        ("last_wave_elements", "x"), ("kernel_seconds", None), ("kernel_seconds", -1e-6),
        ("matmul_flops_per_second", [1]), ("matmul_flops_per_second", {"fp32": 0}),
        ("matmul_flops_per_second", {"</script>": 1e9}),
    )),
]  # fmt: skip


def test_a_cache_that_is_corrupt_of_another_machine_or_without_sense_is_measured_over(
    measurements: list[Ceilings],
) -> None:
    ceilings_here(CPU)
    path = cache_path(CPU.torch_device)
    good = path.read_bytes()
    for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, *(edited(good, *edit) for edit in EDITS)):
        path.write_bytes(content)
        done = len(measurements)
        assert ceilings_here(CPU) == ceilings_here(CPU) == measurements[done], content[:200]
        assert len(measurements) == done + 1


def test_a_folder_that_cannot_be_written_costs_the_cache_and_nothing_else(
    measurements: list[Ceilings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert [ceilings_here(CPU), ceilings_here(CPU)] == measurements
    assert len(measurements) == 2


@pytest.mark.parametrize("folder", ["", "relative/to/anything"])
def test_without_an_absolute_cache_folder_the_home_is_taken(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    assert cache_path(torch.device("cpu")).is_relative_to(Path.home() / ".cache")


class HotDevice(QueueDevice):
    """Slows down by a quarter after a quarter of a second of work, and launches take a tenth of their work's time."""

    def product(self) -> None:
        self.now += 1e-4
        self.launch(1e-3 if self.done_at < 0.25 else 1.25e-3)


def test_a_gpu_is_timed_by_events_over_batches_before_and_under_load() -> None:
    """The launch and a wait after each batch are no part of the rate."""
    device = HotDevice()
    rate = roofline.rate_of(device.product, 100, device)
    assert rate.burst == pytest.approx(100 / 1e-3, rel=0.03)
    assert rate.sustained == pytest.approx(100 / 1.25e-3, rel=0.03)


def test_what_the_measurements_hold_is_given_back_after_the_last_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model multiplies matrices in two threads, whose workspaces would count in the first case's peak."""
    calls, device = [], CpuDevice(torch.device("cpu"))

    def launch_seconds(_: object) -> tuple[float, float, float]:
        calls.append("launches")
        return 1e-5, 1e-5, 1e-5

    for name in ("matmul_rate", "memory_rate"):
        monkeypatch.setattr(machine_ceilings, name, lambda *_: Rate(2.0, 1.0))
    monkeypatch.setattr(machine_ceilings, "launch_seconds", launch_seconds)
    monkeypatch.setattr(device, "release_memory", lambda: calls.append("release"))
    found = machine_ceilings.measured_ceilings(device)
    assert calls == ["launches", "release"]
    assert (found.matmul_flops_per_second["fp32"], found.burst_flops_per_second["fp32"]) == (1.0, 2.0)


def test_the_instruments_find_ceilings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time; the figures are real, and only their signs are certain."""
    monkeypatch.setattr(roofline, "_ROUNDS", 2)
    monkeypatch.setattr(roofline, "_WIDTH", {"cpu": 64})
    monkeypatch.setattr(roofline, "_ARRAY_BYTES", {"cpu": 2**20})
    found = machine_ceilings.measured_ceilings(CPU)
    known = machine_ceilings.MEASURED_PRECISIONS
    native = {name for name in known if not PRECISIONS[name].why_unsupported(CPU.torch_device)}
    assert set(found.matmul_flops_per_second) == native
    assert not found.launches_overlap
    assert torch.get_float32_matmul_precision() == "highest"


KEPT = replace(CEILINGS, matmul_flops_per_second={"fp32": 1e11}, burst_flops_per_second={"fp32": 1e11})


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], tuple[Workbench, list[str]]]:
    """A workbench whose products run at a planted rate and whose cache holds `KEPT`, and what it measured."""

    def of(rate: float) -> tuple[Workbench, list[str]]:
        done: list[str] = []

        def product(precision: Precision, device: object, enough: float = math.inf) -> Rate:
            done.append("all products" if enough == math.inf else "a product")
            return Rate(rate, rate)

        def everything(device: object) -> Ceilings:
            done.append("everything")
            return replace(KEPT, bytes_per_second=5e10)

        monkeypatch.setattr(roofline, "matmul_rate", product)
        monkeypatch.setattr(machine_ceilings, "kept_ceilings", lambda device: KEPT)
        monkeypatch.setattr(machine_ceilings, "ceilings_of_now", everything)
        return Workbench(Mock(), CPU, Mock(), 2**30), done

    return of


Bench = Callable[[float], tuple[Workbench, list[str]]]


def test_a_kept_rate_that_a_product_confirms_is_the_ceiling(bench: Bench) -> None:
    workbench, done = bench(0.98e11)
    assert [workbench.ceiling("fp32") for _ in range(3)] == [1e11] * 3
    assert (done, workbench.doubts) == (["a product"], [])


def test_a_machine_that_is_faster_than_its_kept_rates_is_measured_again(bench: Bench) -> None:
    workbench, done = bench(1.2e11)
    ceilings = workbench.ceilings_for("fp32")
    assert ceilings is not None
    assert (ceilings.highest_flops_per_second["fp32"], ceilings.bytes_per_second) == (1.2e11, 5e10)
    assert (done, workbench.doubts) == (["a product", "everything"], [])


def test_a_machine_that_is_slower_than_its_kept_rates_is_said_to_be(bench: Bench) -> None:
    workbench, done = bench(0.5e11)
    assert workbench.ceiling("fp32") == 0.5e11
    (doubt,) = workbench.doubts
    assert "reach 50% of the rate kept in" in doubt
    assert "remove that file" in doubt
    assert done == ["a product"]


def test_a_precision_without_a_kept_rate_is_measured(bench: Bench) -> None:
    workbench, done = bench(3e11)
    assert workbench.ceiling("bf16") == 3e11
    assert (done, workbench.doubts) == (["all products"], [])


def test_what_was_measured_a_moment_ago_is_not_measured_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    workbench, done = bench(1e11)
    monkeypatch.setattr(machine_ceilings, "kept_ceilings", lambda device: None)
    assert workbench.ceiling("fp32") == 1e11
    assert done == ["everything"]
