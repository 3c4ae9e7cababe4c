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

from perf_tests_suite.model.precision import PRECISIONS, Precision
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.hardware import clock as roofline
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.hardware.limits import Ceilings, Rate
from perf_tests_suite.perf_tests.hardware.machine import OtherProcesses
from perf_tests_suite.perf_tests.predict import machine as machine_ceilings
from perf_tests_suite.perf_tests.predict.machine import cache_path, ceilings_here
from tests.support.example_cases import CEILINGS

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


def test_what_was_measured_is_kept_if_quiet(measurements: list[Ceilings], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the folder cannot be written, which costs nothing else."""
    monkeypatch.setattr(OtherProcesses, "cores", lambda _: 1.0)
    assert "busy machine" in ceilings_here(CPU).source
    assert not cache_path(CPU.torch_device).exists()
    monkeypatch.setattr(OtherProcesses, "cores", lambda _: 0.1)
    assert ceilings_here(CPU) == ceilings_here(CPU) == measurements[1]
    assert len(measurements) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert [ceilings_here(CPU), ceilings_here(CPU)] == measurements[2:]


def edited(cached: bytes, name: str, value: Any) -> bytes:
    data = json.loads(cached)
    return json.dumps({**data, name: {**data[name], **value} if isinstance(value, dict) else value}).encode()


EDITS: list[tuple[str, Any]] = [
    ("identity", {"cpu": "another"}), ("identity", {"torch": "1.0"}), ("identity", {"threads": 99}),
    ("identity", {"gpu": {"name": "another"}}), ("identity", None), ("ceilings", None),
    *(("ceilings", {name: value}) for name, value in (
        ("bytes_per_second", -1), ("bytes_per_second", "fast"), ("bytes_per_second", 10**400),
        ("launch_seconds", None), ("strided_elements_per_second", []), ("strided_elements_per_second", 0),
        ("last_wave_elements", "x"), ("kernel_seconds", None), ("kernel_seconds", -1e-6),
        ("matmul_flops_per_second", [1]), ("matmul_flops_per_second", {"fp32": 0}),
        ("matmul_flops_per_second", {"</script>": 1e9}),
    )),
]  # fmt: skip


def test_a_cache_that_cannot_be_trusted_is_measured_over(measurements: list[Ceilings]) -> None:
    ceilings_here(CPU)
    path = cache_path(CPU.torch_device)
    good = path.read_bytes()
    for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, *(edited(good, *edit) for edit in EDITS)):
        path.write_bytes(content)
        done = len(measurements)
        assert ceilings_here(CPU) == ceilings_here(CPU) == measurements[done], content[:200]
        assert len(measurements) == done + 1


def test_the_instruments_find_ceilings_and_give_back_what_they_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their model multiplies in two threads, whose workspaces would count in the first case's peak.

    Sizes take no time; the figures are real, and only their signs are certain.
    """
    device, calls = CpuDevice(torch.device("cpu")), Mock(launches=Mock(wraps=machine_ceilings.launch_seconds))
    monkeypatch.setattr(machine_ceilings, "launch_seconds", calls.launches)
    monkeypatch.setattr(device, "release_memory", calls.release)
    for name, value in (("_ROUNDS", 2), ("_WIDTH", {"cpu": 64}), ("_ARRAY_BYTES", {"cpu": 2**20})):
        monkeypatch.setattr(roofline, name, value)
    found = machine_ceilings.measured_ceilings(device)
    measured = machine_ceilings.MEASURED_PRECISIONS
    native = {name for name in measured if not PRECISIONS[name].why_unsupported(CPU.torch_device)}
    assert found.matmul_flops_per_second.keys() == found.burst_flops_per_second.keys() == native
    assert (found.launches_overlap, found.kernel_seconds, found.strided_elements_per_second) == (False, 0.0, None)
    called = [name for name, *_ in calls.mock_calls]
    assert (torch.get_float32_matmul_precision(), called) == ("highest", ["launches", "release"])
    monkeypatch.setattr(machine_ceilings, "matmul_rate", lambda *_: Rate(burst=2.0, sustained=1.0))
    found = machine_ceilings.measured_ceilings(device)
    assert (found.matmul_flops_per_second["fp32"], found.burst_flops_per_second["fp32"]) == (1.0, 2.0)


KEPT = replace(CEILINGS, matmul_flops_per_second={"fp32": 1e11}, burst_flops_per_second={"fp32": 1e11})
Bench = Callable[[float], tuple[Workbench, list[str]]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
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


def test_a_kept_rate_is_confirmed_by_a_product_or_measured_again_or_doubted(bench: Bench) -> None:
    """Confirmed, faster, slower, and one that is not kept."""
    for precision, rate, ceiling, bytes_per_second, measured, doubts in (
        ("fp32", 0.98e11, 1e11, 2e10, ["a product"], 0),
        ("fp32", 1.2e11, 1.2e11, 5e10, ["a product", "everything"], 0),
        ("fp32", 0.5e11, 0.5e11, 2e10, ["a product"], 1),
        ("bf16", 3e11, 3e11, 2e10, ["all products"], 0),
    ):
        workbench, done = bench(rate)
        assert [workbench.ceiling(precision) for _ in range(3)] == [ceiling] * 3
        ceilings: Any = workbench.ceilings_for(precision)
        assert (ceilings.bytes_per_second, done, len(workbench.doubts)) == (bytes_per_second, measured, doubts)
        assert all("reach 50% of the rate kept" in doubt and "remove that file" in doubt for doubt in workbench.doubts)


def test_what_was_measured_a_moment_ago_is_not_measured_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    workbench, done = bench(1e11)
    monkeypatch.setattr(machine_ceilings, "kept_ceilings", lambda device: None)
    assert (workbench.ceiling("fp32"), done) == (1e11, ["everything"])
